//! Streams: queues that are worked off in order, each by a thread of its own.

use crate::{
    call, capture, config,
    error::{Failure, Result, code, fail, report},
    event::{Event, Record},
    graph::{Flight, Slot, build},
    memory,
    world::{self, CHANGED, Key, World},
};
use acl::sys::aclError;
use std::{
    collections::VecDeque,
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

/// What a task is; it decides where it may be captured and how its failure is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A kernel of a loaded binary.
    Kernel,
    /// A library operator.
    Operator,
    /// A copy or fill.
    Copy,
    /// A function of the host.
    Host,
    /// A hint about caches.
    Cache,
}

/// Work for a stream.
#[derive(Clone)]
pub struct Task {
    /// Name for reports and for fault injection.
    pub name: Arc<str>,
    /// What it is.
    pub kind: Kind,
    /// Does it. Called once per replay when the task is captured; an error fails the stream.
    pub work: Arc<Work>,
}

/// The body of a task.
pub type Work = dyn Fn() -> std::result::Result<(), String> + Send + Sync;

impl Task {
    /// A task.
    pub fn new(
        name: impl Into<Arc<str>>,
        kind: Kind,
        work: impl Fn() -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), kind, work: Arc::new(work) }
    }

    /// Does the work now, on this thread.
    ///
    /// # Errors
    /// The code by the kind of the task, or an injected one.
    pub(crate) fn run(&self) -> Result {
        if let Some(failure) = call::task_fault(&self.name) {
            return Err(failure);
        }
        if matches!(self.kind, Kind::Kernel | Kind::Operator) && !config::executes() {
            return Ok(());
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.work)()))
            .unwrap_or_else(|_| Err("the software device has a defect: it panicked".to_owned()));
        outcome.map_err(|why| {
            let code = match self.kind {
                Kind::Kernel | Kind::Operator | Kind::Copy => code::AICORE_EXCEPTION,
                Kind::Host | Kind::Cache => code::INTERNAL,
            };
            Failure::new(code, format!("task {}: {why}", self.name))
        })
    }
}

/// What stands in the queue of a stream.
pub(crate) enum Item {
    Work(Task),
    /// An event happens.
    Signal(Arc<Event>, Arc<Record>),
    /// Wait for one occurrence of an event.
    Await(Arc<Record>),
    /// Wait until the flag of an event is up.
    AwaitFlag(Arc<Event>),
    /// Take the flag of an event down.
    ClearFlag(Arc<Event>),
    /// Replay a graph.
    Replay(Flight),
    /// Give captured tasks new work.
    Update(Vec<(Arc<Slot>, Task)>),
}

/// What submitting to a stream means at the moment.
pub(crate) enum Role {
    /// Tasks run.
    Plain,
    /// Tasks are recorded by this capture.
    Captured(Key),
    /// Tasks become the new work of this group.
    Updating(Key, Vec<Task>),
    /// Tasks become part of this explicitly built graph.
    Bound(Key),
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: Key,
    pub(crate) flags: u32,
    pub(crate) role: Role,
    /// Whether tasks after a failed one are dropped.
    pub(crate) stop_on_failure: bool,
    queue: VecDeque<Item>,
    issued: u64,
    finished: u64,
    /// The first failure that no synchronisation has told yet.
    fault: Option<Failure>,
    wake: Arc<Condvar>,
    /// Whether its thread waits for `wake`: a call of the host wakes it at most once, as waking takes a
    /// system call, which the hardware that it stands for does not.
    sleeps: bool,
    has_worker: bool,
    /// Counts aborts; a waiting task that sees it move gives up.
    aborts: u64,
}

/// Work that waits belongs to this stream and gives up when it is aborted or gone.
#[derive(Clone, Copy)]
pub(crate) struct Lease {
    pub(crate) stream: Key,
    aborts: u64,
}

impl Lease {
    pub(crate) fn is_void(&self, world: &World) -> bool {
        world.streams.get(&self.stream).is_none_or(|stream| stream.aborts != self.aborts)
    }
}

/// Submits a task to a stream (null is the default one): it runs in order with the stream's other
/// tasks, on the stream's thread. A capturing stream records it instead.
pub fn submit(stream: *mut c_void, task: Task) -> aclError {
    try_submit(stream, task).map_or_else(report, |()| 0)
}

/// As [`submit`], for use inside an exported function.
///
/// # Errors
/// What makes the stream or the capture refuse it.
pub fn try_submit(stream: *mut c_void, task: Task) -> Result {
    let mut world = world::lock();
    let key = world.stream(stream)?;
    world.submit(key, task)
}

/// Whether the stream records rather than runs.
///
/// # Errors
/// When the handle is not a stream of the current context.
pub fn is_capturing(stream: *mut c_void) -> Result<bool> {
    let world = world::lock();
    let key = world.stream(stream)?;
    Ok(matches!(world.streams[&key].role, Role::Captured(_)))
}

impl World {
    /// Makes a stream in a context.
    ///
    /// # Errors
    /// 207008 when all are taken.
    pub(crate) fn create_stream(&mut self, context: Key, flags: u32) -> Result<Key> {
        let (used, limit) = (self.queues_in_use(), config::streams());
        if used >= limit {
            let message = format!(
                "out of streams: {used} of {limit} task queues are in use; Alloc sq cq fail"
            );
            return fail(code::NO_STREAM, message);
        }
        let key = self.fresh_key();
        let stream = Stream {
            context,
            flags,
            role: Role::Plain,
            stop_on_failure: false,
            queue: VecDeque::new(),
            issued: 0,
            finished: 0,
            fault: None,
            wake: Arc::new(Condvar::new()),
            sleeps: false,
            has_worker: false,
            aborts: 0,
        };
        self.streams.insert(key, stream);
        call::live("streams", 1);
        Ok(key)
    }

    /// Removes a stream with whatever it still had to do, and gives up a capture that it is part of.
    pub(crate) fn remove_stream(&mut self, key: Key) {
        if let Some(stream) = self.streams.remove(&key) {
            if let Role::Captured(capture) = stream.role {
                capture::give_up(self, capture);
            }
            call::live("streams", -1);
            stream.wake.notify_all();
            CHANGED.notify_all();
        }
    }

    fn submit(&mut self, key: Key, task: Task) -> Result {
        let Some(stream) = self.streams.get_mut(&key) else {
            return fail(code::INVALID_HANDLE, "the stream is gone");
        };
        match &mut stream.role {
            Role::Plain => {
                self.enqueue(key, Item::Work(task));
                Ok(())
            }
            Role::Captured(capture) => {
                let capture = *capture;
                capture::record_task(self, capture, key, task)
            }
            Role::Updating(_, tasks) => {
                tasks.push(task);
                Ok(())
            }
            Role::Bound(graph) => {
                let graph = *graph;
                build::record_task(self, graph, key, task)
            }
        }
    }

    /// Puts something at the end of a stream's queue.
    pub(crate) fn enqueue(&mut self, key: Key, item: Item) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.queue.push_back(item);
        stream.issued += 1;
        if std::mem::take(&mut stream.sleeps) {
            stream.wake.notify_one();
        }
        if !stream.has_worker {
            stream.has_worker = true;
            thread::spawn(move || work(key));
        }
    }

    /// Drops what is queued and makes what waits give up.
    pub(crate) fn abort_stream(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.finished += stream.queue.len() as u64;
            stream.queue.clear();
            stream.aborts += 1;
            CHANGED.notify_all();
        }
    }

    /// Whether everything submitted to a stream is done.
    pub(crate) fn is_idle(&self, key: Key) -> bool {
        self.streams.get(&key).is_none_or(|stream| stream.finished == stream.issued)
    }
}

/// Waits until everything submitted to a stream before the call is done, then tells its failure.
///
/// # Errors
/// 507046 after `limit`; the first failure since the last time; 507015 when memory was written out of
/// bounds.
pub(crate) fn drain(
    mut world: MutexGuard<'static, World>,
    key: Key,
    limit: Option<Instant>,
) -> Result {
    let issued = world.streams.get(&key).map_or(0, |stream| stream.issued);
    loop {
        let Some(stream) = world.streams.get_mut(&key) else {
            return fail(code::STREAM_ABORT, "the stream was destroyed while it was waited for");
        };
        if stream.finished >= issued {
            let fault = stream.fault.take();
            drop(world);
            return fault.map_or_else(memory::check_all, Err);
        }
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            return fail(code::STREAM_TIMEOUT, "the stream did not finish in time");
        }
        world = world::wait(world, limit);
    }
}

/// The thread of a stream.
fn work(key: Key) {
    let mut world = world::lock();
    loop {
        let Some(stream) = world.streams.get_mut(&key) else { return };
        let Some(item) = stream.queue.pop_front() else {
            stream.sleeps = true;
            let wake = stream.wake.clone();
            world = wake.wait(world).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let lease = Lease { stream: key, aborts: stream.aborts };
        let skip = stream.stop_on_failure && stream.fault.is_some();
        drop(world);
        let outcome = perform(item, lease, skip);
        world = world::lock();
        if let Some(stream) = world.streams.get_mut(&key) {
            stream.finished += 1;
            if let Err(failure) = outcome {
                stream.fault.get_or_insert(failure);
            }
        }
        CHANGED.notify_all();
    }
}

fn perform(item: Item, lease: Lease, skip: bool) -> Result {
    match item {
        Item::Work(_) if skip => Ok(()),
        Item::Work(task) => task.run(),
        Item::Signal(event, record) => {
            event.happen(&world::lock(), &record);
            CHANGED.notify_all();
            Ok(())
        }
        Item::Await(record) => wait_until(lease, |_| record.is_done()),
        Item::AwaitFlag(event) => wait_until(lease, |world| event.flag(world)),
        Item::ClearFlag(event) => {
            event.clear(&world::lock());
            Ok(())
        }
        Item::Replay(flight) => flight.run(lease, skip),
        Item::Update(tasks) => {
            tasks.into_iter().for_each(|(slot, task)| slot.replace(task));
            Ok(())
        }
    }
}

/// Waits on a device thread.
///
/// # Errors
/// 107023 when the stream is aborted meanwhile.
pub(crate) fn wait_until(lease: Lease, happened: impl Fn(&World) -> bool) -> Result {
    let mut world = world::lock();
    while !happened(&world) {
        if lease.is_void(&world) {
            return fail(code::STREAM_ABORT, "the stream was aborted while it waited");
        }
        world = world::wait(world, None);
    }
    Ok(())
}
