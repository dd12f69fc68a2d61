//! Explicit build: streams are bound to a graph, and what is submitted to them becomes part of it.

use super::{Branch, Graph, Node, Slot, Start};
use crate::{
    error::{Result, code, fail},
    event::{Event, Family},
    stream::{Role, Task},
    world::{Key, World},
};
use std::{collections::BTreeMap, ffi::c_void, sync::Arc};

/// Flag of streams that live in graphs.
const PERSISTENT: u32 = 4;
/// Binds a stream that starts with the graph.
pub(crate) const HEAD: u32 = 0;
/// Binds a stream that starts when another activates it.
pub(crate) const DEFAULT: u32 = 0x7FFF_FFFF;

/// A graph that is being built.
#[derive(Default)]
pub(crate) struct Build {
    branches: Vec<Branch>,
    /// The signal of each event that is used between its streams.
    signals: BTreeMap<Key, Signal>,
    count: usize,
    ended: bool,
}

#[derive(Clone, Copy)]
struct Signal {
    index: usize,
    given: bool,
}

impl Build {
    fn fresh_signal(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    fn branch(&mut self, stream: Key) -> Option<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.stream == stream)
    }
}

/// Starts a graph.
///
/// # Errors
/// 107000 for flags other than 0.
pub(crate) fn begin(world: &mut World, flag: u32) -> Result<Key> {
    world.current()?;
    if flag != 0 {
        return fail(code::PARAM, format!("no build flag {flag}"));
    }
    let key = world.fresh_key();
    world.builds.insert(key, Build::default());
    Ok(key)
}

fn building(world: &mut World, graph: Key) -> Result<&mut Build> {
    match world.builds.get_mut(&graph) {
        Some(build) => Ok(build),
        None => fail(code::INVALID_HANDLE, format!("{graph:#x} is no graph that is being built")),
    }
}

/// Binds a stream.
///
/// # Errors
/// 107017; 107000 for an unknown flag or a stream that is not persistent; 107005 when it is bound or
/// captured; 107000 when it has work to do.
pub(crate) fn bind(world: &mut World, graph: *mut c_void, stream: Key, flag: u32) -> Result {
    let key = graph as Key;
    building(world, key)?;
    let start = match flag {
        HEAD => None,
        DEFAULT => Some(()),
        _ => return fail(code::PARAM, format!("no bind flag {flag:#x}")),
    };
    let found = &world.streams[&stream];
    if found.flags & PERSISTENT == 0 {
        return fail(code::PARAM, "a stream bound to a graph is made with ACL_STREAM_PERSISTENT");
    }
    if !matches!(found.role, Role::Plain) {
        return fail(code::STREAM_MODEL, "the stream is bound, captured or updating already");
    }
    if !world.is_idle(stream) {
        return fail(code::PARAM, "the stream that is bound has work to do");
    }
    let build = building(world, key)?;
    let start = match start {
        None => Start::AtOnce,
        Some(()) => Start::After(build.fresh_signal()),
    };
    build.branches.push(Branch { stream, nodes: Vec::new(), start });
    if let Some(stream) = world.streams.get_mut(&stream) {
        stream.role = Role::Bound(key);
    }
    Ok(())
}

/// A stream of the graph starts another.
///
/// # Errors
/// 107005 when they are not bound to the same graph; 107000 for a stream that starts by itself.
pub(crate) fn activate(world: &mut World, active: Key, stream: Key) -> Result {
    let graph = match (&world.streams[&active].role, &world.streams[&stream].role) {
        (Role::Bound(one), Role::Bound(other)) if one == other => *one,
        _ => return fail(code::STREAM_MODEL, "the streams are not bound to the same graph"),
    };
    let start = building(world, graph)?.branch(active).map(|branch| branch.start);
    match start {
        Some(Start::After(signal)) => push(world, graph, stream, Node::Signal(signal)),
        _ => fail(code::PARAM, "the stream that is to be activated starts with the graph"),
    }
}

fn push(world: &mut World, graph: Key, stream: Key, node: Node) -> Result {
    match world.builds.get_mut(&graph).and_then(|build| build.branch(stream)) {
        Some(branch) => {
            branch.nodes.push(node);
            Ok(())
        }
        None => fail(code::STREAM_MODEL, "the stream is bound to a graph that is complete"),
    }
}

/// Adds a task.
///
/// # Errors
/// 107005 when the graph is complete.
pub(crate) fn record_task(world: &mut World, graph: Key, stream: Key, task: Task) -> Result {
    push(world, graph, stream, Node::Task(Arc::new(Slot::new(task))))
}

/// Adds a record of an event.
///
/// # Errors
/// 107005 when the graph is complete; 107000 when it is recorded in it already.
pub(crate) fn record_event(
    world: &mut World,
    graph: Key,
    stream: Key,
    event: &Arc<Event>,
) -> Result {
    if event.family == Family::External {
        return push(world, graph, stream, Node::RaiseFlag(event.clone()));
    }
    let signal = signal_of(world, graph, event)?;
    if signal.given {
        return fail(code::PARAM, "an event is recorded twice in one graph");
    }
    if let Some(signal) = building(world, graph)?.signals.get_mut(&event.key) {
        signal.given = true;
    }
    push(world, graph, stream, Node::Signal(signal.index))
}

/// Adds a wait for an event.
///
/// # Errors
/// 107005 when the graph is complete.
pub(crate) fn wait_event(world: &mut World, graph: Key, stream: Key, event: &Arc<Event>) -> Result {
    if event.family == Family::External {
        return push(world, graph, stream, Node::AwaitFlag(event.clone()));
    }
    let signal = signal_of(world, graph, event)?;
    push(world, graph, stream, Node::Await(signal.index))
}

/// Adds a reset of an event; signals between the streams of a graph start anew at each replay.
///
/// # Errors
/// 107005 when the graph is complete.
pub(crate) fn reset_event(
    world: &mut World,
    graph: Key,
    stream: Key,
    event: &Arc<Event>,
) -> Result {
    if event.family == Family::External {
        return push(world, graph, stream, Node::ClearFlag(event.clone()));
    }
    building(world, graph).map(drop)
}

fn signal_of(world: &mut World, graph: Key, event: &Event) -> Result<Signal> {
    let Some(build) = world.builds.get_mut(&graph) else {
        return fail(code::STREAM_MODEL, "the stream is bound to a graph that is complete");
    };
    if let Some(signal) = build.signals.get(&event.key) {
        return Ok(*signal);
    }
    let signal = Signal { index: build.fresh_signal(), given: false };
    build.signals.insert(event.key, signal);
    Ok(signal)
}

/// Marks the end of the graph on a stream.
///
/// # Errors
/// 107017, 107005.
pub(crate) fn end_task(world: &mut World, graph: *mut c_void, stream: Key) -> Result {
    let build = building(world, graph as Key)?;
    if build.branch(stream).is_none() {
        return fail(code::STREAM_MODEL, "the stream is not bound to the graph");
    }
    build.ended = true;
    Ok(())
}

/// Completes a graph.
///
/// # Errors
/// 107017; 107024 when no stream has the end of the graph, or one waits for what nothing gives.
pub(crate) fn end(world: &mut World, graph: *mut c_void) -> Result {
    let key = graph as Key;
    let build = building(world, key)?;
    if !build.ended {
        return fail(
            code::CAPTURE_DEPENDENCY,
            "aclmdlRIEndTask was called on no stream of the graph",
        );
    }
    let given = |signal: usize| {
        let gives = |node: &Node| matches!(node, Node::Signal(index) if *index == signal);
        build.branches.iter().any(|branch| branch.nodes.iter().any(gives))
    };
    for branch in &build.branches {
        let awaited = branch.nodes.iter().filter_map(|node| match node {
            Node::Await(signal) => Some(*signal),
            _ => None,
        });
        let start = match branch.start {
            Start::After(signal) => Some(signal),
            Start::AtOnce => None,
        };
        if awaited.chain(start).any(|signal| !given(signal)) {
            let message = format!(
                "stream {:#x} waits for an event that is not recorded in the graph, or is never activated",
                branch.stream
            );
            return fail(code::CAPTURE_DEPENDENCY, message);
        }
    }
    if let Some(build) = world.builds.remove(&key) {
        world.add_graph(Graph::new(key, build.branches, build.count));
    }
    Ok(())
}

/// Takes a stream out of a complete graph, or of one that is given up.
///
/// # Errors
/// 107005 when it is not bound to it; 107037 when the graph is in flight.
pub(crate) fn unbind(world: &mut World, graph: *mut c_void, stream: Key) -> Result {
    let key = graph as Key;
    match world.streams.get_mut(&stream) {
        Some(found) if matches!(found.role, Role::Bound(bound) if bound == key) => {
            if world.graphs.get(&key).is_some_and(|graph| graph.is_flying()) {
                return fail(code::MODEL_RUNNING, "the graph is in flight");
            }
            found.role = Role::Plain;
            Ok(())
        }
        _ => fail(code::STREAM_MODEL, "the stream is not bound to the graph"),
    }
}
