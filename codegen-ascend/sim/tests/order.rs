//! Random graphs over several streams: at every replay, in every order, a task runs after everything
//! that comes before it on its stream or by way of events.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use acl::sys::*;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use support::*;

/// Numbers by lot.
struct Lot(u64);

impl Lot {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// Streams that record, and what each has before its next task: a bit per task.
struct Program {
    streams: Vec<aclrtStream>,
    before: Vec<Option<u128>>,
    /// How often each task has run.
    runs: Arc<Vec<AtomicU32>>,
    /// Tasks that ran too early.
    early: Arc<AtomicU32>,
    tasks: usize,
}

impl Program {
    fn new() -> Self {
        let streams: Vec<_> = (0..4).map(|_| stream()).collect();
        let runs = (0..128).map(|_| AtomicU32::new(0)).collect();
        let before = vec![Some(0), None, None, None];
        Self { streams, before, runs: Arc::new(runs), early: Arc::default(), tasks: 0 }
    }

    fn task(&mut self, at: usize) {
        let Some(before) = self.before[at] else { return };
        let (own, runs, early) = (self.tasks, self.runs.clone(), self.early.clone());
        self.tasks += 1;
        let work = move || {
            let round = runs[own].load(Ordering::SeqCst) + 1;
            let is_late = |task: &usize| {
                before >> task & 1 == 1 && runs[*task].load(Ordering::SeqCst) < round
            };
            early.fetch_add((0..128).filter(is_late).count() as u32, Ordering::SeqCst);
            runs[own].store(round, Ordering::SeqCst);
            Ok(())
        };
        assert_eq!(task(self.streams[at], "task", work), 0);
        self.before[at] = Some(before | 1 << own);
    }

    fn edge(&mut self, from: usize, to: usize) {
        let Some(before) = self.before[from] else { return };
        let event = event();
        assert_eq!(record(event, self.streams[from]), 0);
        assert_eq!(wait(self.streams[to], event), 0, "{}", message());
        self.before[to] = Some(self.before[to].unwrap_or(0) | before);
    }
}

#[test]
fn replays_keep_every_order_that_was_captured() {
    for seed in 0..40 {
        let shuffle = if seed % 2 == 0 { String::new() } else { (seed / 2).to_string() };
        let _sim = Sim::with(&[("ASCEND_SIM_SHUFFLE", &shuffle)]);
        let (mut lot, mut program) = (Lot(seed), Program::new());
        assert_eq!(begin(program.streams[0], 0), 0);
        for _ in 0..60 {
            let (from, to) = (lot.below(4), lot.below(4));
            if lot.below(3) == 0 {
                program.edge(from, to);
            } else {
                program.task(from);
            }
        }
        for side in 1..4 {
            program.edge(side, 0);
        }
        let (code, graph) = end(program.streams[0]);
        assert_eq!(code, 0, "seed {seed}: {}", message());
        for _ in 0..5 {
            assert_eq!(execute(graph, program.streams[0]), 0);
        }
        assert_eq!(sync(program.streams[0]), 0);
        assert_eq!(program.early.load(Ordering::SeqCst), 0, "seed {seed}");
        for task in 0..program.tasks {
            assert_eq!(program.runs[task].load(Ordering::SeqCst), 5, "seed {seed}, task {task}");
        }
    }
}
