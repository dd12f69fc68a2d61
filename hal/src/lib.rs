//! What a device offers: memory, capture and replay. Knows plans, not models and not requests.

mod graphs;
mod record;
mod recording;

pub use graphs::GraphSet;
pub use record::{Call, RecordingDevice};
pub use recording::{Recording, capture};

use artifact::{BufferRef, Issue, Operator, Scalar};
use std::{path::PathBuf, sync::Arc};
use tensor::MappedFile;

/// Something a device could not do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device has no such kernel.
    #[error(
        "{device} has no kernel `{kernel}`; the artifact was made by another version, run `precast compile` again"
    )]
    UnknownKernel {
        /// Device name.
        device: String,
        /// Kernel name.
        kernel: String,
    },
    /// A kernel that is not part of the device and was not registered.
    #[error(
        "the artifact calls the kernel `{kind}` of an extension that this program lacks; serve it with \
         the program that compiled it, or run `precast compile` again with this one"
    )]
    MissingExtension {
        /// Kind of the composites that it computes.
        kind: String,
    },
    /// A call whose buffers or scalars are not what the kernel takes.
    #[error("kernel `{kernel}`: {why}; the artifact is damaged, run `precast compile` again")]
    BadCall {
        /// Kernel name.
        kernel: String,
        /// What is wrong.
        why: String,
    },
    /// Memory could not be had.
    #[error("cannot allocate {bytes} bytes for {what}: {why}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What for.
        what: &'static str,
        /// What the system said.
        why: String,
    },
    /// A call out of order, such as a launch outside a capture.
    #[error("{0}")]
    Misuse(&'static str),
    /// The device failed while working.
    #[error("{device} failed: {why}")]
    Failed {
        /// Device name.
        device: String,
        /// What it said.
        why: String,
    },
}

/// One step of a plan, ready to add to a capture.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Name of the kernel.
    pub kernel: &'a str,
    /// Buffers in its order.
    pub args: &'a [BufferRef],
    /// Scalars in its order.
    pub scalars: &'a [Scalar],
    /// How the plan issues it. A device that runs steps in order on one queue ignores it.
    pub issue: &'a Issue,
    /// The library operator, where it is one.
    pub operator: Option<&'a Operator>,
}

impl<'a> Launch<'a> {
    /// A launch of a kernel of the device, in order.
    pub fn new(kernel: &'a str, args: &'a [BufferRef], scalars: &'a [Scalar]) -> Self {
        const IN_ORDER: &Issue = &Issue { stream: 0, waits: Vec::new(), blocks: 0, operator: None };
        Self { kernel, args, scalars, issue: IN_ORDER, operator: None }
    }
}

/// What an artifact asks of a device before anything is captured.
pub struct MemoryRequest {
    /// Directory of the artifact, where a device finds its kernels; empty when there is none.
    pub root: PathBuf,
    /// The weight file; a device that has its own memory copies it.
    pub weights: Arc<MappedFile>,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes of persistent memory; zeroed.
    pub state_bytes: u64,
}

/// A device: memory at fixed addresses, and graphs that are captured once and replayed.
///
/// The order of calls is `load`, then captures, then writes, replays and reads in any number. All
/// of them come from one thread.
pub trait Device: Send {
    /// A captured sequence of calls, ready to replay.
    type Graph: Send;

    /// Name for reports: `cpu avx512bf16, 2 threads`.
    fn name(&self) -> String;

    /// Provides the memory of an artifact.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn load(&mut self, request: MemoryRequest) -> Result<(), DeviceError>;

    /// Starts a capture.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] when one is open or no memory is loaded.
    fn begin_capture(&mut self) -> Result<(), DeviceError>;

    /// Adds a call to the open capture; nothing runs yet.
    ///
    /// # Errors
    /// [`DeviceError::UnknownKernel`], [`DeviceError::BadCall`].
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Makes the launches up to [`Device::end_chain`] one launch that goes row by row, `rows` of
    /// them: see [`artifact::Chain`]. Each thread has `private_bytes` bytes of
    /// [`artifact::Space::Private`].
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] outside a capture or inside a chain, [`DeviceError::BadCall`] when
    /// there are no rows, [`DeviceError::OutOfMemory`].
    fn begin_chain(&mut self, rows: u32, private_bytes: u64) -> Result<(), DeviceError>;

    /// Ends the chain.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] when none is open, [`DeviceError::BadCall`] when its steps do not run
    /// row by row.
    fn end_chain(&mut self) -> Result<(), DeviceError>;

    /// Ends the capture.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] when none is open, or a chain is.
    fn end_capture(&mut self) -> Result<Self::Graph, DeviceError>;

    /// Drops an open capture, if there is one.
    fn abort_capture(&mut self);

    /// Writes `bytes` at the start of `at`.
    ///
    /// # Panics
    /// When `bytes` is longer than `at` or `at` leaves its space.
    fn write(&mut self, at: BufferRef, bytes: &[u8]);

    /// Waits for the last replay and reads the start of `at` into `out`.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] when the replay failed after it was started, or takes too long.
    ///
    /// # Panics
    /// When `out` is longer than `at` or `at` leaves its space.
    fn read(&mut self, at: BufferRef, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Starts a captured graph, and may return before it has ended: inputs written from now on are
    /// those of the next replay.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn replay(&mut self, graph: &Self::Graph) -> Result<(), DeviceError>;

    /// Whether [`Device::replay`] returns while the device works and leaves the processors to the
    /// host, so that it pays to prepare the next step before reading.
    fn runs_beside_host(&self) -> bool;
}
