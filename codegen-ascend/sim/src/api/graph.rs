//! Graphs: capture, replay, task groups and explicit build.

use super::put;
use crate::{
    capture::{self, Mode},
    error::{Result, code, fail},
    exports,
    graph::{build, update},
    stream::drain,
    world::{self, Key, deadline, handle},
};
use acl::sys::*;
use std::ffi::{c_char, c_void};

exports! {
    /// Starts to record what is submitted to a stream.
    V8_1 fn aclmdlRICaptureBegin(stream: aclrtStream, mode: aclmdlRICaptureMode) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        capture::begin(&mut world, key, Mode::from_number(mode)?).map(drop)
    }

    /// State of a stream's capture, and the handle that its graph will have.
    V8_1 fn aclmdlRICaptureGetInfo(
        stream: aclrtStream,
        status: *mut aclmdlRICaptureStatus,
        graph: *mut aclmdlRI,
    ) {
        let world = world::lock();
        let key = world.stream(stream)?;
        let (found, capture) = capture::info(&world, key);
        // SAFETY: the caller's pointers; that of the graph may be null.
        unsafe {
            put(status, found)?;
            if graph.is_null() { Ok(()) } else { put(graph, handle(capture)) }
        }
    }

    /// Ends a capture.
    V8_1 fn aclmdlRICaptureEnd(stream: aclrtStream, graph: *mut aclmdlRI) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        // SAFETY: the caller's pointer.
        unsafe { put(graph, handle(0)) }?;
        let made = capture::end(&mut world, key)?;
        // SAFETY: as above.
        unsafe { put(graph, handle(made)) }
    }

    /// Swaps the mode by which this thread's calls are judged.
    V8_1 fn aclmdlRICaptureThreadExchangeMode(mode: *mut aclmdlRICaptureMode) {
        if mode.is_null() {
            return fail(code::INVALID_PARAM, "the mode is null");
        }
        // SAFETY: the caller's pointer.
        let wanted = Mode::from_number(unsafe { *mode })?;
        let before = capture::exchange_mode(wanted);
        // SAFETY: as above.
        unsafe { put(mode, before as u32) }
    }

    /// Starts a task group.
    V8_1 fn aclmdlRICaptureTaskGrpBegin(stream: aclrtStream) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        capture::begin_group(&mut world, key)
    }

    /// Ends a task group.
    V8_1 fn aclmdlRICaptureTaskGrpEnd(stream: aclrtStream, group: *mut aclrtTaskGrp) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        if group.is_null() {
            return fail(code::INVALID_PARAM, "a pointer for a result is null");
        }
        let made = capture::end_group(&mut world, key)?;
        // SAFETY: the caller's pointer.
        unsafe { put(group, handle(made)) }
    }

    /// Starts to give the tasks of a group new parameters.
    V8_1 fn aclmdlRICaptureTaskUpdateBegin(stream: aclrtStream, group: aclrtTaskGrp) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        update::begin(&mut world, key, group)
    }

    /// Ends it.
    V8_1 fn aclmdlRICaptureTaskUpdateEnd(stream: aclrtStream) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        update::end(&mut world, key)
    }

    /// Puts a replay on a stream.
    V8_1 fn aclmdlRIExecuteAsync(graph: aclmdlRI, stream: aclrtStream) {
        let mut world = world::lock();
        let (graph, stream) = (world.graph(graph)?, world.stream(stream)?);
        world.execute(graph, stream)
    }

    /// Replays and waits for it, with a limit in milliseconds; -1 is none.
    V8_5 fn aclmdlRIExecute(graph: aclmdlRI, timeout: i32) {
        let mut world = world::lock();
        let graph = world.graph(graph)?;
        let stream = world.current()?.1.default_stream;
        world.execute(graph, stream)?;
        drain(world, stream, deadline(timeout))
    }

    /// Makes a running replay give up.
    V8_5 fn aclmdlRIAbort(graph: aclmdlRI) {
        world::lock().graph(graph)?.abort();
        world::CHANGED.notify_all();
        Ok(())
    }

    /// Destroys a graph that is not in flight.
    V8_1 fn aclmdlRIDestroy(graph: aclmdlRI) {
        let mut world = world::lock();
        let graph = world.graph(graph)?;
        world.destroy_graph(&graph)
    }

    /// The streams of a graph. They are the graph's own: nothing can be submitted to them.
    V9 fn aclmdlRIGetStreams(graph: aclmdlRI, streams: *mut aclrtStream, count: *mut u32) {
        let graph = world::lock().graph(graph)?;
        let found = (0..graph.branches.len()).map(|branch| graph.stream_handle(branch));
        // SAFETY: the caller's array and its length.
        unsafe { list(found.map(handle).collect(), streams, count) }
    }

    /// The tasks of such a stream; records of events and waits for them count.
    V9 fn aclmdlRIGetTasksByStream(stream: aclrtStream, tasks: *mut aclmdlRITask, count: *mut u32) {
        let world = world::lock();
        world.current()?;
        let found = world.graphs.values().find_map(|graph| graph.tasks_of(stream as Key));
        let Some(found) = found else {
            return fail(code::INVALID_HANDLE, format!("{stream:p} is no stream of a graph"));
        };
        // SAFETY: the caller's array and its length.
        unsafe { list(found.map(handle).collect(), tasks, count) }
    }

    /// Starts a graph that is built explicitly.
    V8_5 fn aclmdlRIBuildBegin(graph: *mut aclmdlRI, flag: u32) {
        if graph.is_null() {
            return fail(code::INVALID_PARAM, "a pointer for a result is null");
        }
        let made = build::begin(&mut world::lock(), flag)?;
        // SAFETY: the caller's pointer.
        unsafe { put(graph, handle(made)) }
    }

    /// Makes what is submitted to a stream part of a graph.
    V8_5 fn aclmdlRIBindStream(graph: aclmdlRI, stream: aclrtStream, flag: u32) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        build::bind(&mut world, graph, key, flag)
    }

    /// Marks the end of a graph on a stream.
    V8_5 fn aclmdlRIEndTask(graph: aclmdlRI, stream: aclrtStream) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        build::end_task(&mut world, graph, key)
    }

    /// Completes a graph.
    V8_5 fn aclmdlRIBuildEnd(graph: aclmdlRI, reserve: *mut c_void) {
        if !reserve.is_null() {
            return fail(code::PARAM, "the reserved argument is not null");
        }
        build::end(&mut world::lock(), graph)
    }

    /// Takes a stream out of a graph.
    V8_5 fn aclmdlRIUnbindStream(graph: aclmdlRI, stream: aclrtStream) {
        let mut world = world::lock();
        let key = world.stream(stream)?;
        build::unbind(&mut world, graph, key)
    }

    /// Names a graph. The name is not used.
    V8_5 fn aclmdlRISetName(graph: aclmdlRI, name: *const c_char) {
        let world = world::lock();
        known(&world, graph)?;
        if name.is_null() {
            return fail(code::INVALID_PARAM, "the name is null");
        }
        Ok(())
    }
}

/// Gives a list to the caller.
///
/// # Errors
/// 100000 without a place for the count, 107000 when there is not enough room; the count is then what
/// it takes.
///
/// # Safety
/// The count is null or says for how many items there is room.
unsafe fn list(found: Vec<*mut c_void>, to: *mut *mut c_void, count: *mut u32) -> Result {
    if count.is_null() {
        return fail(code::INVALID_PARAM, "a pointer for a count is null");
    }
    // SAFETY: not null; the caller vouches for the rest.
    let room = unsafe { count.replace(found.len() as u32) } as usize;
    if to.is_null() || room < found.len() {
        return fail(code::PARAM, format!("room for {room} items, and there are {}", found.len()));
    }
    // SAFETY: there is room for them.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to, found.len()) };
    Ok(())
}

/// A graph that is complete or being built.
fn known(world: &world::World, graph: aclmdlRI) -> Result {
    if world.builds.contains_key(&(graph as Key)) {
        return Ok(());
    }
    world.graph(graph).map(drop)
}
