//! Work that took a slower path than it need have: counted each time, and logged the first time, so that
//! a log says what happens and `/metrics` how often.

use std::{
    fmt::Display,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// One kind of slower path of an engine.
#[derive(Default)]
pub(crate) struct Slower {
    times: AtomicU64,
    is_logged: AtomicBool,
}

impl Slower {
    /// It was taken `times` times. The first time, `what` says what happened and what avoids it; nothing
    /// is formatted later.
    pub(crate) fn count<T: Display>(&self, times: u64, what: impl FnOnce() -> T) {
        if self.is_first(times) {
            tracing::warn!("{} (logged once, counted from now on)", what());
        }
    }

    /// As [`Slower::count`], for what is a matter of course with some requests and a concern only in
    /// numbers.
    pub(crate) fn note<T: Display>(&self, times: u64, what: impl FnOnce() -> T) {
        if self.is_first(times) {
            tracing::info!("{} (logged once, counted from now on)", what());
        }
    }

    /// It was taken `times` times because somebody asked for it, which needs no saying.
    pub(crate) fn count_asked(&self, times: u64) {
        self.times.fetch_add(times, Relaxed);
    }

    pub(crate) fn times(&self) -> u64 {
        self.times.load(Relaxed)
    }

    fn is_first(&self, times: u64) -> bool {
        self.times.fetch_add(times, Relaxed);
        times > 0 && !self.is_logged.load(Relaxed) && !self.is_logged.swap(true, Relaxed)
    }
}
