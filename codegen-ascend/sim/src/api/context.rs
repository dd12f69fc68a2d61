//! Contexts.

use super::put;
use crate::{
    error::{code, fail},
    exports,
    world::{self, Key, handle},
};
use acl::sys::*;

exports! {
    /// Makes a context of a device and makes it current on this thread.
    V8_1 fn aclrtCreateContext(context: *mut aclrtContext, device: i32) {
        let mut world = world::lock();
        let key = world.create_context(device, false)?;
        world.make_current(key)?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, handle(key)) }
    }

    /// Destroys a context that [`aclrtCreateContext`] made.
    V8_1 fn aclrtDestroyContext(context: aclrtContext) {
        let mut world = world::lock();
        let key = context as Key;
        world.ready()?;
        if !world.contexts.contains_key(&key) || world.is_primary(key) {
            return fail(code::INVALID_HANDLE, format!("{context:p} is no context made by aclrtCreateContext"));
        }
        world.remove_context(key);
        Ok(())
    }

    /// Makes a context current on this thread.
    V8_1 fn aclrtSetCurrentContext(context: aclrtContext) {
        world::lock().make_current(context as Key)
    }

    /// The context of this thread.
    V8_1 fn aclrtGetCurrentContext(context: *mut aclrtContext) {
        let key = world::lock().current()?.0;
        // SAFETY: the caller's pointer.
        unsafe { put(context, handle(key)) }
    }
}
