//! The pool with work that counts itself.

use super::*;
use crate::kernels::{Run, Scratch};
use std::thread::sleep;

/// Counts its calls, each thread at a place of its own, after a pause that differs.
struct Count {
    calls: Arc<Vec<AtomicUsize>>,
    /// Pauses last up to so many microseconds.
    pause: u64,
}

impl Run for Count {
    fn scratch(&self) -> Scratch {
        Scratch::default()
    }

    unsafe fn run(&self, worker: &Worker<'_>) {
        let calls = &self.calls[worker.index];
        if self.pause > 0 {
            let random = (calls.load(Ordering::Relaxed) + 7 * worker.index) as u64 * 2_654_435_761;
            sleep(Duration::from_micros((random >> 8) % self.pause));
        }
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// A list of `launches`, and how often each thread ran one.
fn counting(threads: usize, launches: usize, pause: u64) -> (Vec<Launch>, Arc<Vec<AtomicUsize>>) {
    let calls = Arc::new((0..threads).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
    let launch = |_| {
        let work = Work::Call(Box::new(Count { calls: Arc::clone(&calls), pause }));
        Launch { work, weights: Vec::new() }
    };
    ((0..launches).map(launch).collect(), calls)
}

fn replay(pool: &mut Pool, launches: &[Launch]) {
    let job = Job {
        launches,
        release: None,
        scratch: std::ptr::null_mut(),
        shared_bytes: 0,
        private_bytes: 0,
        record: None,
    };
    // SAFETY: the launches live, and use no memory that a job brings.
    unsafe { pool.run(job) };
}

#[test]
fn every_thread_runs_every_launch_of_many_short_jobs() {
    for threads in [1, 2, 5] {
        let (launches, calls) = counting(threads, 3, 0);
        let mut pool = Pool::new(threads, false).unwrap();
        for job in 1..=500 {
            replay(&mut pool, &launches);
            for calls in calls.iter() {
                assert_eq!(calls.load(Ordering::Relaxed), 3 * job, "{threads} threads");
            }
        }
    }
}

#[test]
fn threads_that_sleep_are_woken_wherever_they_are() {
    let (launches, calls) = counting(3, 4, 500);
    let mut pool = Pool::new(3, false).unwrap();
    for job in 1..=60 {
        // Around the moment in which a worker goes from spinning to sleep.
        sleep(SPIN * (job % 4) as u32 / 2);
        replay(&mut pool, &launches);
        for calls in calls.iter() {
            assert_eq!(calls.load(Ordering::Relaxed), 4 * job);
        }
    }
}

#[test]
fn a_pool_ends_while_its_threads_spin_or_sleep() {
    let (launches, _) = counting(3, 1, 0);
    for pause in [Duration::ZERO, SPIN, 20 * SPIN] {
        for jobs in [0, 1] {
            let mut pool = Pool::new(3, false).unwrap();
            (0..jobs).for_each(|_| replay(&mut pool, &launches));
            sleep(pause);
            drop(pool);
        }
    }
}
