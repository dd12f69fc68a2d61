//! Which processor a thread runs on.

/// Keeps the calling thread on one processor; dropping it restores what was before.
pub(super) struct Pinned {
    #[cfg(target_os = "linux")]
    _before: linux::Before,
}

impl Pinned {
    /// Keeps the calling thread on the `index`-th processor that it may use now, counted modulo
    /// their number. `None` when the system refuses or has no such call.
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

#[cfg(target_os = "linux")]
mod linux {
    /// A thread and the processors it could use.
    pub(super) struct Before {
        thread: libc::pid_t,
        set: libc::cpu_set_t,
    }

    pub(super) fn pin(index: usize) -> Option<Before> {
        const SIZE: usize = size_of::<libc::cpu_set_t>();
        // SAFETY: `cpu_set_t` is plain data for which zeros are the empty set; the calls are given
        // its size and live pointers.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, SIZE, &mut set) != 0 {
                return None;
            }
            let count = libc::CPU_COUNT(&set) as usize;
            let usable = (0..libc::CPU_SETSIZE as usize).filter(|&c| libc::CPU_ISSET(c, &set));
            let chosen = usable.into_iter().nth(index % count.max(1))?;
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
                libc::sched_setaffinity(self.thread, size_of::<libc::cpu_set_t>(), &self.set);
            }
        }
    }
}
