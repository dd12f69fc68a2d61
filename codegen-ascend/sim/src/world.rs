//! The state of the process: contexts, streams, events and graphs by handle.
//!
//! One mutex guards all of it; [`CHANGED`] is signalled whenever something that a thread may wait for
//! has happened. Handles are numbers that are never given twice, so a destroyed object is recognised.

use crate::{
    call,
    capture::Capture,
    config,
    error::{Result, code, fail},
    event::Event,
    graph::{Build, Graph, Group},
    memory,
    stream::Stream,
};
use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::c_void,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A handle as a number; what the interface passes as a pointer.
pub(crate) type Key = u64;

/// Everything.
pub(crate) struct World {
    initialised: bool,
    finalised: bool,
    last_key: Key,
    pub(crate) contexts: BTreeMap<Key, Context>,
    /// The context that `aclrtSetDevice` makes, and how often a device was set.
    primaries: BTreeMap<i32, (Key, u32)>,
    pub(crate) streams: BTreeMap<Key, Stream>,
    pub(crate) events: BTreeMap<Key, Arc<Event>>,
    pub(crate) graphs: BTreeMap<Key, Arc<Graph>>,
    pub(crate) captures: BTreeMap<Key, Capture>,
    pub(crate) builds: BTreeMap<Key, Build>,
    pub(crate) groups: BTreeMap<Key, Arc<Group>>,
}

/// A context of a device.
pub(crate) struct Context {
    pub(crate) device: i32,
    pub(crate) default_stream: Key,
    primary: bool,
}

static WORLD: Mutex<World> = Mutex::new(World {
    initialised: false,
    finalised: false,
    // Above what any allocator returns, so that a handle is never mistaken for memory.
    last_key: 0xA5CE_0000_0000_0000,
    contexts: BTreeMap::new(),
    primaries: BTreeMap::new(),
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    graphs: BTreeMap::new(),
    captures: BTreeMap::new(),
    builds: BTreeMap::new(),
    groups: BTreeMap::new(),
});

/// Something happened that a thread may wait for.
pub(crate) static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The context current on this thread; 0 is none.
    static CURRENT: Cell<Key> = const { Cell::new(0) };
}

/// The state, for as long as the guard lives.
pub(crate) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until something changes, or `limit` has passed.
pub(crate) fn wait(
    world: MutexGuard<'static, World>,
    limit: Option<Instant>,
) -> MutexGuard<'static, World> {
    match limit {
        None => CHANGED.wait(world).unwrap_or_else(PoisonError::into_inner),
        Some(limit) => {
            let left = limit.saturating_duration_since(Instant::now());
            CHANGED.wait_timeout(world, left).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// When a timeout in milliseconds ends; negative is never.
pub(crate) fn deadline(timeout_ms: i32) -> Option<Instant> {
    let limit = Duration::from_millis(u64::try_from(timeout_ms).ok()?);
    Instant::now().checked_add(limit)
}

/// A handle as the interface passes it.
pub(crate) fn handle(key: Key) -> *mut c_void {
    key as *mut c_void
}

impl World {
    /// A handle that was never given.
    pub(crate) fn fresh_key(&mut self) -> Key {
        self.last_key += 64;
        self.last_key
    }

    /// # Errors
    /// 100002 when it is initialised; or was, before releases that can start again.
    pub(crate) fn initialise(&mut self) -> Result {
        if self.initialised {
            return fail(code::REPEAT_INITIALIZE, "aclInit was called already");
        }
        if self.finalised && config::release() < acl::Release::V8_5 {
            return fail(
                code::REPEAT_INITIALIZE,
                "this release cannot start again after aclFinalize",
            );
        }
        self.initialised = true;
        self.finalised = false;
        Ok(())
    }

    /// # Errors
    /// 100037 when it is finalised, 100001 when it never was initialised.
    pub(crate) fn finalise(&mut self) -> Result {
        match (self.initialised, self.finalised) {
            (true, _) => {
                self.initialised = false;
                self.finalised = true;
                Ok(())
            }
            (false, true) => fail(code::REPEAT_FINALIZE, "aclFinalize was called already"),
            (false, false) => fail(code::UNINITIALIZE, "aclFinalize before aclInit"),
        }
    }

    /// # Errors
    /// 100001.
    pub(crate) fn ready(&self) -> Result {
        if self.initialised { Ok(()) } else { fail(code::UNINITIALIZE, "aclInit was not called") }
    }

    /// The context current on this thread.
    ///
    /// # Errors
    /// 100001, 107002.
    pub(crate) fn current(&self) -> Result<(Key, &Context)> {
        self.ready()?;
        let key = CURRENT.get();
        match self.contexts.get(&key) {
            Some(context) => Ok((key, context)),
            None => fail(
                code::CONTEXT_NULL,
                "no context is current on this thread; aclrtSetDevice or aclrtSetCurrentContext gives it one",
            ),
        }
    }

    /// Makes a context current on this thread.
    ///
    /// # Errors
    /// 107017.
    pub(crate) fn make_current(&self, context: Key) -> Result {
        self.ready()?;
        if !self.contexts.contains_key(&context) {
            return fail(code::INVALID_HANDLE, format!("{context:#x} is no live context"));
        }
        CURRENT.set(context);
        Ok(())
    }

    /// Makes a context of a device, with its default stream.
    ///
    /// # Errors
    /// 100001, 107001, 207008.
    pub(crate) fn create_context(&mut self, device: i32, primary: bool) -> Result<Key> {
        self.ready()?;
        if u32::try_from(device).map_or(true, |device| device >= config::devices()) {
            let message = format!("no device {device}; there are {}", config::devices());
            return fail(code::DEVICE, message);
        }
        let key = self.fresh_key();
        let default_stream = self.create_stream(key, 0)?;
        self.contexts.insert(key, Context { device, default_stream, primary });
        call::live("contexts", 1);
        Ok(key)
    }

    /// Counts a use of a device and makes its context current on this thread.
    ///
    /// # Errors
    /// As [`World::create_context`].
    pub(crate) fn set_device(&mut self, device: i32) -> Result {
        let context = match self.primaries.get_mut(&device) {
            Some((context, uses)) => {
                *uses += 1;
                *context
            }
            None => {
                let context = self.create_context(device, true)?;
                self.primaries.insert(device, (context, 1));
                context
            }
        };
        self.make_current(context)
    }

    /// Takes back one use of a device, or all; true when that was the last.
    ///
    /// # Errors
    /// 107001 when the device is not set.
    pub(crate) fn reset_device(&mut self, device: i32, all: bool) -> Result<bool> {
        self.ready()?;
        let Some((_, uses)) = self.primaries.get_mut(&device) else {
            return fail(code::DEVICE, format!("device {device} is not set"));
        };
        *uses = if all { 0 } else { *uses - 1 };
        Ok(*uses == 0)
    }

    /// Removes a context and what was made in it, its memory included when it is the device's own.
    /// Objects that the caller should have destroyed are counted as leaked.
    pub(crate) fn remove_context(&mut self, context: Key) {
        let Some(gone) = self.contexts.remove(&context) else { return };
        call::live("contexts", -1);
        let of_context = |stream: &Stream| stream.context == context;
        let streams: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| of_context(stream))
            .map(|(key, _)| *key)
            .collect();
        for key in streams {
            if key != gone.default_stream {
                call::count("leaked/streams", 1);
            }
            self.remove_stream(key);
        }
        let events = self.events.len();
        self.events.retain(|_, event| event.context != context);
        let lost = (events - self.events.len()) as u64;
        call::live("events", -(lost as i64));
        if lost > 0 {
            call::count("leaked/events", lost);
        }
        if self.contexts.is_empty() {
            let lost = self.graphs.len();
            call::live("graphs", -(lost as i64));
            if lost > 0 {
                call::count("leaked/graphs", lost as u64);
            }
            self.graphs.clear();
            self.builds.clear();
            self.groups.clear();
        }
        if gone.primary {
            self.primaries.retain(|_, (key, _)| *key != context);
            let lost = memory::release_all(Some(gone.device));
            if lost > 0 {
                call::count("leaked/device_memory", lost);
            }
        }
        if CURRENT.get() == context {
            CURRENT.set(0);
        }
    }

    /// Whether a context is a device's own.
    pub(crate) fn is_primary(&self, context: Key) -> bool {
        self.contexts.get(&context).is_some_and(|context| context.primary)
    }

    /// The context that belongs to a device.
    pub(crate) fn primary(&self, device: i32) -> Option<Key> {
        self.primaries.get(&device).map(|(context, _)| *context)
    }

    /// The stream that a handle means on this thread; null is the default one.
    ///
    /// # Errors
    /// 100001, 107002, 107003, 107017.
    pub(crate) fn stream(&self, handle: *mut c_void) -> Result<Key> {
        let (context, found) = self.current()?;
        if handle.is_null() {
            return Ok(found.default_stream);
        }
        let key = handle as Key;
        match self.streams.get(&key) {
            None => fail(code::INVALID_HANDLE, format!("{handle:p} is no live stream")),
            Some(stream) if stream.context != context => fail(
                code::STREAM_CONTEXT,
                format!("stream {handle:p} belongs to another context than the current one"),
            ),
            Some(_) => Ok(key),
        }
    }

    /// The event that a handle means.
    ///
    /// # Errors
    /// 100001, 107002, 107017.
    pub(crate) fn event(&self, handle: *mut c_void) -> Result<Arc<Event>> {
        self.current()?;
        match self.events.get(&(handle as Key)) {
            Some(event) => Ok(event.clone()),
            None => fail(code::INVALID_HANDLE, format!("{handle:p} is no live event")),
        }
    }

    /// Task queues in use: those of streams, and those that graphs own under the old driver.
    pub(crate) fn queues_in_use(&self) -> usize {
        self.streams.len() + self.graphs.values().map(|graph| graph.queues).sum::<usize>()
    }

    /// Forgets everything. The workers of streams end when they see it.
    pub(crate) fn clear(&mut self) {
        let streams: Vec<_> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|key| self.remove_stream(key));
        self.contexts.clear();
        self.primaries.clear();
        self.events.clear();
        self.graphs.clear();
        self.captures.clear();
        self.builds.clear();
        self.groups.clear();
        self.initialised = false;
        self.finalised = false;
        CURRENT.set(0);
        CHANGED.notify_all();
    }
}

/// Makes every stream give up what it does, and waits until it has.
pub(crate) fn quiesce() {
    let mut world = lock();
    let streams: Vec<_> = world.streams.keys().copied().collect();
    for stream in &streams {
        world.abort_stream(*stream);
    }
    while streams.iter().any(|stream| !world.is_idle(*stream)) {
        world = wait(world, None);
    }
}
