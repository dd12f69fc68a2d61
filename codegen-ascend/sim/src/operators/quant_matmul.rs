//! Products of quantised matrices: both sides quantised, or the weight alone.

use super::arithmetic::{product, round_to, unit_scale, whole_product};
use super::matmul::{matrix_of, sides};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I4, I8, I32, I64, U64};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("QuantMatmulV4", v4),
    ("QuantMatmulV5", |call| v5(call, false)),
    ("QuantMatmulWeightNz", |call| v5(call, true)),
    ("WeightQuantBatchMatmulV2", weight_only),
    ("WeightQuantBatchMatmulV3", weight_only),
];

/// Workspace of a quantised product: the block that cores meet at.
const WORKSPACE: u64 = 2048;
/// Elements in the last dimension of an operand.
const MAX_SIDE: usize = 65535;
/// Rows of K that share a scale of four-bit weights beside eight-bit rows.
pub(super) const INT4_GROUP: usize = 256;

/// The operands of a quantised product by what they do.
struct Operands<'a> {
    x: &'a Tensor,
    weight: &'a Tensor,
    token_scale: Option<&'a Tensor>,
    scale: &'a Tensor,
    offset: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    /// Assist of four-bit weights beside eight-bit rows: the sum over K of 8 * weight * scale.
    assist: Option<&'a Tensor>,
    out: &'a Tensor,
}

fn v4(call: &Call) -> Outcome<'_> {
    quantised(
        call,
        Operands {
            x: call.tensor("x1")?,
            weight: call.tensor("x2")?,
            token_scale: call.optional("pertoken_scale")?,
            scale: call.tensor("scale")?,
            offset: call.optional("offset")?,
            bias: call.optional("bias")?,
            assist: None,
            out: call.tensor("out")?,
        },
    )
}

fn v5(call: &Call, nz: bool) -> Outcome<'_> {
    call.unsupported(&["y_scale", "x1_offset"])?;
    let group = call.int("group_size")?;
    let weight = call.tensor("x2")?;
    if nz {
        weight.nz()?;
    } else {
        weight.nd()?;
    }
    if group != 0 && group != INT4_GROUP as i64 {
        return Err(Fault::invalid(format!("group_size: {group} is neither 0 nor {INT4_GROUP}")));
    }
    quantised(
        call,
        Operands {
            x: call.tensor("x1")?,
            weight,
            token_scale: call.optional("x1_scale")?,
            scale: call.tensor("x2_scale")?,
            offset: call.optional("x2_offset")?,
            bias: call.optional("bias")?,
            assist: call.optional("y_offset")?.filter(|t| !t.is_empty()),
            out: call.tensor("out")?,
        },
    )
}

/// A documented combination of element types.
struct Combination {
    token_scale: &'static [Option<Element>],
    scale: &'static [Element],
    offset: &'static [Option<Element>],
    bias: &'static [Option<Element>],
    out: Element,
}

const NONE: &[Option<Element>] = &[None];
const MAYBE_F32: &[Option<Element>] = &[None, Some(F32)];

/// What INT8 with INT8 takes on A2 and A3.
const INT8: &[Combination] = &[
    Combination {
        token_scale: NONE,
        scale: &[U64, I64],
        offset: NONE,
        bias: &[None, Some(I32)],
        out: F16,
    },
    Combination {
        token_scale: NONE,
        scale: &[U64, I64],
        offset: MAYBE_F32,
        bias: &[None, Some(I32)],
        out: I8,
    },
    Combination {
        token_scale: MAYBE_F32,
        scale: &[F32, BF16],
        offset: NONE,
        bias: &[None, Some(I32), Some(BF16), Some(F32)],
        out: BF16,
    },
    Combination {
        token_scale: &[Some(F32)],
        scale: &[F32],
        offset: NONE,
        bias: &[None, Some(I32), Some(F16), Some(F32)],
        out: F16,
    },
    Combination {
        token_scale: NONE,
        scale: &[F32, BF16],
        offset: NONE,
        bias: &[None, Some(I32)],
        out: I32,
    },
];

/// What INT4 with INT4 takes on A2 and A3.
const INT4: &[Combination] = &[
    Combination {
        token_scale: MAYBE_F32,
        scale: &[F32, BF16],
        offset: MAYBE_F32,
        bias: &[None, Some(BF16)],
        out: BF16,
    },
    Combination {
        token_scale: MAYBE_F32,
        scale: &[U64, F32],
        offset: MAYBE_F32,
        bias: &[None, Some(I32)],
        out: F16,
    },
];

fn combination(all: &[Combination], o: &Operands<'_>) -> Result<(), Fault> {
    let element = |t: Option<&Tensor>| t.map(|t| t.element);
    let fits = |c: &Combination| {
        c.out == o.out.element
            && c.scale.contains(&o.scale.element)
            && c.token_scale.contains(&element(o.token_scale))
            && c.offset.contains(&element(o.offset))
            && c.bias.contains(&element(o.bias))
    };
    if all.iter().any(fits) {
        return Ok(());
    }
    let name = |t: Option<&Tensor>| t.map_or("null", |t| t.element.name());
    Err(Fault::invalid(format!(
        "no combination has {} {}, {} {}, scale of the rows {}, {} {}, offset {}, bias {} and {} {}",
        o.x.name,
        o.x.element.name(),
        o.weight.name,
        o.weight.element.name(),
        name(o.token_scale),
        o.scale.name,
        o.scale.element.name(),
        name(o.offset),
        name(o.bias),
        o.out.name,
        o.out.element.name(),
    )))
}

/// That `t` has one element or `n`, in one dimension.
fn per_column(t: &Tensor, n: usize) -> Result<(), Fault> {
    t.rule(t.dims == [1] || t.dims == [n], "one element, or one for every column")?;
    Ok(())
}

fn quantised<'a>(call: &'a Call, o: Operands<'a>) -> Outcome<'a> {
    let rows_of_8 = o.x.element == I8;
    let (x, weight) = (o.x.as_int4(), o.weight.as_int4());
    let (transpose_x, transpose_w) = (call.flag("transpose_x1")?, call.flag("transpose_x2")?);
    let mixed = rows_of_8 && weight.element == I4;
    o.x.of(&[I8, I4, I32])?.nd()?.ranked(2, 6)?;
    o.weight.of(if rows_of_8 { &[I8, I32] } else { &[I4, I32] })?.ranked(2, 6)?;
    for t in [&x, &weight] {
        t.rule(t.width() <= MAX_SIDE, "the last dimension is at most 65535")?;
        t.rule(!t.is_empty(), "it has elements")?;
    }
    let x = if transpose_x { x.transposed() } else { x };
    let w = if transpose_w { weight.transposed() } else { weight };
    let (m, k, n) = sides(&x, &w)?;
    let batch = &x.dims[..x.dims.len() - 2];
    let weights = &w.dims[..w.dims.len() - 2];
    w.rule(weights == batch || weights.is_empty(), "as many matrices as x1, or one")?;
    o.out.nd()?.shaped(&[batch, &[m, n]].concat())?;
    if let Some(t) = o.token_scale {
        t.shaped(&[m])?;
    }
    if let Some(t) = o.offset {
        per_column(t, n)?;
    }
    if let Some(t) = o.bias {
        t.rule(t.dims == [n] || t.dims[..] == [batch, &[1, n]].concat(), "one for every column")?;
    }
    if mixed {
        mixed_rules(&o, k, n)?;
        x.rule(!transpose_x && k.is_multiple_of(2) && k < 29576, "K is even and below 29576")?;
    } else {
        if call.name != "QuantMatmulV4" {
            call.int_in("group_size", 0..=0)?;
        }
        call.unsupported(&["y_offset"])?;
        per_column(o.scale, n)?;
        combination(if rows_of_8 { INT8 } else { INT4 }, &o)?;
    }
    Ok(Prepared::new(WORKSPACE, move || {
        let epilogue = Epilogue::read(&o);
        let batches: usize = o.out.dims[..o.out.dims.len() - 2].iter().product();
        for b in 0..batches {
            let x = matrix_of(&x, b).words();
            let w = matrix_of(&w, b);
            let out = matrix_of(o.out, b);
            if let (true, Some(assist), Some(tokens)) = (mixed, o.assist, o.token_scale) {
                let y = mixed_product(&x, &w.words(), &o.scale.integers(), &assist.reals(), k, n);
                let tokens = tokens.reals();
                let scaled: Vec<f32> =
                    y.iter().enumerate().map(|(i, v)| v * tokens[i / n]).collect();
                out.put(&scaled);
            } else {
                epilogue.write(&whole_product(&x, &w.right_words(), k, n), n, &out);
            }
        }
        Ok(())
    }))
}

/// The rules of eight-bit rows with four-bit weights.
fn mixed_rules(o: &Operands<'_>, k: usize, n: usize) -> Result<(), Fault> {
    o.out.of(&[F16, BF16])?;
    o.scale.of(&[U64])?;
    let groups = o.scale.len() / n.max(1);
    o.scale.rule(
        (o.scale.dims == [n] || o.scale.dims == [groups, n])
            && (groups == 1 || groups * INT4_GROUP == k),
        "one scale for every column, or for every 256 rows of every column",
    )?;
    let Some(tokens) = o.token_scale else {
        return Err(Fault::invalid("x1_scale: INT8 with INT4 weights takes one for every row"));
    };
    tokens.of(&[F32])?;
    match o.assist {
        Some(assist) => assist.of(&[F32])?.shaped(&[n])?,
        None => {
            return Err(Fault::invalid("y_offset: INT8 with INT4 weights takes the sums of 8 * w"));
        }
    };
    if o.bias.is_some() || o.offset.is_some() {
        return Err(Fault::invalid("INT8 with INT4 weights takes neither bias nor x2_offset"));
    }
    Ok(())
}

/// Eight-bit rows times four-bit weights as the unit does it: a row is split in two halves of four
/// bits, the low one less 8 to have a sign, so that 8 times the sums of the weights are missing,
/// which `assist` puts back.
pub(super) fn mixed_product(
    x: &[i32],
    w: &[i32],
    scales: &[i64],
    assist: &[f32],
    k: usize,
    n: usize,
) -> Vec<f32> {
    let groups = (scales.len() / n.max(1)).max(1);
    let deep = k / groups;
    let m = x.len().checked_div(k).unwrap_or(0);
    let mut out = vec![0.0f32; m * n];
    for g in 0..groups {
        let part: Vec<i32> =
            x.chunks(k).flat_map(|row| &row[g * deep..][..deep]).copied().collect();
        let weights = &w[g * deep * n..][..deep * n];
        let mut sums = vec![0i32; n];
        for row in weights.chunks(n) {
            sums.iter_mut().zip(row).for_each(|(s, v)| *s += v);
        }
        for (i, v) in
            whole_product(&part, &weights.to_vec().into(), deep, n).into_iter().enumerate()
        {
            let scale = f32::from_bits(scales[g * n + i % n] as u32);
            out[i] += (v - 8 * sums[i % n]) as f32 * scale;
        }
    }
    out.iter().enumerate().map(|(i, v)| v + assist[i % n]).collect()
}

/// What follows the exact product.
struct Epilogue {
    tokens: Option<Vec<f32>>,
    scale: Vec<(f32, f32)>,
    offset: Vec<f32>,
    whole_bias: Vec<i64>,
    bias: Vec<f32>,
}

/// Element `i` of a vector with one element or one for every column; zero when there is none.
fn column<T: Copy + Default>(values: &[T], i: usize) -> T {
    if values.len() == 1 { values[0] } else { values.get(i).copied().unwrap_or_default() }
}

impl Epilogue {
    fn read(o: &Operands<'_>) -> Self {
        let unit = matches!(o.scale.element, U64 | I64);
        let scale = match unit {
            true => o.scale.integers().into_iter().map(unit_scale).collect(),
            false => o.scale.reals().into_iter().map(|s| (s, 0.0)).collect(),
        };
        let whole = o.bias.filter(|b| b.element == I32);
        let real = o.bias.filter(|b| b.element != I32);
        Self {
            tokens: o.token_scale.map(Tensor::reals),
            scale,
            offset: o.offset.map(Tensor::reals).unwrap_or_default(),
            whole_bias: whole.map(Tensor::integers).unwrap_or_default(),
            bias: real.map(Tensor::reals).unwrap_or_default(),
        }
    }

    fn write(&self, sums: &[i32], n: usize, out: &Tensor) {
        let biased = |(i, v): (usize, &i32)| v.wrapping_add(column(&self.whole_bias, i % n) as i32);
        if out.element == I32 {
            let sums: Vec<i64> = sums.iter().enumerate().map(|e| i64::from(biased(e))).collect();
            return out.put_integers(&sums);
        }
        let scaled = sums.iter().enumerate().map(|(i, v)| {
            let (scale, offset) = column(&self.scale, i % n);
            let mut y = biased((i, v)) as f32 * scale;
            if let Some(tokens) = &self.tokens {
                y *= tokens[i / n];
            }
            y + offset + column(&self.offset, i % n) + column(&self.bias, i % n)
        });
        out.put(&scaled.collect::<Vec<f32>>());
    }
}

/// `x` times `(weight + offset) * scale`, which is rounded to the type of `x` before the product.
fn weight_only(call: &Call) -> Outcome<'_> {
    let (x, stored, y) = (call.tensor("x")?, call.tensor("weight")?, call.tensor("y")?);
    let scale = call.tensor("antiquant_scale")?;
    let offset = call.optional("antiquant_offset")?;
    let bias = call.optional("bias")?;
    call.unsupported(&["quant_scale", "quant_offset"])?;
    x.of(&[F16, BF16])?.nd()?.ranked(2, 2)?;
    stored.of(&[I8, I4, I32])?.ranked(2, 2)?;
    let weight = stored.as_int4();
    let (m, k, n) = sides(x, &weight)?;
    for side in [k, n] {
        weight.rule((1..=MAX_SIDE).contains(&side), "sides are from 1 to 65535")?;
    }
    let group = call.int("antiquant_group_size")?;
    let whole = group == 0;
    if !whole && (group < 32 || group % 32 != 0 || group > k as i64 - 1) {
        return Err(Fault::invalid(format!(
            "antiquant_group_size: {group} is neither 0 nor a multiple of 32 below K = {k}"
        )));
    }
    if !whole && weight.element == I8 && stored.is_nz() {
        return Err(Fault::invalid("weight: INT8 in FRACTAL_NZ takes one scale for every column"));
    }
    let deep = if whole { k } else { group as usize };
    let groups = k.div_ceil(deep);
    for t in [Some(scale), offset].into_iter().flatten() {
        t.of(&[x.element])?;
        let fits = match whole {
            true => t.dims == [1] || t.dims == [n] || t.dims == [1, n] || t.dims == [n, 1],
            false => t.dims == [groups, n],
        };
        t.rule(fits, "[groups, N], or one for every column without groups")?;
    }
    if let Some(bias) = bias {
        let taken = if x.element == BF16 { F32 } else { F16 };
        bias.of(&[taken])?;
        bias.rule(bias.dims == [n] || bias.dims == [1, n], "one for every column")?;
    }
    y.of(&[x.element])?.nd()?.shaped(&[m, n])?;
    let element = x.element;
    Ok(Prepared::new(WORKSPACE, move || {
        let scales = scale.reals();
        let offsets = offset.map(Tensor::reals).unwrap_or_default();
        let per = |values: &[f32], i: usize| match values.len() {
            0 => 0.0,
            1 => values[0],
            _ => values[i / n / deep * n + i % n],
        };
        let weights: Vec<f32> = weight
            .reals()
            .iter()
            .enumerate()
            .map(|(i, w)| round_to(element, (w + per(&offsets, i)) * per(&scales, i)))
            .collect();
        let mut out = product(&x.reals(), &weights.into(), k, n);
        if let Some(bias) = bias.map(Tensor::reals) {
            out.iter_mut().enumerate().for_each(|(i, v)| *v += bias[i % n]);
        }
        y.put(&out);
        Ok(())
    }))
}
