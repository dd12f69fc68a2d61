//! The exported functions, by subject. Each does what the public documentation says of it, on the
//! state in [`crate::world`].

pub mod context;
pub mod device;
pub mod event;
pub mod graph;
pub mod kernel;
pub mod memory;
pub mod sim;
pub mod stream;
pub mod system;

use crate::error::{Result, code, fail};
use acl::Release;
use std::ffi::{CStr, c_char};

/// Every exported function of the runtime and the first release that has it. Functions that the
/// release selected lacks are still there, because a library cannot hide a symbol while it runs; they
/// return 200001.
pub fn exports() -> impl Iterator<Item = (&'static str, Release)> {
    let modules = [
        context::EXPORTS,
        device::EXPORTS,
        event::EXPORTS,
        graph::EXPORTS,
        kernel::EXPORTS,
        memory::EXPORTS,
        stream::EXPORTS,
        system::EXPORTS,
    ];
    modules.into_iter().flatten().copied()
}

/// A text of the caller.
///
/// # Errors
/// 100000 when it is null or not UTF-8.
///
/// # Safety
/// It is null or ends with a zero byte.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return fail(code::INVALID_PARAM, "a text is null");
    }
    // SAFETY: not null; the caller vouches for its end.
    match unsafe { CStr::from_ptr(pointer) }.to_str() {
        Ok(text) => Ok(text),
        Err(_) => fail(code::INVALID_PARAM, "a text is not UTF-8"),
    }
}

/// Gives a result to the caller.
///
/// # Errors
/// 100000 when there is nowhere to put it.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return fail(code::INVALID_PARAM, "a pointer for a result is null");
    }
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { to.write(value) };
    Ok(())
}
