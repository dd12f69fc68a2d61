//! Gated activations.

use super::arithmetic::{sigmoid, silu};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I64};

pub(super) const OPERATORS: &[(&str, Implementation)] =
    &[("SwiGlu", swiglu), ("ClippedSwiglu", clipped)];

const FLOATS: &[Element] = &[F32, F16, BF16];

/// That `out` is `x` with half of dimension `dim`.
fn halved(x: &Tensor, dim: usize, out: &Tensor) -> Result<usize, Fault> {
    x.rule(x.dims[dim].is_multiple_of(2), "the split dimension is even")?;
    let mut dims = x.dims.clone();
    dims[dim] /= 2;
    out.shaped(&dims)?;
    Ok(dims[dim])
}

fn swiglu(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("x")?, call.tensor("out")?);
    x.of(FLOATS)?.nd()?.ranked(1, 8)?;
    out.of(&[x.element])?;
    let dim = call.axis("dim", x.dims.len())?;
    let half = halved(x, dim, out)?;
    Prepared::done(move || {
        let (gate, up) = (x.narrow(dim, 0, half).reals(), x.narrow(dim, half, half).reals());
        out.put(&gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect::<Vec<_>>());
        Ok(())
    })
}

fn clipped(call: &Call) -> Outcome<'_> {
    let (x, out) = (call.tensor("x")?, call.tensor("out")?);
    x.of(FLOATS)?.nd()?.ranked(2, 8)?;
    out.of(&[x.element])?.contiguous()?;
    let dim = call.axis("dim", x.dims.len())?;
    x.rule(dim + 1 == x.dims.len(), "the split dimension is the last")?;
    let half = halved(x, dim, out)?;
    let (alpha, limit) = (call.float("alpha")? as f32, call.float("limit")? as f32);
    let bias = call.float("bias")? as f32;
    let interleaved = call.flag("interleaved")?;
    let groups = call.optional("group_index")?;
    if let Some(groups) = groups {
        groups.of(&[I64])?.ranked(1, 1)?;
    }
    let flat = x.matrix()?;
    let result = out.matrix()?;
    Prepared::done(move || {
        let rows = rows_of_groups(groups, flat.dims[0])?;
        let value = |row: &[f32], i: usize| {
            let (a, b) = match interleaved {
                true => (row[2 * i], row[2 * i + 1]),
                false => (row[i], row[i + half]),
            };
            let (a, b) = (a.min(limit), b.clamp(-limit, limit));
            a * sigmoid(alpha * a) * (b + bias)
        };
        let input = flat.range(0, rows).reals();
        let values = input.chunks(2 * half).flat_map(|row| (0..half).map(move |i| value(row, i)));
        result.range(0, rows).put(&values.collect::<Vec<_>>());
        Ok(())
    })
}

/// Rows that sizes of groups cover: all without groups.
fn rows_of_groups(groups: Option<&Tensor>, rows: usize) -> Result<usize, Fault> {
    let Some(groups) = groups else { return Ok(rows) };
    let sum: i64 = groups.integers().iter().sum();
    match usize::try_from(sum) {
        Ok(sum) if sum <= rows => Ok(sum),
        _ => Err(Fault::exception(format!("{}: {sum} rows of {rows}", groups.name))),
    }
}
