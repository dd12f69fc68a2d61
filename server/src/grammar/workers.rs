//! Threads that work out which tokens may come next.

use super::constraint::State;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The most threads; one works out some thousand sets of tokens in a second.
const MAX_WORKERS: usize = 4;
/// Answers whose next tokens may wait to be worked out; more are held by their owners.
const QUEUE: usize = 4096;

/// Something to do away from the engine's thread.
pub(super) enum Task {
    /// Take the token that was chosen and work out what may follow.
    Advance(Box<State>),
    /// Free the memory.
    Discard(Box<State>),
}

/// The threads. They leave when nobody can give them work any more.
#[derive(Clone)]
pub(super) struct Workers {
    tasks: SyncSender<Task>,
}

/// How much the threads have done.
#[derive(Default)]
pub(crate) struct MaskTimes {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl MaskTimes {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Sets of tokens that were worked out.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Time of all threads that this took.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Relaxed))
    }
}

impl Workers {
    /// Starts threads, half as many as there are processors.
    pub(super) fn start(times: &Arc<MaskTimes>) -> Result<Self, String> {
        let (tasks, queue) = sync_channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(processors / 2).clamp(1, MAX_WORKERS) {
            let (queue, times) = (Arc::clone(&queue), Arc::clone(times));
            thread::Builder::new()
                .name("grammar".into())
                .spawn(move || work(&queue, &times))
                .map_err(|e| format!("cannot start a thread: {e}"))?;
        }
        Ok(Self { tasks })
    }

    /// Hands over a task without waiting; gives it back when there is no room.
    pub(super) fn give(&self, task: Task) -> Result<(), Task> {
        self.tasks.try_send(task).map_err(|e| match e {
            TrySendError::Full(task) | TrySendError::Disconnected(task) => task,
        })
    }
}

fn work(queue: &Mutex<Receiver<Task>>, times: &MaskTimes) {
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match task {
            Ok(Task::Advance(mut state)) => {
                let start = Instant::now();
                // A state that is lost to a panic tells its owner by closing the way back.
                if catch_unwind(AssertUnwindSafe(|| state.advance())).is_ok() {
                    times.add(start.elapsed());
                    state.send_back();
                } else {
                    tracing::error!("working out the tokens of a grammar panicked");
                }
            }
            Ok(Task::Discard(state)) => drop(state),
            Err(_) => return,
        }
    }
}
