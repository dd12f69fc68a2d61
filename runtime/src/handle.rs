//! The engine as other threads see it: a queue in, counters out.

use crate::{
    FlushError, PrefixCaching, Request, StartupReport, Stats, SubmitError,
    capacity::Ceiling,
    limits::{Checked, Limits},
    stats::Counters,
};
use std::{
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, SeqCst},
        },
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How much memory the device has for sequences; nothing spare is counted.
#[derive(Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) blocks: u32,
    pub(crate) block_tokens: u32,
    pub(crate) window_blocks: u32,
    pub(crate) slots: u32,
    pub(crate) prefix_cache: PrefixCaching,
}

/// What an engine and its handles share.
pub(crate) struct Shared {
    pub(crate) counters: Counters,
    pub(crate) limits: Limits,
    pub(crate) device: String,
    pub(crate) max_running: u32,
    pub(crate) max_queued: u32,
    pub(crate) ceiling: Ceiling,
    pub(crate) totals: Totals,
    /// Requests accepted and not ended.
    pub(crate) requests: AtomicU64,
    pub(crate) draining: AtomicBool,
    /// No steps are taken.
    pub(crate) paused: AtomicBool,
    pub(crate) stopped: AtomicBool,
    pub(crate) failure: OnceLock<String>,
    /// Guards nothing but the wait of [`EngineHandle::wait_idle`].
    idle_lock: Mutex<()>,
    idle: Condvar,
}

impl Shared {
    pub(crate) fn new(
        limits: Limits,
        (max_running, max_queued): (u32, u32),
        ceiling: Ceiling,
        totals: Totals,
        counters: Counters,
        device: String,
    ) -> Self {
        Self {
            counters,
            limits,
            device,
            max_running,
            max_queued,
            ceiling,
            totals,
            requests: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            failure: OnceLock::new(),
            idle_lock: Mutex::new(()),
            idle: Condvar::new(),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            max_running_requests: self.max_running.into(),
            max_queued_requests: self.max_queued.into(),
            ceiling_replays: self.ceiling.replays.into(),
            ceiling_padded_rows: self.ceiling.padded_rows.into(),
            total_blocks: self.totals.blocks.into(),
            total_window_blocks: self.totals.window_blocks.into(),
            total_sequence_slots: self.totals.slots.into(),
            block_tokens: self.totals.block_tokens.into(),
            prefix_cache: self.totals.prefix_cache,
            is_paused: self.paused.load(Relaxed),
            ..self.counters.snapshot()
        }
    }

    /// Wakes [`EngineHandle::wait_idle`].
    pub(crate) fn notify_idle(&self) {
        let _guard = self.idle_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.idle.notify_all();
    }

    /// Whether every request is answered, and the counters say so.
    fn is_idle(&self) -> bool {
        let nothing_runs = self.counters.running.load(Acquire) == 0;
        self.requests.load(SeqCst) == 0 && nothing_runs || self.stopped.load(SeqCst)
    }

    /// Counts one more accepted request, unless there are as many as may run and wait.
    fn reserve(&self) -> Result<(), SubmitError> {
        let room = u64::from(self.max_running) + u64::from(self.max_queued);
        self.requests
            .fetch_update(SeqCst, SeqCst, |n| (n < room).then_some(n + 1))
            .map(|_| ())
            .map_err(|_| {
                self.counters.rejected.fetch_add(1, Relaxed);
                SubmitError::QueueFull { limit: self.max_queued }
            })
    }
}

/// A message to the engine thread.
pub(crate) enum Command {
    /// A request that was counted.
    Submit(Box<Checked>),
    /// Free the KV blocks that keep a prefix, and answer.
    Flush(mpsc::SyncSender<Result<Flushed, FlushError>>),
    /// Take no more steps, and answer when that is so.
    Pause(Pause, mpsc::SyncSender<()>),
    /// Take steps again.
    Continue,
    /// End every request and leave.
    Stop,
}

/// What [`EngineHandle::flush_cache`] dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// KV blocks that kept a prefix and are free now.
    pub blocks: u64,
}

/// What becomes of running requests while an engine is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// They keep their memory.
    InPlace,
    /// They give it back and are computed again; with [`EngineHandle::flush_cache`], nothing that was
    /// computed is left.
    Retract,
}

/// A running engine. Clones share it; when the last one is dropped the engine finishes what it has
/// accepted and leaves.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    startup: Arc<StartupReport>,
}

impl EngineHandle {
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: mpsc::Sender<Command>,
        thread: JoinHandle<()>,
        startup: StartupReport,
    ) -> Self {
        let thread = Arc::new(Mutex::new(Some(thread)));
        Self { shared, commands, thread, startup: Arc::new(startup) }
    }

    /// Queues a request and returns at once. Its events come through its sink, the last of them
    /// with a [`crate::Finish`]; a sink that is dropped without one belonged to an engine that
    /// stopped at that moment.
    ///
    /// # Errors
    /// [`SubmitError`]; the sink is dropped without an event then.
    pub fn submit(&self, request: Request) -> Result<(), SubmitError> {
        let shared = &self.shared;
        if shared.stopped.load(SeqCst) || shared.draining.load(SeqCst) {
            return Err(SubmitError::Stopped);
        }
        let request = shared.limits.check(request)?;
        shared.reserve()?;
        self.commands.send(Command::Submit(Box::new(request))).map_err(|_| {
            shared.requests.fetch_sub(1, SeqCst);
            SubmitError::Stopped
        })
    }

    /// Name of the device, for reports.
    pub fn device_name(&self) -> &str {
        &self.shared.device
    }

    /// How long the start took.
    pub fn startup(&self) -> &StartupReport {
        &self.startup
    }

    /// How long the present step has taken so far; `None` between steps. Takes no lock and
    /// allocates nothing, so that a watchdog may ask often.
    pub fn current_step(&self) -> Option<Duration> {
        self.shared.counters.current_step()
    }

    /// A snapshot of the counters. Takes no lock; allocates for the lists in [`Stats`].
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The most tokens of prompt and answer together: what the model, the plans and all KV blocks
    /// hold. A longer answer ends with [`crate::Finish::Length`].
    pub fn context_tokens(&self) -> usize {
        self.shared.limits.context_tokens
    }

    /// Drops what is cached across requests. Waits for the engine thread, at most for one step.
    ///
    /// # Errors
    /// [`FlushError`] when the engine is busy or has stopped.
    pub fn flush_cache(&self) -> Result<Flushed, FlushError> {
        if self.shared.stopped.load(SeqCst) {
            return Err(FlushError::Stopped);
        }
        let (answer, answered) = mpsc::sync_channel(1);
        self.commands.send(Command::Flush(answer)).map_err(|_| FlushError::Stopped)?;
        answered.recv().unwrap_or(Err(FlushError::Stopped))
    }

    /// Takes no more steps until [`EngineHandle::resume`]; requests wait meanwhile. Waits for the present
    /// step. An engine that drains goes on.
    pub fn pause(&self, what: Pause) {
        let (answer, answered) = mpsc::sync_channel(1);
        if self.commands.send(Command::Pause(what, answer)).is_ok() {
            // Fails when the engine stops.
            let _ = answered.recv();
        }
    }

    /// Takes steps again after [`EngineHandle::pause`].
    pub fn resume(&self) {
        // Fails only when the thread has left already.
        let _ = self.commands.send(Command::Continue);
    }

    /// Takes no further requests; what was accepted is finished. Returns at once, see
    /// [`EngineHandle::wait_idle`].
    pub fn drain(&self) {
        self.shared.draining.store(true, SeqCst);
    }

    /// Waits until every accepted request has ended; `false` when `timeout` passes before.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut guard = self.shared.idle_lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.shared.is_idle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = self
                .shared
                .idle
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Stops the engine after its present step and waits for its thread. Requests that have not
    /// ended are told [`crate::Finish::Abort`]; call [`EngineHandle::drain`] and
    /// [`EngineHandle::wait_idle`] first to let them finish. Further calls return at once.
    pub fn shutdown(&self) {
        self.drain();
        // Fails only when the thread has left already.
        let _ = self.commands.send(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the engine thread panicked");
        }
    }

    /// Whether the engine takes no more requests because it has left its loop.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(SeqCst)
    }

    /// Why the engine stopped by itself; `None` while it runs and after [`EngineHandle::shutdown`].
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }
}
