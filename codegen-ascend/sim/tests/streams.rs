//! Streams run by themselves, in order; events order them; budgets and failures have their codes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::sys::*;
use ascend_sim::api::{device::*, event::*, stream::*, system::*};
use std::{
    ptr::{null, null_mut},
    thread,
    time::Duration,
};
use support::*;

#[test]
fn a_stream_runs_by_itself_and_in_order() {
    let _sim = Sim::new();
    let (stream, door, log) = (stream(), Door::default(), Log::default());
    door.block(stream);
    for i in 0..100 {
        assert_eq!(log.task(stream, &i.to_string()), 0);
    }
    assert!(log.take().is_empty(), "submitting does not wait");
    let mut status = ACL_STREAM_STATUS_RESERVED;
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtStreamQuery(stream, &mut status) }, 0);
    assert_eq!(status, ACL_STREAM_STATUS_NOT_READY);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclrtSynchronizeStreamWithTimeout(stream, 20) }, 507046);
    door.open();
    assert_eq!(sync(stream), 0);
    assert_eq!(log.take(), (0..100).map(|i| i.to_string()).collect::<Vec<_>>());
    // SAFETY: the result is writable.
    assert_eq!(unsafe { aclrtStreamQuery(stream, &mut status) }, 0);
    assert_eq!(status, ACL_STREAM_STATUS_COMPLETE);
}

#[test]
fn an_ex_event_orders_streams_by_its_latest_record() {
    let _sim = Sim::new();
    let (a, b, door, log, event) = (stream(), stream(), Door::default(), Log::default(), event());
    assert_eq!(wait(b, event), 107000, "nothing has recorded it");
    assert_eq!(record(event, a), 0);
    assert_eq!(sync(a), 0);
    // A new record: the old occurrence does not count.
    door.block(a);
    assert_eq!(log.task(a, "a"), 0);
    assert_eq!(record(event, a), 0);
    assert_eq!(wait(b, event), 0);
    assert_eq!(log.task(b, "b"), 0);
    thread::sleep(Duration::from_millis(20));
    assert!(log.take().is_empty());
    door.open();
    assert_eq!(sync(b), 0);
    assert_eq!(log.take(), ["a", "b"]);
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclrtResetEvent(event, a) }, 107000, "Ex events are not reset");
}

#[test]
fn a_plain_event_is_a_flag_until_it_is_reset() {
    let _sim = Sim::new();
    let (a, b, door, log, event) =
        (stream(), stream(), Door::default(), Log::default(), flag_event(1));
    // Waiting before recording works.
    assert_eq!(wait(b, event), 0);
    assert_eq!(log.task(b, "first"), 0);
    assert_eq!(record(event, a), 0);
    assert_eq!(sync(b), 0);
    assert_eq!(log.take(), ["first"]);
    // Recorded again without a reset, the stale flag lets the waiter through.
    door.block(a);
    assert_eq!(record(event, a), 0);
    assert_eq!(wait(b, event), 0);
    assert_eq!(sync(b), 0);
    door.open();
    assert_eq!(sync(a), 0);
    // After a reset it waits.
    // SAFETY: any handle may be passed.
    assert_eq!(unsafe { aclrtResetEvent(event, b) }, 0);
    assert_eq!(sync(b), 0);
    let door = Door::default();
    door.block(a);
    assert_eq!(log.task(a, "a"), 0);
    assert_eq!(record(event, a), 0);
    assert_eq!(wait(b, event), 0);
    assert_eq!(log.task(b, "b"), 0);
    door.open();
    assert_eq!(sync(b), 0);
    assert_eq!(log.take(), ["a", "b"]);
}

#[test]
fn the_host_waits_for_events_and_reads_their_times() {
    let _sim = Sim::new();
    let (stream, door) = (stream(), Door::default());
    let (start, stop, untimed) = (flag_event(8), flag_event(8), event());
    let mut status = 9;
    // SAFETY: the results are writable, any handle may be passed.
    unsafe {
        assert_eq!(aclrtQueryEventStatus(start, &mut status), 0);
        assert_eq!(status, ACL_EVENT_RECORDED_STATUS_NOT_READY, "never recorded");
        assert_eq!(record(start, stream), 0);
        door.block(stream);
        assert_eq!(record(stop, stream), 0);
        assert_eq!(record(untimed, stream), 0);
        assert_eq!(aclrtQueryEventStatus(stop, &mut status), 0);
        assert_eq!(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
        assert_eq!(aclrtSynchronizeEventWithTimeout(stop, 10), 507047);
        let mut ms = -1.0;
        assert_eq!(aclrtEventElapsedTime(&mut ms, start, stop), 107006, "not yet");
        door.open();
        assert_eq!(aclrtSynchronizeEvent(stop), 0);
        assert_eq!(aclrtQueryEventStatus(stop, &mut status), 0);
        assert_eq!(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
        assert_eq!(aclrtEventElapsedTime(&mut ms, start, stop), 0);
        assert!(ms > 0.0, "{ms}");
        assert_eq!(aclrtEventElapsedTime(&mut ms, start, untimed), 107006);
    }
}

#[test]
fn event_flags_that_do_not_go_together_are_refused() {
    let _sim = Sim::new();
    let mut event = null_mut();
    // SAFETY: the results are writable.
    unsafe {
        for flags in [0, 0x100, 0x21] {
            assert_eq!(aclrtCreateEventWithFlag(&mut event, flags), 107000, "{flags:#x}");
        }
        assert_eq!(
            aclrtCreateEventExWithFlag(&mut event, 0x20),
            107000,
            "external events are not Ex"
        );
        assert_eq!(aclrtCreateEventWithFlag(null_mut(), 1), 100000);
    }
}

#[test]
fn streams_and_events_run_out_with_their_codes() {
    let _sim = Sim::with(&[("ASCEND_SIM_EVENTS", "3")]);
    let mut left = 0;
    // SAFETY: the results are writable.
    unsafe {
        assert_eq!(aclrtGetStreamAvailableNum(&mut left), 0);
        assert_eq!(left, 1983, "the default stream counts");
        for _ in 0..1983 {
            stream();
        }
        let mut extra = null_mut();
        assert_eq!(aclrtCreateStream(&mut extra), 207008);
        assert!(message().contains("Alloc sq cq fail"));
        assert_eq!(aclrtGetStreamAvailableNum(&mut left), 0);
        assert_eq!(left, 0);
        for _ in 0..3 {
            event();
        }
        assert_eq!(aclrtCreateEvent(&mut extra), 207007);
        assert_eq!(aclrtGetEventAvailNum(&mut left), 0);
        assert_eq!(left, 0);
    }
}

#[test]
fn a_failed_task_is_told_once_and_names_itself() {
    let _sim = Sim::new();
    let (stream, log) = (stream(), Log::default());
    assert_eq!(task(stream, "bad", || Err("row 7 is broken".into())), 0);
    assert_eq!(log.task(stream, "next"), 0);
    assert_eq!(sync(stream), 507015);
    assert_eq!(message(), "task bad: row 7 is broken");
    assert_eq!(message(), "", "reading consumes it");
    assert_eq!(log.take(), ["next"], "streams go on after a failure");
    assert_eq!(sync(stream), 0);
    // With the attribute, what follows a failure is dropped.
    let mut stop = aclrtStreamAttrValue { failureMode: 1 };
    let failure_mode = ACL_STREAM_ATTR_FAILURE_MODE;
    // SAFETY: the value is that of the attribute.
    assert_eq!(unsafe { aclrtSetStreamAttribute(stream, failure_mode, &mut stop) }, 0);
    assert_eq!(task(stream, "bad", || Err("again".into())), 0);
    assert_eq!(log.task(stream, "next"), 0);
    assert_eq!(sync(stream), 507015);
    assert!(log.take().is_empty());
}

#[test]
fn a_task_that_panics_fails_its_stream_only() {
    let _sim = Sim::new();
    let (bad, good) = (stream(), stream());
    assert_eq!(task(bad, "bad", || panic!("on purpose")), 0);
    assert_eq!(task(good, "good", || Ok(())), 0);
    assert_eq!(sync(good), 0);
    assert_eq!(sync(bad), 507015);
    assert_eq!(task(bad, "good", || Ok(())), 0);
    assert_eq!(sync(bad), 0);
}

#[test]
fn handles_and_threads_are_checked() {
    let _sim = Sim::new();
    let own = stream();
    assert_eq!(sync(0x1234 as aclrtStream), 107017);
    // SAFETY: any handle may be passed.
    unsafe {
        assert_eq!(aclrtDestroyStream(null_mut()), 107000, "the default stream stays");
        assert_eq!(aclrtDestroyStream(own), 0);
        assert_eq!(aclrtDestroyStream(own), 107017);
    }
    let own = stream() as usize;
    let codes = thread::spawn(move || {
        let own = own as aclrtStream;
        let before = sync(own);
        // SAFETY: any device may be named.
        unsafe {
            assert_eq!(aclrtSetDevice(1), 107001);
            assert_eq!(aclrtSetDevice(0), 0);
        }
        (before, sync(own))
    });
    assert_eq!(codes.join().unwrap(), (107002, 0));
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let _sim = Sim::new();
    let own = stream();
    let mut context = null_mut();
    // SAFETY: the result is writable.
    unsafe {
        assert_eq!(ascend_sim::api::context::aclrtCreateContext(&mut context, 0), 0);
        assert_eq!(sync(own), 107003);
        assert_eq!(ascend_sim::api::context::aclrtDestroyContext(context), 0);
        assert_eq!(sync(own), 107002);
        assert_eq!(aclrtSetDevice(0), 0);
        assert_eq!(sync(own), 0);
    }
}

#[test]
fn start_and_end_have_their_codes_and_a_reset_tells_what_leaked() {
    let _sim = Sim::new();
    // SAFETY: null is allowed; any device may be named.
    unsafe {
        assert_eq!(aclInit(null()), 100002);
        stream();
        event();
        device_memory(100);
        assert_eq!(aclrtSetDevice(0), 0);
        assert_eq!(aclrtResetDevice(0), 0);
        assert_eq!(counter("live/streams"), 2, "set twice, so this was not the last");
        assert_eq!(aclrtResetDevice(0), 0);
        assert_eq!(aclrtResetDevice(0), 107001);
        for leaked in ["streams", "events", "device_memory"] {
            assert_eq!(counter(&format!("leaked/{leaked}")), 1, "{leaked}");
            assert_eq!(counter(&format!("live/{leaked}")), 0, "{leaked}");
        }
        assert_eq!(aclFinalize(), 0);
        assert_eq!(aclFinalize(), 100037);
        assert_eq!(aclrtSetDevice(0), 100001);
        assert_eq!(aclInit(null()), 0, "newer releases start again");
        assert_eq!(aclFinalize(), 0);
        configure("ASCEND_SIM_VERSION", "8.1");
        assert_eq!(aclInit(null()), 100002, "older ones do not");
    }
}

#[test]
fn a_reset_gives_up_what_is_open() {
    let _sim = Sim::new();
    let (own, memory) = (stream(), device_memory(64));
    assert_eq!(begin(own, 0), 0);
    // SAFETY: any device may be named, and the memory is not touched.
    unsafe {
        assert_eq!(ascend_sim::api::memory::aclrtMemset(memory, 64, 0, 64), 107030);
        assert_eq!(aclrtResetDevice(0), 0);
        assert_eq!(aclrtSetDevice(0), 0);
        let memory = device_memory(64);
        assert_eq!(
            ascend_sim::api::memory::aclrtMemset(memory, 64, 0, 64),
            0,
            "no capture is left"
        );
    }
    let own = stream();
    assert_eq!(begin(own, 0), 0);
    assert_eq!(end(own).0, 0);
    // SAFETY: any device may be named.
    assert_eq!(unsafe { aclrtResetDevice(0) }, 0);
    assert_eq!((counter("leaked/graphs"), counter("live/graphs")), (1, 0));
}

#[test]
fn calls_and_tasks_fail_when_told_to() {
    let _sim = Sim::new();
    let own = stream();
    fail_call("aclrtSynchronizeStream", 2, 507046);
    assert_eq!([sync(own), sync(own), sync(own)], [0, 507046, 0]);
    fail_task("matmul", 2, 507014);
    for _ in 0..3 {
        assert_eq!(task(own, "aclnnMatmul matmul", || Ok(())), 0);
    }
    assert_eq!(sync(own), 507014);
    assert!(message().contains("injected"));
    assert_eq!(sync(own), 0);
    assert_eq!(counter("calls/aclrtSynchronizeStream"), 5);
}

#[test]
fn a_release_lacks_what_came_later() {
    let _sim = Sim::with(&[("ASCEND_SIM_VERSION", "8.1")]);
    let mut left = 0;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the results are writable.
    unsafe {
        assert_eq!(aclrtGetStreamAvailableNum(&mut left), 200001);
        assert_eq!(aclrtGetVersion(&mut major, &mut minor, &mut patch), 0);
    }
    assert_eq!((major, minor, patch), (1, 13, 0));
}

#[test]
fn an_abort_ends_a_wait_that_would_never_end() {
    let _sim = Sim::new();
    let (own, event) = (stream(), flag_event(1));
    assert_eq!(wait(own, event), 0);
    assert_eq!(task(own, "after", || Ok(())), 0);
    // SAFETY: any handle may be passed.
    unsafe {
        assert_eq!(aclrtSynchronizeStreamWithTimeout(own, 10), 507046);
        assert_eq!(aclrtStreamAbort(own), 0);
        assert_eq!(sync(own), 0);
        assert_eq!(wait(own, event), 0);
        assert_eq!(aclrtDestroyStreamForce(own), 0);
    }
}

#[test]
fn a_function_of_the_host_runs_in_order() {
    unsafe extern "C" fn note(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes a pointer to this type, which lives long enough.
        let seen = unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() };
        seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    let _sim = Sim::new();
    let own = stream();
    let seen = std::sync::atomic::AtomicU32::new(0);
    let data = (&raw const seen).cast_mut().cast();
    // SAFETY: the counter outlives the synchronisation.
    unsafe {
        assert_eq!(aclrtLaunchHostFunc(own, Some(note), data), 0);
        assert_eq!(aclrtLaunchHostFunc(own, None, data), 100000);
    }
    assert_eq!(sync(own), 0);
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 1);
}
