//! Functions of the software device alone: settings, faults and what was counted.

use super::{put, text};
use crate::{
    call, config,
    error::{Result, code, fail, report},
    kernel, memory, objects, world,
};
use acl::sys::aclError;
use std::{
    ffi::c_char,
    panic::{AssertUnwindSafe, catch_unwind},
};

fn enter(body: impl FnOnce() -> Result) -> aclError {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    outcome
        .unwrap_or_else(|_| fail(code::INTERNAL, "the software device has a defect"))
        .map_or_else(report, |()| 0)
}

/// Sets a variable of [`config`]; a null value goes back to the environment.
///
/// # Safety
/// Both are null or end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascendSimConfigure(name: *const c_char, value: *const c_char) -> aclError {
    enter(|| {
        // SAFETY: the caller's texts.
        let name = unsafe { text(name) }?;
        // SAFETY: as above.
        let value = if value.is_null() { None } else { Some(unsafe { text(value) }?) };
        config::set(name, value)
    })
}

/// Makes the `nth` call from now (1 is the next) of an exported function return `code` and do nothing.
///
/// # Safety
/// The name is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascendSimFail(
    function: *const c_char,
    nth: u32,
    code: aclError,
) -> aclError {
    enter(|| {
        // SAFETY: the caller's text.
        call::fail_call(unsafe { text(function) }?, nth, code);
        Ok(())
    })
}

/// Makes the `nth` task from now whose name contains `name` fail on the device: the call that submits
/// it succeeds, and a later synchronisation returns `code`.
///
/// # Safety
/// The name is null or ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascendSimFailTask(
    name: *const c_char,
    nth: u32,
    code: aclError,
) -> aclError {
    enter(|| {
        // SAFETY: the caller's text.
        call::fail_task(unsafe { text(name) }?, nth, code);
        Ok(())
    })
}

/// Reads a counter: `calls/FUNCTION`, `live/TYPE`, `leaked/TYPE`, `replays`, `copies/h2d`,
/// `bytes/h2d` and so on; one that nothing has counted is 0.
///
/// # Safety
/// The name is null or ends with a zero byte; the result is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascendSimCounter(name: *const c_char, value: *mut u64) -> aclError {
    enter(|| {
        // SAFETY: the caller's text and pointer.
        unsafe { put(value, call::counter(text(name)?)) }
    })
}

/// Writes every counter as lines `NAME VALUE` and returns the bytes that takes, a closing zero byte
/// included; writes nothing when there is not that much room.
///
/// # Safety
/// `room` bytes are writable, or the pointer is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ascendSimReport(to: *mut c_char, room: usize) -> usize {
    let text = call::report_text();
    let needed = text.len() + 1;
    if !to.is_null() && room >= needed {
        // SAFETY: there is room for the text and its end.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
            to.add(text.len()).write(0);
        }
    }
    needed
}

/// As a process that starts anew: forgets every object, setting, fault and counter. Nothing may be in
/// the middle of a call.
#[unsafe(no_mangle)]
pub extern "C" fn ascendSimReset() -> aclError {
    enter(|| {
        world::quiesce();
        world::lock().clear();
        kernel::clear();
        memory::release_all(None);
        objects::clear();
        config::clear();
        call::clear();
        Ok(())
    })
}
