//! The way of rows back from their experts.

use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F16, F32, I32};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[("MoeFinalizeRoutingV2", finalize)];

const FLOATS: &[Element] = &[F32, F16, BF16];

/// The sum of what experts returned for each token, and of what is added to it.
fn finalize(call: &Call) -> Outcome<'_> {
    let (rows, index) = (call.tensor("expanded_x")?, call.tensor("expanded_row_idx")?);
    let (bias, ids) = (call.optional("bias")?, call.optional("expert_idx")?);
    let scales = call.optional("scales")?;
    let out = call.tensor("out")?;
    let mode = call.int_in("drop_pad_mode", 0..=3)?;
    let padded = mode % 2 == 1;
    rows.of(FLOATS)?.nd()?.ranked(2 + usize::from(padded), 2 + usize::from(padded))?;
    out.of(&[rows.element])?.ranked(2, 2)?;
    let (tokens, width) = (out.dims[0], out.dims[1]);
    rows.rule(rows.width() == width, "rows as wide as out")?;
    index.of(&[I32])?.ranked(1, 1)?;
    index.rule(tokens > 0 && index.len().is_multiple_of(tokens), "as many for every token")?;
    let k = index.len() / tokens;
    if let Some(scales) = scales {
        scales.of(&[rows.element, F32])?.shaped(&[tokens, k])?;
    } else {
        index.rule(k == 1, "without scales there is one expert for a token")?;
    }
    if let Some(bias) = bias {
        bias.of(&[rows.element])?.ranked(2, 2)?.shaped(&[bias.dims[0], width])?;
        let missing = || Fault::invalid("expert_idx: a bias needs it");
        ids.ok_or_else(missing)?.of(&[I32])?.shaped(&[tokens, k])?;
    }
    let (x1, x2) = (call.optional("x1")?, call.optional("x2")?);
    if x2.is_some() && x1.is_none() {
        return Err(Fault::invalid("x2: is given without x1"));
    }
    for t in [x1, x2].into_iter().flatten() {
        t.of(&[rows.element])?.shaped(&[tokens, width])?;
    }
    Prepared::done(move || {
        let scales = scales.map(Tensor::reals);
        let ids = ids.map(Tensor::integers);
        let index = index.integers();
        let flat = if padded { rows.matrix()? } else { rows.clone() };
        let added = [x1, x2].map(|t| t.map(Tensor::reals));
        let mut result = vec![0.0f32; tokens * width];
        for (t, sum) in result.chunks_mut(width).enumerate() {
            for added in added.iter().flatten() {
                sum.iter_mut().zip(&added[t * width..]).for_each(|(v, a)| *v += a);
            }
            for j in 0..k {
                let pair = if mode < 2 { j * tokens + t } else { t * k + j };
                let row = index[pair];
                if row == -1 && padded {
                    continue;
                }
                if row < 0 || row >= flat.dims[0] as i64 {
                    let message = format!("expanded_row_idx: {row} of {} rows", flat.dims[0]);
                    return Err(Fault::exception(message));
                }
                let values = flat.at(row as usize).reals();
                let scale = scales.as_ref().map_or(1.0, |s| s[t * k + j]);
                let bias = match (bias, &ids) {
                    (Some(bias), Some(ids)) => {
                        let expert = ids[t * k + j];
                        if expert < 0 || expert >= bias.dims[0] as i64 {
                            let message = format!("expert_idx: {expert} of {}", bias.dims[0]);
                            return Err(Fault::exception(message));
                        }
                        bias.at(expert as usize).reals()
                    }
                    _ => Vec::new(),
                };
                for (i, sum) in sum.iter_mut().enumerate() {
                    *sum += scale * (values[i] + bias.get(i).copied().unwrap_or(0.0));
                }
            }
        }
        out.put(&result);
        Ok(())
    })
}
