//! Streams and functions of the host in them.

use super::put;
use crate::{
    capture, config,
    error::{Result, code, fail},
    exports,
    graph::build,
    stream::{Kind, Role, Task, drain, try_submit},
    world::{self, Key, World, deadline, handle},
};
use acl::sys::*;
use std::ffi::c_void;

/// Flags that exist.
const KNOWN_FLAGS: u32 = 0x3F;

exports! {
    /// Makes a stream in the current context.
    V8_1 fn aclrtCreateStream(stream: *mut aclrtStream) {
        create(stream, 0)
    }

    /// Makes a stream with flags; the priority makes no difference here.
    V8_1 fn aclrtCreateStreamWithConfig(stream: *mut aclrtStream, priority: u32, flag: u32) {
        if priority > 7 || flag & !KNOWN_FLAGS != 0 {
            return fail(code::PARAM, format!("no stream priority {priority} or flags {flag:#x}"));
        }
        create(stream, flag)
    }

    /// Destroys a stream after its work.
    V8_1 fn aclrtDestroyStream(stream: aclrtStream) {
        let mut world = world::lock();
        let key = disposable(&mut world, stream)?;
        // A failure that nobody asked about goes with the stream.
        drop(drain(world, key, None));
        world::lock().remove_stream(key);
        Ok(())
    }

    /// Destroys a stream and drops its work.
    V8_1 fn aclrtDestroyStreamForce(stream: aclrtStream) {
        let mut world = world::lock();
        let key = disposable(&mut world, stream)?;
        world.abort_stream(key);
        drop(drain(world, key, None));
        world::lock().remove_stream(key);
        Ok(())
    }

    /// Waits for the work of a stream.
    V8_1 fn aclrtSynchronizeStream(stream: aclrtStream) {
        synchronise(stream, -1)
    }

    /// Waits for it with a limit in milliseconds; -1 is none.
    V8_1 fn aclrtSynchronizeStreamWithTimeout(stream: aclrtStream, timeout: i32) {
        if timeout < -1 || timeout == 0 {
            return fail(code::PARAM, format!("a timeout of {timeout} ms"));
        }
        synchronise(stream, timeout)
    }

    /// Whether a stream has work left.
    V8_1 fn aclrtStreamQuery(stream: aclrtStream, status: *mut aclrtStreamStatus) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        capture::observe_stream(&mut world, key, "a query")?;
        let done = world.is_idle(key);
        // SAFETY: the caller's pointer.
        unsafe { put(status, if done { ACL_STREAM_STATUS_COMPLETE } else { ACL_STREAM_STATUS_NOT_READY }) }
    }

    /// Drops the work of a stream.
    V8_1 fn aclrtStreamAbort(stream: aclrtStream) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        capture::observe_stream(&mut world, key, "an abort")?;
        world.abort_stream(key);
        drop(drain(world, key, None));
        Ok(())
    }

    /// A number that tells streams apart.
    V8_1 fn aclrtStreamGetId(stream: aclrtStream, id: *mut i32) {
        let key = world::lock().stream(stream)?;
        // SAFETY: the caller's pointer.
        unsafe { put(id, (key & 0x7FFF_FFFF) as i32 / 64) }
    }

    /// Sets an attribute. Only what happens after a failure makes a difference here.
    V8_3 fn aclrtSetStreamAttribute(
        stream: aclrtStream,
        attribute: aclrtStreamAttr,
        value: *mut aclrtStreamAttrValue,
    ) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        if value.is_null() {
            return fail(code::INVALID_PARAM, "the value of a stream attribute is null");
        }
        match attribute {
            ACL_STREAM_ATTR_FAILURE_MODE => {
                // SAFETY: the caller's pointer; the attribute says which member it is.
                let mode = unsafe { (*value).failureMode };
                if let Some(stream) = world.streams.get_mut(&key) {
                    stream.stop_on_failure = mode == 1;
                }
                Ok(())
            }
            ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK | ACL_STREAM_ATTR_USER_CUSTOM_TAG | ACL_STREAM_ATTR_CACHE_OP_INFO => Ok(()),
            _ => fail(code::PARAM, format!("no stream attribute {attribute}")),
        }
    }

    /// How many more streams there can be.
    V8_5 fn aclrtGetStreamAvailableNum(count: *mut u32) {
        let world = world::lock();
        world.current()?;
        let left = config::streams().saturating_sub(world.queues_in_use());
        // SAFETY: the caller's pointer.
        unsafe { put(count, u32::try_from(left).unwrap_or(u32::MAX)) }
    }

    /// Lets a stream of a graph that is built start another one.
    V8_1 fn aclrtActiveStream(active: aclrtStream, stream: aclrtStream) {
        let mut world = world::lock();
        let (active, stream) = (world.stream(active)?, world.stream(stream)?);
        build::activate(&mut world, active, stream)
    }

    /// Calls a function of the host in the order of a stream.
    V8_5 fn aclrtLaunchHostFunc(stream: aclrtStream, function: aclrtHostFunc, data: *mut c_void) {
        let Some(function) = function else {
            return fail(code::INVALID_PARAM, "the function of the host is null");
        };
        let data = data as usize;
        let work = move || {
            // SAFETY: whoever launched it vouches for the function and its data.
            unsafe { function(data as *mut c_void) };
            Ok(())
        };
        try_submit(stream, Task::new("host function", Kind::Host, work))
    }
}

fn create(stream: *mut aclrtStream, flags: u32) -> Result {
    let mut world = world::lock();
    if stream.is_null() {
        return fail(code::INVALID_PARAM, "a pointer for a result is null");
    }
    let (context, _) = world.current()?;
    let key = world.create_stream(context, flags)?;
    // SAFETY: the caller's pointer.
    unsafe { put(stream, handle(key)) }
}

/// A stream that may be destroyed.
fn disposable(world: &mut World, stream: aclrtStream) -> Result<Key> {
    if stream.is_null() {
        return fail(code::PARAM, "the default stream cannot be destroyed");
    }
    let key = world.stream(stream)?;
    capture::observe_stream(world, key, "the end")?;
    if matches!(world.streams[&key].role, Role::Bound(_)) {
        return fail(code::STREAM_MODEL, "the stream is bound to a graph");
    }
    Ok(key)
}

fn synchronise(stream: aclrtStream, timeout: i32) -> Result {
    let mut world = world::lock();
    let key = world.stream(stream)?;
    capture::observe_stream(&mut world, key, "a synchronisation")?;
    drain(world, key, deadline(timeout))
}
