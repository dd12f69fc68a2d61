//! Memory of each sequence, token by token.

use super::{Failure, Tensor, arith::dot};
use tensor::DType;

/// The slot of each row and whether it begins a sequence.
fn rows_of(
    sequences: &Tensor,
    positions: &Tensor,
    slots: usize,
) -> Result<Vec<(usize, bool)>, Failure> {
    let slots = sequences.indices(slots, "sequence")?;
    Ok(slots.into_iter().zip(positions.data().iter().map(|&p| p == 0.0)).collect())
}

/// `args` are `x, weight, sequences, positions`.
pub(super) fn causal_conv(state: &mut Tensor, args: &[&Tensor]) -> Result<Tensor, Failure> {
    let (x, weight) = (args[0], args[1]);
    let rows = rows_of(args[2], args[3], state.dims()[0])?;
    let (channels, size) = (x.columns(), state.dims()[1] * x.columns());
    let taps: Vec<&[f64]> = weight.rows().collect();
    let mut data = Vec::with_capacity(x.data().len());
    for ((slot, first), row) in rows.into_iter().zip(x.rows()) {
        let at = slot * size;
        let mut seen = if first { vec![0.0; size] } else { state.data()[at..at + size].to_vec() };
        seen.extend(row.iter().map(|&x| state.rounded(x)));
        data.extend((0..channels).map(|c| {
            let column = seen[c..].iter().step_by(channels);
            column.zip(taps[c]).map(|(x, w)| x * w).sum::<f64>()
        }));
        state.write(at, &seen[channels..]);
    }
    Ok(Tensor::new(DType::F32, x.dims().to_vec(), data))
}

pub(super) fn delta_gate(a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Vec<f64> {
    let parameters = || a_log.data().iter().zip(dt_bias.data());
    let gate = |(a, (a_log, bias)): (&f64, (&f64, &f64))| -a_log.exp() * softplus(a + bias);
    a.rows().flat_map(|row| row.iter().zip(parameters()).map(gate)).collect()
}

/// `ln(1 + exp(x))` without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `args` are `q, k, v, gate, beta, sequences, positions`.
pub(super) fn gated_delta(state: &mut Tensor, args: &[&Tensor]) -> Result<Tensor, Failure> {
    let (q, k, v, gate, beta) = (args[0], args[1], args[2], args[3], args[4]);
    let rows = rows_of(args[5], args[6], state.dims()[0])?;
    let (key_heads, heads) = (q.dims()[1], v.dims()[1]);
    let (dk, dv) = (q.columns(), v.columns());
    let mut data = Vec::with_capacity(v.data().len());
    for (t, (slot, first)) in rows.into_iter().enumerate() {
        for h in 0..heads {
            let at = (slot * heads + h) * dk * dv;
            let from = (t * key_heads + h * key_heads / heads) * dk;
            let (q, k) = (&q.data()[from..from + dk], &k.data()[from..from + dk]);
            let row = t * heads + h;
            let (decay, beta) = (gate.data()[row].exp(), beta.data()[row]);
            let mut memory: Vec<f64> = match first {
                true => vec![0.0; dk * dv],
                false => state.data()[at..at + dk * dv].iter().map(|s| s * decay).collect(),
            };
            for (c, v) in v.data()[row * dv..][..dv].iter().enumerate() {
                let column: Vec<f64> = (0..dk).map(|r| memory[r * dv + c]).collect();
                let correction = beta * (v - dot(k, &column));
                for r in 0..dk {
                    memory[r * dv + c] += k[r] * correction;
                }
            }
            state.write(at, &memory);
            let stored = &state.data()[at..at + dk * dv];
            data.extend((0..dv).map(|c| {
                q.iter().zip(stored[c..].iter().step_by(dv)).map(|(q, s)| q * s).sum::<f64>()
            }));
        }
    }
    Ok(Tensor::new(DType::F32, v.dims().to_vec(), data))
}
