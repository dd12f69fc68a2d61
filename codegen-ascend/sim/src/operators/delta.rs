//! The gated delta rule, one token after another.

use super::{Call, Implementation, Outcome, Prepared};
use crate::objects::{Element, Fault, Tensor};
use Element::{BF16, F32, I32};

pub(super) const OPERATORS: &[(&str, Implementation)] = &[("RecurrentGatedDeltaRule", recurrent)];

/// `q, k [T,Nk,Dk]`, `v [T,Nv,Dv]`, states `[slots,Nv,Dv,Dk]`: for each token of a sequence `S <- a S
/// + beta (v - a S k) k^T` with `a = e^g`, and `S q scale` is the result. The state of a sequence is
/// read from the slot of its first token, or of the last one accepted, and after each token written
/// to the slot of that token. Inside a call states are `f32`.
fn recurrent(call: &Call) -> Outcome<'_> {
    let (q, k) = (call.tensor("query")?, call.tensor("key")?);
    let (v, beta) = (call.tensor("value")?, call.tensor("beta")?);
    let (state, out) = (call.tensor("state_ref")?, call.tensor("out")?);
    let lengths = call.tensor("actual_seq_lengths")?;
    let slots = call.tensor("ssm_state_indices")?;
    let (g, accepted) = (call.optional("g")?, call.optional("num_accepted_tokens")?);
    call.unsupported(&["gk"])?;
    for t in [q, k, v, beta, state, out] {
        t.of(&[BF16])?.nd()?;
    }
    q.ranked(3, 3)?;
    v.ranked(3, 3)?;
    let (tokens, key_heads, dk) = (q.dims[0], q.dims[1], q.dims[2]);
    let (heads, dv) = (v.dims[1], v.dims[2]);
    k.shaped(&q.dims)?;
    v.shaped(&[tokens, heads, dv])?;
    v.rule(key_heads > 0 && heads.is_multiple_of(key_heads), "a multiple of the heads of query")?;
    beta.shaped(&[tokens, heads])?;
    state.ranked(4, 4)?.shaped(&[state.dims[0], heads, dv, dk])?;
    out.shaped(&v.dims)?;
    slots.of(&[I32])?.shaped(&[tokens])?;
    lengths.of(&[I32])?.ranked(1, 1)?;
    if let Some(g) = g {
        g.of(&[F32])?.shaped(&[tokens, heads])?;
    }
    if let Some(accepted) = accepted {
        accepted.of(&[I32])?.shaped(&lengths.dims)?;
    }
    let scale = call.float("scale_value")? as f32;
    Ok(Prepared::new(1024, move || {
        let (q, k, v, beta) = (q.reals(), k.reals(), v.reals(), beta.reals());
        let g = g.map_or_else(|| vec![0.0; tokens * heads], Tensor::reals);
        let slots = slots.integers();
        let accepted = accepted.map(Tensor::integers);
        let slot = |t: usize| match usize::try_from(slots[t]) {
            Ok(slot) if slot < state.dims[0] => Ok(slot),
            _ => Err(Fault::exception(format!(
                "ssm_state_indices: {} of {} slots",
                slots[t], state.dims[0]
            ))),
        };
        let mut start = 0;
        for (sequence, length) in lengths.integers().into_iter().enumerate() {
            let end = start + usize::try_from(length).unwrap_or(usize::MAX - start);
            let first = start + accepted.as_ref().map_or(0, |a| (a[sequence] - 1).max(0) as usize);
            if end > tokens || first >= end && end > start {
                return Err(Fault::exception(format!(
                    "actual_seq_lengths: sequence {sequence} of {length} tokens from {start} of {tokens}"
                )));
            }
            if start == end {
                continue;
            }
            let mut s = state.at(slot(first)?).reals();
            for t in start..end {
                for h in 0..heads {
                    let kh = (t * key_heads + h / (heads / key_heads)) * dk;
                    let vh = (t * heads + h) * dv;
                    let (alpha, beta) = (g[t * heads + h].exp(), beta[t * heads + h]);
                    let (q, k) = (&q[kh..][..dk], &k[kh..][..dk]);
                    let mut result = vec![0.0; dv];
                    for (i, row) in s[h * dv * dk..][..dv * dk].chunks_mut(dk).enumerate() {
                        row.iter_mut().for_each(|x| *x *= alpha);
                        let known: f32 = row.iter().zip(k).map(|(x, k)| x * k).sum();
                        let change = beta * (v[vh + i] - known);
                        row.iter_mut().zip(k).for_each(|(x, k)| *x += change * k);
                        result[i] = row.iter().zip(q).map(|(x, q)| x * q).sum::<f32>() * scale;
                    }
                    out.at(t).at(h).put(&result);
                }
                state.at(slot(t)?).put(&s);
            }
            start = end;
        }
        Ok(())
    }))
}
