//! The device: memory, a pool of threads, and graphs that are flat lists of bound calls.

mod affinity;
#[cfg(target_arch = "x86_64")]
mod amx;
mod graph;
mod instruction_set;
mod memory;
mod pool;

pub use graph::CpuGraph;
pub use instruction_set::{InstructionSet, ParseInstructionSetError};

use crate::kernels::{
    self, Binder, Scratch,
    external::{self, ExternalKernels},
};
use affinity::Pinned;
use artifact::{BufferRef, Scalar, Space};
use graph::Call;
use hal::{Device, DeviceError, MemoryRequest};
use memory::{Mapping, Memory};
use pool::{Job, Pool};
use std::sync::Arc;

/// The most threads a device takes.
pub(crate) const MOST_THREADS: usize = 1024;

/// How a device is set up.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the calling one included; as many as there are processors when `None`.
    pub threads: Option<usize>,
    /// Instruction set of the kernels; [`InstructionSet::best`] when `None`.
    pub instruction_set: Option<InstructionSet>,
    /// Whether each thread stays on one processor, the calling one from `load` on and until the
    /// device is dropped.
    pub pin: bool,
    /// Whether pages of weights are given back after each call, for runs that must stay small.
    pub release_weights: bool,
    /// Kernels from outside.
    pub external: ExternalKernels,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            threads: None,
            instruction_set: None,
            pin: true,
            release_weights: false,
            external: ExternalKernels::default(),
        }
    }
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
    capture: Option<Vec<Call>>,
    scratch: Mapping,
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

    fn at(&self, at: BufferRef) -> kernels::Buffer {
        let memory = self.memory.as_ref().expect("memory is loaded before it is used");
        memory.resolve(at).unwrap_or_else(|| {
            panic!("{at:?} leaves its space of {} bytes", memory.bytes(at.space))
        })
    }
}

/// Refuses a buffer outside its space.
fn outside(index: usize, at: BufferRef, space: usize) -> String {
    format!(
        "buffer {index} ends at byte {} of {:?}, which has {space}",
        u128::from(at.offset) + u128::from(at.bytes),
        at.space
    )
}

impl Device for CpuDevice {
    type Graph = CpuGraph;

    fn name(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu {}, {threads} thread{}", self.set, if threads == 1 { "" } else { "s" })
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
        self.capture = Some(Vec::new());
        Ok(())
    }

    fn launch(
        &mut self,
        kernel: &str,
        args: &[BufferRef],
        scalars: &[Scalar],
    ) -> Result<(), DeviceError> {
        let (Some(calls), Some(memory)) = (&mut self.capture, &self.memory) else {
            return Err(DeviceError::Misuse("launch outside a capture"));
        };
        let bad = |why| DeviceError::BadCall { kernel: kernel.into(), why };
        let mut buffers = Vec::with_capacity(args.len());
        for (i, &at) in args.iter().enumerate() {
            let buffer = memory.resolve(at);
            buffers.push(buffer.ok_or_else(|| bad(outside(i, at, memory.bytes(at.space))))?);
        }
        let mut binder = Binder::new(&buffers, scalars);
        let bound = match kernel.strip_prefix(external::PREFIX) {
            Some(kind) => {
                let known = self.external.get(kind).cloned();
                let known =
                    known.ok_or_else(|| DeviceError::MissingExtension { kind: kind.into() })?;
                external::bind(known, &mut binder)
            }
            None => match kernels::bind(self.set, kernel, &mut binder) {
                Some(bound) => bound,
                None => {
                    let kernel = kernel.into();
                    return Err(DeviceError::UnknownKernel { device: self.name(), kernel });
                }
            },
        };
        let weights = args.iter().filter(|at| at.space == Space::Weights);
        let weights = weights.map(|at| (at.offset, at.bytes)).collect();
        calls.push(Call { kernel: bound.map_err(bad)?, weights });
        Ok(())
    }

    fn end_capture(&mut self) -> Result<CpuGraph, DeviceError> {
        let (Some(calls), Some(memory)) = (self.capture.take(), &self.memory) else {
            return Err(DeviceError::Misuse("no capture is open"));
        };
        let memory = Arc::clone(memory);
        let mut scratch = Scratch::default();
        for call in &calls {
            let need = call.kernel.scratch();
            scratch.private = scratch.private.max(need.private.next_multiple_of(64));
            scratch.shared = scratch.shared.max(need.shared.next_multiple_of(64));
        }
        self.reserve(scratch)?;
        Ok(CpuGraph { calls, scratch, memory })
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

    fn read(&mut self, at: BufferRef, out: &mut [u8]) {
        assert!(out.len() as u64 <= at.bytes, "read past the end of a buffer");
        let from = self.at(at);
        // SAFETY: as for `write`.
        unsafe { from.ptr.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    }

    fn replay(&mut self, graph: &CpuGraph) -> Result<(), DeviceError> {
        if self.capture.is_some() {
            return Err(DeviceError::Misuse("replay during a capture"));
        }
        if !self.memory.as_ref().is_some_and(|m| Arc::ptr_eq(m, &graph.memory)) {
            return Err(DeviceError::Misuse("the graph was captured with other memory"));
        }
        let job = Job {
            calls: &*graph.calls,
            release: self.release_weights.then_some(&*graph.memory as *const Memory),
            scratch: self.scratch.ptr(),
            shared_bytes: graph.scratch.shared,
            private_bytes: graph.scratch.private,
        };
        // SAFETY: the graph's calls were bound to this device's memory, which `graph` keeps alive;
        // the scratch memory was made large enough when it was captured; `&mut self` keeps others
        // from the memory until the threads are done.
        unsafe { self.pool.run(job) };
        Ok(())
    }
}
