//! Steps of a plan made into one recorded sequence.

use super::{
    kernels::Kernel,
    memory::Memory,
    operator::BoundOperator,
    result::{AclError, check},
    safe::{DeviceMemory, Event, Sequence, Stream},
    session::Session,
};
use acl::sys;
use std::{sync::Arc, time::Duration};

/// What a step does.
#[derive(Debug)]
pub(crate) enum Work {
    /// A library operator.
    Operator(Box<BoundOperator>),
    /// A kernel of ours, with its blocks and arguments.
    Kernel(Kernel, u32, Vec<u64>),
    /// A copy inside the device: to, from, bytes.
    Copy(u64, u64, u64),
}

/// A step that was launched into a capture.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) work: Work,
    pub(crate) stream: u32,
    /// Earlier steps on other streams that it waits for.
    pub(crate) waits: Vec<u32>,
}

impl Step {
    fn workspace_bytes(&self) -> u64 {
        if let Work::Operator(operator) = &self.work { operator.workspace_bytes } else { 0 }
    }

    fn issue(
        &mut self,
        session: &Session,
        stream: &Stream,
        workspace: Option<&DeviceMemory>,
    ) -> Result<(), AclError> {
        match &mut self.work {
            Work::Operator(operator) => {
                let workspace = workspace.filter(|_| operator.workspace_bytes > 0);
                let workspace = workspace.map_or(std::ptr::null_mut(), |w| w.at(0));
                operator.launch(workspace, stream.raw())
            }
            Work::Kernel(kernel, blocks, arguments) => {
                kernel.launch(session, *blocks, arguments, stream)
            }
            Work::Copy(to, from, bytes) => {
                let (to, from) = (*to as usize as *mut _, *from as usize as *const _);
                // SAFETY: both ranges were checked against the memory, which the graph holds.
                unsafe { stream.copy(to, from, *bytes as usize, sys::ACL_MEMCPY_DEVICE_TO_DEVICE) }
            }
        }
    }
}

/// How a sequence is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Record {
    /// By capture, which every release has.
    #[default]
    Capture,
    /// Built call by call where the runtime has that (toolkit 8.5), else by capture. Which flags the
    /// streams of such a sequence take has not been seen on hardware.
    Build,
}

/// A recorded plan and all that it uses. What it uses is given back after it, in this order.
#[derive(Debug)]
#[expect(dead_code, reason = "what was recorded has the addresses of the last two")]
struct Parts {
    steps: Vec<Step>,
    events: Vec<Event>,
    /// Streams that belong to the sequence: those that it was built on.
    streams: Vec<Stream>,
    workspaces: Vec<Arc<DeviceMemory>>,
    memory: Arc<Memory>,
}

/// A plan that can be replayed.
#[derive(Debug)]
pub struct AscendGraph {
    sequence: Option<Sequence>,
    parts: Option<Parts>,
    /// The stream that it is replayed on.
    replayed_on: Arc<Stream>,
    session: Arc<Session>,
    timeout: Option<Duration>,
}

impl AscendGraph {
    pub(crate) fn execute(&self, stream: &Stream) -> Result<(), AclError> {
        match &self.sequence {
            Some(sequence) => sequence.execute(stream),
            None => Err(AclError::unsupported("aclmdlRIExecuteAsync")),
        }
    }
}

/// Takes the streams that a sequence was built on out of it, as must be done before it is destroyed.
fn unbind(session: &Session, sequence: &Sequence, streams: &[Stream]) {
    for stream in streams {
        let (sequence, stream) = (sequence.raw(), stream.raw());
        session.destroy("aclmdlRIUnbindStream", |api| match api.aclmdlRIUnbindStream {
            // SAFETY: sequence and stream exist.
            Some(unbind) => unsafe { unbind(sequence, stream) },
            None => sys::ACL_ERROR_API_NOT_SUPPORT,
        });
    }
}

impl Drop for AscendGraph {
    fn drop(&mut self) {
        let Some(sequence) = self.sequence.take() else { return };
        if self.session.enter().is_err() || !self.replayed_on.drain(self.timeout) {
            tracing::error!("a graph is destroyed without knowing that it is idle");
        }
        if let Some(parts) = &self.parts {
            unbind(&self.session, &sequence, &parts.streams);
        }
        if !sequence.destroy() {
            // It may still run: what it uses stays.
            std::mem::forget(self.parts.take());
        }
    }
}

/// Streams, workspaces and options that recordings of a device share.
#[derive(Debug)]
pub(crate) struct Recorder {
    session: Arc<Session>,
    /// Stream 0 and those beside it, as many as any plan needed so far.
    streams: Vec<Arc<Stream>>,
    /// For each stream the largest workspace so far. A larger one takes its place for later plans;
    /// earlier ones keep theirs, as its address is part of what was recorded.
    workspaces: Vec<Option<Arc<DeviceMemory>>>,
    timeout: Option<Duration>,
}

/// Why recording failed.
#[derive(Debug)]
pub(crate) enum RecordError {
    /// Memory for an operator's workspace.
    Workspace(u64, AclError),
    /// A wait for a step that is not before it.
    Order(u32),
    /// A call.
    Call(AclError),
}

impl From<AclError> for RecordError {
    fn from(e: AclError) -> Self {
        Self::Call(e)
    }
}

impl Recorder {
    pub(crate) fn new(session: &Arc<Session>, timeout: Option<Duration>) -> Self {
        Self { session: session.clone(), streams: Vec::new(), workspaces: Vec::new(), timeout }
    }

    /// Records `steps`. `replay_stream` is the one that the graph will be put on.
    pub(crate) fn record(
        &mut self,
        mut steps: Vec<Step>,
        memory: &Arc<Memory>,
        replay_stream: &Arc<Stream>,
        how: Record,
        warm_up: bool,
    ) -> Result<AscendGraph, RecordError> {
        self.session.enter()?;
        let count = steps.iter().map(|s| s.stream as usize + 1).max().unwrap_or(1);
        for (i, step) in steps.iter().enumerate() {
            if let Some(&late) = step.waits.iter().find(|&&w| w as usize >= i) {
                return Err(RecordError::Order(late));
            }
        }
        let workspaces = self.reserve(&steps, count)?;
        while self.streams.len() < count {
            self.streams.push(Arc::new(Stream::new(&self.session)?));
        }
        if warm_up {
            // Inputs of zeros name the first of everything, whatever was recorded before left there.
            memory.arena.zero()?;
            steps = self.warm_up(steps)?;
        }
        let mut parts = Parts {
            steps,
            events: Vec::new(),
            streams: Vec::new(),
            workspaces,
            memory: memory.clone(),
        };
        let sequence = match how {
            Record::Build if self.builds() => self.build(&mut parts, count)?,
            _ => self.capture(&mut parts, count)?,
        };
        Ok(AscendGraph {
            sequence: Some(sequence),
            parts: Some(parts),
            replayed_on: replay_stream.clone(),
            session: self.session.clone(),
            timeout: self.timeout,
        })
    }

    /// Whether the runtime has explicit build.
    fn builds(&self) -> bool {
        let builds = self.session.api.aclmdlRIBuildBegin.is_some();
        if !builds {
            tracing::info!("the runtime has no explicit build of graphs; they are captured");
        }
        builds
    }

    /// A workspace for each stream, as large as the largest operator there needs.
    fn reserve(
        &mut self,
        steps: &[Step],
        streams: usize,
    ) -> Result<Vec<Arc<DeviceMemory>>, RecordError> {
        self.workspaces.resize(self.workspaces.len().max(streams), None);
        for (stream, workspace) in self.workspaces.iter_mut().enumerate() {
            let on_stream = steps.iter().filter(|s| s.stream as usize == stream);
            let bytes = on_stream.map(Step::workspace_bytes).max().unwrap_or(0);
            if bytes > workspace.as_ref().map_or(0, |w| w.bytes()) {
                let memory = DeviceMemory::new(&self.session, bytes);
                let memory = memory.map_err(|e| RecordError::Workspace(bytes, e))?;
                *workspace = Some(Arc::new(memory));
            }
        }
        Ok(self.workspaces.iter().flatten().cloned().collect())
    }

    /// Runs every step once, in order: operators copy constants to the device when they first run,
    /// which a capture does not allow. Gives the steps back when all is done.
    fn warm_up(&self, mut steps: Vec<Step>) -> Result<Vec<Step>, AclError> {
        let stream = &self.streams[0];
        let issued = steps.iter_mut().try_for_each(|step| {
            let workspace = self.workspaces[step.stream as usize].clone();
            step.issue(&self.session, stream, workspace.as_deref())
        });
        let done = stream.synchronize(self.timeout);
        if done.is_err() && !stream.drain(self.timeout) {
            // They may still run, and use what the steps hold.
            std::mem::forget(steps);
            return Err(issued.and(done).err().unwrap_or(AclError::unsupported("warm-up")));
        }
        issued.and(done).map(|()| steps)
    }

    fn capture(&self, parts: &mut Parts, count: usize) -> Result<Sequence, RecordError> {
        let api = &self.session.api;
        let main = &self.streams[0];
        // SAFETY: the stream exists and the device is current.
        let code = unsafe {
            (api.aclmdlRICaptureBegin)(main.raw(), sys::ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL)
        };
        check(api, "aclmdlRICaptureBegin", code)?;
        let streams: Vec<&Stream> = self.streams[..count].iter().map(Arc::as_ref).collect();
        let issued = self.issue(parts, &streams);
        // A capture is ended on every way out; one that went wrong yields nothing, or something that
        // is destroyed at once.
        match (issued, self.end_capture()) {
            (Ok(()), Ok(sequence)) => Ok(sequence),
            (issued, ended) => {
                let error = match ended {
                    Ok(sequence) => {
                        sequence.destroy();
                        None
                    }
                    Err(e) => {
                        self.break_off();
                        Some(e)
                    }
                };
                Err(issued.err().or(error).unwrap_or(AclError::unsupported("capture")).into())
            }
        }
    }

    /// Ends the capture that began on the first stream.
    fn end_capture(&self) -> Result<Sequence, AclError> {
        let api = &self.session.api;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the stream exists and the device is current; `raw` is written during the call.
        let code = unsafe { (api.aclmdlRICaptureEnd)(self.streams[0].raw(), &mut raw) };
        check(api, "aclmdlRICaptureEnd", code)?;
        if raw.is_null() {
            let message = "it gave no graph".to_owned();
            return Err(AclError {
                call: "aclmdlRICaptureEnd",
                code: sys::ACL_ERROR_FAILURE,
                message,
            });
        }
        Ok(Sequence::own(&self.session, raw))
    }

    /// After an end that failed: the capture may be open still.
    fn break_off(&self) {
        let api = &self.session.api;
        let (mut status, mut raw) = (sys::ACL_MODEL_RI_CAPTURE_STATUS_NONE, std::ptr::null_mut());
        // SAFETY: the stream exists and the device is current; both are written during the call.
        let code =
            unsafe { (api.aclmdlRICaptureGetInfo)(self.streams[0].raw(), &mut status, &mut raw) };
        let open = check(api, "aclmdlRICaptureGetInfo", code).is_ok()
            && status != sys::ACL_MODEL_RI_CAPTURE_STATUS_NONE;
        if !open {
            return;
        }
        match self.end_capture() {
            Ok(sequence) => drop(sequence.destroy()),
            Err(e) => tracing::error!("{e}; a capture that failed stays open"),
        }
    }

    /// Explicit build: streams are made for the sequence and stay part of it.
    fn build(&self, parts: &mut Parts, count: usize) -> Result<Sequence, RecordError> {
        let api = &self.session.api;
        let unsupported = || AclError::unsupported("aclmdlRIBuildBegin");
        let begin = api.aclmdlRIBuildBegin.ok_or_else(unsupported)?;
        let bind = api.aclmdlRIBindStream.ok_or_else(unsupported)?;
        let end_task = api.aclmdlRIEndTask.ok_or_else(unsupported)?;
        let end = api.aclmdlRIBuildEnd.ok_or_else(unsupported)?;
        for _ in 0..count {
            parts.streams.push(Stream::with_flags(&self.session, sys::ACL_STREAM_PERSISTENT)?);
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is written during the call; the device is current.
        check(api, "aclmdlRIBuildBegin", unsafe { begin(&mut raw, 0) })?;
        let sequence = Sequence::own(&self.session, raw);
        let built = (|| {
            for stream in &parts.streams {
                // Every stream starts with the sequence; events keep the order.
                let flag = sys::ACL_MODEL_STREAM_FLAG_HEAD;
                // SAFETY: sequence and stream exist.
                let code = unsafe { bind(sequence.raw(), stream.raw(), flag) };
                check(api, "aclmdlRIBindStream", code)?;
            }
            let streams = std::mem::take(&mut parts.streams);
            let issued = self.issue(parts, &streams.iter().collect::<Vec<_>>());
            parts.streams = streams;
            issued?;
            let main = parts.streams[0].raw();
            // SAFETY: as above.
            check(api, "aclmdlRIEndTask", unsafe { end_task(sequence.raw(), main) })?;
            // SAFETY: as above.
            let code = unsafe { end(sequence.raw(), std::ptr::null_mut()) };
            check(api, "aclmdlRIBuildEnd", code)
        })();
        match built {
            Ok(()) => Ok(sequence),
            Err(e) => {
                unbind(&self.session, &sequence, &parts.streams);
                sequence.destroy();
                Err(e.into())
            }
        }
    }

    /// Puts all steps on their streams. Side streams are forked from the first and joined with it by
    /// events, so that the sequence begins and ends there.
    fn issue(&self, parts: &mut Parts, streams: &[&Stream]) -> Result<(), AclError> {
        let Parts { steps, events, .. } = parts;
        let mark = |events: &mut Vec<Event>, stream: &Stream| {
            let event = Event::new(&self.session)?;
            event.record(stream)?;
            events.push(event);
            Ok::<usize, AclError>(events.len() - 1)
        };
        let mut awaited = vec![false; steps.len()];
        let mut forks = vec![false; streams.len()];
        let mut begun = vec![false; streams.len()];
        for step in steps.iter() {
            step.waits.iter().for_each(|&w| awaited[w as usize] = true);
            let lane = step.stream as usize;
            forks[lane] |= !begun[lane] && lane != 0 && step.waits.is_empty();
            begun[lane] = true;
        }
        let start = forks.contains(&true).then(|| mark(events, streams[0])).transpose()?;
        let mut marks = vec![None; steps.len()];
        // For each stream its last step, and the last of its steps that the first stream waited for.
        let mut last = vec![None; streams.len()];
        let mut joined = vec![None; streams.len()];
        for i in 0..steps.len() {
            let lane = steps[i].stream as usize;
            let stream = streams[lane];
            if let Some(start) = start.filter(|_| std::mem::take(&mut forks[lane])) {
                stream.wait(&events[start])?;
            }
            for wait in 0..steps[i].waits.len() {
                let earlier = steps[i].waits[wait] as usize;
                let from = steps[earlier].stream as usize;
                if let Some(event) = marks[earlier].filter(|_| from != lane) {
                    stream.wait(&events[event])?;
                    if lane == 0 {
                        joined[from] = joined[from].max(Some(earlier));
                    }
                }
            }
            steps[i].issue(&self.session, stream, self.workspaces[lane].as_deref())?;
            last[lane] = Some(i);
            if awaited[i] {
                marks[i] = Some(mark(events, stream)?);
            }
        }
        for lane in 1..streams.len() {
            if last[lane] > joined[lane] {
                let event = mark(events, streams[lane])?;
                streams[0].wait(&events[event])?;
            }
        }
        Ok(())
    }
}
