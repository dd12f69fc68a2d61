//! Events.

use super::put;
use crate::{
    call, config,
    error::{Result, code, fail},
    event::{self, SYNC, TIME_LINE},
    exports,
    world::{self, Key, deadline, handle},
};
use acl::sys::*;
use std::{sync::LazyLock, time::Instant};

/// What times are counted from.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

exports! {
    /// Makes an event that orders streams and carries a time.
    V8_1 fn aclrtCreateEvent(event: *mut aclrtEvent) {
        create(event, false, SYNC | TIME_LINE)
    }

    /// Makes an event whose flag stays up until a reset.
    V8_1 fn aclrtCreateEventWithFlag(event: *mut aclrtEvent, flag: u32) {
        create(event, false, flag)
    }

    /// Makes an event that each record takes anew.
    V8_1 fn aclrtCreateEventExWithFlag(event: *mut aclrtEvent, flag: u32) {
        create(event, true, flag)
    }

    /// Destroys an event; work that was submitted keeps its meaning.
    V8_1 fn aclrtDestroyEvent(event: aclrtEvent) {
        let mut world = world::lock();
        let found = world.event(event)?;
        world.events.remove(&found.key);
        call::live("events", -1);
        Ok(())
    }

    /// Marks the work of a stream so far.
    V8_1 fn aclrtRecordEvent(event: aclrtEvent, stream: aclrtStream) {
        let mut world = world::lock();
        let (event, stream) = (world.event(event)?, world.stream(stream)?);
        world.record_event(&event, stream)
    }

    /// Makes later work of a stream wait.
    V8_1 fn aclrtStreamWaitEvent(stream: aclrtStream, event: aclrtEvent) {
        let mut world = world::lock();
        let (event, stream) = (world.event(event)?, world.stream(stream)?);
        world.wait_event(stream, &event)
    }

    /// Takes the flag of an event down, in the order of a stream.
    V8_1 fn aclrtResetEvent(event: aclrtEvent, stream: aclrtStream) {
        let mut world = world::lock();
        let (event, stream) = (world.event(event)?, world.stream(stream)?);
        world.reset_event(&event, stream)
    }

    /// Waits for the last record of an event.
    V8_1 fn aclrtSynchronizeEvent(event: aclrtEvent) {
        synchronise(event, -1)
    }

    /// Waits for it with a limit in milliseconds; -1 is none.
    V8_1 fn aclrtSynchronizeEventWithTimeout(event: aclrtEvent, timeout: i32) {
        synchronise(event, timeout)
    }

    /// Whether the last record of an event is worked off; one never recorded is not.
    V8_1 fn aclrtQueryEventStatus(event: aclrtEvent, status: *mut aclrtEventRecordedStatus) {
        let mut world = world::lock();
        let event = world.event(event)?;
        world.observe_event(&event)?;
        let done = event.last().is_some_and(|record| record.is_done());
        let found = if done { ACL_EVENT_RECORDED_STATUS_COMPLETE } else { ACL_EVENT_RECORDED_STATUS_NOT_READY };
        // SAFETY: the caller's pointer.
        unsafe { put(status, found) }
    }

    /// Milliseconds between two events.
    V8_1 fn aclrtEventElapsedTime(ms: *mut f32, start: aclrtEvent, end: aclrtEvent) {
        let world = world::lock();
        let time = event::elapsed_ms(&*world.event(start)?, &*world.event(end)?)?;
        // SAFETY: the caller's pointer.
        unsafe { put(ms, time) }
    }

    /// When an event happened, in microseconds.
    V8_1 fn aclrtEventGetTimestamp(event: aclrtEvent, timestamp: *mut u64) {
        let world = world::lock();
        let at = event::instant(&*world.event(event)?)?;
        let since = at.saturating_duration_since(*ORIGIN).as_micros();
        // SAFETY: the caller's pointer.
        unsafe { put(timestamp, u64::try_from(since).unwrap_or(u64::MAX)) }
    }

    /// How many more events there can be.
    V8_5 fn aclrtGetEventAvailNum(count: *mut u32) {
        let world = world::lock();
        world.current()?;
        let left = config::events().saturating_sub(world.events.len());
        // SAFETY: the caller's pointer.
        unsafe { put(count, u32::try_from(left).unwrap_or(u32::MAX)) }
    }
}

fn create(event: *mut aclrtEvent, ex: bool, flags: u32) -> Result {
    LazyLock::force(&ORIGIN);
    if event.is_null() {
        return fail(code::INVALID_PARAM, "a pointer for a result is null");
    }
    let key: Key = world::lock().create_event(ex, flags)?;
    // SAFETY: the caller's pointer.
    unsafe { put(event, handle(key)) }
}

fn synchronise(event: aclrtEvent, timeout: i32) -> Result {
    let mut world = world::lock();
    let event = world.event(event)?;
    world.observe_event(&event)?;
    event::synchronise(world, &event, deadline(timeout))
}
