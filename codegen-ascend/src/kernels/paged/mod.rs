//! Attention over paged memories: lengths, block tables and the division of the work are read from
//! device memory, so that one launch serves any batch of its bucket.
//!
//! The keys of a row are cut into pieces of [`PIECE`] places, at multiples of it, and pieces are
//! folded in order. Where a bucket has few rows, blocks share the pieces and a second kernel folds
//! them; where it has many, a block folds those of a whole row itself. Both give the same bits.
//! Cube cores are used where keys have sizes for them, whatever the number of rows.

mod cube;
mod problem;
mod select;
mod signature;
mod vector;

use super::Declined;
use crate::chip::Chip;
use compiler::{Lowered, Operand};
use ir::Op;
use problem::Problem;

/// Places in a piece. It is one number for all buckets: the bits of a row depend on it.
const PIECE: u64 = 512;

/// Kernels of [`Op::Attention`], [`Op::SinkAttention`], [`Op::LatentAttention`],
/// [`Op::SparseLatentAttention`] and [`Op::SelectKeys`].
///
/// # Errors
/// [`Declined`] for other ops, element types other than `f32` and `bf16`, sizes that are no
/// multiples of what the chip copies, or that do not fit its local memory.
pub fn lower(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    if let Op::SelectKeys { .. } = op {
        return select::lower(op, operands, results, chip);
    }
    let problem = Problem::of(op, operands, results)?;
    match cube::lower(&problem, chip) {
        Ok(lowered) => Ok(lowered),
        Err(Declined(reason)) => {
            let mut lowered = vector::lower(&problem, chip)?;
            lowered.why = format!("{}; {reason}", lowered.why);
            Ok(lowered)
        }
    }
}
