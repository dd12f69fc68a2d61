//! The pool with work that counts itself.

use super::*;
use crate::device::graph::{Upcoming, foresee};
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
        Launch { work, weights: Vec::new(), upcoming: vec![Upcoming(std::ptr::null()); threads] }
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

/// Notes what each thread was told of weights that it needs soon; has weights of its own, or none.
struct Reader {
    weights: Option<usize>,
    told: Arc<Vec<AtomicUsize>>,
}

impl Run for Reader {
    fn scratch(&self) -> Scratch {
        Scratch::default()
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        self.weights.map(|at| std::ptr::without_provenance(at + 10 * count + index))
    }

    unsafe fn run(&self, worker: &Worker<'_>) {
        self.told[worker.index].store(worker.upcoming.addr(), Ordering::Relaxed);
    }
}

#[test]
fn threads_know_what_they_read_first_a_few_launches_later() {
    let weights = [None, Some(1000), None, Some(2000), None, None, None, Some(3000), None];
    let mut told = Vec::new();
    let mut launches = weights.map(|weights| {
        let places = Arc::new((0..2).map(|_| AtomicUsize::new(1)).collect::<Vec<_>>());
        told.push(Arc::clone(&places));
        let work = Work::Call(Box::new(Reader { weights, told: places }));
        Launch { work, weights: Vec::new(), upcoming: Vec::new() }
    });
    foresee(&mut launches, 2);
    replay(&mut Pool::new(2, false).unwrap(), &launches);
    let expected = [1020, 2020, 2020, 0, 3020, 3020, 3020, 0, 0];
    for (at, (told, expected)) in told.iter().zip(expected).enumerate() {
        for (thread, told) in told.iter().enumerate() {
            let expected = if expected == 0 { 0 } else { expected + thread };
            assert_eq!(told.load(Ordering::Relaxed), expected, "launch {at}, thread {thread}");
        }
    }
}
