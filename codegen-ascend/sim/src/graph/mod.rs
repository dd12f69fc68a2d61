//! Graphs: what a capture or an explicit build leaves behind, and what replays run.

pub(crate) mod build;
mod replay;
mod threads;
pub(crate) mod update;

pub(crate) use build::Build;
pub(crate) use replay::Flight;
pub(crate) use update::Group;

use crate::{
    call,
    error::{Result, code, fail},
    event::Event,
    stream::{Role, Task},
    world::{Key, World},
};
use std::{
    ffi::c_void,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Tasks that fit into one task queue of a graph: the depth less what is reserved.
const QUEUE_TASKS: usize = 2048 - 32 - 35;

/// A captured task, whose work a task update may replace.
pub(crate) struct Slot(Mutex<Task>);

impl Slot {
    pub(crate) fn new(task: Task) -> Self {
        Self(Mutex::new(task))
    }

    pub(crate) fn task(&self) -> Task {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace(&self, task: Task) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = task;
    }
}

/// One thing that a branch does.
pub(crate) enum Node {
    Task(Arc<Slot>),
    /// Give a signal of the graph.
    Signal(usize),
    /// Wait for a signal of the graph.
    Await(usize),
    /// Let an external event happen.
    RaiseFlag(Arc<Event>),
    /// Wait for an external event.
    AwaitFlag(Arc<Event>),
    /// Take the flag of an external event down.
    ClearFlag(Arc<Event>),
}

/// When a branch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the graph.
    AtOnce,
    /// When this signal is given.
    After(usize),
}

/// What one stream contributes to a graph, in order.
pub(crate) struct Branch {
    pub(crate) stream: Key,
    pub(crate) nodes: Vec<Node>,
    pub(crate) start: Start,
}

/// A graph ready to be replayed.
pub(crate) struct Graph {
    pub(crate) key: Key,
    pub(crate) branches: Vec<Branch>,
    /// Number of signals.
    pub(crate) signals: usize,
    /// Task queues that it owns.
    pub(crate) queues: usize,
    /// Replays submitted and not finished, and the stream that they are on.
    flights: AtomicUsize,
    flying_on: AtomicU64,
    /// Counts calls to abort it.
    aborts: AtomicU64,
}

impl Graph {
    pub(crate) fn new(key: Key, branches: Vec<Branch>, signals: usize) -> Self {
        let zero = AtomicU64::default;
        Self {
            key,
            branches,
            signals,
            queues: 0,
            flights: AtomicUsize::new(0),
            flying_on: zero(),
            aborts: zero(),
        }
    }

    /// Task queues of the old driver: one per stream, and one more whenever one is full.
    pub(crate) fn queues_needed(&self) -> usize {
        self.branches.iter().map(|branch| branch.nodes.len().div_ceil(QUEUE_TASKS).max(1)).sum()
    }

    /// A handle for the stream of a branch: that of the graph with the branch in bits that no handle
    /// given by the world has.
    pub(crate) fn stream_handle(&self, branch: usize) -> Key {
        self.key ^ (1 << 62) ^ ((branch as Key) << 40)
    }

    /// Handles of the tasks of a stream, if it is one of this graph.
    pub(crate) fn tasks_of(&self, stream: Key) -> Option<impl Iterator<Item = Key>> {
        let branch =
            (0..self.branches.len()).find(|branch| self.stream_handle(*branch) == stream)?;
        let count = self.branches[branch].nodes.len() as Key;
        Some((1..=count).map(move |task| stream ^ (1 << 61) ^ task))
    }

    pub(crate) fn is_flying(&self) -> bool {
        self.flights.load(Ordering::Acquire) > 0
    }

    pub(crate) fn abort(&self) {
        self.aborts.fetch_add(1, Ordering::AcqRel);
    }
}

impl World {
    pub(crate) fn add_graph(&mut self, graph: Graph) {
        self.graphs.insert(graph.key, Arc::new(graph));
        call::live("graphs", 1);
    }

    /// The graph that a handle means.
    ///
    /// # Errors
    /// 100001, 107002, 107017.
    pub(crate) fn graph(&self, handle: *mut c_void) -> Result<Arc<Graph>> {
        self.current()?;
        match self.graphs.get(&(handle as Key)) {
            Some(graph) => Ok(graph.clone()),
            None => fail(code::INVALID_HANDLE, format!("{handle:p} is no live graph")),
        }
    }

    /// Puts a replay on a stream.
    ///
    /// # Errors
    /// 507009 on a capturing stream, 107037 when it is in flight on another stream.
    pub(crate) fn execute(&mut self, graph: Arc<Graph>, stream: Key) -> Result {
        match &self.streams[&stream].role {
            Role::Plain => {}
            Role::Captured(_) => {
                return fail(code::TASK_TYPE, "a graph cannot be captured in a graph");
            }
            Role::Updating(..) => {
                return fail(code::GROUP_STATUS, "a task update is open on the stream");
            }
            Role::Bound(_) => return fail(code::STREAM_MODEL, "the stream is bound to a graph"),
        }
        if graph.is_flying() && graph.flying_on.load(Ordering::Acquire) != stream {
            return fail(code::MODEL_RUNNING, "the graph is in flight on another stream");
        }
        graph.flying_on.store(stream, Ordering::Release);
        let flight = Flight::new(graph);
        self.enqueue(stream, crate::stream::Item::Replay(flight));
        Ok(())
    }

    /// Destroys a graph.
    ///
    /// # Errors
    /// 107037 when it is in flight.
    pub(crate) fn destroy_graph(&mut self, graph: &Graph) -> Result {
        if graph.is_flying() {
            return fail(code::MODEL_RUNNING, "the graph is in flight");
        }
        if self
            .streams
            .values()
            .any(|stream| matches!(stream.role, Role::Bound(bound) if bound == graph.key))
        {
            return fail(code::STREAM_MODEL, "streams are still bound to the graph");
        }
        self.graphs.remove(&graph.key);
        self.groups.retain(|_, group| group.graph != graph.key);
        call::live("graphs", -1);
        Ok(())
    }
}
