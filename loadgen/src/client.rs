//! What this program itself costs.

use rustix::{
    process::{Resource, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};
use std::time::Instant;

/// Processor time of this program while it measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClientCost {
    /// Seconds that passed.
    pub wall: f64,
    /// Seconds of a core.
    pub cpu: f64,
}

impl ClientCost {
    /// Percent of a core.
    pub fn percent(self) -> f64 {
        if self.wall > 0.0 { self.cpu / self.wall * 100.0 } else { 0.0 }
    }
}

/// Measures [`ClientCost`] from its making.
pub(crate) struct Meter {
    wall: Instant,
    cpu: f64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu_seconds() }
    }

    pub(crate) fn stop(&self) -> ClientCost {
        ClientCost { wall: self.wall.elapsed().as_secs_f64(), cpu: cpu_seconds() - self.cpu }
    }
}

/// Of the calling thread, which does all the work.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// As many open files as this process may have: a connection is one.
pub(crate) fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Connections that do not fit are counted as failures and say why.
    let _ = setrlimit(Resource::Nofile, limit);
}
