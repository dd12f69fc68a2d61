//! Root mean square norms, with a residual before and codes after.

use super::arithmetic::{quantise, rms_norm, round_to};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I8, I32};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("RmsNorm", plain),
    ("AddRmsNorm", add),
    ("AddRmsNormQuant", add_quant),
    ("AddRmsNormDynamicQuant", add_dynamic_quant),
];

const FLOATS: &[Element] = &[F32, F16, BF16];

/// That `gamma` goes with the rows of `x`, and how wide those are.
fn weights(x: &Tensor, gamma: &Tensor, allowed: &[Element]) -> Result<usize, Fault> {
    x.of(allowed)?.nd()?.ranked(1, 8)?;
    gamma.of(if x.element == F32 { &[F32] } else { FLOATS })?;
    gamma.rule(gamma.element == x.element || gamma.element == F32, "the type of x, or FLOAT")?;
    gamma.shaped(&[x.width()])?;
    Ok(x.width())
}

/// That `rstd` has one element for each row of `x`.
fn reciprocal(x: &Tensor, rstd: &Tensor) -> Result<(), Fault> {
    let mut dims = x.dims.clone();
    if let Some(last) = dims.last_mut() {
        *last = 1;
    }
    rstd.of(&[F32])?.shaped(&dims)?;
    Ok(())
}

fn plain(call: &Call) -> Outcome<'_> {
    let (x, gamma) = (call.tensor("x")?, call.tensor("gamma")?);
    let (y, rstd) = (call.tensor("y_out")?, call.tensor("rstd_out")?);
    let width = weights(x, gamma, FLOATS)?;
    y.of(&[x.element])?.shaped(&x.dims)?;
    reciprocal(x, rstd)?;
    let epsilon = call.float("epsilon")? as f32;
    Prepared::done(move || {
        let gamma = gamma.reals();
        let rows = x.reals();
        let normed = rows.chunks(width).map(|row| rms_norm(row, &gamma, epsilon));
        let (rows, rstds): (Vec<_>, Vec<_>) = normed.unzip();
        y.put(&rows.concat());
        rstd.put(&rstds);
        Ok(())
    })
}

/// A norm of the sum of two tensors.
struct Sum<'a> {
    x1: &'a Tensor,
    x2: &'a Tensor,
    gamma: &'a Tensor,
    out: &'a Tensor,
    width: usize,
    epsilon: f32,
}

impl<'a> Sum<'a> {
    fn check(call: &'a Call, allowed: &[Element]) -> Result<Self, Fault> {
        let (x1, x2) = (call.tensor("x1")?, call.tensor("x2")?);
        let (gamma, out) = (call.tensor("gamma")?, call.tensor("x_out")?);
        let width = weights(x1, gamma, allowed)?;
        for t in [x2, out] {
            t.of(&[x1.element])?.nd()?.shaped(&x1.dims)?;
        }
        Ok(Self { x1, x2, gamma, out, width, epsilon: call.float("epsilon")? as f32 })
    }

    /// Writes the sum and returns its norms, row by row, and their reciprocals.
    fn norms(&self) -> (Vec<Vec<f32>>, Vec<f32>) {
        let element = self.x1.element;
        let (a, b) = (self.x1.reals(), self.x2.reals());
        // The norm is that of the residual as it is kept.
        let sum: Vec<f32> = a.iter().zip(b).map(|(a, b)| round_to(element, a + b)).collect();
        self.out.put(&sum);
        let gamma = self.gamma.reals();
        sum.chunks(self.width).map(|row| rms_norm(row, &gamma, self.epsilon)).unzip()
    }
}

fn add(call: &Call) -> Outcome<'_> {
    let sum = Sum::check(call, FLOATS)?;
    let (y, rstd) = (call.tensor("y_out")?, call.tensor("rstd_out")?);
    y.of(&[sum.x1.element])?.shaped(&sum.x1.dims)?;
    reciprocal(sum.x1, rstd)?;
    Prepared::done(move || {
        let (rows, rstds) = sum.norms();
        y.put(&rows.concat());
        rstd.put(&rstds);
        Ok(())
    })
}

fn add_quant(call: &Call) -> Outcome<'_> {
    let sum = Sum::check(call, FLOATS)?;
    let width = sum.width;
    if !matches!(call.int("axis")?, -1) {
        return Err(Fault::invalid("axis: only -1 is taken"));
    }
    let divide = call.flag("div_mode")?;
    let mut results = Vec::new();
    for (scales, zeros, out, needed) in [
        (Some(call.tensor("scales1")?), "zero_points1", Some(call.tensor("y1_out")?), true),
        (call.optional("scales2")?, "zero_points2", call.optional("y2_out")?, false),
    ] {
        let (Some(scales), Some(out)) = (scales, out) else {
            if scales.is_some() || needed {
                return Err(Fault::invalid("y2_out: scales2 needs it"));
            }
            continue;
        };
        scales.of(&[F32, BF16, F16])?;
        scales.rule(scales.dims == [1] || scales.dims == [width], "one, or one for a column")?;
        let zeros = call.optional(zeros)?;
        if let Some(zeros) = zeros {
            zeros.of(&[I32, BF16, F16, F32])?.shaped(&scales.dims)?;
        }
        out.of(&[I8])?.shaped(&sum.x1.dims)?;
        results.push((scales, zeros, out));
    }
    Prepared::done(move || {
        let (rows, _) = sum.norms();
        for (scales, zeros, out) in results {
            let scales = scales.reals();
            let zeros = zeros.map(Tensor::reals).unwrap_or_default();
            let pick = |v: &[f32], i: usize| match v.len() {
                0 => 0.0,
                1 => v[0],
                _ => v[i],
            };
            let code = |(i, v): (usize, &f32)| {
                let scale = pick(&scales, i);
                (if divide { v / scale } else { v * scale }) + pick(&zeros, i)
            };
            let codes: Vec<f32> =
                rows.iter().flat_map(|row| row.iter().enumerate().map(code)).collect();
            out.put(&codes);
        }
        Ok(())
    })
}

fn add_dynamic_quant(call: &Call) -> Outcome<'_> {
    let sum = Sum::check(call, &[F16, BF16])?;
    let rows = &sum.x1.dims[..sum.x1.dims.len() - 1];
    let mut results = Vec::new();
    for (smooth, out, scale, first) in [
        ("smooth_scale1", call.optional("y1_out")?, call.optional("scale1_out")?, true),
        ("smooth_scale2", call.optional("y2_out")?, call.optional("scale2_out")?, false),
    ] {
        let smooth = call.optional(smooth)?;
        if let Some(smooth) = smooth {
            smooth.of(&[sum.x1.element])?.shaped(&[sum.width])?;
        }
        // Without the second smoothing there is no second result.
        if !first && smooth.is_none() {
            continue;
        }
        let (Some(out), Some(scale)) = (out, scale) else {
            return Err(Fault::invalid("y2_out and scale2_out: smooth_scale2 needs them"));
        };
        out.of(&[I8])?.shaped(&sum.x1.dims)?;
        scale.of(&[F32])?.shaped(rows)?;
        results.push((smooth, out, scale));
    }
    Prepared::done(move || {
        let (rows, _) = sum.norms();
        for (smooth, out, scale) in results {
            let smooth = smooth.map(Tensor::reals);
            let coded = rows.iter().map(|row| match &smooth {
                None => quantise(row, 127.0),
                Some(s) => {
                    quantise(&row.iter().zip(s).map(|(v, s)| v * s).collect::<Vec<_>>(), 127.0)
                }
            });
            let (codes, scales): (Vec<_>, Vec<_>) = coded.unzip();
            out.put(&codes.concat());
            scale.put(&scales);
        }
        Ok(())
    })
}
