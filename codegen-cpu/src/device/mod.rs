//! The device: memory, a pool of threads, and graphs that are flat lists of bound calls.

mod affinity;
#[cfg(target_arch = "x86_64")]
mod amx;
mod capture;
mod graph;
mod instruction_set;
mod memory;
mod pool;
mod processor;
mod timeline;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::granted as has_amx;
pub use graph::CpuGraph;
pub use instruction_set::{InstructionSet, ParseInstructionSetError};
pub(crate) use processor::asks_near;
pub use timeline::{Span, Timeline};

use crate::kernels::{self, Scratch, external::ExternalKernels};
use affinity::Pinned;
use artifact::BufferRef;
use capture::{Binding, Capture};
use hal::{Device, DeviceError, Launch, MemoryRequest};
use memory::{Mapping, Memory};
use pool::{Job, Pool};
use std::sync::Arc;

/// The most threads a device takes.
pub(crate) const MOST_THREADS: usize = 1024;

/// How a device is set up.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads that compute, the calling one included; as many as there are processors when `None`.
    pub threads: Option<usize>,
    /// Instruction set of the kernels; [`InstructionSet::best`] when `None`.
    pub instruction_set: Option<InstructionSet>,
    /// Whether each thread stays on one processor, the calling one from `load` on and until the
    /// device is dropped. Only where nothing else runs: all wait for a thread that another process
    /// keeps waiting, while it could move.
    pub pin: bool,
    /// Whether pages of weights are given back after each call, for runs that must stay small.
    pub release_weights: bool,
    /// Kernels from outside.
    pub external: ExternalKernels,
}

/// The CPU as a device.
pub struct CpuDevice {
    set: InstructionSet,
    pin: bool,
    release_weights: bool,
    external: ExternalKernels,
    pool: Pool,
    pinned: Option<Pinned>,
    memory: Option<Arc<Memory>>,
    capture: Option<Capture>,
    scratch: Mapping,
    /// Private memory of the chains that were captured last; the same part for each thread.
    private: Arc<Mapping>,
}

impl CpuDevice {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] when the machine lacks the instruction set, the number of threads
    /// is not between 1 and 1024, or threads cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let failed = |why| DeviceError::Failed { device: "cpu".into(), why };
        let available = InstructionSet::available();
        let set = options.instruction_set.unwrap_or(available[0]);
        if !available.contains(&set) {
            let names: Vec<_> = available.iter().map(|s| s.name()).collect();
            return Err(failed(format!(
                "this machine has no {set}; it has {}, choose one of these",
                names.join(", ")
            )));
        }
        let available = affinity::available_threads().min(MOST_THREADS);
        let threads = options.threads.unwrap_or(available);
        if !(1..=MOST_THREADS).contains(&threads) {
            return Err(failed(format!("{threads} threads; use 1 to {MOST_THREADS}")));
        }
        Ok(Self {
            set,
            pin: options.pin,
            release_weights: options.release_weights,
            external: options.external,
            pool: Pool::new(threads, options.pin)?,
            pinned: None,
            memory: None,
            capture: None,
            scratch: Mapping::new(0, "scratch")?,
            private: Arc::new(Mapping::new(0, "private memory")?),
        })
    }

    /// The instruction set of the kernels.
    pub fn instruction_set(&self) -> InstructionSet {
        self.set
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Makes the scratch memory large enough for `need`.
    fn reserve(&mut self, need: Scratch) -> Result<(), DeviceError> {
        let bytes = need
            .private
            .checked_mul(self.pool.threads())
            .and_then(|b| b.checked_add(need.shared))
            .unwrap_or(usize::MAX);
        if bytes > self.scratch.bytes() {
            self.scratch = Mapping::new(bytes as u64, "scratch")?;
        }
        Ok(())
    }

    /// Replays a graph and notes when each thread worked on each launch. It reads the clock three
    /// times for each launch and thread, which a replay otherwise does not.
    ///
    /// # Errors
    /// As [`Device::replay`].
    pub fn replay_timed(&mut self, graph: &CpuGraph) -> Result<Timeline, DeviceError> {
        let mut timeline = Timeline::new(graph.len(), self.threads());
        self.run(graph, Some(&mut timeline))?;
        Ok(timeline)
    }

    /// Replays a graph. A timeline has room for its launches and the threads of this device.
    fn run(
        &mut self,
        graph: &CpuGraph,
        timeline: Option<&mut Timeline>,
    ) -> Result<(), DeviceError> {
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("replay during a capture"));
        }
        if !self.memory.as_ref().is_some_and(|m| Arc::ptr_eq(m, &graph.memory)) {
            return Err(DeviceError::Misuse("the graph was captured with other memory"));
        }
        let job = Job {
            launches: &*graph.launches,
            release: self.release_weights.then_some(&*graph.memory as *const Memory),
            scratch: self.scratch.ptr(),
            shared_bytes: graph.scratch.shared,
            private_bytes: graph.scratch.private,
            record: timeline.map(Timeline::record),
        };
        // SAFETY: the graph's calls were bound to this device's memory, which `graph` keeps alive;
        // the scratch memory was made large enough when it was captured; `&mut self` keeps others
        // from the memory until the threads are done, and the timeline is borrowed until then.
        unsafe { self.pool.run(job) };
        Ok(())
    }

    fn at(&self, at: BufferRef) -> kernels::Buffer {
        let memory = self.memory.as_ref().expect("memory is loaded before it is used");
        memory.resolve(at).unwrap_or_else(|| {
            panic!("{at:?} leaves its space of {} bytes", memory.bytes(at.space))
        })
    }
}

fn name(set: InstructionSet, threads: usize) -> String {
    format!("cpu {set}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

impl Device for CpuDevice {
    type Graph = CpuGraph;

    fn name(&self) -> String {
        name(self.set, self.pool.threads())
    }

    fn runs_beside_host(&self) -> bool {
        false
    }

    fn load(&mut self, request: MemoryRequest) -> Result<(), DeviceError> {
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("load during a capture"));
        }
        if self.pin && self.pinned.is_none() {
            self.pinned = Pinned::to(0);
        }
        self.memory = Some(Arc::new(Memory::new(request)?));
        Ok(())
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        if self.memory.is_none() {
            return Err(DeviceError::Misuse("capture before memory was loaded"));
        }
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("a capture is already open"));
        }
        self.capture = Some(Capture::new());
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let (set, threads) = (self.set, self.pool.threads());
        let (Some(capture), Some(memory)) = (&mut self.capture, &self.memory) else {
            return Err(DeviceError::Misuse("launch outside a capture"));
        };
        let device = || name(set, threads);
        let binding = Binding { set, memory, external: &self.external, device: &device };
        capture.launch(&binding, launch.kernel, launch.args, launch.scalars)
    }

    fn begin_chain(&mut self, rows: u32, private_bytes: u64) -> Result<(), DeviceError> {
        if self.capture.as_ref().is_none_or(Capture::in_chain) {
            return Err(DeviceError::Misuse("a chain outside a capture or inside a chain"));
        }
        if rows == 0 {
            let why = "it has no rows".into();
            return Err(DeviceError::BadCall { kernel: "a chain".into(), why });
        }
        let threads = self.pool.threads();
        let all = private_bytes
            .checked_next_multiple_of(64)
            .and_then(|each| each.checked_mul(threads as u64))
            .unwrap_or(u64::MAX);
        // Chains that were captured before keep theirs.
        if all > self.private.bytes() as u64 {
            self.private = Arc::new(Mapping::new(all, "private memory")?);
        }
        let each = (all / threads as u64) as usize;
        let private = Arc::clone(&self.private);
        let capture = self.capture.as_mut().expect("checked above");
        capture.begin_chain((rows as usize, threads), private, each);
        Ok(())
    }

    fn end_chain(&mut self) -> Result<(), DeviceError> {
        self.capture.as_mut().ok_or(DeviceError::Misuse("no capture is open"))?.end_chain()
    }

    fn end_capture(&mut self) -> Result<CpuGraph, DeviceError> {
        if self.capture.as_ref().is_some_and(Capture::in_chain) {
            return Err(DeviceError::Misuse("a chain is open"));
        }
        let (Some(mut capture), Some(memory)) = (self.capture.take(), &self.memory) else {
            return Err(DeviceError::Misuse("no capture is open"));
        };
        let memory = Arc::clone(memory);
        let scratch = capture.scratch();
        self.reserve(scratch)?;
        graph::foresee(&mut capture.launches, self.pool.threads());
        Ok(CpuGraph { launches: capture.launches, scratch, memory })
    }

    fn abort_capture(&mut self) {
        self.capture = None;
    }

    fn write(&mut self, at: BufferRef, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= at.bytes, "write past the end of a buffer");
        let to = self.at(at);
        assert!(to.writable, "write to the weights");
        // SAFETY: `to` is as long as `at`; no replay runs while `self` is borrowed.
        unsafe { to.ptr.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&mut self, at: BufferRef, out: &mut [u8]) -> Result<(), DeviceError> {
        assert!(out.len() as u64 <= at.bytes, "read past the end of a buffer");
        let from = self.at(at);
        // SAFETY: as for `write`.
        unsafe { from.ptr.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn replay(&mut self, graph: &CpuGraph) -> Result<(), DeviceError> {
        self.run(graph, None)
    }
}
