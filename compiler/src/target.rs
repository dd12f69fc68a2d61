//! What a target decides: which kernels compute an op. Everything else is the same everywhere.

use artifact::{BuildTarget, Operator, Scalar};
use ir::{Op, TensorType};
use passes::TargetInfo;
use tensor::DType;

/// An operand or result of a specialised op.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its type; every dimension is a number.
    pub ty: TensorType,
    /// Distance between rows (indices of the first dimension) in elements. Rows themselves are
    /// contiguous.
    pub row_stride: u64,
}

/// A buffer of a kernel call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Operand of the op.
    Operand(usize),
    /// Result of the op. A result that is the next version of a state is the state.
    Result(usize),
    /// Entry of [`Lowered::scratch_bytes`].
    Scratch(usize),
    /// Operand of the op from this byte on.
    OperandFrom(usize, u64),
    /// Result of the op from this byte on.
    ResultFrom(usize, u64),
    /// Entry of [`Lowered::scratch_bytes`] from this byte on.
    ScratchFrom(usize, u64),
}

/// One kernel call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelCall {
    /// Name on the device.
    pub kernel: String,
    /// Buffers in the kernel's order.
    pub args: Vec<Arg>,
    /// Scalars in the kernel's order.
    pub scalars: Vec<Scalar>,
    /// The library operator that it is, whose tensors are indices into `args`.
    pub operator: Option<Operator>,
    /// Blocks to launch a kernel of the target's own with; 0 where it has none.
    pub blocks: u32,
}

/// A file of the artifact that calls need, such as the source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFile {
    /// Path inside the artifact, with `/`.
    pub path: String,
    /// Contents. Files of one path have one content.
    pub text: String,
}

/// How many streams a plan may use, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Streams; 1 runs everything in order.
    pub count: u32,
    /// Bytes that a branch must move to be worth a stream of its own.
    pub fork_bytes: u64,
    /// What all plans together may hold; `None` where nothing is short.
    pub budget: Option<QueueBudget>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { count: 1, fork_bytes: u64::MAX, budget: None }
    }
}

/// What a device has for the recorded plans of all processes. A recorded plan keeps its streams as
/// long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBudget {
    /// Streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Steps that a stream holds; a longer plan takes another stream each time.
    pub steps_per_stream: u64,
}

/// How a target computes one op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lowered {
    /// Calls in order.
    pub calls: Vec<KernelCall>,
    /// Temporary buffers that live during these calls.
    pub scratch_bytes: Vec<u64>,
    /// Files that the calls need.
    pub files: Vec<KernelFile>,
    /// Why these calls and not others, where there was a choice.
    pub why: String,
}

/// An op that the target cannot compute.
#[derive(Debug, thiserror::Error)]
#[error("target {target} has no kernel for `{op}` with {operands}; {remedy}")]
pub struct LowerError {
    /// Target name.
    pub target: String,
    /// Mnemonic.
    pub op: &'static str,
    /// Operand types.
    pub operands: String,
    /// What to do about it.
    pub remedy: String,
}

impl LowerError {
    /// What to do about `op`, which no kernel takes, as far as it depends on no target.
    pub fn advice(op: &Op) -> &'static str {
        match op {
            Op::ExpandedLatentAttention { .. } | Op::SparseExpandedLatentAttention { .. } => {
                "the pass absorb-latent replaces it if its weights are constant: see --explain-passes"
            }
            _ => "choose --dtype bf16 or f32, or enable the pass that removes it",
        }
    }
}

/// The compile side of a device.
pub trait Target {
    /// What passes may ask.
    fn info(&self) -> TargetInfo;

    /// What the artifact says it needs.
    fn build_target(&self) -> BuildTarget;

    /// The type of activations where matrices have type `weights`.
    fn activations(&self, weights: DType) -> DType {
        let _ = weights;
        DType::F32
    }

    /// Alignment of arena buffers in bytes.
    fn arena_align(&self) -> u64;

    /// Alignment of weights in the weight file in bytes.
    fn weight_align(&self) -> u64;

    /// Bytes that a buffer of `bytes` takes in the arena, what the device wants behind it included.
    fn slot_bytes(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Whether it runs the ops of a composite that it has no kernel for row by row, as a
    /// [`artifact::Chain`].
    fn runs_chains(&self) -> bool {
        true
    }

    /// Streams that a plan may use.
    fn streams(&self) -> Streams {
        Streams::default()
    }

    /// Files that travel in the artifact whatever it calls, such as a script that builds `kernels`,
    /// the files of all calls.
    fn files(&self, kernels: &[KernelFile]) -> Vec<KernelFile> {
        let _ = kernels;
        Vec::new()
    }

    /// Hash input: the sources of the kernels and of this lowering.
    fn sources(&self) -> &'static [&'static str];

    /// Kernel calls for `op`.
    ///
    /// # Errors
    /// [`LowerError`] when there is no kernel for these types.
    fn lower(
        &self,
        op: &Op,
        operands: &[Operand],
        results: &[Operand],
    ) -> Result<Lowered, LowerError>;
}

impl Arg {
    /// The same buffer without its first `skipped` bytes.
    pub fn after(self, skipped: u64) -> Self {
        match self {
            Arg::Operand(i) => Arg::OperandFrom(i, skipped),
            Arg::Result(i) => Arg::ResultFrom(i, skipped),
            Arg::Scratch(i) => Arg::ScratchFrom(i, skipped),
            Arg::OperandFrom(i, before) => Arg::OperandFrom(i, before + skipped),
            Arg::ResultFrom(i, before) => Arg::ResultFrom(i, before + skipped),
            Arg::ScratchFrom(i, before) => Arg::ScratchFrom(i, before + skipped),
        }
    }

    /// The temporary buffer that it is, or a part of.
    pub fn scratch(&self) -> Option<usize> {
        match *self {
            Arg::Scratch(i) | Arg::ScratchFrom(i, _) => Some(i),
            _ => None,
        }
    }
}

impl Operand {
    /// A dense operand.
    pub fn dense(ty: TensorType) -> Self {
        let row_stride = ty.dims.iter().skip(1).map(|d| d.as_const().unwrap_or(0)).product::<u64>();
        Self { ty, row_stride }
    }

    /// Dimension `i` as a number.
    ///
    /// # Panics
    /// When it is still a symbol: targets see specialised types only.
    pub fn dim(&self, i: usize) -> u64 {
        self.ty.dims[i].as_const().expect("types are specialised")
    }
}
