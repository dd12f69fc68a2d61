//! Which processor a thread runs on.

use std::sync::OnceLock;

/// Keeps the calling thread on one processor; dropping it restores what was before.
pub(super) struct Pinned {
    #[cfg(target_os = "linux")]
    _before: linux::Before,
}

impl Pinned {
    /// Keeps the calling thread on the `index`-th processor that the process could use when it first
    /// asked, counted modulo their number: a thread that was kept on one already, for another
    /// device, counts them all the same. `None` when the system refuses or has no such call.
    #[cfg(target_os = "linux")]
    pub(super) fn to(index: usize) -> Option<Self> {
        linux::pin(index).map(|_before| Self { _before })
    }

    /// This system has no such call.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn to(_: usize) -> Option<Self> {
        None
    }
}

/// How many threads the process can run at once. The first call, which must come before any thread
/// is pinned, also notes which processors there are.
pub(super) fn available_threads() -> usize {
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        #[cfg(target_os = "linux")]
        linux::usable();
        std::thread::available_parallelism().map_or(1, |n| n.get())
    })
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::OnceLock;

    const SIZE: usize = size_of::<libc::cpu_set_t>();

    /// The processors of a thread that no one has pinned yet.
    pub(super) fn usable() -> &'static [usize] {
        static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
        USABLE.get_or_init(|| {
            let set = of_this_thread();
            // SAFETY: the set is one that `of_this_thread` filled in; the index is within it.
            let has = |&c: &usize| set.is_some_and(|set| unsafe { libc::CPU_ISSET(c, &set) });
            (0..libc::CPU_SETSIZE as usize).filter(has).collect()
        })
    }

    fn of_this_thread() -> Option<libc::cpu_set_t> {
        // SAFETY: `cpu_set_t` is plain data for which zeros are the empty set; the call is given its
        // size and a live pointer.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            (libc::sched_getaffinity(0, SIZE, &mut set) == 0).then_some(set)
        }
    }

    /// A thread and the processors it could use.
    pub(super) struct Before {
        thread: libc::pid_t,
        set: libc::cpu_set_t,
    }

    pub(super) fn pin(index: usize) -> Option<Before> {
        let usable = usable();
        let chosen = *usable.get(index % usable.len().max(1))?;
        let set = of_this_thread()?;
        // SAFETY: as in `of_this_thread`; `chosen` is within the set.
        unsafe {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(chosen, &mut one);
            if libc::sched_setaffinity(0, SIZE, &one) != 0 {
                return None;
            }
            Some(Before { thread: libc::gettid(), set })
        }
    }

    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: the set is live; a thread that has ended since is an error code. Should its
            // number belong to another thread by now, that thread may run on the processors of the
            // set, which changes its speed alone.
            unsafe {
                libc::sched_setaffinity(self.thread, SIZE, &self.set);
            }
        }
    }
}
