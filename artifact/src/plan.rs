//! A plan: what one replay does, every dimension a number and every buffer placed.

use crate::Operator;
use serde::{Deserialize, Serialize};
use std::fmt;
use tensor::DType;

/// Which part of the work a plan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// One token for each of `rows` sequences, up to their logits.
    Decode,
    /// A chunk of `rows` tokens of one sequence; leaves their hidden states in memory.
    Prefill,
    /// Logits of `rows` of the hidden states that the last prefill left.
    Head,
}

impl Phase {
    /// Name in file names and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
            Phase::Head => "head",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which memory an offset counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Space {
    /// Inputs, outputs and intermediate values of a step; shared by all plans.
    Arena,
    /// The weight file.
    Weights,
    /// Memory that outlives a step: KV blocks, hidden states of a prefill.
    State,
    /// Memory of one thread, for one row of values that only a [`Chain`] uses; offsets count from
    /// the start of the thread's own part.
    Private,
}

impl Space {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Space::Arena => "arena",
            Space::Weights => "weights",
            Space::State => "state",
            Space::Private => "private",
        }
    }
}

/// A range of bytes in one of the spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BufferRef {
    /// Which memory.
    pub space: Space,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A number handed to a kernel by value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scalar {
    /// A count, a size in elements or a flag.
    Int(u64),
    /// A factor.
    Float(f32),
}

/// A range of the arena, or of a chain's private memory, and the steps during which it holds a
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Step that writes it; 0 for inputs.
    pub first: u32,
    /// Last step that reads it; the number of steps for outputs.
    pub last: u32,
}

/// One kernel call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: u32,
    /// Buffers, in the order of the kernel's declaration.
    pub args: Vec<BufferRef>,
    /// Scalars, in the order of the kernel's declaration.
    pub scalars: Vec<Scalar>,
    /// How a device that queues work issues it.
    pub issue: Issue,
}

/// How a device with queues of work issues a step. The default, on which the CPU stays, is: in order,
/// on one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// The stream it runs on, in the order of the steps there. Stream 0 begins and ends the plan.
    pub stream: u32,
    /// Earlier steps of other streams that must be complete before it starts.
    pub waits: Vec<u32>,
    /// Blocks that a kernel of ours is launched with; 0 for library operators.
    pub blocks: u32,
    /// Index into [`Plan::operators`], when it is a library operator.
    pub operator: Option<u32>,
}

/// Consecutive steps that run as one launch: a thread takes some of the rows and runs all steps on
/// one row after another. No thread waits for another before the end of the chain.
///
/// So row `r` of every step depends on row `r` of the values of earlier steps of the chain alone,
/// and every buffer of the arena that a step touches is needed from the first to the last step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The first step.
    pub first: u32,
    /// How many steps.
    pub steps: u32,
    /// Rows that each step computes, or a whole multiple of them: each row of the chain is then as
    /// many rows of the step.
    pub rows: u32,
    /// Bytes of [`Space::Private`] that a thread needs.
    pub private_bytes: u64,
    /// Every buffer of the private memory. Each holds one row, whatever stride a step gives it.
    pub placements: Vec<Placement>,
}

impl Chain {
    /// Its last step.
    pub fn last(&self) -> u32 {
        self.first.saturating_add(self.steps.saturating_sub(1))
    }
}

/// An input that is written before a replay, or an output that is read after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// `token_ids`, `positions`, `slots`, `block_table`, `rows`; `logits`, `argmax`,
    /// `top_logits`, `top_ids`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<u64>,
    /// Where it lies; always in the arena.
    pub at: BufferRef,
}

/// What one replay does.
///
/// | phase | inputs | outputs |
/// |---|---|---|
/// | decode | `token_ids i32[T]`, `positions i32[T]`, `slots i32[T]`, `block_table i32[T,W]` | `logits f32[T,V]`, `argmax i32[T]` |
/// | prefill | `token_ids i32[T]`, `positions i32[T]`, `slots i32[T]`, `block_table i32[1,W]` | |
/// | head | `rows i32[T]` | `logits f32[T,V]`, `argmax i32[T]` |
///
/// A head whose rows look at keys and values has two further inputs, the `positions i32[T]` of its rows and the
/// `block_table i32[1,W]` of their sequence, and the longest context that prefill has.
///
/// Decode and head may have two further outputs: `top_logits f32[T,K]` and `top_ids i32[T,K]`, the `K`
/// largest logits of each row and their tokens, in descending order, the smaller token first among equals;
/// what is not a number comes last.
///
/// Decode and prefill have further inputs where the model has such memory: `window_slots i32[T]` and
/// `window_table`, shaped and indexed like `slots` and `block_table` but naming blocks of the window
/// pool (the spare block for places that are too old to be seen); `sequences i32[T]`, the slot of
/// recurrent memory of each row.
///
/// `T` is [`Plan::rows`] and `W` is [`Plan::context_tokens`] over the KV block size. A padding row
/// has position 0, token 0, a slot and a table that name the spare block, and the spare slot of
/// recurrent memory; of a head, the row and the position of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// File stem: `decode-bs8-ctx2048`.
    pub name: String,
    /// Which part of the work.
    pub phase: Phase,
    /// Tokens of the step, padding included.
    pub rows: u32,
    /// Longest context, in tokens, that the block table holds; 0 where there is none.
    pub context_tokens: u32,
    /// Bytes of arena it needs.
    pub arena_bytes: u64,
    /// What to write before a replay.
    pub inputs: Vec<Port>,
    /// What to read after a replay.
    pub outputs: Vec<Port>,
    /// Every buffer of the arena, so that [`crate::check_plan`] can prove again that none is
    /// overwritten while it is needed.
    pub placements: Vec<Placement>,
    /// Names of the kernels it calls.
    pub kernels: Vec<String>,
    /// Library operators as steps call them, each once.
    pub operators: Vec<Operator>,
    /// The calls, in order.
    pub steps: Vec<Step>,
    /// Steps that run row by row, in order.
    pub chains: Vec<Chain>,
}

impl Plan {
    /// The input called `name`.
    pub fn input(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|p| p.name == name)
    }

    /// The output called `name`.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|p| p.name == name)
    }

    /// How often the threads meet: steps, a chain counted once.
    pub fn launches(&self) -> usize {
        let joined = self.chains.iter().map(|c| c.steps.saturating_sub(1) as usize);
        self.steps.len().saturating_sub(joined.sum())
    }
}
