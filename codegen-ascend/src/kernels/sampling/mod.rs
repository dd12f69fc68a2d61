//! A token of each row, by temperature, top-k and top-p.

use super::{
    Declined,
    source::{Budget, Source, float, reduction_work, require},
};
use crate::chip::Chip;
use compiler::{Arg, Lowered, Operand};

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
