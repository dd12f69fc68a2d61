//! Products of groups of rows with the matrix of their group.

use super::arithmetic::{Right, product, round_to, silu, unit_scale, whole_product};
use super::groups::Groups;
use super::matmul::sides;
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I4, I8, I32, I64, U64};
use std::ops::Range;

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("GroupedMatmulV4", |call| grouped(call, false)),
    ("GroupedMatmulWeightNz", |call| grouped(call, true)),
];

/// Tensors of one list.
const MAX_TENSORS: usize = 128;
/// Workspace of a grouped product, and of each group: where the split is written.
const WORKSPACE: (u64, u64) = (4096, 64);

/// Rows of K that share a scale of four-bit weights beside eight-bit rows.
const INT4_GROUP: usize = 256;

/// What is done to the elements of a result.
fn activate(kind: i64, v: f32) -> f32 {
    match kind {
        1 => v.max(0.0),
        2 => 0.5 * v * (1.0 + (0.797_884_6 * (v + 0.044_715 * v * v * v)).tanh()),
        4 => v * (0.851 * (v - v.abs())).exp() / (1.0 + (-1.702 * v.abs()).exp()),
        5 => silu(v),
        _ => v,
    }
}

/// The vectors that belong to the weights: one tensor with a row for each group, or one for each.
#[derive(Clone, Copy)]
struct PerGroup<'a>(&'a [Tensor]);

impl PerGroup<'_> {
    fn element(&self) -> Option<Element> {
        self.0.first().map(|t| t.element)
    }

    /// That there is one vector of `n` for each of `groups` groups.
    fn check(&self, groups: usize, n: usize) -> Result<(), Fault> {
        match self.0 {
            [] => {}
            [one] => {
                let fits = one.dims == [groups, n]
                    || one.dims == [groups, 1, n]
                    || groups == 1 && one.dims == [n];
                one.rule(fits, &format!("[{groups}, {n}]"))?;
            }
            many => {
                many[0].rule(many.len() == groups, "one tensor for every group")?;
                for t in many {
                    t.shaped(&[n])?;
                }
            }
        }
        Ok(())
    }

    fn part(&self, group: usize) -> Option<Tensor> {
        match self.0 {
            [] => None,
            [one] if one.dims.len() == 1 => Some(one.clone()),
            [one] => Some(one.at(group)),
            many => many.get(group).cloned(),
        }
    }

    fn reals(&self, group: usize) -> Vec<f32> {
        self.part(group).map(|t| t.reals()).unwrap_or_default()
    }

    fn integers(&self, group: usize) -> Vec<i64> {
        self.part(group).map(|t| t.integers()).unwrap_or_default()
    }
}

/// Everything that the product of one group reads.
struct Operands<'a> {
    weights: Vec<Tensor>,
    bias: PerGroup<'a>,
    scale: PerGroup<'a>,
    antiquant_scale: PerGroup<'a>,
    antiquant_offset: PerGroup<'a>,
    tokens: Option<&'a Tensor>,
    activation: i64,
}

impl Operands<'_> {
    fn weight(&self, group: usize) -> Tensor {
        match &self.weights[..] {
            [one] if one.dims.len() == 3 => one.at(group),
            many => many[group].clone(),
        }
    }

    /// The product of rows `rows` of `x` with the matrix of `group`, into the same rows of `out`.
    fn multiply(
        &self,
        x: &Tensor,
        group: usize,
        rows: Range<usize>,
        out: &Tensor,
    ) -> Result<(), Fault> {
        if rows.is_empty() {
            return Ok(());
        }
        let weight = self.weight(group);
        let input = x.range(rows.start, rows.len());
        let out = out.range(rows.start, rows.len());
        let (_, k, n) = sides(&input, &weight)?;
        let bias = self.bias.reals(group);
        let add = |v: f32, i: usize| v + bias.get(i % n).copied().unwrap_or(0.0);
        let tokens = self.tokens.map(|t| t.range(rows.start, rows.len()).reals());
        let token = |i: usize| tokens.as_ref().map_or(1.0, |t| t[i / n]);
        let kind = self.activation;
        let mut y: Vec<f32>;
        if x.element.is_float() {
            let weights = self.floats(&weight, group, x.element, k, n);
            y = product(&input.reals(), &weights, k, n);
            y.iter_mut().enumerate().for_each(|(i, v)| *v = activate(kind, add(*v, i)));
        } else if x.element == I8 && weight.element == I4 {
            let scales = self.scale.integers(group);
            y = mixed_product(&input.words(), &weight.words(), &scales, &bias, k, n);
            y.iter_mut().enumerate().for_each(|(i, v)| *v *= token(i));
        } else {
            let whole = self.bias.element() == Some(I32);
            let sums = whole_product(&input.words(), &weight.right_words(), k, n);
            let added = if whole { self.bias.integers(group) } else { vec![0; n] };
            let sums: Vec<i64> =
                sums.iter().enumerate().map(|(i, &v)| i64::from(v) + added[i % n]).collect();
            if out.element == I32 {
                out.put_integers(&sums);
                return Ok(());
            }
            let scales: Vec<f32> = match self.scale.element() {
                Some(U64 | I64) => {
                    self.scale.integers(group).into_iter().map(|s| unit_scale(s).0).collect()
                }
                _ => self.scale.reals(group),
            };
            let scaled = sums.iter().enumerate().map(|(i, &v)| {
                let y = v as f32 * scales[i % n] * token(i);
                activate(kind, if whole { y } else { add(y, i) })
            });
            y = scaled.collect();
        }
        out.put(&y);
        Ok(())
    }

    /// The matrix of `group` as floating-point numbers of the type of the rows.
    fn floats(&self, w: &Tensor, group: usize, element: Element, k: usize, n: usize) -> Right<f32> {
        if w.element.is_float() {
            return w.right_reals();
        }
        let (scale, offset) =
            (self.antiquant_scale.reals(group), self.antiquant_offset.reals(group));
        let deep = k / (scale.len() / n).max(1);
        let at = |i: usize| i / n / deep * n + i % n;
        let value = |(i, w): (usize, &f32)| {
            let w = w + offset.get(at(i)).copied().unwrap_or(0.0);
            round_to(element, w * scale[at(i)])
        };
        w.reals().iter().enumerate().map(value).collect::<Vec<_>>().into()
    }
}

/// The rules of the element types of a grouped product on A2 and A3.
fn types(call: &Call, x: &Tensor, w: &Tensor, out: &Tensor, nz: bool) -> Result<(), Fault> {
    let list = |name: &str| call.list(name).map(|l| l.first().map(|t| t.element));
    let (bias, scale, offset) = (list("bias")?, list("scale")?, list("offset")?);
    let (antiquant, tokens) = (list("antiquant_scale")?, list("per_token_scale")?);
    let name = |e: Option<Element>| e.map_or("null", Element::name);
    let refuse = || {
        Err(Fault::invalid(format!(
            "no combination has x {}, weight {}, bias {}, scale {}, offset {}, antiquant_scale {}, per_token_scale {} and out {}",
            x.element.name(),
            w.element.name(),
            name(bias),
            name(scale),
            name(offset),
            name(antiquant),
            name(tokens),
            out.element.name()
        )))
    };
    let fits = match (x.element, w.element) {
        (F32, F32) if nz => false,
        (a, b) if a == b && a.is_float() => {
            let taken = if a == F16 { F16 } else { F32 };
            out.element == a
                && bias.is_none_or(|b| b == taken)
                && scale.or(offset).or(antiquant).or(tokens).is_none()
        }
        (F16 | BF16, I8 | I4) => {
            let taken = if x.element == F16 { F16 } else { F32 };
            out.element == x.element
                && bias.is_none_or(|b| b == taken)
                && antiquant == Some(x.element)
                && scale.or(offset).or(tokens).is_none()
        }
        (I8, I8) => {
            offset.or(antiquant).is_none()
                && tokens.is_none_or(|t| t == F32)
                && match (scale, out.element) {
                    (None, I32) => tokens.is_none() && bias.is_none_or(|b| b == I32),
                    (Some(U64 | I64), I8) => tokens.is_none() && bias.is_none_or(|b| b == I32),
                    (Some(BF16), BF16) => bias.is_none_or(|b| b == I32 || b == BF16 && !nz),
                    (Some(F32), F16) => bias.is_none_or(|b| b == I32),
                    _ => false,
                }
        }
        (I8, I4) => {
            bias == Some(F32)
                && scale == Some(U64)
                && tokens == Some(F32)
                && offset.or(antiquant).is_none()
                && matches!(out.element, F16 | BF16)
        }
        (I4, I4) => {
            scale == Some(U64)
                && bias.or(offset).or(antiquant).is_none()
                && tokens.is_none_or(|t| t == F32)
                && matches!(out.element, F16 | BF16)
        }
        _ => false,
    };
    if fits { Ok(()) } else { refuse() }
}

fn grouped(call: &Call, nz: bool) -> Outcome<'_> {
    let (xs, stored, outs) = (call.list("x")?, call.list("weight")?, call.list("out")?);
    call.unsupported(&[
        "activation_input",
        "activation_quant_scale",
        "activation_quant_offset",
        "activation_feature_out",
        "dyn_quant_scale_out",
    ])?;
    let (Some(x), Some(first), Some(out)) = (xs.first(), stored.first(), outs.first()) else {
        return Err(Fault::invalid("x, weight and out have at least one tensor each"));
    };
    for list in [xs, stored, outs] {
        list[0].rule(list.len() <= MAX_TENSORS, "a list has at most 128 tensors")?;
    }
    let kind = call.int_in("group_list_type", 0..=2)?;
    let activation = call.int_in("act_type", 0..=5)?;
    if activation == 3 {
        return Err(Fault::invalid("act_type: 3 is not taken"));
    }
    if let Ok(Some(config)) = call.ints("tuning_config") {
        let most = xs.iter().map(|t| t.dims.first().copied().unwrap_or(0)).max().unwrap_or(0);
        if config.first().is_some_and(|&c| c < 0 || c > most as i64) {
            return Err(Fault::invalid(format!("tuning_config: {config:?} exceeds {most} rows")));
        }
    }
    for w in stored {
        if nz {
            w.nz()?
        } else {
            w
        };
        w.of(&[first.element])?;
    }
    let weights: Vec<Tensor> =
        stored.iter().map(|w| if x.element == F32 { w.clone() } else { w.as_int4() }).collect();
    let inputs: Vec<Tensor> = xs.iter().map(Tensor::as_int4).collect();
    types(call, &inputs[0], &weights[0], out, nz)?;
    let operands = Operands {
        bias: PerGroup(call.list("bias")?),
        scale: PerGroup(call.list("scale")?),
        antiquant_scale: PerGroup(call.list("antiquant_scale")?),
        antiquant_offset: PerGroup(call.list("antiquant_offset")?),
        tokens: call.list("per_token_scale")?.first(),
        activation,
        weights,
    };
    let split = call.int_in("split_item", 0..=3)?;
    match call.int("group_type")? {
        -1 => each(call, inputs, operands, outs, split),
        0 => by_rows(call, inputs, operands, out, (split, kind)),
        other => Err(Fault::invalid(format!(
            "group_type: {other} is not taken here, only 0 (groups of rows) and -1 (none)"
        ))),
    }
}

/// One product for each tensor of the lists.
fn each<'a>(
    call: &'a Call,
    inputs: Vec<Tensor>,
    operands: Operands<'a>,
    outs: &'a [Tensor],
    split: i64,
) -> Outcome<'a> {
    if split > 1 || call.optional("group_list")?.is_some() {
        return Err(Fault::invalid("group_type -1 takes split_item 0 or 1 and no group_list"));
    }
    let count = operands.weights.len();
    if inputs.len() != count || outs.len() != count {
        return Err(Fault::invalid(format!(
            "{} x, {count} weights and {} out, which have to be as many",
            inputs.len(),
            outs.len()
        )));
    }
    for (i, (x, out)) in inputs.iter().zip(outs).enumerate() {
        let w = operands.weights[i].ranked(2, 2)?;
        let (m, _, n) = sides(x.ranked(2, 2)?, w)?;
        out.shaped(&[m, n])?;
    }
    let workspace = WORKSPACE.0 + WORKSPACE.1 * count as u64;
    Ok(Prepared::new(workspace, move || {
        for (i, (x, out)) in inputs.iter().zip(outs).enumerate() {
            operands.multiply(x, i, 0..x.dims[0], out)?;
        }
        Ok(())
    }))
}

/// Groups of rows of one tensor.
fn by_rows<'a>(
    call: &'a Call,
    inputs: Vec<Tensor>,
    operands: Operands<'a>,
    out: &'a Tensor,
    (split, kind): (i64, i64),
) -> Outcome<'a> {
    let [x] = <[Tensor; 1]>::try_from(inputs)
        .map_err(|_| Fault::invalid("x: groups of rows lie in one tensor"))?;
    if split < 2 || call.list("out")?.len() != 1 {
        return Err(Fault::invalid("split_item: groups of rows go to one tensor with 2 or 3"));
    }
    let groups = match &operands.weights[..] {
        [one] => one.ranked(3, 3)?.dims[0],
        many => many.len(),
    };
    let weight = operands.weight(0);
    let (m, k, n) = sides(x.nd()?.contiguous()?.ranked(2, 2)?, &weight)?;
    for g in 1..operands.weights.len() {
        operands.weights[g].shaped(&weight.dims)?;
    }
    out.nd()?.ranked(2, 2)?.shaped(&[m, n])?;
    let Some(list) = call.optional("group_list")? else {
        return Err(Fault::invalid("group_list: groups of rows need it"));
    };
    let list = Groups::check(list, kind, groups)?;
    if let Some(tokens) = operands.tokens {
        tokens.shaped(&[m])?;
    }
    operands.bias.check(groups, n)?;
    let four_bit = operands.weights[0].element == I4;
    if four_bit && x.element == I8 {
        four_bit_rules(call, &operands, (groups, k, n), kind)?;
    } else if four_bit && x.element == I4 {
        operands.scale.0[0].rule(operands.scale.0[0].width() == n, "one for every column")?;
    } else if x.element.is_float() && !weight.element.is_float() {
        let scale = &operands.antiquant_scale.0[0];
        let per_group = match scale.dims[..] {
            [e, g, c] => e == groups && c == n && g > 0 && k.is_multiple_of(g),
            _ => scale.dims == [groups, n],
        };
        scale.rule(per_group, "[groups, N] or [groups, parts of K, N]")?;
        if let Some(offset) = operands.antiquant_offset.0.first() {
            offset.of(&[x.element])?.shaped(&scale.dims)?;
        }
    } else {
        operands.scale.check(groups, n)?;
    }
    let workspace = WORKSPACE.0 + WORKSPACE.1 * groups as u64;
    Ok(Prepared::new(workspace, move || {
        for (group, rows) in list.read(m)? {
            operands.multiply(&x, group, rows, out)?;
        }
        Ok(())
    }))
}

/// The rules of eight-bit rows with four-bit weights.
fn four_bit_rules(
    call: &Call,
    o: &Operands<'_>,
    (groups, k, n): (usize, usize, usize),
    kind: i64,
) -> Result<(), Fault> {
    let weight = &o.weights[0];
    weight.rule(!weight.stored_matrix().2, "INT4 weights are not transposed")?;
    weight.rule(n.is_multiple_of(8) && k <= 18432, "N is a multiple of 8 and K at most 18432")?;
    if kind != 1 {
        return Err(Fault::invalid("group_list_type: INT8 with INT4 takes sizes (1) only"));
    }
    let parts = match o.scale.0[0].dims[..] {
        [e, parts, c] if e == groups && c == n => parts,
        _ => 0,
    };
    o.scale.0[0].rule(
        parts == 1 || parts > 0 && parts * INT4_GROUP == k,
        "[groups, 1, N], or [groups, K / 256, N]",
    )?;
    if let Ok(size) = call.int("quant_group_size")
        && size != 0
        && size != INT4_GROUP as i64
    {
        return Err(Fault::invalid(format!("quant_group_size: {size} is neither 0 nor 256")));
    }
    Ok(())
}

/// Eight-bit rows times four-bit weights as the unit does it: a row is split in two halves of four
/// bits, the low one less 8 to have a sign, so that 8 times the sums of the weights are missing,
/// which `assist` puts back.
fn mixed_product(
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
