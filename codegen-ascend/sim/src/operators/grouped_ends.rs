//! Grouped products that go on with what follows them: a gated activation, or the sums of tokens.

use super::arithmetic::{quantise, silu, whole_product};
use super::groups::Groups;
use super::matmul::sides;
use super::quant_matmul::mixed_product;
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I4, I8, I32, I64, U64};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[
    ("GroupedMatmulSwigluQuantWeightNZ", swiglu_quant),
    ("GroupedMatmulFinalizeRoutingV3", finalize_routing),
];

/// Workspace of a grouped product.
const WORKSPACE: u64 = 4096;

/// A grouped product, the gated activation of its halves, and codes of that with a scale for each
/// row.
fn swiglu_quant(call: &Call) -> Outcome<'_> {
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let (scale, tokens) = (call.tensor("weight_scale")?, call.tensor("x_scale")?);
    let (out, out_scale) = (call.tensor("output")?, call.tensor("output_scale")?);
    call.unsupported(&["bias", "offset", "output_offset"])?;
    x.of(&[I8])?.nd()?.ranked(2, 2)?;
    weight.of(&[I8])?.nz()?.ranked(3, 3)?;
    let (m, _, n) = sides(x, weight)?;
    let groups = weight.dims[0];
    weight.rule(n.is_multiple_of(2) && n <= 10240, "N is even and at most 10240")?;
    x.rule(x.width() < 65536, "K is below 65536")?;
    scale.of(&[F32, BF16, F16])?.shaped(&[groups, n])?;
    tokens.of(&[F32])?.shaped(&[m])?;
    out.of(&[I8])?.shaped(&[m, n / 2])?;
    out_scale.of(&[F32])?.shaped(&[m])?;
    let list = Groups::check(call.tensor("group_list")?, 0, groups)?;
    let workspace = WORKSPACE + (m * n * size_of::<i32>()) as u64;
    Ok(Prepared::new(workspace, move || {
        for (group, rows) in list.read(m)? {
            if rows.is_empty() {
                continue;
            }
            let part = |t: &Tensor| t.range(rows.start, rows.len());
            let w = weight.at(group);
            let sums = whole_product(&part(x).words(), &w.right_words(), w.dims[0], n);
            let (scale, tokens) = (scale.at(group).reals(), part(tokens).reals());
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for (row, token) in sums.chunks(n).zip(tokens) {
                let value = |i: usize| row[i] as f32 * scale[i] * token;
                let gated: Vec<f32> =
                    (0..n / 2).map(|i| silu(value(i)) * value(i + n / 2)).collect();
                let (row, scale) = quantise(&gated, 127.0);
                codes.extend(row);
                scales.push(scale);
            }
            part(out).put(&codes);
            part(out_scale).put(&scales);
        }
        Ok(())
    }))
}

/// A grouped product whose rows are weighed and added to the rows of their tokens.
fn finalize_routing(call: &Call) -> Outcome<'_> {
    let (x, stored, out) = (call.tensor("x1")?, call.tensor("x2")?, call.tensor("out")?);
    let required = |name: &'static str| {
        let missing = || Fault::invalid(format!("{name}: is needed on this chip"));
        call.optional(name)?.ok_or_else(missing)
    };
    let (scale, tokens) = (required("scale")?, required("pertoken_scale")?);
    let (logit, index) = (required("logit")?, required("row_index")?);
    let (shared, bias) = (call.optional("shared_input")?, call.optional("bias")?);
    call.unsupported(&["offset", "antiquant_scale", "antiquant_offset"])?;
    if call.flag("transpose_x1")? || call.flag("transpose_x2")? {
        return Err(Fault::invalid("transpose_x1 and transpose_x2 are not taken"));
    }
    call.int_in("dtype", 0..=0)?;
    x.of(&[I8])?.nd()?.ranked(2, 2)?;
    stored.of(&[I8, I32, I4])?.ranked(3, 3)?;
    let weight = stored.as_int4();
    let mixed = weight.element == I4;
    let (m, k, n) = sides(x, &weight)?;
    weight.rule(k % 16 == 0 && n % 32 == 0, "K is a multiple of 16 and N of 32")?;
    let groups = weight.dims[0];
    let list =
        Groups::check(required("group_list")?, call.int_in("group_list_type", 0..=1)?, groups)?;
    if mixed {
        scale.of(&[U64, I64])?.shaped(&[groups, 1, n])?;
        let missing = || Fault::invalid("bias: INT8 with INT4 weights takes the sums of 8 * w");
        bias.ok_or_else(missing)?.of(&[F32])?.shaped(&[groups, n])?;
    } else {
        scale.of(&[F32, BF16])?.shaped(&[groups, n])?;
        if let Some(bias) = bias {
            bias.of(&[BF16])?.shaped(&[groups, n])?;
        }
    }
    tokens.of(&[F32])?.shaped(&[m])?;
    logit.of(&[F32])?.shaped(&[m])?;
    index.of(&[I64])?.shaped(&[m])?;
    out.of(&[F32])?.ranked(2, 2)?;
    let rows = out.dims[0];
    out.shaped(&[rows, n])?;
    let factor = call.float("shared_input_weight")? as f32;
    let first = call.int_in("shared_input_offset", 0..=rows as i64)? as usize;
    if let Some(shared) = shared {
        shared.of(&[BF16])?.ranked(2, 2)?;
        shared.shaped(&[shared.dims[0], n])?.rule(first + shared.dims[0] <= rows, "rows of out")?;
    }
    let workspace = WORKSPACE + (m * n * size_of::<i32>()) as u64;
    Ok(Prepared::new(workspace, move || {
        let mut sum = vec![0.0f32; rows * n];
        if let Some(shared) = shared.map(Tensor::reals) {
            let from = &mut sum[first * n..];
            from.iter_mut().zip(shared).for_each(|(v, s)| *v += s * factor);
        }
        let (tokens, logit, index) = (tokens.reals(), logit.reals(), index.integers());
        for (group, range) in list.read(m)? {
            if range.is_empty() {
                continue;
            }
            let input = x.range(range.start, range.len()).words();
            let w = weight.at(group);
            let bias = bias.map(|b| b.at(group).reals());
            let y: Vec<f32> = if let (true, Some(bias)) = (mixed, &bias) {
                mixed_product(&input, &w.words(), &scale.at(group).integers(), bias, k, n)
            } else {
                let scale = scale.at(group).reals();
                let sums = whole_product(&input, &w.right_words(), k, n);
                sums.iter().enumerate().map(|(i, &v)| v as f32 * scale[i % n]).collect()
            };
            for (row, y) in range.zip(y.chunks(n)) {
                let target = usize::try_from(index[row]).ok().filter(|&t| t < rows);
                let Some(target) = target else {
                    let message = format!("row_index: {} of {rows} rows", index[row]);
                    return Err(Fault::exception(message));
                };
                for (i, v) in y.iter().enumerate() {
                    let bias = bias.as_ref().filter(|_| !mixed).map_or(0.0, |b| b[i]);
                    sum[target * n + i] += (v * tokens[row] + bias) * logit[row];
                }
            }
        }
        out.put(&sum);
        Ok(())
    }))
}
