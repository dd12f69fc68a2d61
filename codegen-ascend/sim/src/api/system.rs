//! Start, end, versions and the text of errors.

use super::put;
use crate::{
    call, config,
    error::{self, code, fail, report},
    exports, world,
};
use acl::{Release, sys::*};
use std::{ffi::c_char, ptr};

exports! {
    /// Starts the runtime. The configuration file is not read.
    V8_1 fn aclInit(_config_path: *const c_char) {
        world::lock().initialise()
    }

    /// Ends the runtime.
    V8_1 fn aclFinalize() {
        world::lock().finalise()
    }

    /// The version of the interface, which tells the release selected.
    V8_1 fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) {
        let version = config::interface_version(config::release());
        // SAFETY: the caller's pointers.
        unsafe {
            put(major, version.0)?;
            put(minor, version.1)?;
            put(patch, version.2)
        }
    }

    /// The version of a package.
    V8_1 fn aclsysGetCANNVersion(name: aclCANNPackageName, version: *mut aclCANNPackageVersion) {
        if name > ACL_PKG_NAME_DRIVER {
            return fail(code::INVALID_PARAM, format!("no package {name}"));
        }
        // SAFETY: all bytes zero is a version of empty texts.
        let mut found: aclCANNPackageVersion = unsafe { std::mem::zeroed() };
        let (major, minor) = match config::release() {
            Release::V8_1 => ("8", "1"),
            Release::V8_3 => ("8", "3"),
            Release::V8_5 => ("8", "5"),
            Release::V9 => ("9", "0"),
        };
        write(&mut found.version, &format!("{major}.{minor}.0"));
        write(&mut found.majorVersion, major);
        write(&mut found.minorVersion, minor);
        write(&mut found.releaseVersion, "0");
        write(&mut found.patchVersion, "0");
        // SAFETY: the caller's pointer.
        unsafe { put(version, found) }
    }
}

/// Writes a text that ends with a zero byte; what does not fit is cut.
fn write(to: &mut [c_char], text: &str) {
    let room = to.len().saturating_sub(1);
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The text of this thread's last failure, or null; reading it consumes it.
#[unsafe(no_mangle)]
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    match call::admit("aclGetRecentErrMsg", Release::V8_1) {
        Ok(()) => error::recent_text(),
        Err(_) => ptr::null(),
    }
}

/// This thread's last code, which is forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetLastError(_level: u32) -> aclError {
    call::admit("aclrtGetLastError", Release::V8_1).map_or_else(report, |()| error::last_code(true))
}

/// This thread's last code.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtPeekAtLastError(_level: u32) -> aclError {
    call::admit("aclrtPeekAtLastError", Release::V8_1)
        .map_or_else(report, |()| error::last_code(false))
}
