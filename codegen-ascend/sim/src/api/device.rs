//! Devices.

use super::put;
use crate::{
    call, capture, config,
    error::{Result, code, fail},
    exports,
    stream::drain,
    world::{self, deadline},
};
use acl::{Release, sys::*};
use std::{
    ffi::{CString, c_char},
    ptr,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// Unified buffer of a vector core in bytes.
const UNIFIED_BUFFER_BYTES: i64 = 192 << 10;

/// How long the last reset waits for a stream before it drops its work.
const STUCK_MS: i32 = 5000;

exports! {
    /// Makes a device's own context current on this thread; counted.
    V8_1 fn aclrtSetDevice(device: i32) {
        world::lock().set_device(device)
    }

    /// Takes back one use; the last one waits for the device's work and frees what is left on it.
    V8_1 fn aclrtResetDevice(device: i32) {
        reset(device, false)
    }

    /// Takes back all uses.
    V8_1 fn aclrtResetDeviceForce(device: i32) {
        reset(device, true)
    }

    /// The device of the current context.
    V8_1 fn aclrtGetDevice(device: *mut i32) {
        let number = world::lock().current()?.1.device;
        // SAFETY: the caller's pointer.
        unsafe { put(device, number) }
    }

    /// Number of devices.
    V8_1 fn aclrtGetDeviceCount(count: *mut u32) {
        // SAFETY: the caller's pointer.
        unsafe { put(count, config::devices()) }
    }

    /// Waits for all work of the current device.
    V8_1 fn aclrtSynchronizeDevice() {
        synchronise(None)
    }

    /// Waits for it with a limit in milliseconds.
    V8_1 fn aclrtSynchronizeDeviceWithTimeout(timeout: i32) {
        synchronise(deadline(timeout))
    }

    /// A fact about a device.
    V8_5 fn aclrtGetDeviceInfo(device: u32, attr: aclrtDevAttr, value: *mut i64) {
        let (cubes, vectors, cache) = known(device)?;
        let fact = match attr {
            ACL_DEV_ATTR_AICPU_CORE_NUM => 6,
            ACL_DEV_ATTR_AICORE_CORE_NUM | ACL_DEV_ATTR_CUBE_CORE_NUM => cubes,
            ACL_DEV_ATTR_VECTOR_CORE_NUM => vectors,
            ACL_DEV_ATTR_LOCAL_MEM_PER_VECTOR_CORE => UNIFIED_BUFFER_BYTES,
            ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE => i64::try_from(config::memory_bytes()).unwrap_or(i64::MAX),
            ACL_DEV_ATTR_L2_CACHE_SIZE => cache,
            _ => return fail(code::PARAM, format!("no device attribute {attr}")),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, fact) }
    }

    /// A fact about a device, as older releases tell it.
    V8_1 fn aclGetDeviceCapability(device: u32, info: aclDeviceInfo, value: *mut i64) {
        let (cubes, vectors, cache) = known(device)?;
        let fact = match info {
            ACL_DEVICE_INFO_AI_CORE_NUM => cubes,
            ACL_DEVICE_INFO_VECTOR_CORE_NUM => vectors,
            ACL_DEVICE_INFO_L2_SIZE => cache,
            _ => return fail(code::INVALID_PARAM, format!("no device capability {info}")),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, fact) }
    }
}

fn known(device: u32) -> Result<(i64, i64, i64)> {
    if device >= config::devices() {
        return fail(code::DEVICE, format!("no device {device}; there are {}", config::devices()));
    }
    Ok(config::cores(&config::soc()))
}

/// Waits for every stream of the current context's device.
fn synchronise(limit: Option<Instant>) -> Result {
    let mut world = world::lock();
    let (context, found) = world.current()?;
    let device = found.device;
    capture::observe_context(&mut world, context, "a synchronisation of the device")?;
    let of_device =
        |context: &u64| world.contexts.get(context).is_some_and(|context| context.device == device);
    let streams: Vec<_> = world
        .streams
        .iter()
        .filter(|(_, stream)| of_device(&stream.context))
        .map(|(key, _)| *key)
        .collect();
    drop(world);
    let outcomes = streams.into_iter().map(|stream| drain(world::lock(), stream, limit));
    // All of them are waited for, and the first failure is told.
    outcomes.fold(Ok(()), Result::and)
}

fn reset(device: i32, all: bool) -> Result {
    let mut world = world::lock();
    if !world.reset_device(device, all)? {
        return Ok(());
    }
    let Some(context) = world.primary(device) else { return Ok(()) };
    let streams: Vec<_> = world
        .streams
        .iter()
        .filter(|(_, stream)| stream.context == context)
        .map(|(key, _)| *key)
        .collect();
    for stream in streams {
        drop(world);
        // What failed is of no concern to one who leaves.
        drop(drain(world::lock(), stream, deadline(STUCK_MS)));
        world = world::lock();
    }
    world.remove_context(context);
    Ok(())
}

/// Name of the chip; stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    static NAMES: Mutex<Vec<CString>> = Mutex::new(Vec::new());
    if call::admit("aclrtGetSocName", Release::V8_1).is_err() {
        return ptr::null();
    }
    let name = CString::new(config::soc().replace('\0', "")).unwrap_or_default();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    // Names are few and are never dropped, so that what was handed out stays valid.
    if let Some(known) = names.iter().find(|known| **known == name) {
        return known.as_ptr();
    }
    let pointer = name.as_ptr();
    names.push(name);
    pointer
}
