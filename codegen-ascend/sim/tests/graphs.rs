//! Task groups with their updates, and graphs that are built explicitly.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::sys::*;
use ascend_sim::{
    api::{event::*, graph::*, stream::*},
    stream::{Kind, Task, submit},
};
use std::ptr::null_mut;
use support::*;

fn group_begin(stream: aclrtStream) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclmdlRICaptureTaskGrpBegin(stream) }
}

fn group_end(stream: aclrtStream) -> (i32, aclrtTaskGrp) {
    let mut group = null_mut();
    // SAFETY: the result is writable.
    let code = unsafe { aclmdlRICaptureTaskGrpEnd(stream, &mut group) };
    (code, group)
}

fn update_begin(stream: aclrtStream, group: aclrtTaskGrp) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclmdlRICaptureTaskUpdateBegin(stream, group) }
}

fn update_end(stream: aclrtStream) -> i32 {
    // SAFETY: any handle may be passed.
    unsafe { aclmdlRICaptureTaskUpdateEnd(stream) }
}

/// A task named `op` that writes `line`.
fn op(log: &Log, stream: aclrtStream, line: &str) -> i32 {
    submit(stream, Task::new("op", Kind::Operator, log.writer(line)))
}

#[test]
fn an_update_replaces_the_tasks_of_a_group_and_no_others() {
    let _sim = Sim::new();
    let (own, updates, log) = (stream(), stream(), Log::default());
    let ready = flag_event(ACL_EVENT_EXTERNAL);
    assert_eq!(begin(own, 0), 0);
    assert_eq!(op(&log, own, "before"), 0);
    // The documented protocol: the graph waits for the update, and the update raises the event.
    assert_eq!(wait(own, ready), 0);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclrtResetEvent(ready, own) }, 0);
    assert_eq!(group_begin(own), 0);
    assert_eq!(op(&log, own, "a0"), 0);
    assert_eq!(op(&log, own, "b0"), 0);
    let (code, group) = group_end(own);
    assert_eq!(code, 0);
    assert_eq!(update_begin(updates, group), 107033, "the capture is not over");
    let (code, graph) = end(own);
    assert_eq!(code, 0);
    for round in 1..3 {
        assert_eq!(execute(graph, own), 0);
        assert_eq!(update_begin(updates, group), 0);
        assert_eq!(op(&log, updates, &format!("a{round}")), 0);
        assert_eq!(op(&log, updates, &format!("b{round}")), 0);
        assert_eq!(update_end(updates), 0);
        assert_eq!(record(ready, updates), 0);
        assert_eq!(sync(own), 0);
        assert_eq!(log.take(), ["before".into(), format!("a{round}"), format!("b{round}")]);
    }
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclmdlRIDestroy(graph) }, 0);
    assert_eq!(update_begin(updates, group), 107017);
}

#[test]
fn groups_and_updates_have_their_rules() {
    let _sim = Sim::new();
    let (own, other, log) = (stream(), stream(), Log::default());
    assert_eq!(group_begin(own), 107029, "outside a capture");
    assert_eq!(update_end(own), 107033, "none is open");
    assert_eq!(begin(own, 0), 0);
    assert_eq!(group_end(own).0, 107033, "none is open");
    assert_eq!(group_begin(own), 0);
    assert_eq!(group_begin(own), 107033, "one is open");
    assert_eq!(submit(own, Task::new("copy", Kind::Copy, || Ok(()))), 507009);
    assert_eq!(op(&log, own, "old"), 0);
    let (code, group) = group_end(own);
    assert_eq!(code, 0);
    let (code, graph) = end(own);
    assert_eq!(code, 0);
    // Another number of tasks, another operator, another kind.
    for bad in 0..3 {
        assert_eq!(update_begin(other, group), 0);
        assert_eq!(update_begin(other, group), 107033);
        match bad {
            0 => {}
            1 => assert_eq!(submit(other, Task::new("another", Kind::Operator, || Ok(()))), 0),
            _ => assert_eq!(submit(other, Task::new("op", Kind::Kernel, || Ok(()))), 0),
        }
        assert_eq!(update_end(other), 207019, "{bad}");
    }
    assert_eq!(begin(other, 0), 0);
    assert_eq!(update_begin(other, group), 107027, "the stream is being captured");
    assert_eq!(group_begin(other), 0);
    assert_eq!(end(other).0, 107034, "inside a group");
    assert_eq!(execute(graph, own), 0);
    assert_eq!(sync(own), 0);
    assert_eq!(log.take(), ["old"], "a refused update changes nothing");
}

#[test]
fn a_graph_is_built_from_bound_streams() {
    for shuffle in ["", "0", "1", "2"] {
        let _sim = Sim::with(&[("ASCEND_SIM_SHUFFLE", shuffle)]);
        let (head, side, own) = (stream_with(4), stream_with(4), stream());
        let (join, log) = (event(), Log::default());
        let mut graph = null_mut();
        // SAFETY: the result is writable, any handle may be passed.
        unsafe {
            assert_eq!(aclmdlRIBuildBegin(&mut graph, 0), 0);
            assert_eq!(
                aclmdlRIBindStream(graph, own, ACL_MODEL_STREAM_FLAG_HEAD),
                107000,
                "not persistent"
            );
            assert_eq!(aclmdlRIBindStream(graph, head, ACL_MODEL_STREAM_FLAG_HEAD), 0);
            assert_eq!(aclmdlRIBindStream(graph, head, ACL_MODEL_STREAM_FLAG_HEAD), 107005);
            assert_eq!(aclmdlRIBindStream(graph, side, ACL_MODEL_STREAM_FLAG_DEFAULT), 0);
            assert_eq!(log.task(head, "first"), 0);
            assert_eq!(aclrtActiveStream(side, head), 0);
            assert_eq!(log.task(side, "side"), 0);
            assert_eq!(record(join, side), 0);
            assert_eq!(wait(head, join), 0);
            assert_eq!(log.task(head, "last"), 0);
            assert_eq!(aclmdlRIBuildEnd(graph, null_mut()), 107024, "no end");
            assert_eq!(aclmdlRIEndTask(graph, own), 107005);
            assert_eq!(aclmdlRIEndTask(graph, head), 0);
            assert_eq!(aclmdlRIExecuteAsync(graph, own), 107017, "not complete");
            assert_eq!(aclmdlRIBuildEnd(graph, null_mut()), 0);
            assert_eq!(log.task(head, "late"), 107005);
            for _ in 0..2 {
                assert_eq!(execute(graph, own), 0);
                assert_eq!(sync(own), 0);
                assert_eq!(log.take(), ["first", "side", "last"]);
            }
            assert_eq!(aclmdlRIExecute(graph, -1), 0);
            assert_eq!(log.take().len(), 3);
            assert_eq!(aclmdlRIDestroy(graph), 107005, "streams are bound");
            assert_eq!(aclrtDestroyStream(side), 107005);
            assert_eq!(aclmdlRIUnbindStream(graph, side), 0);
            assert_eq!(aclmdlRIUnbindStream(graph, side), 107005);
            assert_eq!(aclmdlRIUnbindStream(graph, head), 0);
            assert_eq!(aclmdlRIDestroy(graph), 0);
            assert_eq!(aclrtDestroyStream(side), 0);
        }
    }
}

#[test]
fn a_build_that_would_wait_for_ever_is_refused() {
    let _sim = Sim::new();
    let (head, side) = (stream_with(4), stream_with(4));
    let mut graph = null_mut();
    // SAFETY: the result is writable, any handle may be passed.
    unsafe {
        assert_eq!(aclmdlRIBuildBegin(&mut graph, 0), 0);
        assert_eq!(aclmdlRIBindStream(graph, head, ACL_MODEL_STREAM_FLAG_HEAD), 0);
        assert_eq!(aclmdlRIBindStream(graph, side, ACL_MODEL_STREAM_FLAG_DEFAULT), 0);
        assert_eq!(aclmdlRIEndTask(graph, head), 0);
        assert_eq!(aclmdlRIBuildEnd(graph, null_mut()), 107024, "never activated");
        assert_eq!(aclrtActiveStream(side, head), 0);
        assert_eq!(wait(head, event()), 0);
        assert_eq!(aclmdlRIBuildEnd(graph, null_mut()), 107024, "never recorded");
    }
}

#[test]
fn older_releases_cannot_build() {
    let _sim = Sim::with(&[("ASCEND_SIM_VERSION", "8.3")]);
    let mut graph = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclmdlRIBuildBegin(&mut graph, 0) }, 200001);
}

#[test]
fn streams_and_tasks_of_a_graph_can_be_listed() {
    let _sim = Sim::with(&[("ASCEND_SIM_VERSION", "9.0")]);
    let (own, side, fork, join) = (stream(), stream(), event(), event());
    assert_eq!(begin(own, 0), 0);
    assert_eq!(record(fork, own), 0);
    assert_eq!(wait(side, fork), 0);
    assert_eq!(task(side, "one", || Ok(())), 0);
    assert_eq!(task(side, "two", || Ok(())), 0);
    assert_eq!(record(join, side), 0);
    assert_eq!(wait(own, join), 0);
    let (code, graph) = end(own);
    assert_eq!(code, 0);
    let mut streams = [null_mut(); 4];
    let mut tasks = [null_mut(); 8];
    let mut count = 1;
    // SAFETY: the arrays have the room that is said.
    unsafe {
        assert_eq!(aclmdlRIGetStreams(graph, streams.as_mut_ptr(), &mut count), 107000, "no room");
        assert_eq!(count, 2, "what it takes");
        count = 4;
        assert_eq!(aclmdlRIGetStreams(graph, streams.as_mut_ptr(), &mut count), 0);
        assert_eq!(count, 2);
        let mut counts = Vec::new();
        for stream in &streams[..2] {
            let mut count = 8;
            assert_eq!(aclmdlRIGetTasksByStream(*stream, tasks.as_mut_ptr(), &mut count), 0);
            counts.push(count);
        }
        assert_eq!(counts, [2, 4], "events count");
        assert_eq!(aclmdlRIGetTasksByStream(own, tasks.as_mut_ptr(), &mut count), 107017);
    }
}
