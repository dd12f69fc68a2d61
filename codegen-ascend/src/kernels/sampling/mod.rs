//! A token of each row, by temperature, top-k and top-p, and the largest of each row in order.

use super::{
    Declined,
    source::{Budget, Source, float, reduction_work, require},
};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};
use ir::Op;

/// Logits that are looked at at once.
const CHUNK: u64 = 4096;

/// Buffers of [`sample`].
#[derive(Clone, Copy, Debug)]
pub struct SampleArgs {
    /// `logits [T,V]`, `f32` or `bf16`.
    pub logits: Arg,
    /// `f32[T]`; 0 and below chooses the largest logit.
    pub temperatures: Arg,
    /// `i32[T]`; 0 and below is no limit.
    pub top_k: Arg,
    /// `f32[T]`; 1 and above is no limit.
    pub top_p: Arg,
    /// `f32[T]`, uniform in `0 .. 1`.
    pub draws: Arg,
    /// The tokens, `i32[T]`.
    pub tokens: Arg,
}

/// A token for each row of `logits [T,V]`, with numbers of each row that the device reads.
///
/// With weights `w[i] = exp((x[i] - max x) / temperature)`: `a` is the `k`-th largest logit, `b` the
/// largest number, not below `a`, for which the logits `x[i] >= b` have `p` of the weight of those
/// `x[i] >= a`. Tokens with `x[i] >= b` are kept, all equals with them. The token is the first, by
/// index, at which the sum of the weights of kept tokens so far is above `draw` times that of all.
/// A row's token does not depend on other rows. Sums are in f32, in an order that depends on `V`
/// alone. A temperature of 0 or below gives the largest logit, the smaller index among equals.
///
/// # Errors
/// [`Declined`] when logits are neither `f32` nor `bf16`.
pub fn sample(logits: &Operand, args: &SampleArgs, chip: &Chip) -> Result<Lowered, Declined> {
    let element = float(logits.ty.dtype, "a logit")?;
    let (rows, vocabulary) = (logits.dim(0), logits.dim(1));
    require(vocabulary < 1 << 24, || {
        format!("{vocabulary} tokens; they are counted in f32, which is exact below 2^24")
    })?;
    Budget::default()
        .buffer("logits", 2 * CHUNK * element)
        .buffer("weights", 3 * CHUNK * 4)
        .buffer("comparisons", CHUNK / 8 + reduction_work(CHUNK) * 4 + CHUNK / 16 + 32)
        .fits(chip.ub_bytes)?;
    let heading = format!("A token for each row of {vocabulary} logits.");
    let kernel = Source::new(&heading)
        .element("Logit", logits.ty.dtype, "logits")?
        .size("VOCABULARY", vocabulary, "logits of a row")
        .size("CHUNK", CHUNK, "logits that are looked at at once")
        .size("WORK", reduction_work(CHUNK), "floats that finding the largest of them takes")
        .number("NEVER", f32::MIN, "stands behind the last logit")
        .part(include_str!("../vector.h"))
        .part(include_str!("../threshold.h"))
        .part(include_str!("sample.h"))
        .part(include_str!("sample.cpp"))
        .kernel("sample");
    let SampleArgs { logits: x, temperatures, top_k, top_p, draws, tokens } = *args;
    let buffers = vec![x, temperatures, top_k, top_p, draws, tokens];
    let blocks = rows.clamp(1, u64::from(chip.vector_cores)) as u32;
    let why = "thresholds by halving: no sort, and numbers of each row are read on the device";
    Ok(kernel.call(buffers, &[rows, logits.row_stride], blocks, why))
}

/// The most that [`top_k`] finds: one pass over what is left for each.
pub const MOST: u64 = 256;
/// Columns whose largest is found by one repetition of an instruction.
const LANES: u64 = 64;

/// The kernel of [`Op::TopK`]. Where a row has fewer numbers than are wanted, indices are -1.
///
/// # Errors
/// [`Declined`] for other ops, more than 256 of a row, and elements that are neither `f32` nor `bf16`.
pub fn top_k(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let &Op::TopK { k } = op else {
        return Err(Declined(format!("{} has no kernel here", op.mnemonic())));
    };
    let x = &operands[0];
    let (rows, columns) = (x.dim(0), x.dim(1));
    let element = float(x.ty.dtype, "an element")?;
    require(k <= MOST, || format!("{k} of a row; the kernel finds {MOST}"))?;
    let groups = columns.next_multiple_of(CHUNK) / LANES;
    let candidates = k.min(columns.div_ceil(LANES));
    let work = reduction_work(groups.max(candidates * LANES));
    Budget::default()
        .buffer("columns", 2 * CHUNK * element + CHUNK * 4)
        .buffer("largest of groups", groups * 4)
        .buffer("candidates", candidates * LANES * 4 + work * 4 + 32)
        .buffer("results", k.next_multiple_of(LANES) * (element + 8))
        .fits(chip.ub_bytes)?;
    let kernel = Source::new(&format!("The {k} largest of each row of {columns}, in order."))
        .element("Element", x.ty.dtype, "rows and values")?
        .size("K", k, "found in a row")
        .size("COLUMNS", columns, "elements of a row")
        .size("CHUNK", CHUNK, "columns that are looked at at once")
        .size("GROUPS", groups, "largest ones that are kept of a row")
        .size("CANDIDATES", candidates, "groups that are looked into")
        .size("WORK", work, "floats that finding the largest of either takes")
        .number(
            "NEVER",
            f32::MIN,
            "stands behind the last column and in the place of what was found",
        )
        .part(include_str!("../vector.h"))
        .part(include_str!("top_k.h"))
        .part(include_str!("top_k.cpp"))
        .kernel("top_k");
    let args = vec![Arg::Operand(0), Arg::Result(0), Arg::Result(1)];
    let strides = [x, &results[0], &results[1]].map(|o| o.row_stride);
    let scalars = [&[rows], &strides[..]].concat();
    let blocks = rows.clamp(1, u64::from(chip.vector_cores)) as u32;
    let why = "reads a row once; only groups whose largest is among the best are looked into";
    Ok(kernel.call(args, &scalars, blocks, why))
}
