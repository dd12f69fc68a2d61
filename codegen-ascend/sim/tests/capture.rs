//! The rules of capture, one test each, and what replays do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::sys::*;
use ascend_sim::api::{device::*, event::*, graph::*, memory::*, stream::*};
use std::{
    ffi::c_void,
    ptr::null_mut,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};
use support::*;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const MODES: [u32; 3] = [GLOBAL, THREAD_LOCAL, RELAXED];

/// State of a stream's capture.
fn status(stream: aclrtStream) -> u32 {
    let mut status = 9;
    // SAFETY: the result is writable, and no graph is asked for.
    assert_eq!(unsafe { aclmdlRICaptureGetInfo(stream, &mut status, null_mut()) }, 0);
    status
}

/// Ends a capture that went well.
fn graph(stream: aclrtStream) -> aclmdlRI {
    let (code, graph) = end(stream);
    assert_eq!(code, 0, "{}", message());
    graph
}

#[test]
fn tasks_are_recorded_and_run_at_each_replay() {
    for mode in MODES {
        let _sim = Sim::new();
        let (own, log) = (stream(), Log::default());
        assert_eq!(status(own), ACL_MODEL_RI_CAPTURE_STATUS_NONE);
        assert_eq!(begin(own, mode), 0);
        assert_eq!(status(own), ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
        assert_eq!(log.task(own, "a"), 0);
        assert_eq!(log.task(own, "b"), 0);
        let graph = graph(own);
        assert_eq!(status(own), ACL_MODEL_RI_CAPTURE_STATUS_NONE);
        assert_eq!(sync(own), 0);
        assert!(log.take().is_empty(), "nothing has run");
        for _ in 0..3 {
            assert_eq!(execute(graph, own), 0);
        }
        assert_eq!(log.task(own, "after"), 0);
        assert_eq!(sync(own), 0);
        assert_eq!(log.take(), ["a", "b", "a", "b", "a", "b", "after"]);
        assert_eq!(counter("replays"), 3);
        // SAFETY: any handle may be passed.
        unsafe {
            assert_eq!(aclmdlRIDestroy(graph), 0);
            assert_eq!(aclmdlRIDestroy(graph), 107017);
        }
        assert_eq!(execute(graph, own), 107017);
    }
}

#[test]
fn begin_has_its_rules() {
    let _sim = Sim::new();
    let own = stream();
    assert_eq!(begin(null_mut(), GLOBAL), 107031, "not on the default stream");
    assert_eq!(begin(own, 3), 107000);
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(begin(own, GLOBAL), 107027);
    assert_eq!(end(own).0, 0, "a refused begin does no harm");
    assert_eq!(end(own).0, 107029);
}

/// A call that lets the host look at what is being captured.
type Look = fn(aclrtStream, aclrtEvent) -> i32;

/// Name, call, code.
const LOOKS: &[(&str, Look, i32)] = &[
    ("synchronise stream", |stream, _| sync(stream), 107027),
    // SAFETY: any handle may be passed.
    ("with timeout", |stream, _| unsafe { aclrtSynchronizeStreamWithTimeout(stream, 10) }, 107027),
    (
        "query stream",
        |stream, _| {
            let mut status = 0;
            // SAFETY: the result is writable.
            unsafe { aclrtStreamQuery(stream, &mut status) }
        },
        107027,
    ),
    // SAFETY: any handle may be passed.
    ("synchronise event", |_, event| unsafe { aclrtSynchronizeEvent(event) }, 107028),
    (
        "query event",
        |_, event| {
            let mut status = 0;
            // SAFETY: the result is writable.
            unsafe { aclrtQueryEventStatus(event, &mut status) }
        },
        107028,
    ),
    // SAFETY: it takes nothing.
    ("synchronise device", |_, _| unsafe { aclrtSynchronizeDevice() }, 107027),
    // SAFETY: any handle may be passed.
    ("destroy stream", |stream, _| unsafe { aclrtDestroyStream(stream) }, 107027),
];

#[test]
fn looking_at_what_is_captured_spoils_it_in_every_mode() {
    for mode in MODES {
        for (name, look, code) in LOOKS {
            let _sim = Sim::new();
            let (own, event) = (stream(), event());
            assert_eq!(begin(own, mode), 0);
            assert_eq!(record(event, own), 0);
            assert_eq!(look(own, event), *code, "{name}");
            assert_eq!(status(own), ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED, "{name}");
            assert_eq!(task(own, "late", || Ok(())), 507903, "{name}");
            assert_eq!(end(own), (507903, null_mut()), "{name}");
            assert_eq!(status(own), ACL_MODEL_RI_CAPTURE_STATUS_NONE);
            // The stream is usable again.
            assert_eq!(begin(own, mode), 0);
            assert_eq!(end(own).0, 0);
        }
    }
}

#[test]
fn other_streams_may_be_looked_at() {
    let _sim = Sim::new();
    let (own, other) = (stream(), stream());
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(task(other, "eager", || Ok(())), 0);
    assert_eq!(sync(other), 0);
    assert_eq!(end(own).0, 0);
}

/// A call of the unsafe set.
type Unsafe = fn(aclrtStream, *mut c_void, *mut c_void) -> i32;

/// Name and call: device memory, pageable host memory of 64 bytes.
const UNSAFE: &[(&str, Unsafe)] = &[
    // SAFETY: both are memory of 64 bytes.
    ("memcpy", |_, device, host| unsafe { aclrtMemcpy(device, 64, host, 64, 1) }),
    // SAFETY: it is memory of 64 bytes.
    ("memset", |_, device, _| unsafe { aclrtMemset(device, 64, 0, 64) }),
    (
        "pageable copy",
        // SAFETY: both are memory of 64 bytes.
        |other, device, host| unsafe { aclrtMemcpyAsync(device, 64, host, 64, 1, other) },
    ),
];

#[test]
fn the_unsafe_set_is_judged_by_mode_and_thread() {
    // Mode, on the capturing thread, mode of the calling thread, what happens.
    const CASES: &[(u32, bool, u32, i32)] = &[
        (GLOBAL, true, GLOBAL, 107030),
        (GLOBAL, false, GLOBAL, 107030),
        (THREAD_LOCAL, true, GLOBAL, 107030),
        (THREAD_LOCAL, false, GLOBAL, 0),
        (RELAXED, true, GLOBAL, 0),
        (RELAXED, false, GLOBAL, 0),
        // With its mode exchanged around the call.
        (GLOBAL, true, RELAXED, 0),
        (GLOBAL, false, RELAXED, 0),
        (GLOBAL, true, THREAD_LOCAL, 107030),
        (GLOBAL, false, THREAD_LOCAL, 0),
        (THREAD_LOCAL, true, RELAXED, 0),
    ];
    for (name, call) in UNSAFE {
        for &(mode, same_thread, exchanged, code) in CASES {
            let _sim = Sim::new();
            let (own, other, device) = (stream(), stream(), device_memory(64));
            let mut host = [0_u8; 64];
            let handles = [other as usize, device as usize, host.as_mut_ptr() as usize];
            assert_eq!(begin(own, mode), 0);
            let go = move || {
                let [other, device, host] = handles.map(|handle| handle as *mut c_void);
                let mut swap = exchanged;
                // SAFETY: the mode is readable and writable.
                unsafe {
                    if aclrtSetDevice(0) != 0 {
                        return -1;
                    }
                    assert_eq!(aclmdlRICaptureThreadExchangeMode(&mut swap), 0);
                    let code = call(other, device, host);
                    assert_eq!(aclmdlRICaptureThreadExchangeMode(&mut swap), 0);
                    assert_eq!(swap, exchanged, "the mode comes back");
                    code
                }
            };
            let found = if same_thread { go() } else { thread::spawn(go).join().unwrap() };
            assert_eq!(
                found, code,
                "{name} in mode {mode}, same thread {same_thread}, as {exchanged}"
            );
            assert_eq!(end(own).0, 0, "a refused call does not spoil the capture");
            // Once it is over, everything goes.
            assert_eq!(call(other, device, handles[2] as *mut c_void), 0, "{}", message());
        }
    }
}

#[test]
fn allocation_is_not_in_the_unsafe_set() {
    let _sim = Sim::new();
    let own = stream();
    assert_eq!(begin(own, GLOBAL), 0);
    let memory = device_memory(10);
    // SAFETY: it was just made.
    assert_eq!(unsafe { aclrtFree(memory) }, 0);
    assert_eq!(end(own).0, 0);
}

#[test]
fn a_captured_copy_needs_pinned_memory_and_reads_it_at_each_replay() {
    let _sim = Sim::new();
    let (own, device, host) = (stream(), device_memory(4), pinned(4));
    let mut pageable = 5_u32;
    assert_eq!(begin(own, RELAXED), 0);
    // SAFETY: all are memory of 4 bytes that outlives the replays.
    unsafe {
        let from = (&raw mut pageable).cast();
        assert_eq!(aclrtMemcpyAsync(device, 4, from, 4, 1, own), 107030);
        assert_eq!(aclrtMemcpyAsync(device, 4, host, 4, 1, own), 0);
        let graph = graph(own);
        for value in [7_u32, 8] {
            host.cast::<u32>().write(value);
            assert_eq!(execute(graph, own), 0);
            assert_eq!(sync(own), 0);
            assert_eq!(aclrtMemcpy((&raw mut pageable).cast(), 4, device, 4, 2), 0);
            assert_eq!(pageable, value);
        }
        // Memory that is gone at a replay is told, not touched.
        assert_eq!(aclrtFree(device), 0);
        assert_eq!(execute(graph, own), 0);
        assert_eq!(sync(own), 507015);
        assert!(message().contains("freed memory"));
    }
}

#[test]
fn end_belongs_to_the_stream_and_thread_of_begin() {
    for mode in MODES {
        let _sim = Sim::new();
        let (own, side, event) = (stream(), stream(), event());
        assert_eq!(begin(own, mode), 0);
        assert_eq!(record(event, own), 0);
        assert_eq!(wait(side, event), 0);
        assert_eq!(status(side), ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
        assert_eq!(end(side).0, 107036);
        assert_eq!(record(event, side), 0);
        assert_eq!(wait(own, event), 0);
        let handle = own as usize;
        let other = thread::spawn(move || {
            // SAFETY: any device may be named.
            assert_eq!(unsafe { aclrtSetDevice(0) }, 0);
            end(handle as aclrtStream).0
        });
        let code = other.join().unwrap();
        if mode == RELAXED {
            assert_eq!(code, 0);
        } else {
            assert_eq!(code, 107038);
            assert_eq!(end(own).0, 0, "it stayed open");
        }
    }
}

#[test]
fn a_side_stream_must_lead_back() {
    // Where the side stream's tasks stand: before or after the event that leads back.
    for (late, code) in [(false, 0), (true, 107025)] {
        let _sim = Sim::new();
        let (own, side, fork, join) = (stream(), stream(), event(), event());
        assert_eq!(begin(own, GLOBAL), 0);
        assert_eq!(record(fork, own), 0);
        assert_eq!(wait(side, fork), 0);
        assert_eq!(task(side, "side", || Ok(())), 0);
        assert_eq!(record(join, side), 0);
        if late {
            assert_eq!(task(side, "late", || Ok(())), 0);
        }
        assert_eq!(wait(own, join), 0);
        assert_eq!(end(own).0, code);
        assert_eq!(status(side), ACL_MODEL_RI_CAPTURE_STATUS_NONE);
        assert_eq!(task(side, "eager again", || Ok(())), 0);
        assert_eq!(sync(side), 0);
    }
    // Never joined at all, and joined by way of a third stream.
    let _sim = Sim::new();
    let (a, b, c) = (stream(), stream(), stream());
    let events = [event(), event(), event()];
    assert_eq!(begin(a, GLOBAL), 0);
    assert_eq!(record(events[0], a), 0);
    assert_eq!(wait(b, events[0]), 0);
    assert_eq!(end(a).0, 107025);
    assert_eq!(begin(a, GLOBAL), 0);
    assert_eq!(record(events[0], a), 0);
    assert_eq!(wait(b, events[0]), 0);
    assert_eq!(record(events[1], b), 0);
    assert_eq!(wait(c, events[1]), 0);
    assert_eq!(record(events[2], c), 0);
    assert_eq!(wait(a, events[2]), 0);
    assert_eq!(end(a).0, 0, "{}", message());
}

#[test]
fn events_of_a_capture_are_ex_with_the_sync_flag() {
    let _sim = Sim::new();
    let own = stream();
    let mut timed = null_mut();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtCreateEventExWithFlag(&mut timed, ACL_EVENT_TIME_LINE) }, 0);
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(record(flag_event(ACL_EVENT_SYNC), own), 207000);
    assert_eq!(record(timed, own), 207000);
    assert_eq!(record(event(), own), 0);
    assert_eq!(end(own).0, 0);
}

#[test]
fn captured_and_uncaptured_work_do_not_depend_on_each_other() {
    let _sim = Sim::new();
    let (own, other, event) = (stream(), stream(), event());
    assert_eq!(record(event, other), 0);
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(wait(own, event), 107024, "recorded outside");
    assert_eq!(end(own).0, 507903);
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(record(event, own), 0);
    assert_eq!(wait(null_mut(), event), 107031, "the default stream would join");
    assert_eq!(end(own).0, 507903);
    // Once the capture is over, its events are as if never recorded.
    assert_eq!(wait(other, event), 107000);
}

#[test]
fn two_captures_do_not_depend_on_each_other() {
    let _sim = Sim::new();
    let (a, b, event) = (stream(), stream(), event());
    assert_eq!(begin(a, GLOBAL), 0);
    assert_eq!(begin(b, GLOBAL), 0);
    assert_eq!(record(event, a), 0);
    assert_eq!(wait(b, event), 107032);
    assert_eq!([end(a).0, end(b).0], [507903, 507903]);
    // A stream that takes part in one cannot begin another.
    assert_eq!(begin(a, GLOBAL), 0);
    assert_eq!(record(event, a), 0);
    assert_eq!(wait(b, event), 0);
    assert_eq!(begin(b, GLOBAL), 107032);
    assert_eq!(end(a).0, 507903);
}

#[test]
fn a_graph_is_not_captured_in_a_graph() {
    let _sim = Sim::new();
    let (a, b) = (stream(), stream());
    assert_eq!(begin(a, GLOBAL), 0);
    let inner = graph(a);
    assert_eq!(begin(b, GLOBAL), 0);
    assert_eq!(execute(inner, b), 507009);
    assert_eq!(end(b).0, 0);
}

#[test]
fn a_graph_in_flight_is_neither_destroyed_nor_run_elsewhere() {
    let _sim = Sim::new();
    let (a, b, door) = (stream(), stream(), Door::default());
    assert_eq!(begin(a, GLOBAL), 0);
    door.block(a);
    let graph = graph(a);
    assert_eq!(execute(graph, a), 0);
    assert_eq!(execute(graph, a), 0, "one after the other on one stream");
    assert_eq!(execute(graph, b), 107037);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclmdlRIDestroy(graph) }, 107037);
    door.open();
    assert_eq!(sync(a), 0);
    assert_eq!(execute(graph, b), 0);
    assert_eq!(sync(b), 0);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclmdlRIDestroy(graph) }, 0);
    assert_eq!(counter("live/graphs"), 0);
}

#[test]
fn a_failed_task_drops_the_rest_of_the_replay_and_no_more() {
    let _sim = Sim::new();
    let (own, side, fork, join, log) = (stream(), stream(), event(), event(), Log::default());
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(record(fork, own), 0);
    assert_eq!(wait(side, fork), 0);
    assert_eq!(log.task(side, "side"), 0);
    assert_eq!(record(join, side), 0);
    assert_eq!(wait(own, join), 0);
    assert_eq!(log.task(own, "own"), 0);
    let graph = graph(own);
    fail_task("side", 1, 507015);
    assert_eq!(execute(graph, own), 0);
    assert_eq!(sync(own), 507015);
    assert!(log.take().is_empty());
    assert_eq!(execute(graph, own), 0);
    assert_eq!(sync(own), 0);
    assert_eq!(log.take(), ["side", "own"]);
}

/// `own` writes 1 after `side` has written 2 and a third stream 4; without the wait it may come first.
fn diamond(with_wait: bool) -> (aclrtStream, aclmdlRI, std::sync::Arc<AtomicU32>) {
    let (own, side, fork, join) = (stream(), stream(), event(), event());
    let order = std::sync::Arc::new(AtomicU32::new(0));
    let writer = |digit: u32| {
        let order = order.clone();
        move || {
            order
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |was| Some(was * 10 + digit))
                .unwrap();
            Ok(())
        }
    };
    assert_eq!(begin(own, GLOBAL), 0);
    assert_eq!(record(fork, own), 0);
    assert_eq!(wait(side, fork), 0);
    assert_eq!(task(side, "produce", writer(2)), 0);
    assert_eq!(record(join, side), 0);
    if with_wait {
        assert_eq!(wait(own, join), 0);
    }
    assert_eq!(task(own, "consume", writer(1)), 0);
    if !with_wait {
        // The join comes too late for the consumer.
        assert_eq!(wait(own, join), 0);
    }
    (own, graph(own), order)
}

#[test]
fn shuffled_replays_find_a_missing_wait() {
    for with_wait in [true, false] {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..12 {
            let _sim = Sim::with(&[("ASCEND_SIM_SHUFFLE", &seed.to_string())]);
            let (own, graph, order) = diamond(with_wait);
            let mut once = Vec::new();
            for _ in 0..2 {
                order.store(0, Ordering::SeqCst);
                assert_eq!(execute(graph, own), 0);
                assert_eq!(sync(own), 0);
                once.push(order.load(Ordering::SeqCst));
            }
            assert_eq!(once[0], once[1], "a seed is an order");
            seen.insert(once[0]);
        }
        let expected: &[u32] = if with_wait { &[21] } else { &[12, 21] };
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn replays_equal_the_eager_run_bit_for_bit() {
    // A chain of float operations over two streams, eagerly, replayed and shuffled.
    fn work(own: aclrtStream, side: aclrtStream, events: [aclrtEvent; 2], x: usize) {
        let step = move |at: usize, scale: f32| {
            move || {
                let cell = (x + 4 * at) as *mut f32;
                // SAFETY: the memory outlives the task, and the graph's edges order the accesses.
                unsafe { *cell = (*cell + *(x as *mut f32)) * scale };
                Ok(())
            }
        };
        assert_eq!(task(own, "first", step(0, 0.3)), 0);
        assert_eq!(record(events[0], own), 0);
        assert_eq!(wait(side, events[0]), 0);
        assert_eq!(task(side, "second", step(1, 1.7)), 0);
        assert_eq!(task(own, "third", step(2, 0.9)), 0);
        assert_eq!(record(events[1], side), 0);
        assert_eq!(wait(own, events[1]), 0);
        let last = move || {
            // SAFETY: as above.
            unsafe { *(x as *mut f32) = *((x + 4) as *mut f32) + *((x + 8) as *mut f32) };
            Ok(())
        };
        assert_eq!(task(own, "last", last), 0);
    }
    let mut results = Vec::new();
    for (captured, shuffle) in [(false, ""), (true, ""), (true, "0"), (true, "1"), (true, "5")] {
        let _sim = Sim::with(&[("ASCEND_SIM_SHUFFLE", shuffle)]);
        let (own, side, events, x) = (stream(), stream(), [event(), event()], device_memory(12));
        // SAFETY: the memory has 12 bytes.
        unsafe { x.cast::<[f32; 3]>().write([1.0, 2.0, 3.0]) };
        if captured {
            assert_eq!(begin(own, GLOBAL), 0);
            work(own, side, events, x as usize);
            let graph = graph(own);
            for _ in 0..20 {
                assert_eq!(execute(graph, own), 0);
            }
        } else {
            for _ in 0..20 {
                work(own, side, events, x as usize);
            }
        }
        assert_eq!(sync(own), 0);
        // SAFETY: as above, and nothing runs any more.
        results.push(unsafe { x.cast::<[u32; 3]>().read() });
    }
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
}

#[test]
fn the_old_driver_gives_each_graph_its_queues() {
    // Tasks on the one stream of the graph, and queues it needs: 2048 less 32 less 35 fit into one.
    for (tasks, queues) in [(0, 1), (1981, 1), (1982, 2)] {
        let _sim = Sim::with(&[("ASCEND_SIM_STACK", "old"), ("ASCEND_SIM_STREAMS", "4")]);
        let own = stream();
        assert_eq!(begin(own, GLOBAL), 0);
        for _ in 0..tasks {
            assert_eq!(task(own, "task", || Ok(())), 0);
        }
        let graph = graph(own);
        let mut left = 0;
        // SAFETY: the result is writable, any handle may be passed.
        unsafe {
            assert_eq!(aclrtGetStreamAvailableNum(&mut left), 0);
            assert_eq!(left, 2 - queues, "{tasks}");
            assert_eq!(aclmdlRIDestroy(graph), 0);
            assert_eq!(aclrtGetStreamAvailableNum(&mut left), 0);
        }
        assert_eq!(left, 2);
    }
    for (stack, code) in [("old", 207008), ("new", 0)] {
        let _sim = Sim::with(&[("ASCEND_SIM_STACK", stack), ("ASCEND_SIM_STREAMS", "3")]);
        let own = stream();
        assert_eq!(begin(own, GLOBAL), 0);
        assert_eq!(end(own).0, 0);
        assert_eq!(begin(own, GLOBAL), 0);
        assert_eq!(end(own).0, code, "{stack}");
        assert_eq!(status(own), ACL_MODEL_RI_CAPTURE_STATUS_NONE);
    }
}

#[test]
fn an_external_event_holds_a_replay_until_it_happens() {
    for shuffle in ["", "0", "1"] {
        let _sim = Sim::with(&[("ASCEND_SIM_SHUFFLE", shuffle)]);
        let (own, other, log, ready) =
            (stream(), stream(), Log::default(), flag_event(ACL_EVENT_EXTERNAL));
        assert_eq!(begin(own, GLOBAL), 0);
        assert_eq!(wait(own, ready), 0);
        // SAFETY: any handle may be passed.
        assert_eq!(unsafe { aclrtResetEvent(ready, own) }, 0);
        assert_eq!(log.task(own, "task"), 0);
        let graph = graph(own);
        for _ in 0..2 {
            assert_eq!(execute(graph, own), 0);
            // SAFETY: any handle may be passed.
            assert_eq!(unsafe { aclrtSynchronizeStreamWithTimeout(own, 20) }, 507046);
            assert!(log.take().is_empty());
            assert_eq!(record(ready, other), 0);
            assert_eq!(sync(own), 0);
            assert_eq!(log.take(), ["task"]);
        }
    }
}

#[test]
fn a_replay_that_waits_for_ever_can_be_aborted() {
    for shuffle in ["", "1"] {
        let _sim = Sim::with(&[("ASCEND_SIM_SHUFFLE", shuffle)]);
        let (own, side, fork, join) = (stream(), stream(), event(), event());
        let never = flag_event(ACL_EVENT_EXTERNAL);
        assert_eq!(begin(own, GLOBAL), 0);
        assert_eq!(record(fork, own), 0);
        assert_eq!(wait(side, fork), 0);
        assert_eq!(wait(side, never), 0);
        assert_eq!(record(join, side), 0);
        assert_eq!(wait(own, join), 0);
        let graph = graph(own);
        assert_eq!(execute(graph, own), 0);
        // SAFETY: any handle may be passed.
        unsafe {
            assert_eq!(aclmdlRIDestroy(graph), 107037);
            assert_eq!(aclmdlRIAbort(graph), 0);
            assert_eq!(sync(own), 107023);
            assert_eq!(aclmdlRIDestroy(graph), 0);
        }
    }
}
