//! Where the threads of a replay meet.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Looks at the others between two looks at the clock, which takes longer than a look at them.
const LOOKS: u32 = 32;
/// The longest and the shortest that a thread spins before it sleeps: what waking it costs, and next
/// to nothing.
const PATIENT: Duration = Duration::from_micros(100);
const HURRIED: Duration = Duration::from_micros(2);

/// A barrier where threads spin for a while, then sleep. All threads of a replay pass it together.
///
/// How long they spin follows what it was good for. When the others run too, they come soon, and who
/// sleeps is late himself. When a process beside us has their processor, spinning helps nobody, and
/// keeps them from the processor of the one who spins.
pub(crate) struct Barrier {
    threads: usize,
    /// Nanoseconds to spin.
    patience: AtomicU64,
    /// Threads that sleep or are about to.
    sleepers: AtomicUsize,
    /// Held by who decides whether to sleep.
    door: Mutex<()>,
    open: Condvar,
    arrived: Line<AtomicUsize>,
    epoch: Line<AtomicUsize>,
}

/// Alone in its cache lines, which processors fetch in pairs.
#[repr(align(128))]
struct Line<T>(T);

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            patience: AtomicU64::new(nanoseconds(PATIENT)),
            sleepers: AtomicUsize::new(0),
            door: Mutex::new(()),
            open: Condvar::new(),
            arrived: Line(AtomicUsize::new(0)),
            epoch: Line(AtomicUsize::new(0)),
        }
    }

    /// Returns when every thread has called it; what any thread wrote before is then visible.
    pub(crate) fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let epoch = self.epoch.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.0.store(0, Ordering::Relaxed);
            // Sequentially consistent, like a sleeper's side: either it sees the new epoch before it
            // sleeps, or this thread sees that it sleeps. An exchange and not a store: emulators of Arm let
            // a store pass the load after it.
            self.epoch.0.swap(epoch.wrapping_add(1), Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                // Who has seen the old epoch behind the door sleeps once the door can be had.
                drop(self.door.lock());
                self.open.notify_all();
            }
            return;
        }
        let began = Instant::now();
        let patience = self.patience.load(Ordering::Relaxed);
        if self.spin(epoch, began, patience) {
            self.spin_for(patience, patience.saturating_mul(2));
            return;
        }
        self.sleep(epoch);
        if began.elapsed() > PATIENT {
            self.spin_for(patience, patience / 2);
        }
    }

    fn passed(&self, epoch: usize) -> bool {
        self.epoch.0.load(Ordering::SeqCst) != epoch
    }

    /// Whether all came within `patience` from `began`.
    fn spin(&self, epoch: usize, began: Instant, patience: u64) -> bool {
        loop {
            for _ in 0..LOOKS {
                if self.passed(epoch) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if nanoseconds(began.elapsed()) > patience {
                return false;
            }
        }
    }

    fn sleep(&self, epoch: usize) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.passed(epoch) {
            door = self.open.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
        drop(door);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Spins so many nanoseconds from now on, within the bounds.
    fn spin_for(&self, before: u64, patience: u64) {
        let patience = patience.clamp(nanoseconds(HURRIED), nanoseconds(PATIENT));
        if patience != before {
            self.patience.store(patience, Ordering::Relaxed);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Runs `body` with the barrier on all its threads.
    fn together(threads: usize, body: impl Fn(usize, &Barrier) + Sync) -> Barrier {
        let barrier = Barrier::new(threads);
        thread::scope(|scope| {
            for index in 0..threads {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || body(index, barrier));
            }
        });
        barrier
    }

    /// Each thread counts its rounds, dawdles, and looks whether anyone is behind after the barrier.
    fn count_rounds(threads: usize, rounds: usize, dawdle: impl Fn(u64) + Sync) {
        let counts: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        together(threads, |index, barrier| {
            let mut random = index as u64 + 1;
            for round in 1..=rounds {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                dawdle(random >> 33);
                counts[index].store(round, Ordering::Relaxed);
                barrier.wait();
                for count in &counts {
                    assert_eq!(count.load(Ordering::Relaxed), round);
                }
                barrier.wait();
            }
        });
    }

    #[test]
    fn no_one_passes_before_all_have_come() {
        count_rounds(1, 10, |_| ());
        count_rounds(2, 5000, |_| ());
        count_rounds(3, 300, |random| match random % 8 {
            0 => thread::sleep(Duration::from_micros(random % 400)),
            1 => thread::yield_now(),
            _ => (0..random % 4000).for_each(|_| std::hint::spin_loop()),
        });
    }

    #[test]
    fn more_threads_than_processors_get_on() {
        let processors = thread::available_parallelism().map_or(1, |n| n.get());
        let began = Instant::now();
        count_rounds(4 * processors, 200, |_| ());
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_waits_long_leaves_the_processor_to_others() {
        fn processor_time() -> Duration {
            // SAFETY: `timespec` is plain data, and the call is given a live one.
            let time = unsafe {
                let mut time: libc::timespec = std::mem::zeroed();
                assert_eq!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time), 0);
                time
            };
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        }
        together(2, |index, barrier| {
            if index == 0 {
                thread::sleep(Duration::from_millis(300));
            }
            barrier.wait();
            assert!(processor_time() < Duration::from_millis(100), "{:?}", processor_time());
        });
    }

    #[test]
    fn waiting_in_vain_makes_spins_short_and_meeting_soon_makes_them_long() {
        let barrier = together(2, |index, barrier| {
            for _ in 0..20 {
                if index == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
                barrier.wait();
            }
        });
        let patience = || barrier.patience.load(Ordering::Relaxed);
        assert_eq!(patience(), nanoseconds(HURRIED));
        for _ in 0..20 {
            barrier.spin_for(patience(), 2 * patience());
        }
        assert_eq!(patience(), nanoseconds(PATIENT));
    }
}
