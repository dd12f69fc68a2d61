//! What all attentions have in common.

use super::super::{
    Declined,
    source::{float, require},
};
use compiler::Operand;
use ir::Op;
use tensor::DType;

/// Which places a row reads, and in what memory they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Keys and values of some heads.
    Cache { kv_heads: u64 },
    /// Latents and rotated keys that all heads share.
    Latent,
    /// The same, at places that each row names, so many at most.
    Selected { places: u64 },
}

/// An attention. Operands are queries, memories, table, positions, and what is particular to it.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) memory: Memory,
    pub(super) rows: u64,
    pub(super) sequences: u64,
    /// Entries of a row of the block table.
    pub(super) width: u64,
    pub(super) heads: u64,
    /// Columns of a key, and of its rotated part; 0 where it has none.
    pub(super) key: [u64; 2],
    /// Tokens of a block.
    pub(super) block: u64,
    /// Places that a row sees; 0 for all.
    pub(super) window: u64,
    pub(super) sinks: bool,
    pub(super) scale: f32,
    pub(super) query: DType,
    pub(super) cached: DType,
    pub(super) out: DType,
    /// Row strides of the queries, of their rotated part, of the selected places, and of the result.
    pub(super) strides: [u64; 4],
}

impl Problem {
    pub(super) fn of(op: &Op, operands: &[Operand], results: &[Operand]) -> Result<Self, Declined> {
        let (memory, scale, window) = match op {
            Op::Attention { scale, .. } => (None, *scale, 0),
            Op::SinkAttention { scale, window, .. } => (None, *scale, *window),
            Op::LatentAttention { scale, .. } => (Some(Memory::Latent), *scale, 0),
            Op::SparseLatentAttention { scale, .. } => {
                (Some(Memory::Selected { places: operands[6].dim(1) }), *scale, 0)
            }
            other => return Err(Declined(format!("{} is no attention", other.mnemonic()))),
        };
        let (q, result) = (&operands[0], &results[0]);
        let shared = memory.is_some();
        let (state, table) = match shared {
            true => (&operands[2], &operands[4]),
            false => (&operands[1], &operands[2]),
        };
        let cache = || Memory::Cache { kv_heads: state.dim(2) };
        let rotated = if shared { operands[1].dim(2) } else { 0 };
        let one_type =
            !shared || operands[1].ty.dtype == q.ty.dtype && operands[3].ty.dtype == state.ty.dtype;
        require(one_type, || "the two parts of queries or keys differ in type".to_owned())?;
        let selected = operands.get(6).map_or(0, |selected| selected.row_stride);
        let problem = Self {
            memory: memory.unwrap_or_else(cache),
            rows: q.dim(0),
            sequences: table.dim(0),
            width: table.dim(1),
            heads: q.dim(1),
            key: [q.dim(2), rotated],
            block: state.dim(if shared { 1 } else { 3 }),
            window,
            sinks: matches!(op, Op::SinkAttention { .. }),
            scale,
            query: q.ty.dtype,
            cached: state.ty.dtype,
            out: result.ty.dtype,
            strides: [
                q.row_stride,
                if shared { operands[1].row_stride } else { 0 },
                selected,
                result.row_stride,
            ],
        };
        require(table.row_stride == problem.width, || "the table has gaps".to_owned())?;
        problem.check()?;
        Ok(problem)
    }

    fn check(&self) -> Result<(), Declined> {
        for (dtype, what) in
            [(self.query, "a query"), (self.cached, "the cache"), (self.out, "the result")]
        {
            float(dtype, what)?;
        }
        let [key, rotated] = self.key;
        require(key.is_multiple_of(16) && rotated.is_multiple_of(8), || {
            format!("keys of {key} + {rotated} columns; they are copied 16 + 8 at a time")
        })?;
        require(rotated <= key.min(64), || {
            format!("{rotated} rotated columns; the kernel adds them to the first {}", key.min(64))
        })?;
        require(self.block.is_multiple_of(8), || {
            format!("blocks of {} tokens; the kernel reads 8 at a time", self.block)
        })
    }

    /// Heads that read the same keys.
    pub(super) fn group(&self) -> u64 {
        match self.memory {
            Memory::Cache { kv_heads } => self.heads / kv_heads,
            Memory::Latent | Memory::Selected { .. } => self.heads,
        }
    }

    /// Most pieces that a row can have.
    pub(super) fn most_pieces(&self, piece: u64) -> u64 {
        let places = match self.memory {
            Memory::Selected { places } => places,
            _ => self.width * self.block,
        };
        let pieces = places.div_ceil(piece);
        // A window that begins inside a piece reaches into one more.
        if self.window > 0 { pieces.min(self.window.div_ceil(piece) + 1) } else { pieces }
    }
}
