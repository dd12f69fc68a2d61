//! Replays: each branch on a thread of its own, so that a missing wait is a real race; or, shuffled,
//! all on one thread in an order that looks for missing waits.

use super::{Graph, Node, Start, threads};
use crate::{
    call, config,
    error::{Failure, Result, code, fail},
    event::{Event, Record},
    stream::{Lease, wait_until},
    world::{self, CHANGED, World},
};
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How often a branch that waits looks whether the replay was aborted.
const PATIENCE: Duration = Duration::from_millis(20);

/// A replay that was submitted. The graph counts as in flight for as long as it lives.
pub(crate) struct Flight {
    graph: Arc<Graph>,
    /// Aborts of the graph when it was submitted: a later one is meant for it.
    aborts: u64,
}

impl Flight {
    pub(crate) fn new(graph: Arc<Graph>) -> Self {
        graph.flights.fetch_add(1, Ordering::AcqRel);
        let aborts = graph.aborts.load(Ordering::Acquire);
        Self { graph, aborts }
    }

    /// Runs it; with `skip` nothing but its signals to the outside happens.
    ///
    /// # Errors
    /// The first failure of a task; 107023 when it is aborted.
    pub(crate) fn run(self, lease: Lease, skip: bool) -> Result {
        call::count("replays", 1);
        let replay = Arc::new(Replay {
            graph: self.graph.clone(),
            lease,
            aborts: self.aborts,
            failed: AtomicBool::new(skip),
            state: Mutex::new(State {
                given: vec![false; self.graph.signals],
                failure: None,
                running: 0,
            }),
            changed: Condvar::new(),
        });
        match config::shuffle() {
            Some(seed) => replay.shuffled(seed),
            None => replay.concurrent(),
        }
        let failure = replay.state().failure.take();
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.graph.flights.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A replay that runs.
struct Replay {
    graph: Arc<Graph>,
    lease: Lease,
    aborts: u64,
    /// Tasks are dropped from here on.
    failed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    given: Vec<bool>,
    failure: Option<Failure>,
    running: usize,
}

impl Replay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: Failure) {
        self.failed.store(true, Ordering::Release);
        self.state().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    fn is_aborted(&self, world: &World) -> bool {
        self.lease.is_void(world) || self.graph.aborts.load(Ordering::Acquire) != self.aborts
    }

    /// Every branch on its own thread, the first on this one.
    fn concurrent(self: &Arc<Self>) {
        let branches = self.graph.branches.len();
        self.state().running = branches.saturating_sub(1);
        for branch in 1..branches {
            let replay = self.clone();
            threads::run(Box::new(move || {
                replay.branch(branch);
                replay.state().running -= 1;
                replay.changed.notify_all();
            }));
        }
        if branches > 0 {
            self.branch(0);
        }
        let mut state = self.state();
        while state.running > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn branch(&self, index: usize) {
        let branch = &self.graph.branches[index];
        let started = match branch.start {
            Start::AtOnce => Ok(()),
            Start::After(signal) => self.wait_signal(signal),
        };
        let outcome =
            started.and_then(|()| branch.nodes.iter().try_for_each(|node| self.node(node)));
        outcome.unwrap_or_else(|failure| self.fail(failure));
    }

    fn node(&self, node: &Node) -> Result {
        match node {
            Node::Await(signal) => self.wait_signal(*signal),
            Node::AwaitFlag(event) => self.wait_flag(event),
            _ => {
                self.act(node);
                Ok(())
            }
        }
    }

    /// Does what needs no waiting. A failed task does not stop the signals, or others would hang.
    fn act(&self, node: &Node) {
        match node {
            Node::Task(slot) => {
                if !self.failed.load(Ordering::Acquire) {
                    slot.task().run().unwrap_or_else(|failure| self.fail(failure));
                }
            }
            Node::Signal(signal) => {
                self.state().given[*signal] = true;
                self.changed.notify_all();
            }
            Node::RaiseFlag(event) => {
                event.happen(&world::lock(), &Record::default());
                CHANGED.notify_all();
            }
            Node::ClearFlag(event) => event.clear(&world::lock()),
            Node::Await(_) | Node::AwaitFlag(_) => {}
        }
    }

    fn wait_signal(&self, signal: usize) -> Result {
        let mut state = self.state();
        while !state.given[signal] {
            let (waited, patience) =
                self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            drop(waited);
            // A branch that was aborted gives its signals no more.
            if patience.timed_out() && self.is_aborted(&world::lock()) {
                return fail(code::STREAM_ABORT, "the replay was aborted");
            }
            state = self.state();
        }
        Ok(())
    }

    fn wait_flag(&self, event: &Event) -> Result {
        wait_until(self.lease, |world| self.is_aborted(world) || event.flag(world))?;
        if self.is_aborted(&world::lock()) {
            return fail(
                code::STREAM_ABORT,
                "the replay was aborted while it waited for an external event",
            );
        }
        Ok(())
    }

    /// All branches on this thread. Which one goes on is decided before each node: seeds that are a
    /// multiple of three prefer the last branch that can, those one above prefer the first (so that
    /// every other branch is as late as its waits allow), the rest draw by lot.
    fn shuffled(&self, seed: u64) {
        let branches = &self.graph.branches;
        let mut at = vec![0; branches.len()];
        let mut lot = seed;
        loop {
            let unfinished =
                (0..branches.len()).filter(|branch| at[*branch] < branches[*branch].nodes.len());
            let unfinished: Vec<_> = unfinished.collect();
            if unfinished.is_empty() {
                return;
            }
            let ready: Vec<_> = unfinished
                .iter()
                .copied()
                .filter(|branch| self.can_go_on(*branch, at[*branch]))
                .collect();
            let Some(last) = ready.last() else {
                match self.first_flag(&unfinished, &at) {
                    Some(event) => match self.wait_flag(event) {
                        Ok(()) => continue,
                        Err(failure) => return self.fail(failure),
                    },
                    None => {
                        let message = "the branches of the graph wait for each other";
                        return self.fail(Failure::new(code::INTERNAL, message));
                    }
                }
            };
            let branch = match seed % 3 {
                0 => *last,
                1 => ready[0],
                _ => {
                    lot = lot.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ready[(lot >> 33) as usize % ready.len()]
                }
            };
            self.act(&branches[branch].nodes[at[branch]]);
            at[branch] += 1;
        }
    }

    fn can_go_on(&self, branch: usize, at: usize) -> bool {
        let branch = &self.graph.branches[branch];
        let state = self.state();
        if let (Start::After(signal), 0) = (branch.start, at)
            && !state.given[signal]
        {
            return false;
        }
        match &branch.nodes[at] {
            Node::Await(signal) => state.given[*signal],
            Node::AwaitFlag(event) => {
                drop(state);
                event.flag(&world::lock())
            }
            _ => true,
        }
    }

    /// An external event that one of the branches waits for.
    fn first_flag(&self, unfinished: &[usize], at: &[usize]) -> Option<&Event> {
        unfinished.iter().find_map(|branch| {
            match &self.graph.branches[*branch].nodes[at[*branch]] {
                Node::AwaitFlag(event) => Some(&**event),
                _ => None,
            }
        })
    }
}
