//! Events. Two families, as documented: plain and external events are a flag that stays up until a
//! reset; Ex events are taken anew by each record.

use crate::{
    call, capture, config,
    error::{Result, code, fail},
    graph::build,
    stream::{Item, Role},
    world::{self, Key, World},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Flag: orders streams.
pub const SYNC: u32 = 1;
/// Flag: carries a time.
pub const TIME_LINE: u32 = 8;
/// Flag: not part of the graph that waits for it or records it.
pub const EXTERNAL: u32 = 0x20;
/// Every flag that exists.
const KNOWN_FLAGS: u32 = 1 | 2 | 8 | 0x10 | 0x20 | 0x40;

/// How an event was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// A flag that is up from a record until a reset.
    Plain,
    /// Each record is an occurrence of its own.
    Ex,
    /// A flag, outside of the graphs that use it.
    External,
}

/// An event.
pub(crate) struct Event {
    pub(crate) key: Key,
    pub(crate) context: Key,
    pub(crate) family: Family,
    pub(crate) flags: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flag: bool,
    last: Option<Arc<Record>>,
    captured: Option<Captured>,
}

/// One occurrence of an event.
#[derive(Default)]
pub(crate) struct Record {
    done: AtomicBool,
    at: OnceLock<Instant>,
}

/// The place in a capture where an event was recorded.
#[derive(Clone)]
pub(crate) struct Captured {
    /// The capture.
    pub(crate) capture: Key,
    /// The signal given there.
    pub(crate) signal: usize,
    /// Nodes of each branch that come before it.
    pub(crate) clock: Vec<usize>,
}

impl Record {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl Event {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record of it is worked off. The world is locked, so that nobody misses it.
    pub(crate) fn happen(&self, _: &World, record: &Record) {
        record.at.get_or_init(Instant::now);
        record.done.store(true, Ordering::Release);
        self.state().flag = true;
    }

    pub(crate) fn flag(&self, _: &World) -> bool {
        self.state().flag
    }

    pub(crate) fn clear(&self, _: &World) {
        self.state().flag = false;
    }

    /// A new occurrence, which is now the last.
    pub(crate) fn begin(&self) -> Arc<Record> {
        let record = Arc::new(Record::default());
        let mut state = self.state();
        state.last = Some(record.clone());
        state.captured = None;
        record
    }

    pub(crate) fn last(&self) -> Option<Arc<Record>> {
        self.state().last.clone()
    }

    /// Where it was recorded in a capture that is still open.
    pub(crate) fn captured(&self, world: &World) -> Option<Captured> {
        self.state()
            .captured
            .clone()
            .filter(|captured| world.captures.contains_key(&captured.capture))
    }

    pub(crate) fn set_captured(&self, captured: Captured) {
        let mut state = self.state();
        state.captured = Some(captured);
        state.last = None;
    }

    fn name(&self) -> String {
        format!("event {:#x}", self.key)
    }
}

impl World {
    /// Makes an event.
    ///
    /// # Errors
    /// 107000 for flags that do not exist or do not go together, 207007 when all are taken.
    pub(crate) fn create_event(&mut self, ex: bool, flags: u32) -> Result<Key> {
        let (context, _) = self.current()?;
        let external = flags & EXTERNAL != 0;
        if flags == 0 || flags & !KNOWN_FLAGS != 0 || (external && (flags != EXTERNAL || ex)) {
            return fail(
                code::PARAM,
                format!("event flags {flags:#x} do not exist or do not go together"),
            );
        }
        let limit = config::events();
        if self.events.len() >= limit {
            return fail(code::NO_EVENT, format!("out of events: all {limit} are in use"));
        }
        let key = self.fresh_key();
        let family = match (external, ex) {
            (true, _) => Family::External,
            (false, true) => Family::Ex,
            (false, false) => Family::Plain,
        };
        let event = Event { key, context, family, flags, state: Mutex::default() };
        self.events.insert(key, Arc::new(event));
        call::live("events", 1);
        Ok(key)
    }

    /// Records an event on a stream.
    ///
    /// # Errors
    /// What the capture or the group of the stream says.
    pub(crate) fn record_event(&mut self, event: &Arc<Event>, stream: Key) -> Result {
        match &self.streams[&stream].role {
            Role::Plain => {
                let record = event.begin();
                self.enqueue(stream, Item::Signal(event.clone(), record));
                Ok(())
            }
            &Role::Captured(capture) => capture::record_event(self, capture, stream, event),
            &Role::Bound(graph) => build::record_event(self, graph, stream, event),
            Role::Updating(..) => {
                fail(code::GROUP_STATUS, "an event is recorded inside a task update")
            }
        }
    }

    /// Makes a stream wait for an event.
    ///
    /// # Errors
    /// 107000 for an Ex event that nothing has recorded; what a capture or a group says.
    pub(crate) fn wait_event(&mut self, stream: Key, event: &Arc<Event>) -> Result {
        match &self.streams[&stream].role {
            &Role::Captured(capture) => return capture::wait_event(self, capture, stream, event),
            &Role::Bound(graph) => return build::wait_event(self, graph, stream, event),
            Role::Updating(..) => {
                return fail(code::GROUP_STATUS, "an event is waited for inside a task update");
            }
            Role::Plain => {}
        }
        if let Some(captured) = event.captured(self) {
            return capture::fork(self, &captured, stream);
        }
        match event.family {
            Family::Plain | Family::External => {
                self.enqueue(stream, Item::AwaitFlag(event.clone()))
            }
            Family::Ex => {
                // UNSURE what a device does; no answer of it would be what the caller wants.
                let Some(record) = event.last() else {
                    return fail(
                        code::PARAM,
                        format!("{} is waited for and nothing has recorded it", event.name()),
                    );
                };
                self.enqueue(stream, Item::Await(record));
            }
        }
        Ok(())
    }

    /// Takes the flag of an event down, in the order of the stream.
    ///
    /// # Errors
    /// 107000 for an Ex event.
    pub(crate) fn reset_event(&mut self, event: &Arc<Event>, stream: Key) -> Result {
        if event.family == Family::Ex {
            return fail(
                code::PARAM,
                format!("{} is an Ex event, which is not reset", event.name()),
            );
        }
        match &self.streams[&stream].role {
            Role::Plain => {
                self.enqueue(stream, Item::ClearFlag(event.clone()));
                Ok(())
            }
            &Role::Captured(capture) => capture::reset_event(self, capture, stream, event),
            &Role::Bound(graph) => build::reset_event(self, graph, stream, event),
            Role::Updating(..) => {
                fail(code::GROUP_STATUS, "an event is reset inside a task update")
            }
        }
    }

    /// Refuses to let the host look at an event that a capture recorded, and spoils that capture.
    ///
    /// # Errors
    /// 107028.
    pub(crate) fn observe_event(&mut self, event: &Event) -> Result {
        let Some(captured) = event.captured(self) else { return Ok(()) };
        let message = format!("{} is part of a capture; the host cannot wait for it", event.name());
        capture::invalidate(self, captured.capture, &message);
        fail(code::EVENT_CAPTURED, message)
    }
}

/// Waits on the host until the last record of an event is worked off.
///
/// # Errors
/// 507047 after `limit`.
pub(crate) fn synchronise(
    mut world: MutexGuard<'static, World>,
    event: &Event,
    limit: Option<Instant>,
) -> Result {
    let Some(record) = event.last() else { return Ok(()) };
    while !record.is_done() {
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            return fail(code::EVENT_TIMEOUT, format!("{} did not happen in time", event.name()));
        }
        world = world::wait(world, limit);
    }
    Ok(())
}

/// Milliseconds between two events.
///
/// # Errors
/// 107006 when either carries no time or has not happened.
pub(crate) fn elapsed_ms(start: &Event, end: &Event) -> Result<f32> {
    Ok((instant(end)?.duration_since(instant(start)?)).as_secs_f32() * 1e3)
}

/// When an event happened.
///
/// # Errors
/// 107006 when it carries no time or has not happened.
pub(crate) fn instant(event: &Event) -> Result<Instant> {
    if event.flags & TIME_LINE == 0 {
        return fail(
            code::EVENT_TIMESTAMP,
            format!("{} was made without the time-line flag", event.name()),
        );
    }
    match event.last().and_then(|record| record.at.get().copied()) {
        Some(at) => Ok(at),
        None => fail(code::EVENT_TIMESTAMP, format!("{} has not happened", event.name())),
    }
}
