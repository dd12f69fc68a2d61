//! Gated activations, and the codes of rows.

use super::arithmetic::{quantise, sigmoid, silu};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I4, I8, I32, I64};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("SwiGlu", swiglu),
    ("ClippedSwiglu", clipped),
    ("SwiGluQuantV2", swiglu_quant),
    ("DequantSwigluQuant", dequant_swiglu_quant),
    ("DynamicQuant", dynamic_quant),
    ("AscendQuantV3", static_quant),
];

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

/// What rows of a group are multiplied with and moved by.
struct PerExpert<'a> {
    groups: Option<&'a Tensor>,
    cumulative: bool,
}

impl PerExpert<'_> {
    fn count(&self) -> usize {
        self.groups.map_or(1, |g| g.len())
    }

    /// The group of each row of `rows` that belongs to one.
    fn of_rows(&self, rows: usize) -> Result<Vec<usize>, Fault> {
        let Some(groups) = self.groups else { return Ok(vec![0; rows]) };
        let mut out = Vec::new();
        for (g, value) in groups.integers().into_iter().enumerate() {
            let end = if self.cumulative { value } else { out.len() as i64 + value };
            if end < out.len() as i64 || end > rows as i64 {
                return Err(Fault::exception(format!(
                    "{}: group {g} ends at row {end} of {rows}",
                    groups.name
                )));
            }
            out.resize(end as usize, g);
        }
        Ok(out)
    }

    /// That `t` has `width` elements for every group.
    fn vector(&self, t: &Tensor, width: usize) -> Result<(), Fault> {
        let count = self.count();
        let fits = t.dims == [count, width] || count == 1 && t.dims == [width];
        t.rule(fits, &format!("[{count}, {width}]"))?;
        Ok(())
    }
}

/// The way codes are made, by its name.
fn is_dynamic(call: &Call) -> Result<bool, Fault> {
    match call.text("quant_mode")? {
        None | Some("dynamic") => Ok(true),
        Some("static") => Ok(false),
        Some(other) => Err(Fault::invalid(format!("quant_mode: {other} is not static or dynamic"))),
    }
}

/// The row of `values` that belongs to `group`.
fn row_of(values: &[f32], group: usize, width: usize) -> &[f32] {
    if values.len() == width { values } else { &values[group * width..][..width] }
}

/// Codes of gated rows.
struct GatedCodes<'a> {
    per_expert: PerExpert<'a>,
    dynamic: bool,
    left: bool,
    half: usize,
    smooth: Option<&'a Tensor>,
    offset: Option<&'a Tensor>,
    out: &'a Tensor,
    scale_out: &'a Tensor,
}

impl GatedCodes<'_> {
    fn check(&self, x: &Tensor) -> Result<(), Fault> {
        let rows = &x.dims[..x.dims.len() - 1];
        self.out.of(&[I8, I4])?.nd()?;
        if let Some(groups) = self.per_expert.groups {
            groups.of(&[I64, I32])?.ranked(1, 1)?;
        }
        self.scale_out.of(&[F32])?.shaped(rows)?;
        for t in [self.smooth, self.offset].into_iter().flatten() {
            t.of(&[F32])?;
            if self.dynamic || t.len() != self.per_expert.count() {
                self.per_expert.vector(t, self.half)?;
            }
        }
        if !self.dynamic && (self.smooth.is_none() || self.offset.is_none()) {
            return Err(Fault::invalid("static codes need scales and offsets"));
        }
        Ok(())
    }

    /// Codes of the rows that `value` gives the elements of, for each its group.
    fn write(&self, rows: usize, value: impl Fn(usize, usize, usize) -> f32) -> Result<(), Fault> {
        let half = self.half;
        let smooth = self.smooth.map(Tensor::reals);
        let offset = self.offset.map(Tensor::reals);
        let groups = self.per_expert.of_rows(rows)?;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let limit = if self.out.element == I4 { 7.0 } else { 127.0 };
        for (row, &group) in groups.iter().enumerate() {
            let gated = (0..half).map(|i| {
                let (a, b) = (value(row, group, i), value(row, group, i + half));
                if self.left { silu(a) * b } else { a * silu(b) }
            });
            let gated: Vec<f32> = gated.collect();
            let pick = |v: &Option<Vec<f32>>, i: usize, none: f32| match v {
                None => none,
                Some(v) if v.len() == self.per_expert.count() => v[group],
                Some(v) => row_of(v, group, half)[i],
            };
            let smoothed: Vec<f32> =
                gated.iter().enumerate().map(|(i, v)| v * pick(&smooth, i, 1.0)).collect();
            if self.dynamic {
                let (row, scale) = quantise(&smoothed, limit);
                codes.extend(row);
                scales.push(scale);
            } else {
                codes.extend(smoothed.iter().enumerate().map(|(i, v)| v + pick(&offset, i, 0.0)));
            }
        }
        let out = self.out.matrix()?;
        out.range(0, groups.len()).put(&codes);
        if self.dynamic {
            let scale_out = self.scale_out.reshaped(&[rows]);
            scale_out.range(0, groups.len()).put(&scales);
        }
        Ok(())
    }
}

fn swiglu_quant(call: &Call) -> Outcome<'_> {
    let x = call.tensor("x")?;
    x.of(FLOATS)?.nd()?.ranked(2, 8)?;
    let out = call.tensor("y_out")?;
    let half = halved(x, x.dims.len() - 1, out)?;
    let dst = call.int("dst_type")?;
    if dst != i64::from(out.element.code()) {
        return Err(Fault::invalid(format!("dst_type: {dst} is not {}", out.element.name())));
    }
    let codes = GatedCodes {
        per_expert: PerExpert {
            groups: call.optional("group_index")?,
            cumulative: call.int_in("group_list_type", 0..=1)? == 0,
        },
        dynamic: is_dynamic(call)?,
        left: call.flag("activate_left")?,
        half,
        smooth: call.optional("smooth_scales")?,
        offset: call.optional("offsets")?,
        out,
        scale_out: call.tensor("scale_out")?,
    };
    codes.check(x)?;
    let rows = x.rows();
    Ok(Prepared::new(rows as u64 * 32, move || {
        let values = x.reals();
        codes.write(rows, |row, _, i| values[row * 2 * half + i])
    }))
}

fn dequant_swiglu_quant(call: &Call) -> Outcome<'_> {
    let x = call.tensor("x")?;
    x.of(&[I32, F16, BF16])?.nd()?.ranked(2, 8)?;
    let out = call.tensor("y_out")?;
    out.of(&[I8])?;
    let half = halved(x, x.dims.len() - 1, out)?;
    let codes = GatedCodes {
        per_expert: PerExpert { groups: call.optional("group_index")?, cumulative: false },
        dynamic: is_dynamic(call)?,
        left: call.flag("activate_left")?,
        half,
        smooth: call.optional("quant_scale")?,
        offset: call.optional("quant_offset")?,
        out,
        scale_out: call.tensor("scale_out")?,
    };
    codes.check(x)?;
    let rows = x.rows();
    let (scale, tokens) = (call.optional("weight_scale")?, call.optional("activation_scale")?);
    let bias = call.optional("bias")?;
    match scale {
        Some(scale) => codes.per_expert.vector(scale.of(&[F32])?, 2 * half)?,
        None if x.element == I32 => {
            return Err(Fault::invalid("weight_scale: INT32 rows need it"));
        }
        None => {}
    }
    if let Some(tokens) = tokens {
        tokens.of(&[F32])?.rule(tokens.len() == rows, "one for every row")?;
    }
    if let Some(bias) = bias {
        codes.per_expert.vector(bias.of(&[I32, F32, F16, BF16])?, 2 * half)?;
    }
    Ok(Prepared::new(rows as u64 * 32, move || {
        let values = x.reals();
        let (scale, tokens) = (scale.map(Tensor::reals), tokens.map(Tensor::reals));
        let whole = bias.is_some_and(|b| b.element == I32);
        let bias = bias.map(Tensor::reals);
        let width = 2 * half;
        codes.write(rows, |row, group, i| {
            let b = bias.as_ref().map_or(0.0, |b| row_of(b, group, width)[i]);
            let mut v = values[row * width + i] + if whole { b } else { 0.0 };
            v *= scale.as_ref().map_or(1.0, |s| row_of(s, group, width)[i]);
            v *= tokens.as_ref().map_or(1.0, |t| t[row]);
            v + if whole { 0.0 } else { b }
        })
    }))
}

fn dynamic_quant(call: &Call) -> Outcome<'_> {
    let (x, smooth) = (call.tensor("x")?, call.optional("smooth_scales")?);
    let (stored, scale) = (call.tensor("y_out")?, call.tensor("scale_out")?);
    x.of(&[F16, BF16])?.nd()?.ranked(2, 8)?;
    stored.of(&[I8, I4, I32])?;
    let out = stored.as_int4();
    out.shaped(&x.dims)?;
    let limit = if out.element == I4 { 7.0 } else { 127.0 };
    out.rule(out.element != I4 || x.width().is_multiple_of(2), "rows of INT4 are even")?;
    scale.of(&[F32])?.shaped(&x.dims[..x.dims.len() - 1])?;
    let width = x.width();
    if let Some(smooth) = smooth {
        smooth.of(&[x.element])?.shaped(&[width])?;
    }
    Prepared::done(move || {
        let smooth = smooth.map(Tensor::reals);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in x.reals().chunks(width) {
            let row: Vec<f32> = match &smooth {
                Some(s) => row.iter().zip(s).map(|(v, s)| v * s).collect(),
                None => row.to_vec(),
            };
            let (row, scale) = quantise(&row, limit);
            codes.extend(row);
            scales.push(scale);
        }
        out.put(&codes);
        scale.put(&scales);
        Ok(())
    })
}

fn static_quant(call: &Call) -> Outcome<'_> {
    let (x, scale) = (call.tensor("x")?, call.tensor("scale")?);
    let (offset, stored) = (call.optional("offset")?, call.tensor("y")?);
    x.of(FLOATS)?.nd()?.ranked(1, 8)?;
    let dst = call.int("dst_type")?;
    let wanted = match dst {
        2 => I8,
        29 => I4,
        3 => I32,
        _ => return Err(Fault::invalid(format!("dst_type: {dst} is not 2, 3 or 29"))),
    };
    stored.of(&[wanted])?;
    let out = stored.as_int4();
    out.shaped(&x.dims)?;
    let axis = call.axis("axis", x.dims.len())?;
    x.rule(axis + 2 >= x.dims.len(), "the axis of the scales is one of the last two")?;
    for t in [Some(scale), offset].into_iter().flatten() {
        t.of(if x.element == F32 { &[F32] } else { FLOATS })?;
        t.rule(t.element == x.element || t.element == F32, "the type of x, or FLOAT")?;
        t.rule(t.len() == 1 || t.len() == x.dims[axis], "one, or one along the axis")?;
    }
    let root = call.flag("sqrt_mode")?;
    let round: fn(f32) -> f32 = match call.text("round_mode")? {
        Some("round") => f32::round_ties_even,
        Some("floor") => f32::floor,
        Some("ceil") => f32::ceil,
        Some("trunc") => f32::trunc,
        other => {
            let message = format!("round_mode: {other:?} is not round, floor, ceil or trunc");
            return Err(Fault::invalid(message));
        }
    };
    let inner: usize = x.dims[axis + 1..].iter().product();
    let along = x.dims[axis];
    Prepared::done(move || {
        let scales = scale.reals();
        let offsets = offset.map(Tensor::reals).unwrap_or_default();
        let pick = |v: &[f32], i: usize| match v.len() {
            0 => 0.0,
            1 => v[0],
            _ => v[i / inner % along],
        };
        let code = |(i, v): (usize, &f32)| {
            let scale = pick(&scales, i);
            round(v * scale * if root { scale } else { 1.0 } + pick(&offsets, i))
        };
        out.put(&x.reals().iter().enumerate().map(code).collect::<Vec<_>>());
        Ok(())
    })
}
