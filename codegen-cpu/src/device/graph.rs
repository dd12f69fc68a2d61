//! A captured list of launches.

use super::memory::{Mapping, Memory};
use crate::kernels::{Run, Scratch};
use std::sync::Arc;

/// How many launches further on weights are asked for: from a layer's first product over rotation and attention to
/// the second.
const SOON: usize = 3;

/// What the threads do before they meet.
pub(super) struct Launch {
    pub(super) work: Work,
    /// Offset and bytes of the weights it reads.
    pub(super) weights: Vec<(u64, u64)>,
    /// What each thread reads first of the weights of a launch soon after this one: see [`foresee`].
    pub(super) upcoming: Vec<Upcoming>,
}

/// An address to ask for; null when none is known.
#[derive(Clone, Copy)]
pub(super) struct Upcoming(pub(super) *const u8);

// SAFETY: an address that nobody reads from.
unsafe impl Send for Upcoming {}
// SAFETY: as above.
unsafe impl Sync for Upcoming {}

/// Tells each launch what `threads` threads read first of the weights of those soon after it.
pub(super) fn foresee(launches: &mut [Launch], threads: usize) {
    for at in 0..launches.len() {
        let (launch, later) = launches[at..].split_first_mut().expect("`at` is one of them");
        let first = |thread| {
            let mut soon = later.iter().take(SOON);
            let first = soon.find_map(|launch| launch.first_weights(thread, threads));
            Upcoming(first.unwrap_or(std::ptr::null()))
        };
        launch.upcoming = (0..threads).map(first).collect();
    }
}

/// How the threads divide a launch.
pub(super) enum Work {
    /// A bound call, divided as its kernel likes.
    Call(Box<dyn Run>),
    /// Calls that run row by row.
    Chain(Chain),
}

/// Bound calls that a thread runs on one row after another.
pub(super) struct Chain {
    /// Rows of all threads.
    pub(super) rows: usize,
    /// The calls as each thread runs them: they differ in the addresses of private memory. A thread
    /// without rows has none.
    pub(super) calls: Vec<Vec<Box<dyn Run>>>,
    /// What private addresses point into.
    pub(super) _private: Arc<Mapping>,
}

impl Launch {
    /// The calls of any thread.
    fn calls(&self) -> impl Iterator<Item = &dyn Run> {
        let calls = match &self.work {
            Work::Call(call) => std::slice::from_ref(call),
            Work::Chain(chain) => {
                chain.calls.iter().map(Vec::as_slice).find(|c| !c.is_empty()).unwrap_or_default()
            }
        };
        calls.iter().map(|call| &**call)
    }

    /// The weights that thread `index` of `count` reads first, if that is known beforehand.
    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        match &self.work {
            Work::Call(call) => call.first_weights(index, count),
            Work::Chain(_) => None,
        }
    }

    /// The most working memory that any of its calls wants.
    pub(super) fn scratch(&self) -> Scratch {
        self.calls().map(Run::scratch).fold(Scratch::default(), Scratch::most)
    }
}

/// A captured list of launches, ready to replay on the device that captured it.
pub struct CpuGraph {
    pub(super) launches: Vec<Launch>,
    /// The most working memory any call wants.
    pub(super) scratch: Scratch,
    /// What the calls' addresses point into.
    pub(super) memory: Arc<Memory>,
}

impl CpuGraph {
    /// How many launches it makes; the calls of a chain are one.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty()
    }
}
