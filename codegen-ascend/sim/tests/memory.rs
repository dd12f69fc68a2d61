//! Memory has the documented size and alignment, and what goes beyond it is found.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::sys::*;
use ascend_sim::{
    api::{memory::*, stream::*},
    memory::{Place, find, padded},
};
use std::{ffi::c_void, ptr::null_mut};
use support::*;

#[test]
fn allocations_are_padded_aligned_and_filled_with_what_shows() {
    let _sim = Sim::new();
    for bytes in [1, 31, 32, 33, 64, 1000, 1 << 20] {
        let start = device_memory(bytes);
        let usable = (bytes as u64).next_multiple_of(32) + 32;
        assert_eq!(padded(bytes as u64), usable);
        assert_eq!(start as usize % 64, 0, "aligned");
        assert_ne!(start as usize % 128, 0, "and no more than documented");
        let found = find(start, usable).unwrap();
        assert_eq!(
            (found.bytes, found.usable, found.place),
            (bytes as u64, usable, Place::Device(0))
        );
        assert!(find(start, usable + 1).is_none());
        // SAFETY: it was just made with at least one byte.
        assert_eq!(unsafe { start.cast::<u8>().read() }, 0xFF, "fresh memory is not zero");
        // SAFETY: as above.
        assert_eq!(unsafe { aclrtFree(start) }, 0);
        assert!(find(start, 1).is_none());
    }
    let mut start = null_mut();
    // SAFETY: the result is writable.
    unsafe {
        assert_eq!(aclrtMallocAlign32(&mut start, 33, 0), 0);
        assert_eq!(find(start, 0).unwrap().usable, 64, "without the margin");
        assert_eq!(aclrtMalloc(&mut start, 33, ACL_MEM_MALLOC_HUGE1G_ONLY), 0);
        assert_eq!(find(start, 0).unwrap().usable, 64, "nor with the largest pages");
        assert_eq!(aclrtMalloc(&mut start, 0, 0), 107000);
        assert_eq!(aclrtMalloc(&mut start, 8, 9), 107000);
        assert_eq!(aclrtMalloc(null_mut(), 8, 0), 100000);
    }
}

#[test]
fn memory_runs_out() {
    let _sim = Sim::with(&[("ASCEND_SIM_MEMORY_BYTES", "1000")]);
    let mut start = null_mut();
    let (mut free, mut total) = (0, 0);
    // SAFETY: the results are writable.
    unsafe {
        assert_eq!(aclrtGetMemInfo(ACL_HBM_MEM, &mut free, &mut total), 0);
        assert_eq!((free, total), (1000, 1000));
        assert_eq!(aclrtMalloc(&mut start, 900, 0), 0);
        assert_eq!(aclrtGetMemInfo(ACL_HBM_MEM, &mut free, &mut total), 0);
        assert_eq!(free, 1000 - 960);
        let mut more = null_mut();
        assert_eq!(aclrtMalloc(&mut more, 30, 0), 207018);
        assert!(message().contains("960 of 1000"), "{}", message());
        assert_eq!(aclrtFree(start), 0);
        assert_eq!(aclrtMalloc(&mut more, 30, 0), 0);
    }
}

#[test]
fn a_free_of_something_else_is_refused() {
    let _sim = Sim::new();
    let (device, host) = (device_memory(64), pinned(64));
    // SAFETY: any address may be passed.
    unsafe {
        assert_eq!(aclrtFree(host), 107000);
        assert_eq!(aclrtFreeHost(device), 107000);
        assert_eq!(aclrtFree(device.wrapping_byte_add(32)), 107000);
        assert_eq!(aclrtFree(null_mut()), 107000);
        assert_eq!(aclrtFree(device), 0);
        assert_eq!(aclrtFree(device), 107000);
        assert_eq!(aclrtFreeHost(host), 0);
    }
    assert_eq!((counter("live/device_memory"), counter("live/pinned_memory")), (0, 0));
}

#[test]
fn a_write_beyond_the_end_or_before_the_start_is_found() {
    // Relative to the start of 100 bytes, of which 160 are usable.
    for (at, is_bad) in
        [(0, false), (99, false), (159, false), (160, true), (-1, true), (223, true)]
    {
        let _sim = Sim::new();
        let (own, start) = (stream(), device_memory(100));
        let target = start as isize + at;
        // SAFETY: guards are part of what was really allocated.
        let write = move || unsafe {
            (target as *mut u8).write(1);
            Ok(())
        };
        assert_eq!(task(own, "writer", write), 0);
        assert_eq!(sync(own), if is_bad { 507015 } else { 0 }, "{at}");
        assert_eq!(message().contains("100 bytes"), is_bad);
        assert_eq!(sync(own), 0, "told once");
        // And on the way out, where nobody has synchronised.
        assert_eq!(task(own, "writer", write), 0);
        while {
            let mut status = 0;
            // SAFETY: the result is writable.
            unsafe { aclrtStreamQuery(own, &mut status) };
            status != ACL_STREAM_STATUS_COMPLETE
        } {}
        // SAFETY: it was made above.
        assert_eq!(unsafe { aclrtFree(start) }, if is_bad { 507015 } else { 0 }, "{at}");
    }
}

#[test]
fn copies_check_kinds_and_bounds() {
    let _sim = Sim::new();
    let (device, other, host) = (device_memory(64), device_memory(64), pinned(64));
    let mut pageable = [0_u8; 256];
    let pageable: *mut c_void = pageable.as_mut_ptr().cast();
    // Destination, its room, source, count, kind, code. The device's memory has 96 usable bytes.
    let cases: &[(*mut c_void, usize, *mut c_void, usize, u32, i32)] = &[
        (device, 64, host, 64, 1, 0),
        (device, 64, pageable, 64, 1, 0),
        (host, 64, device, 64, 2, 0),
        (pageable, 64, device, 64, 2, 0),
        (device, 64, other, 64, 3, 0),
        (pageable, 64, host, 64, 0, 0),
        (device, 64, host, 64, 4, 0),
        (pageable, 64, device, 64, 4, 0),
        (device, 96, other, 96, 3, 0),
        // Kinds that are not those of the memory.
        (device, 64, host, 64, 2, 107016),
        (device, 64, host, 64, 3, 107016),
        (host, 64, device, 64, 1, 107016),
        (device, 64, other, 64, 0, 107016),
        (device, 64, host, 64, 8, 107000),
        // Bounds.
        (device, 63, host, 64, 1, 107000),
        (device, 97, other, 64, 3, 107000),
        (device, 97, pageable, 97, 1, 107000),
        (pageable, 97, device, 97, 2, 107000),
        (device.wrapping_byte_add(64), 33, host, 33, 1, 107000),
        (host, 65, device, 65, 2, 107000),
        (device, 64, host, 0, 1, 107000),
        (null_mut(), 64, host, 64, 1, 107000),
        (device, 64, null_mut(), 64, 1, 107000),
    ];
    let own = stream();
    for (i, &(dst, max, src, count, kind, code)) in cases.iter().enumerate() {
        // SAFETY: what is not of the device or pinned has 256 bytes.
        unsafe {
            assert_eq!(aclrtMemcpy(dst, max, src, count, kind), code, "case {i}: {}", message());
            assert_eq!(aclrtMemcpyAsync(dst, max, src, count, kind, own), code, "async case {i}");
        }
    }
    assert_eq!(sync(own), 0);
}

#[test]
fn fills_check_bounds_and_fill() {
    let _sim = Sim::new();
    let (own, device, host) = (stream(), device_memory(64), pinned(64));
    // SAFETY: any address may be passed; what is written is the device's.
    unsafe {
        assert_eq!(aclrtMemset(device, 64, 0x1A5, 10), 0);
        assert_eq!(aclrtMemsetAsync(device.wrapping_byte_add(10), 54, 7, 54, own), 0);
        assert_eq!(sync(own), 0);
        let bytes = device.cast::<[u8; 64]>().read();
        assert!(
            bytes[..10].iter().all(|byte| *byte == 0xA5)
                && bytes[10..].iter().all(|byte| *byte == 7)
        );
        assert_eq!(aclrtMemset(device, 10, 0, 11), 107000);
        assert_eq!(aclrtMemset(device, 97, 0, 1), 107000);
        assert_eq!(aclrtMemset(host, 64, 0, 64), 107000, "not the device's");
    }
}

#[test]
fn a_pageable_copy_waits_and_a_pinned_one_does_not() {
    let _sim = Sim::new();
    let (own, device, host) = (stream(), device_memory(4), pinned(4));
    let mut pageable = 3_u32;
    let door = Door::default();
    door.block(own);
    // SAFETY: all are memory of 4 bytes that outlives the copies.
    unsafe {
        host.cast::<u32>().write(1);
        assert_eq!(aclrtMemcpyAsync(device, 4, host, 4, 1, own), 0);
        host.cast::<u32>().write(2);
        door.open();
        // It comes after the pinned one and is done when it returns.
        let from = (&raw mut pageable).cast();
        assert_eq!(aclrtMemcpyAsync(from, 4, device, 4, 2, own), 0);
        assert_eq!(pageable, 2, "the pinned copy read its source when it ran");
    }
    assert_eq!((counter("copies/h2d"), counter("bytes/h2d")), (1, 4));
    assert_eq!((counter("copies/d2h"), counter("bytes/d2h")), (1, 4));
}

#[test]
fn registered_memory_is_pinned() {
    let _sim = Sim::new();
    let (own, device) = (stream(), device_memory(64));
    let mut host = vec![0_u8; 64];
    let pointer: *mut c_void = host.as_mut_ptr().cast();
    let mut mapped = null_mut();
    // SAFETY: the memory outlives its registration.
    unsafe {
        assert_eq!(aclrtHostRegister(pointer, 64, 0, &mut mapped), 0);
        assert_eq!(mapped, pointer);
        assert_eq!(aclrtHostRegister(pointer, 64, 0, &mut mapped), 107000);
        assert_eq!(begin(own, 0), 0);
        assert_eq!(aclrtMemcpyAsync(device, 64, pointer, 64, 1, own), 0);
        assert_eq!(end(own).0, 0);
        assert_eq!(aclrtFreeHost(pointer), 107000, "it is not ours to free");
        assert_eq!(aclrtHostUnregister(pointer), 0);
        assert_eq!(aclrtHostUnregister(pointer), 107000);
    }
}
