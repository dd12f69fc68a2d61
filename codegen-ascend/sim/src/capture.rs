//! Capture: tasks submitted to a capturing stream are recorded, and events between streams become edges.

use crate::{
    config::{self, Stack},
    error::{Result, code, fail},
    event::{Captured, Event, Family, SYNC},
    graph::{Branch, Graph, Group, Node, Slot, Start},
    stream::{Kind, Role, Task},
    world::{Key, World},
};
use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::Arc,
    thread::{self, ThreadId},
};

/// What other calls are allowed while a capture is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No unsafe call on any thread.
    Global,
    /// No unsafe call on the capturing thread.
    ThreadLocal,
    /// Everything.
    Relaxed,
}

impl Mode {
    /// The mode with this number.
    ///
    /// # Errors
    /// 107000.
    pub(crate) fn from_number(number: u32) -> Result<Self> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => fail(code::PARAM, format!("no capture mode {number}")),
        }
    }
}

thread_local! {
    /// How this thread's own calls are judged.
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Swaps the mode of this thread.
pub(crate) fn exchange_mode(mode: Mode) -> Mode {
    THREAD_MODE.replace(mode)
}

/// An open capture. Its key is the handle of the graph to be.
pub(crate) struct Capture {
    origin: Key,
    mode: Mode,
    thread: ThreadId,
    /// The illegal call that spoiled it.
    spoiled: Option<String>,
    /// The origin's branch first, then the others as they joined.
    branches: Vec<Strand>,
    signals: usize,
    group: Option<OpenGroup>,
}

/// What one stream has recorded.
struct Strand {
    stream: Key,
    nodes: Vec<Node>,
    /// How many nodes of each branch come before the next node here, whatever the timing.
    clock: Vec<usize>,
}

struct OpenGroup {
    branch: usize,
    slots: Vec<Arc<Slot>>,
}

impl Capture {
    fn branch(&self, stream: Key) -> Option<usize> {
        self.branches.iter().position(|strand| strand.stream == stream)
    }

    fn push(&mut self, branch: usize, node: Node) {
        let strand = &mut self.branches[branch];
        strand.nodes.push(node);
        let length = strand.nodes.len();
        raise(&mut strand.clock, branch, length);
    }

    fn join(&mut self, branch: usize, captured: &Captured) {
        for (other, nodes) in captured.clock.iter().enumerate() {
            raise(&mut self.branches[branch].clock, other, *nodes);
        }
        self.push(branch, Node::Await(captured.signal));
    }

    /// Branches whose last node need not come before the end of the origin's.
    fn unjoined(&self) -> Option<Key> {
        let clock = &self.branches[0].clock;
        let late = |(branch, strand): &(usize, &Strand)| {
            clock.get(*branch).copied().unwrap_or(0) < strand.nodes.len()
        };
        self.branches.iter().enumerate().find(late).map(|(_, strand)| strand.stream)
    }
}

fn raise(clock: &mut Vec<usize>, branch: usize, to: usize) {
    if clock.len() <= branch {
        clock.resize(branch + 1, 0);
    }
    clock[branch] = clock[branch].max(to);
}

/// Starts a capture and gives the handle that its graph will have.
///
/// # Errors
/// 107031 on the default stream; 107027 or 107032 when the stream is in a capture; 107005 when it is
/// bound to a graph; 107033 inside a task update.
pub(crate) fn begin(world: &mut World, stream: Key, mode: Mode) -> Result<Key> {
    let (_, context) = world.current()?;
    if context.default_stream == stream {
        return fail(code::CAPTURE_IMPLICIT, "the default stream cannot be captured");
    }
    match world.streams[&stream].role {
        Role::Plain => {}
        Role::Captured(capture) if world.captures[&capture].origin == stream => {
            return fail(code::STREAM_CAPTURED, "the stream is being captured already");
        }
        Role::Captured(capture) => {
            let message =
                "the stream takes part in another stream's capture and begins one of its own";
            invalidate(world, capture, message);
            return fail(code::CAPTURE_CONFLICT, message);
        }
        Role::Updating(..) => {
            return fail(code::GROUP_STATUS, "a task update is open on the stream");
        }
        Role::Bound(_) => return fail(code::STREAM_MODEL, "the stream is bound to a graph"),
    }
    let key = world.fresh_key();
    let capture = Capture {
        origin: stream,
        mode,
        thread: thread::current().id(),
        spoiled: None,
        branches: vec![Strand { stream, nodes: Vec::new(), clock: Vec::new() }],
        signals: 0,
        group: None,
    };
    world.captures.insert(key, capture);
    set_role(world, stream, Role::Captured(key));
    Ok(key)
}

fn set_role(world: &mut World, stream: Key, role: Role) {
    if let Some(stream) = world.streams.get_mut(&stream) {
        stream.role = role;
    }
}

/// State of a stream's capture: 0 none, 1 active, 2 invalidated, and the handle of the graph to be.
pub(crate) fn info(world: &World, stream: Key) -> (u32, Key) {
    match world.streams[&stream].role {
        Role::Captured(capture) => {
            (if world.captures[&capture].spoiled.is_some() { 2 } else { 1 }, capture)
        }
        _ => (0, 0),
    }
}

/// Ends a capture and makes its graph.
///
/// # Errors
/// 107029 when the stream is in no capture, 107036 when it did not begin it, 107038 on another thread
/// (the capture stays open in these three); 507903 when it was spoiled, 107025 when a stream does not
/// lead back, 107034 when a task group is open, 207008 when the task queues do not suffice (the
/// capture is over).
pub(crate) fn end(world: &mut World, stream: Key) -> Result<Key> {
    let Role::Captured(key) = world.streams[&stream].role else {
        return fail(code::STREAM_NOT_CAPTURED, "no capture is open on the stream");
    };
    let capture = &world.captures[&key];
    if capture.origin != stream {
        return fail(code::CAPTURE_NOT_BEGUN, "the capture was begun on another stream");
    }
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return fail(code::CAPTURE_THREAD, "the capture was begun on another thread");
    }
    let Some(capture) = world.captures.remove(&key) else {
        return fail(code::STREAM_NOT_CAPTURED, "no capture is open on the stream");
    };
    for strand in &capture.branches {
        set_role(world, strand.stream, Role::Plain);
    }
    match finish(world, key, capture) {
        Ok(graph) => {
            world.add_graph(graph);
            Ok(key)
        }
        Err(failure) => {
            world.groups.retain(|_, group| group.graph != key);
            Err(failure)
        }
    }
}

fn finish(world: &World, key: Key, capture: Capture) -> Result<Graph> {
    if let Some(why) = &capture.spoiled {
        return fail(code::CAPTURE_INVALIDATED, format!("the capture was invalidated: {why}"));
    }
    if capture.group.is_some() {
        return fail(code::GROUP_INTERRUPTED, "the capture ends inside a task group");
    }
    if let Some(stream) = capture.unjoined() {
        let message = format!(
            "stream {stream:#x} took part in the capture and its last task does not lead back to the stream that began it"
        );
        return fail(code::STREAM_UNJOINED, message);
    }
    let branches = capture.branches.into_iter().map(|strand| Branch {
        stream: strand.stream,
        nodes: strand.nodes,
        start: Start::AtOnce,
    });
    let mut graph = Graph::new(key, branches.collect(), capture.signals);
    if config::stack() == Stack::Old {
        graph.queues = graph.queues_needed();
        let (used, limit) = (world.queues_in_use(), config::streams());
        if used + graph.queues > limit {
            let message = format!(
                "out of streams: the graph needs {} task queues, {used} of {limit} are in use; Alloc sq cq fail",
                graph.queues
            );
            return fail(code::NO_STREAM, message);
        }
    }
    Ok(graph)
}

/// Forgets a capture; its streams are plain again.
pub(crate) fn give_up(world: &mut World, key: Key) {
    let Some(capture) = world.captures.remove(&key) else { return };
    for strand in &capture.branches {
        set_role(world, strand.stream, Role::Plain);
    }
    world.groups.retain(|_, group| group.graph != key);
}

/// Spoils a capture: nothing more is recorded, and its end fails.
pub(crate) fn invalidate(world: &mut World, capture: Key, why: &str) {
    if let Some(capture) = world.captures.get_mut(&capture) {
        capture.spoiled.get_or_insert_with(|| why.to_owned());
    }
}

/// Refuses to let the host wait for a capturing stream or ask about it, and spoils its capture.
///
/// # Errors
/// 107027.
pub(crate) fn observe_stream(world: &mut World, stream: Key, call: &str) -> Result {
    let Role::Captured(capture) = world.streams[&stream].role else { return Ok(()) };
    let message = format!("{call} of a stream that is being captured");
    invalidate(world, capture, &message);
    fail(code::STREAM_CAPTURED, message)
}

/// Refuses to let the host wait for a context in which a stream is being captured, and spoils those
/// captures.
///
/// # Errors
/// 107027.
pub(crate) fn observe_context(world: &mut World, context: Key, call: &str) -> Result {
    let open: BTreeSet<Key> = world
        .streams
        .values()
        .filter(|stream| stream.context == context)
        .filter_map(
            |stream| if let Role::Captured(capture) = stream.role { Some(capture) } else { None },
        )
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    let message = format!("{call} while a stream is being captured");
    open.into_iter().for_each(|capture| invalidate(world, capture, &message));
    fail(code::STREAM_CAPTURED, message)
}

/// Refuses a call of the unsafe set where a capture's mode forbids it on this thread.
///
/// # Errors
/// 107030.
pub(crate) fn unsafe_call(world: &World, call: &str) -> Result {
    let here = thread::current().id();
    let forbids = |capture: &Capture| match (THREAD_MODE.get(), capture.mode) {
        (Mode::Relaxed, _) | (_, Mode::Relaxed) => false,
        (Mode::Global, Mode::Global) => true,
        _ => capture.thread == here,
    };
    if world.captures.values().any(forbids) {
        let message = format!("{call} is not allowed while a capture of this mode is open");
        return fail(code::CAPTURE_MODE, message);
    }
    Ok(())
}

/// The capture, if it still records.
fn active(world: &mut World, capture: Key) -> Result<&mut Capture> {
    match world.captures.get_mut(&capture) {
        Some(Capture { spoiled: Some(why), .. }) => {
            fail(code::CAPTURE_INVALIDATED, format!("the capture was invalidated: {why}"))
        }
        Some(capture) => Ok(capture),
        None => fail(code::STREAM_NOT_CAPTURED, "the capture is over"),
    }
}

fn active_branch(world: &mut World, capture: Key, stream: Key) -> Result<(&mut Capture, usize)> {
    let capture = active(world, capture)?;
    match capture.branch(stream) {
        Some(branch) => Ok((capture, branch)),
        None => fail(code::STREAM_NOT_CAPTURED, "the stream takes no part in the capture"),
    }
}

/// Records a task.
///
/// # Errors
/// 507903; 507009 for a kind of task that a task group cannot hold.
pub(crate) fn record_task(world: &mut World, capture: Key, stream: Key, task: Task) -> Result {
    let (capture, branch) = active_branch(world, capture, stream)?;
    let updatable = matches!(task.kind, Kind::Kernel | Kind::Operator);
    let name = task.name.clone();
    let slot = Arc::new(Slot::new(task));
    if let Some(group) = capture.group.as_mut().filter(|group| group.branch == branch) {
        if !updatable {
            return fail(code::TASK_TYPE, format!("task {name} cannot be part of a task group"));
        }
        group.slots.push(slot.clone());
    }
    capture.push(branch, Node::Task(slot));
    Ok(())
}

/// Records an event on a capturing stream.
///
/// # Errors
/// 507903; 207000 for an event that is neither external nor Ex with the sync flag.
pub(crate) fn record_event(world: &mut World, key: Key, stream: Key, event: &Arc<Event>) -> Result {
    let (capture, branch) = active_branch(world, key, stream)?;
    match event.family {
        Family::External => capture.push(branch, Node::RaiseFlag(event.clone())),
        Family::Ex if event.flags & SYNC != 0 => {
            let signal = capture.signals;
            capture.signals += 1;
            capture.push(branch, Node::Signal(signal));
            let clock = capture.branches[branch].clock.clone();
            event.set_captured(Captured { capture: key, signal, clock });
        }
        _ => {
            return fail(
                code::FEATURE_UNSUPPORTED,
                "an event of a capture is made by aclrtCreateEventExWithFlag with ACL_EVENT_SYNC, or is external",
            );
        }
    }
    Ok(())
}

/// Makes a capturing stream wait for an event.
///
/// # Errors
/// 507903; 107024 when the event was not recorded in the capture, 107032 when it was recorded in
/// another one; both spoil the captures.
pub(crate) fn wait_event(world: &mut World, key: Key, stream: Key, event: &Arc<Event>) -> Result {
    let captured = event.captured(world);
    let (capture, branch) = active_branch(world, key, stream)?;
    match captured {
        _ if event.family == Family::External => {
            capture.push(branch, Node::AwaitFlag(event.clone()));
            Ok(())
        }
        Some(captured) if captured.capture == key => {
            capture.join(branch, &captured);
            Ok(())
        }
        Some(captured) => {
            let message = "two captures depend on each other";
            invalidate(world, key, message);
            invalidate(world, captured.capture, message);
            fail(code::CAPTURE_CONFLICT, message)
        }
        None => {
            let message =
                "a capturing stream waits for an event that was not recorded in its capture";
            invalidate(world, key, message);
            fail(code::CAPTURE_DEPENDENCY, message)
        }
    }
}

/// Takes the flag of an external event down, at each replay.
///
/// # Errors
/// 507903; 207000 for another event.
pub(crate) fn reset_event(world: &mut World, key: Key, stream: Key, event: &Arc<Event>) -> Result {
    let (capture, branch) = active_branch(world, key, stream)?;
    if event.family != Family::External {
        return fail(code::FEATURE_UNSUPPORTED, "only external events are reset in a capture");
    }
    capture.push(branch, Node::ClearFlag(event.clone()));
    Ok(())
}

/// A stream outside of the capture waits for an event recorded in it, and so becomes part of it.
///
/// # Errors
/// 507903; 107031 for a default stream, which spoils the capture.
pub(crate) fn fork(world: &mut World, captured: &Captured, stream: Key) -> Result {
    if world.contexts.values().any(|context| context.default_stream == stream) {
        let message = "the default stream would become part of a capture";
        invalidate(world, captured.capture, message);
        return fail(code::CAPTURE_IMPLICIT, message);
    }
    let capture = active(world, captured.capture)?;
    let branch = capture.branches.len();
    capture.branches.push(Strand { stream, nodes: Vec::new(), clock: Vec::new() });
    capture.join(branch, captured);
    set_role(world, stream, Role::Captured(captured.capture));
    Ok(())
}

/// Starts a task group on a capturing stream.
///
/// # Errors
/// 507903; 107029 outside a capture, 107033 inside another group.
pub(crate) fn begin_group(world: &mut World, stream: Key) -> Result {
    let Role::Captured(capture) = world.streams[&stream].role else {
        return fail(code::STREAM_NOT_CAPTURED, "a task group outside a capture");
    };
    let (capture, branch) = active_branch(world, capture, stream)?;
    if capture.group.is_some() {
        return fail(code::GROUP_STATUS, "a task group is open already");
    }
    capture.group = Some(OpenGroup { branch, slots: Vec::new() });
    Ok(())
}

/// Ends a task group and gives its handle.
///
/// # Errors
/// 507903; 107029 outside a capture, 107033 when none is open on this stream.
pub(crate) fn end_group(world: &mut World, stream: Key) -> Result<Key> {
    let Role::Captured(key) = world.streams[&stream].role else {
        return fail(code::STREAM_NOT_CAPTURED, "a task group outside a capture");
    };
    let (capture, branch) = active_branch(world, key, stream)?;
    match capture.group.take() {
        Some(group) if group.branch == branch => {
            let handle = world.fresh_key();
            world.groups.insert(handle, Arc::new(Group { graph: key, slots: group.slots }));
            Ok(handle)
        }
        other => {
            capture.group = other;
            fail(code::GROUP_STATUS, "no task group is open on the stream")
        }
    }
}
