//! The threads that walk a captured list of calls together.

use super::affinity::Pinned;
use super::graph::{Chain, Launch, Work};
use super::memory::Memory;
use super::timeline::{Clock, Record, Untimed};
use crate::kernels::{Barrier, Worker};
use hal::DeviceError;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker waits for the next replay before it sleeps.
const SPIN: Duration = Duration::from_micros(150);
/// Spins between looks at the clock.
const SPINS_PER_LOOK: u32 = 256;

/// What the threads do in one replay.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// What to do.
    pub(super) launches: *const [Launch],
    /// Where weights are released after each launch, if they are.
    pub(super) release: Option<*const Memory>,
    /// Working memory: that of all threads, then that of each thread.
    pub(super) scratch: *mut u8,
    /// Bytes of the shared part.
    pub(super) shared_bytes: usize,
    /// Bytes of each thread's part.
    pub(super) private_bytes: usize,
    /// Where times are noted, if they are.
    pub(super) record: Option<Record>,
}

/// What the threads share.
struct Shared {
    threads: usize,
    /// Replays so far; a new number tells the workers that `job` is new.
    generation: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    barrier: Barrier,
    /// Set by a worker before it sleeps.
    asleep: Vec<AtomicBool>,
}

// SAFETY: `job` is written by the main thread only while the workers wait for a new generation and
// read by them only after they saw it; its pointers outlive the replay that they belong to.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Worker threads; the thread that replays is number 0 and not among them.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads - 1` workers.
    pub(super) fn new(threads: usize, pin: bool) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            threads,
            generation: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            barrier: Barrier::new(threads),
            asleep: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Self { shared, workers: Vec::new(), handles: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = std::thread::Builder::new()
                .name(format!("cpu-worker-{index}"))
                .spawn(move || {
                    let _pinned = pin.then(|| Pinned::to(index));
                    work(&shared, index);
                })
                .map_err(|e| DeviceError::Failed {
                    device: "cpu".into(),
                    why: format!(
                        "cannot start thread {index} of {threads}: {e}; use fewer threads"
                    ),
                })?;
            pool.workers.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    pub(super) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on all threads and returns when all are done.
    ///
    /// # Safety
    /// The job's pointers are valid, its calls were bound to memory that is alive and that no one
    /// else uses during the call.
    pub(super) unsafe fn run(&mut self, job: Job) {
        // Only the barrier after a launch says that every worker has taken the job.
        if job.launches.is_empty() {
            return;
        }
        let shared = &*self.shared;
        // SAFETY: every worker passed the last barrier of the job before, so it has its own copy of
        // that one and does not look here before it sees the next generation.
        unsafe { *shared.job.get() = Some(job) };
        // Sequentially consistent, like the workers' side: either a worker sees the new generation
        // before it sleeps, or this thread sees that it sleeps.
        shared.generation.fetch_add(1, Ordering::SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep[1..]) {
            if asleep.load(Ordering::SeqCst) {
                worker.unpark();
            }
        }
        // SAFETY: the caller's promise.
        unsafe { take(shared, job, 0) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker that panicked has said so on standard error; there is no one to tell here.
            let _ = handle.join();
        }
    }
}

/// A worker's life.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = next_generation(shared, index, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the new generation says that the job is written and stays until all are done.
        unsafe {
            let job = (*shared.job.get()).expect("written before its generation");
            take(shared, job, index);
        }
    }
}

/// Waits for a generation after `seen`: spinning at first, then asleep.
fn next_generation(shared: &Shared, index: usize, seen: usize) -> usize {
    let began = Instant::now();
    loop {
        for _ in 0..SPINS_PER_LOOK {
            let now = shared.generation.load(Ordering::Acquire);
            if now != seen {
                return now;
            }
            std::hint::spin_loop();
        }
        if began.elapsed() > SPIN {
            break;
        }
    }
    // An exchange and not a store: emulators of Arm let a store pass the load after it.
    shared.asleep[index].swap(true, Ordering::SeqCst);
    loop {
        let now = shared.generation.load(Ordering::SeqCst);
        if now != seen {
            shared.asleep[index].store(false, Ordering::SeqCst);
            return now;
        }
        std::thread::park();
    }
}

/// Does the part of thread `index` of a job.
///
/// # Safety
/// As [`Pool::run`]; every thread calls it.
unsafe fn take(shared: &Shared, job: Job, index: usize) {
    // SAFETY: the caller's promise, also for the record.
    unsafe {
        match job.record {
            None => walk(shared, job, index, Untimed),
            Some(record) => {
                walk(shared, job, index, record.of_thread(index));
                // Each thread notes the last launch after its barrier, before anyone reads.
                shared.barrier.wait();
            }
        }
    }
}

/// Runs every launch's share of thread `index`, all threads in step.
///
/// # Safety
/// As [`take`].
unsafe fn walk(shared: &Shared, job: Job, index: usize, mut clock: impl Clock) {
    let _together = AbortOnPanic;
    let mut worker = Worker {
        index,
        count: shared.threads,
        barrier: &shared.barrier,
        private: job.scratch.wrapping_add(job.shared_bytes + index * job.private_bytes),
        shared: job.scratch,
        upcoming: std::ptr::null(),
    };
    // SAFETY: the caller's promise.
    for launch in unsafe { &*job.launches } {
        clock.begin();
        worker.upcoming = launch.upcoming[index].0;
        // SAFETY: calls were bound to memory that is alive; scratch is as large as they asked for.
        unsafe {
            match &launch.work {
                Work::Call(call) => call.run(&worker),
                Work::Chain(chain) => run_rows(chain, &worker),
            }
        }
        clock.end();
        shared.barrier.wait();
        clock.pass();
        if let (0, Some(memory)) = (index, job.release) {
            for &(offset, bytes) in &launch.weights {
                // SAFETY: the caller's promise.
                unsafe { (*memory).release_weights(offset, bytes) };
            }
        }
    }
}

/// Runs a chain on the rows of one thread.
///
/// # Safety
/// As [`crate::kernels::Run::run`] for each of the calls.
unsafe fn run_rows(chain: &Chain, worker: &Worker<'_>) {
    let (alone, calls) = (Barrier::new(1), &chain.calls[worker.index]);
    for row in worker.share(chain.rows) {
        let worker = Worker {
            index: row,
            count: chain.rows,
            barrier: &alone,
            private: worker.private,
            shared: std::ptr::null_mut(),
            upcoming: std::ptr::null(),
        };
        for call in calls {
            // SAFETY: the caller's promise.
            unsafe { call.ask(&worker) };
        }
        for call in calls {
            // SAFETY: the caller's promise; a call of a chain uses no shared memory.
            unsafe { call.run(&worker) };
        }
    }
}

/// Ends the process when a thread unwinds out of a replay: the others would wait for it at the next
/// barrier for ever, or go on in memory that it gives back.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
