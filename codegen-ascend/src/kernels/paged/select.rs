//! The indexer: scores of all places of a row, and the places of the largest.

use super::super::{
    Declined,
    source::{Budget, Source, float, require},
};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};
use ir::Op;

/// Scores that are looked at at once.
const CHUNK: u64 = 4096;

/// Kernels of [`Op::SelectKeys`]: scores by tiles of places into memory of their own, then the
/// largest of each row. Rows with no more places than are selected have no scores.
///
/// # Errors
/// [`Declined`] for other ops, element types other than `f32` and `bf16`, and sizes that are no
/// multiples of what the chip copies or do not fit.
pub(super) fn lower(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let (Op::SelectKeys { keys, scale }, [q, weights, state, table, ..]) = (op, operands) else {
        return Err(Declined(format!("{} selects no keys", op.mnemonic())));
    };
    let (rows, heads, key, block) = (q.dim(0), q.dim(1), q.dim(2), state.dim(1));
    let (query, cached) = (float(q.ty.dtype, "a query")?, float(state.ty.dtype, "a key")?);
    require(key.is_multiple_of(16), || format!("keys of {key} columns; 16 are copied at a time"))?;
    require(table.row_stride == table.dim(1), || "the table has gaps".to_owned())?;
    let tile = [64, 32, 16, 8].into_iter().find(|tile| block.is_multiple_of(*tile));
    let tile = tile.ok_or_else(|| Declined(format!("blocks of {block} tokens")))?;
    Budget::default()
        .buffer("keys", tile * key * (2 * cached + 4))
        .buffer("queries", heads * key * (query + 4))
        .buffer("products", tile * (64 * 4 + 3 * 4))
        .fits(chip.ub_bytes)?;
    let heading = format!("Scores of places for {heads} heads of {key} columns.");
    let scores = Source::new(&heading)
        .element("Query", q.ty.dtype, "queries")?
        .element("Cached", state.ty.dtype, "keys")?
        .size("HEADS", heads, "heads of a query")
        .size("KEY0", key, "columns of a key")
        .size("BLOCK", block, "tokens of a block")
        .size("KEYS", *keys, "places that are selected")
        .size("TILE", tile, "keys in local memory")
        .number("SCALE", *scale, "of products")
        .part(include_str!("../vector.h"))
        .part(include_str!("index_scores.h"))
        .part(include_str!("index_scores.cpp"))
        .kernel("index_scores");
    let chunk = CHUNK * 4;
    Budget::default()
        .buffer("scores", 2 * chunk)
        .buffer("places", 4 * chunk)
        .buffer("comparisons", CHUNK / 4)
        .fits(chip.ub_bytes)?;
    let select = Source::new(&format!("The places of the {keys} largest scores of each row."))
        .size("BLOCK", block, "tokens of a block")
        .size("KEYS", *keys, "places that are selected")
        .size("CHUNK", CHUNK, "scores that are looked at at once")
        .part(include_str!("../threshold.h"))
        .part(include_str!("select.h"))
        .part(include_str!("select.cpp"))
        .kernel("select_keys");

    let mut args: Vec<Arg> = (0..5).map(Arg::Operand).collect();
    args.push(Arg::Scratch(0));
    let (sequences, width) = (table.dim(0), table.dim(1));
    let scalars = [rows, sequences, width, q.row_stride, weights.row_stride];
    let why = "exact: scores by tiles of places on all vector cores, then the largest of each row";
    let mut lowered = scores.call(args, &scalars, chip.vector_cores, why);
    let args = vec![Arg::Operand(4), Arg::Scratch(0), Arg::Result(0)];
    let blocks = rows.clamp(1, u64::from(chip.vector_cores)) as u32;
    let second = select.call(args, &[rows, width, results[0].row_stride], blocks, why);
    lowered.calls.extend(second.calls);
    lowered.files.extend(second.files);
    lowered.scratch_bytes.push(rows * width * block * 4);
    Ok(lowered)
}
