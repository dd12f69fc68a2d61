//! Memory and copies.

use super::put;
use crate::{
    config,
    copies::{self, Copy, When},
    error::{Result, code, fail},
    exports, memory,
    stream::{Kind, Task, try_submit},
    world,
};
use acl::sys::*;
use std::ffi::c_void;

/// Mask of the modifiers of a malloc policy.
const MODIFIERS: u32 = ACL_MEM_TYPE_LOW_BAND_WIDTH | ACL_MEM_TYPE_HIGH_BAND_WIDTH;

exports! {
    /// Device memory: whole 32-byte blocks and one more.
    V8_1 fn aclrtMalloc(pointer: *mut *mut c_void, size: usize, policy: aclrtMemMallocPolicy) {
        // Pages of a gibibyte come without the block that kernels may read beyond the end.
        let plain = policy & !MODIFIERS;
        let exact = plain == ACL_MEM_MALLOC_HUGE1G_ONLY || plain == ACL_MEM_MALLOC_HUGE1G_ONLY_P2P;
        allocate(pointer, size, policy, !exact)
    }

    /// Device memory in whole 32-byte blocks.
    V8_1 fn aclrtMallocAlign32(pointer: *mut *mut c_void, size: usize, policy: aclrtMemMallocPolicy) {
        allocate(pointer, size, policy, false)
    }

    /// Frees device memory.
    V8_1 fn aclrtFree(pointer: *mut c_void) {
        world::lock().current()?;
        memory::free(pointer, false)
    }

    /// Pinned host memory.
    V8_1 fn aclrtMallocHost(pointer: *mut *mut c_void, size: usize) {
        world::lock().current()?;
        if pointer.is_null() {
            return fail(code::INVALID_PARAM, "a pointer for a result is null");
        }
        let start = memory::allocate_pinned(size as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(pointer, start) }
    }

    /// Frees pinned host memory.
    V8_1 fn aclrtFreeHost(pointer: *mut c_void) {
        world::lock().current()?;
        memory::free(pointer, true)
    }

    /// Free and all bytes of the device.
    V8_1 fn aclrtGetMemInfo(attribute: aclrtMemAttr, free: *mut usize, total: *mut usize) {
        let device = world::lock().current()?.1.device;
        if attribute > 12 {
            return fail(code::PARAM, format!("no kind of memory {attribute}"));
        }
        let all = config::memory_bytes();
        let left = all.saturating_sub(memory::used(device));
        // SAFETY: the caller's pointers.
        unsafe {
            put(free, usize::try_from(left).unwrap_or(usize::MAX))?;
            put(total, usize::try_from(all).unwrap_or(usize::MAX))
        }
    }

    /// Pins memory of the caller. Its address on the device is the one on the host.
    V8_1 fn aclrtHostRegister(pointer: *mut c_void, size: u64, kind: u32, device: *mut *mut c_void) {
        world::lock().current()?;
        if kind != 0 {
            return fail(code::PARAM, format!("no kind of registration {kind}"));
        }
        memory::register(pointer, size)?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, pointer) }
    }

    /// Undoes [`aclrtHostRegister`].
    V8_1 fn aclrtHostUnregister(pointer: *mut c_void) {
        world::lock().current()?;
        memory::unregister(pointer)
    }

    /// Copies and waits for it.
    V8_1 fn aclrtMemcpy(
        dst: *mut c_void,
        dst_max: usize,
        src: *const c_void,
        count: usize,
        kind: aclrtMemcpyKind,
    ) {
        let copy = Copy::new(dst, dst_max, src, count, kind)?;
        copies::run(copy, When::Now)
    }

    /// Copies in the order of a stream. With pageable host memory it waits for the stream and copies
    /// before it returns, as documented.
    V8_1 fn aclrtMemcpyAsync(
        dst: *mut c_void,
        dst_max: usize,
        src: *const c_void,
        count: usize,
        kind: aclrtMemcpyKind,
        stream: aclrtStream,
    ) {
        let copy = Copy::new(dst, dst_max, src, count, kind)?;
        copies::run(copy, When::InOrderOf(stream))
    }

    /// Fills device memory and waits for it.
    V8_1 fn aclrtMemset(pointer: *mut c_void, max: usize, value: i32, count: usize) {
        copies::fill(pointer, max, value, count, When::Now)
    }

    /// Fills device memory in the order of a stream.
    V8_1 fn aclrtMemsetAsync(
        pointer: *mut c_void,
        max: usize,
        value: i32,
        count: usize,
        stream: aclrtStream,
    ) {
        copies::fill(pointer, max, value, count, When::InOrderOf(stream))
    }

    /// A hint about the second-level cache, which makes no difference here.
    V8_1 fn aclrtCmoAsync(pointer: *mut c_void, size: usize, kind: u32, stream: aclrtStream) {
        if kind > 3 {
            return fail(code::PARAM, format!("no cache operation {kind}"));
        }
        if size == 0 || memory::find(pointer, size as u64).is_none() {
            return fail(code::PARAM, format!("{size} bytes at {pointer:p} are not memory of the device"));
        }
        try_submit(stream, Task::new("cache hint", Kind::Cache, || Ok(())))
    }
}

fn allocate(pointer: *mut *mut c_void, size: usize, policy: u32, with_margin: bool) -> Result {
    let device = world::lock().current()?.1.device;
    if pointer.is_null() {
        return fail(code::INVALID_PARAM, "a pointer for a result is null");
    }
    if policy & !MODIFIERS > ACL_MEM_MALLOC_HUGE1G_ONLY_P2P {
        return fail(code::PARAM, format!("no malloc policy {policy:#x}"));
    }
    let size = size as u64;
    let usable = if with_margin { memory::padded(size) } else { size.next_multiple_of(32) };
    let start = memory::allocate(device, size, usable)?;
    // SAFETY: the caller's pointer.
    unsafe { put(pointer, start) }
}
