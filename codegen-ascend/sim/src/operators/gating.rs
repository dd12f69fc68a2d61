//! The choice of experts.

use super::arithmetic::{largest, sigmoid, softmax};
use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Tensor};
use Element::{BF16, Bool, F16, F32, I32};

pub(super) const OPERATORS: &[(&str, Implementation)] =
    &[("MoeGatingTopK", gating), ("MoeGatingTopKSoftmaxV2", gating_softmax)];

const FLOATS: &[Element] = &[F32, F16, BF16];
/// Experts that a row of scores may have.
const MAX_EXPERTS: usize = 2048;

fn gating(call: &Call) -> Outcome<'_> {
    let (x, bias) = (call.tensor("x")?, call.optional("bias")?);
    let (y, ids) = (call.tensor("y_out")?, call.tensor("expert_idx_out")?);
    x.of(FLOATS)?.nd()?.ranked(2, 2)?;
    let (rows, experts) = (x.dims[0], x.dims[1]);
    x.rule(rows > 0 && experts <= MAX_EXPERTS, "rows, and at most 2048 experts")?;
    if let Some(bias) = bias {
        bias.of(FLOATS)?.shaped(&[experts])?;
    }
    let group_count = call.int_in("group_count", 1..=experts as i64)? as usize;
    let chosen_groups = call.int_in("k_group", 1..=group_count as i64)? as usize;
    let select = call.int_in("group_select_mode", 0..=1)?;
    x.rule(experts.is_multiple_of(group_count), "groups of equal size")?;
    let width = experts / group_count;
    x.rule(width > select as usize, "groups have more than group_select_mode experts")?;
    x.rule(
        width.next_multiple_of(32) * group_count <= MAX_EXPERTS,
        "groups, each rounded up to 32 experts, have at most 2048 together",
    )?;
    let k = call.int_in("k", 1..=(width * chosen_groups) as i64)? as usize;
    let kind = call.int_in("norm_type", 0..=1)?;
    let renorm = call.int_in("renorm", 0..=1)? == 1 || kind == 1;
    let factor = call.float("routed_scaling_factor")? as f32;
    let epsilon = call.float("eps")? as f32;
    y.of(&[x.element])?.shaped(&[rows, k])?;
    ids.of(&[I32])?.shaped(&[rows, k])?;
    let scores_out = if call.flag("out_flag")? { call.optional("out_out")? } else { None };
    if let Some(out) = scores_out {
        out.of(&[F32])?.shaped(&x.dims)?;
    }
    Prepared::done(move || {
        let bias = bias.map(Tensor::reals);
        let (mut all, mut weights, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        for row in x.reals().chunks(experts) {
            let scores = match kind {
                0 => softmax(row),
                _ => row.iter().map(|&v| sigmoid(v)).collect(),
            };
            let mut keys = scores.clone();
            if let Some(bias) = &bias {
                keys.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
            }
            if group_count > 1 {
                let worth: Vec<f32> = keys
                    .chunks(width)
                    .map(|g| largest(g, 1 + select as usize).iter().map(|&i| g[i]).sum())
                    .collect();
                let kept = largest(&worth, chosen_groups);
                for (g, keys) in keys.chunks_mut(width).enumerate() {
                    if !kept.contains(&g) {
                        keys.fill(f32::NEG_INFINITY);
                    }
                }
            }
            let ids = largest(&keys, k);
            let sum: f32 = ids.iter().map(|&i| scores[i]).sum();
            let divisor = if renorm { sum + epsilon } else { 1.0 };
            weights.extend(ids.iter().map(|&i| scores[i] / divisor * factor));
            chosen.extend(ids.iter().map(|&i| i as i64));
            all.extend(scores);
        }
        y.put(&weights);
        ids.put_integers(&chosen);
        if let Some(out) = scores_out {
            out.put(&all);
        }
        Ok(())
    })
}

fn gating_softmax(call: &Call) -> Outcome<'_> {
    let (x, finished) = (call.tensor("x")?, call.optional("finished")?);
    let (y, ids) = (call.tensor("y_out")?, call.tensor("expert_idx_out")?);
    x.of(FLOATS)?.nd()?.ranked(2, 3)?;
    let (rows, experts) = (x.rows(), x.width());
    let k = call.int_in("k", 1..=(experts.min(1024)) as i64)? as usize;
    let renorm = call.int_in("renorm", 0..=1)? == 1;
    let outer = &x.dims[..x.dims.len() - 1];
    let chosen_dims = [outer, &[k]].concat();
    if let Some(finished) = finished {
        finished.of(&[Bool])?.shaped(outer)?;
    }
    y.of(&[x.element])?.shaped(&chosen_dims)?;
    ids.of(&[I32])?.shaped(&chosen_dims)?;
    let wanted = call.flag("output_softmax_result_flag")? && !renorm;
    let soft_out = if wanted { call.optional("softmax_result_out")? } else { None };
    if let Some(out) = soft_out {
        out.of(&[F32])?.shaped(&x.dims)?;
    }
    Prepared::done(move || {
        let done = finished.map(Tensor::integers).unwrap_or_else(|| vec![0; rows]);
        let (mut all, mut weights, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        for (row, done) in x.reals().chunks(experts).zip(done) {
            let scores = softmax(row);
            let picked = largest(row, k);
            if renorm {
                weights.extend(softmax(&picked.iter().map(|&i| row[i]).collect::<Vec<_>>()));
            } else {
                weights.extend(picked.iter().map(|&i| scores[i]));
            }
            let id = |&i: &usize| if done == 0 { i as i64 } else { experts as i64 };
            chosen.extend(picked.iter().map(id));
            all.extend(scores);
        }
        y.put(&weights);
        ids.put_integers(&chosen);
        if let Some(out) = soft_out {
            out.put(&all);
        }
        Ok(())
    })
}
