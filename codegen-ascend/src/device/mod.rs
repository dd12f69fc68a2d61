//! Ascend NPUs as device: the vendor's runtime loaded at run time, plans recorded once and replayed.
//!
//! Layers: [`acl`] declares, `result` makes errors of codes, `safe` owns, and this module orders. A
//! step is one copy of its inputs, one replay and one copy of what is read, all on one stream;
//! nothing is allocated on that path.
//!
//! - Loading allocates arena, weights and states, and builds the kernels of the artifact if that was not
//!   done before ([`build`]).
//! - A launch runs the first phase of a library operator, so that its workspace is known before anything
//!   is recorded.
//! - The end of a capture allocates workspaces, one for each stream, and records ([`capture`]).

mod capture;
mod kernels;
mod library;
mod memory;
mod operator;
mod probe;
mod result;
mod safe;
mod session;
mod transfer;

pub use crate::build::{BuildError, KernelCompiler};
pub use capture::{AscendGraph, Record};
pub use kernels::BATCH_MARKER;
pub use library::{LaunchFunction, Libraries, Opened, OperatorFunctions};
pub use probe::{FoundDevice, Probe};
pub use result::AclError;
pub use session::{OpenError, Session};

use acl::Signature;
use artifact::{BufferRef, Operator, Scalar, Space};
use capture::{RecordError, Recorder, Step, Work};
use hal::{Device, DeviceError, Launch, MemoryRequest};
use kernels::Kernels;
use library::OperatorFunctions as Functions;
use memory::{Memory, failed};
use operator::{BindError, BoundOperator};
use safe::Stream;
use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};
use transfer::Transfer;

/// The step that copies inside the device.
pub const COPY: &str = "memcpy";

/// Which device, and how it is used.
#[derive(Clone, Debug)]
pub struct AscendOptions {
    /// Number of the device.
    pub device: i32,
    /// A library that serves as all of the vendor's: that of the software device. `None` looks for the
    /// vendor's.
    pub library: Option<PathBuf>,
    /// What builds the kernels of an artifact; `None` is the vendor's compiler for the vendor's
    /// runtime, and the host's for another.
    pub kernel_compiler: Option<KernelCompiler>,
    /// Where compiled kernels are kept; `None` is `kernels` in `PRECAST_CACHE` or in the user's cache of this
    /// program, or a folder beside the artifact where that cannot be written.
    pub kernel_cache: Option<PathBuf>,
    /// Runs each plan once before it is recorded, on zeros.
    pub warm_up: bool,
    /// Copies the weights to the device; without them it computes nothing, which suffices to time what
    /// the host does.
    pub copy_weights: bool,
    /// How plans are recorded.
    pub record: Record,
    /// How long to wait for the device before a step counts as stuck; `None` is for ever.
    pub timeout: Option<Duration>,
}

impl Default for AscendOptions {
    fn default() -> Self {
        Self {
            device: 0,
            library: None,
            kernel_compiler: None,
            kernel_cache: None,
            warm_up: true,
            copy_weights: true,
            record: Record::default(),
            timeout: Some(Duration::from_secs(120)),
        }
    }
}

/// An Ascend NPU, or the software device.
#[derive(Debug)]
pub struct AscendDevice {
    // What is recorded or loaded goes before the memory, and all before the session.
    recorder: Recorder,
    kernels: Option<Kernels>,
    transfer: Option<Transfer>,
    capture: Option<Vec<Step>>,
    /// Operators found so far.
    operators: HashMap<&'static str, Functions>,
    memory: Option<Arc<Memory>>,
    /// The stream of copies and replays.
    stream: Arc<Stream>,
    /// Warming up wrote to the states; they are made zero before the first step.
    state_used: bool,
    /// A replay was put on the stream, so the states are in use.
    replayed: bool,
    /// There may be work on the stream.
    busy: bool,
    /// A failure that no call could return; the next one that can does.
    failure: Option<DeviceError>,
    options: AscendOptions,
    session: Arc<Session>,
}

impl AscendDevice {
    /// Loads the runtime and sets up the device.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] with what is missing and what to do.
    pub fn open(options: AscendOptions) -> Result<Self, DeviceError> {
        let session = Session::open(options.library.as_deref(), options.device);
        let session = session.map_err(|e| DeviceError::Failed {
            device: format!("ascend device {}", options.device),
            why: e.to_string(),
        })?;
        let stream = Stream::new(&session).map_err(|e| failed(&session, &e))?;
        Ok(Self {
            recorder: Recorder::new(&session, options.timeout),
            kernels: None,
            transfer: None,
            capture: None,
            operators: HashMap::new(),
            memory: None,
            stream: Arc::new(stream),
            state_used: false,
            replayed: false,
            busy: false,
            failure: None,
            options,
            session,
        })
    }

    /// The runtime and what it says about itself.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn failed(&self, error: AclError) -> DeviceError {
        failed(&self.session, &error)
    }

    /// The loaded memory.
    fn memory(&self) -> Result<&Arc<Memory>, DeviceError> {
        self.memory.as_ref().ok_or(DeviceError::Misuse("no memory is loaded"))
    }

    /// What a launch puts into the capture.
    fn work(&mut self, launch: &Launch<'_>) -> Result<Work, DeviceError> {
        let bad = |why: String| DeviceError::BadCall { kernel: launch.kernel.to_owned(), why };
        let memory = self.memory()?;
        let addresses: Result<Vec<u64>, String> =
            launch.args.iter().map(|&at| memory.address(at)).collect();
        let mut addresses = addresses.map_err(bad)?;
        if let Some(operator) = launch.operator {
            return self.operator(operator, &addresses).map_err(|e| match e {
                BindError::Plan(why) => bad(why),
                BindError::Call(e) => self.failed(e),
            });
        }
        if launch.kernel == COPY {
            let [to, from] = launch.args else {
                return Err(bad(format!("it takes two buffers, not {}", launch.args.len())));
            };
            if from.bytes > to.bytes {
                return Err(bad(format!("{} bytes do not fit into {}", from.bytes, to.bytes)));
            }
            return Ok(Work::Copy(addresses[0], addresses[1], from.bytes));
        }
        for scalar in launch.scalars {
            match scalar {
                Scalar::Int(v) => addresses.push(*v),
                Scalar::Float(v) => return Err(bad(format!("{v} is not a whole number"))),
            }
        }
        if launch.issue.blocks == 0 {
            return Err(bad("the plan gives it no blocks".to_owned()));
        }
        let kernels = self.kernels.as_mut().ok_or(DeviceError::Misuse("no memory is loaded"))?;
        let kernel = kernels.get(&self.session, launch.kernel)?;
        Ok(Work::Kernel(kernel, launch.issue.blocks, addresses))
    }

    fn operator(&mut self, operator: &Operator, addresses: &[u64]) -> Result<Work, BindError> {
        let name = &operator.name;
        let signature: &'static Signature = acl::operator(name)
            .ok_or_else(|| BindError::Plan("this program does not know the operator".to_owned()))?;
        let functions = match self.operators.get(signature.name) {
            Some(functions) => *functions,
            None => {
                let found = self.session.libraries.operator(signature).ok_or_else(|| {
                    BindError::Plan(format!(
                        "the operator library does not have it; it needs toolkit {} or newer, and this one \
                         is {}",
                        signature.since.name(),
                        self.session.release().name()
                    ))
                })?;
                self.operators.insert(signature.name, found);
                found
            }
        };
        let bound = BoundOperator::new(&self.session, signature, functions, operator, addresses)?;
        Ok(Work::Operator(Box::new(bound)))
    }

    /// Waits for all work; what failed on the way is the error.
    fn settle(&mut self) -> Result<(), DeviceError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if !self.busy {
            return Ok(());
        }
        let done =
            self.session.enter().and_then(|()| self.stream.synchronize(self.options.timeout));
        done.map_err(|e| self.failed(e))?;
        self.busy = false;
        if let Some(transfer) = &mut self.transfer {
            transfer.landed();
        }
        Ok(())
    }

    /// Makes states zero again that warming up has written to.
    fn forget_warm_up(&mut self) -> Result<(), DeviceError> {
        if self.state_used {
            self.memory()?.clone().state.zero().map_err(|e| self.failed(e))?;
            self.state_used = false;
        }
        Ok(())
    }

    /// Writes to memory that has no mirror, after all work.
    fn write_through(&mut self, at: BufferRef, bytes: &[u8]) -> Result<(), DeviceError> {
        self.settle()?;
        self.forget_warm_up()?;
        let memory = self.memory()?.clone();
        let to = memory
            .address(at)
            .map_err(|why| DeviceError::BadCall { kernel: "write".into(), why })?;
        let (to, kind) = (to as usize as *mut _, acl::sys::ACL_MEMCPY_HOST_TO_DEVICE);
        let api = &self.session.api;
        self.session.enter().map_err(|e| self.failed(e))?;
        // SAFETY: the range is inside the memory, which is not in use; the copy is over on return.
        let code =
            unsafe { (api.aclrtMemcpy)(to, bytes.len(), bytes.as_ptr().cast(), bytes.len(), kind) };
        result::check(api, "aclrtMemcpy", code).map_err(|e| self.failed(e))
    }

    fn submit(&mut self, graph: &AscendGraph) -> Result<(), DeviceError> {
        let memory = self.memory()?.clone();
        let transfer = self.transfer.as_mut().ok_or(DeviceError::Misuse("no memory is loaded"))?;
        self.busy = true;
        let done = self.session.enter();
        let done = done.and_then(|()| transfer.submit(&memory, &self.stream));
        done.and_then(|()| graph.execute(&self.stream)).map_err(|e| failed(&self.session, &e))
    }
}

impl Drop for AscendDevice {
    fn drop(&mut self) {
        if let Err(e) = self.settle() {
            tracing::error!("{e}; the device is given back without knowing that it is idle");
        }
    }
}

impl Device for AscendDevice {
    type Graph = AscendGraph;

    fn name(&self) -> String {
        self.session.name()
    }

    fn runs_beside_host(&self) -> bool {
        true
    }

    fn load(&mut self, request: MemoryRequest) -> Result<(), DeviceError> {
        self.settle()?;
        let compiler = self.options.kernel_compiler.unwrap_or(match self.options.library {
            Some(_) => KernelCompiler::Host,
            None => KernelCompiler::Vendor,
        });
        let (kernels, transfer, memory) =
            (self.kernels.take(), self.transfer.take(), self.memory.take());
        drop((kernels, transfer, memory));
        let sources = request.root.join("kernels");
        let key = format!("{}-{}", self.session.soc, self.session.release().name());
        let binaries = crate::build::binaries(
            &request.root,
            compiler,
            &key,
            self.options.kernel_cache.as_deref(),
        );
        let binaries = binaries
            .map_err(|e| DeviceError::Failed { device: self.session.name(), why: e.to_string() })?;
        self.session.enter().map_err(|e| self.failed(e))?;
        let memory = Memory::load(&self.session, &self.stream, &request, &self.options)?;
        let transfer = Transfer::new(&self.session, request.arena_bytes);
        self.transfer = Some(transfer.map_err(|e| self.failed(e))?);
        self.memory = Some(Arc::new(memory));
        self.kernels = Some(Kernels::new(sources, binaries));
        (self.state_used, self.replayed) = (false, false);
        Ok(())
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        self.memory()?;
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("a capture is already open"));
        }
        self.capture = Some(Vec::new());
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        if self.capture.is_none() {
            return Err(DeviceError::Misuse("launch outside a capture"));
        }
        let work = self.work(launch)?;
        let (stream, waits) = (launch.issue.stream, launch.issue.waits.clone());
        if let Some(steps) = &mut self.capture {
            steps.push(Step { work, stream, waits });
        }
        Ok(())
    }

    fn begin_chain(&mut self, _: u32, _: u64) -> Result<(), DeviceError> {
        let why = "this device has no chains".to_owned();
        Err(DeviceError::BadCall { kernel: "chain".to_owned(), why })
    }

    fn end_chain(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::Misuse("no chain is open"))
    }

    fn end_capture(&mut self) -> Result<AscendGraph, DeviceError> {
        let steps = self.capture.take().ok_or(DeviceError::Misuse("no capture is open"))?;
        self.settle()?;
        let memory = self.memory()?.clone();
        // States that hold sequences are not warmed up on.
        let warm_up = self.options.warm_up && !self.replayed;
        self.state_used |= warm_up;
        let how = self.options.record;
        self.recorder.record(steps, &memory, &self.stream, how, warm_up).map_err(|e| match e {
            RecordError::Call(e) => self.failed(e),
            RecordError::Workspace(bytes, e) => {
                let what = "the workspace of library operators";
                DeviceError::OutOfMemory { bytes, what, why: e.to_string() }
            }
            RecordError::Order(step) => {
                let why = format!("a step waits for step {step}, which is not before it");
                DeviceError::BadCall { kernel: "plan".to_owned(), why }
            }
        })
    }

    fn abort_capture(&mut self) {
        self.capture = None;
    }

    fn write(&mut self, at: BufferRef, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= at.bytes, "write past the end of a buffer");
        let mirror = self.transfer.as_mut().filter(|t| {
            at.space == Space::Arena && t.mirrors(&(at.offset..at.offset.saturating_add(at.bytes)))
        });
        let done = match mirror {
            Some(mirror) => {
                let done = self.session.enter();
                let written = done
                    .and_then(|()| mirror.write(at.offset as usize, bytes, self.options.timeout));
                written.map_err(|e| failed(&self.session, &e))
            }
            None => self.write_through(at, bytes),
        };
        if let Err(e) = done {
            // The replay that would use it reports it.
            self.failure.get_or_insert(e);
        }
    }

    fn read(&mut self, at: BufferRef, out: &mut [u8]) -> Result<(), DeviceError> {
        assert!(out.len() as u64 <= at.bytes, "read past the end of a buffer");
        let memory = self.memory()?;
        let from = memory.address(at).unwrap_or_else(|why| panic!("read: {why}"));
        let Some(transfer) = &mut self.transfer else {
            return Err(DeviceError::Misuse("no memory is loaded"));
        };
        if at.space == Space::Arena && transfer.read_written(at.offset, out) {
            return Ok(());
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let from = from as usize as *const _;
        let done = transfer.read(from, out, &self.stream, self.options.timeout);
        done.map_err(|e| failed(&self.session, &e))?;
        self.busy = false;
        Ok(())
    }

    fn replay(&mut self, graph: &AscendGraph) -> Result<(), DeviceError> {
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("replay during a capture"));
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.forget_warm_up()?;
        self.replayed = true;
        self.submit(graph)
    }
}
