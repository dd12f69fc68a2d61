//! `manifest.json`: what the artifact is, for people and for the compatibility check.

use crate::{Checksum, FunctionEntry, Phase, Pipeline, error::ArtifactError};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::Range};
use tensor::{DType, Layout};

/// The whole manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the container; [`crate::FORMAT_VERSION`] when written.
    pub format_version: u32,
    /// What can run it.
    pub target: BuildTarget,
    /// The model.
    pub model: Model,
    /// What it was made from and by.
    pub provenance: Provenance,
    /// Extensions of the compiler, each with those of its kernels that plans call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionEntry>,
    /// The effective configuration: every option with the value that was used.
    pub config: BTreeMap<String, serde_json::Value>,
    /// The passes as they ran.
    pub pipeline: Pipeline,
    /// What they made of each function.
    pub functions: Vec<FunctionEntry>,
    /// Why ops are computed by the calls they are, where the target had a choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ChoiceEntry>,
    /// The most sequences that decode at once; a bucket of this size always exists.
    pub max_running_requests: u32,
    /// Buckets asked for, added and dropped, each with the reason.
    pub buckets: Vec<Bucket>,
    /// Plans in the order they are bound.
    pub plans: Vec<PlanEntry>,
    /// KV memory.
    pub kv: Kv,
    /// KV memory of layers with a sliding window, where there are any.
    pub window: Option<WindowMemory>,
    /// Recurrent memory of each running sequence, where there is any.
    pub sequences: Option<SequenceMemory>,
    /// Bytes by kind.
    pub memory: Memory,
    /// Persistent memories, KV caches included, in the order of their offsets.
    pub states: Vec<StateEntry>,
    /// The weight file.
    pub weights_file: FileEntry,
    /// What lies in it, in the order plans read it.
    pub weights: Vec<WeightEntry>,
    /// Tokenizer, chat template and generation defaults, copied from the checkpoint.
    pub files: Vec<FileEntry>,
    /// Tokens recorded when the artifact was made; `serve --verify` checks them.
    pub recorded: Option<Recorded>,
}

/// What an artifact can run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildTarget {
    /// `cpu`, later `ascend910_93` and others.
    pub device: String,
    /// The least instruction set that reads the packed weights: `portable`, `avx2`, `avxvnni`,
    /// `avx512`, `avx512bf16`, `avx512amx`.
    pub instruction_set: String,
    /// Ranks that share each layer.
    pub tensor_parallel: u32,
    /// Tokens in a KV block.
    pub kv_block_tokens: u32,
}

impl BuildTarget {
    /// Whether an artifact for `self` runs on `here`. `instruction_sets` are those `here` has.
    ///
    /// Names every field, so adding one does not compile until someone decides whether it matters.
    ///
    /// # Errors
    /// [`ArtifactError::Target`] names the field that differs.
    pub fn check(
        &self,
        here: &BuildTarget,
        instruction_sets: &[&str],
    ) -> Result<(), ArtifactError> {
        let BuildTarget { device, instruction_set, tensor_parallel, kv_block_tokens } = self;
        same("device", device, &here.device)?;
        if !instruction_sets.contains(&instruction_set.as_str()) {
            return Err(ArtifactError::Target {
                what: "instruction set",
                found: instruction_set.clone(),
                expected: instruction_sets.join(", "),
            });
        }
        same("tensor parallel size", tensor_parallel, &here.tensor_parallel)?;
        same("KV block size", kv_block_tokens, &here.kv_block_tokens)
    }
}

fn same<T: PartialEq + ToString>(
    what: &'static str,
    found: &T,
    expected: &T,
) -> Result<(), ArtifactError> {
    if found == expected {
        return Ok(());
    }
    Err(ArtifactError::Target { what, found: found.to_string(), expected: expected.to_string() })
}

/// The model as the server needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Name served by default: the last component of the checkpoint's path.
    pub name: String,
    /// `model_type` of the checkpoint.
    pub model_type: String,
    /// `architectures[0]` of the checkpoint.
    pub architecture: String,
    /// Rows of the logits.
    pub vocab_size: u32,
    /// Longest prompt and answer together, in tokens.
    pub max_context: u32,
    /// Ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Element type of the matrices.
    pub dtype: DType,
    /// Parameters of the checkpoint, a tied head counted once.
    pub parameters: u64,
    /// Tokens that a layer with a sliding window sees, where there are such layers.
    pub sliding_window: Option<u32>,
}

/// What an artifact was made from and by. Hashes are 128-bit XXH3, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Version of the compiler.
    pub compiler: String,
    /// Configuration, and name, type and shape of every tensor of the checkpoint, and their bytes.
    pub model_hash: Checksum,
    /// Sources of the passes, in pipeline order with how often each fired.
    pub passes_hash: Checksum,
    /// Sources of the kernels and of the lowering to them.
    pub kernels_hash: Checksum,
}

/// An extension that took part in compiling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionEntry {
    /// Name.
    pub name: String,
    /// Its sources.
    pub hash: Checksum,
    /// Kernels of it that plans call. Only a device that has them runs the artifact.
    pub kernels: Vec<String>,
}

/// Why ops of a kind are computed by certain calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChoiceEntry {
    /// Mnemonic, or the kind of a composite.
    pub op: String,
    /// Names of the kernels and operators called, in order; none where the ops of a composite are
    /// computed one by one.
    pub calls: Vec<String>,
    /// The reason.
    pub why: String,
    /// Ops of all plans that it holds for.
    pub count: u32,
}

/// A batch size or chunk length: where it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Which plans.
    pub phase: Phase,
    /// Rows.
    pub rows: u32,
    /// Whether plans for it exist.
    pub kept: bool,
    /// `requested`, or why it was added or dropped.
    pub reason: String,
}

/// A file of the artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path inside the artifact, with `/`.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Checksum of the contents.
    pub checksum: Checksum,
}

/// A plan and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// The file.
    pub file: FileEntry,
    /// Which part of the work.
    pub phase: Phase,
    /// Tokens of a step, padding included.
    pub rows: u32,
    /// Longest context in tokens; 0 where there is none.
    pub context_tokens: u32,
    /// Arena it needs, in bytes.
    pub arena_bytes: u64,
    /// Bytes the same buffers take when none share memory.
    pub unshared_bytes: u64,
    /// Kernel calls.
    pub steps: u32,
}

/// KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kv {
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Blocks that sequences can use. One more, the spare block with this index, takes the writes
    /// of padding rows.
    pub blocks: u32,
    /// Bytes of all layers for one token.
    pub bytes_per_token: u64,
}

/// KV memory of layers that see the last tokens only: a pool of blocks of its own, indexed by
/// `window_table` and `window_slots`. A block whose tokens no later token can see is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowMemory {
    /// Tokens that a token sees, itself included.
    pub tokens: u32,
    /// Blocks of [`Kv::block_tokens`] tokens that sequences can use, enough for every running
    /// sequence; the spare block comes after them.
    pub blocks: u32,
    /// Bytes of all these layers for one block.
    pub bytes_per_block: u64,
}

/// Memory whose size does not grow with the context, such as the state of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceMemory {
    /// Sequences that can run at once; the spare slot, for padding rows, comes after them.
    pub slots: u32,
    /// Bytes of all layers for one sequence.
    pub bytes_per_slot: u64,
}

/// What the artifact needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Packed weights.
    pub weights_bytes: u64,
    /// Persistent memory: KV blocks and hidden states.
    pub state_bytes: u64,
    /// The arena: the most any plan needs.
    pub arena_bytes: u64,
}

/// What sequences are given of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Blocks of [`Kv`].
    Kv,
    /// Blocks of [`WindowMemory`].
    Window,
    /// Slots of [`SequenceMemory`].
    Sequences,
}

/// A persistent memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateEntry {
    /// Name in the IR.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<u64>,
    /// What its first dimension counts, where sequences share it.
    #[serde(default)]
    pub pool: Option<Pool>,
    /// First byte in the state space.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A packed weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightEntry {
    /// What it is made of, as an expression over checkpoint tensors.
    pub recipe: String,
    /// Element type.
    pub dtype: DType,
    /// Logical shape.
    pub dims: Vec<u64>,
    /// Arrangement.
    pub layout: Layout,
    /// First byte in the weight file.
    pub offset: u64,
    /// Length in bytes, padding included.
    pub bytes: u64,
    /// Where the weight was quantised when it was packed: the root of the mean square of the error
    /// over that of the original values.
    pub quantization_error: Option<f32>,
}

impl WeightEntry {
    /// Whether it is a matrix that lies row by row: on the CPU a table, of which a step reads a few rows.
    pub fn is_table(&self) -> bool {
        self.layout == Layout::Nd && self.dims.len() == 2
    }

    /// Its bytes in the weight file.
    pub fn range(&self) -> Range<usize> {
        self.offset as usize..self.offset.saturating_add(self.bytes) as usize
    }
}

/// A short greedy run recorded at compile time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Instruction set it ran with.
    pub instruction_set: String,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What followed.
    pub tokens: Vec<RecordedToken>,
}

/// A recorded token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedToken {
    /// The token.
    pub id: u32,
    /// Its natural log-probability.
    pub logprob: f32,
}
