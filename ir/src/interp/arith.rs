//! Arithmetic on rows.

use super::Tensor;

pub(super) fn zip(a: &Tensor, b: &Tensor, op: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.data().iter().zip(b.data()).map(|(&a, &b)| op(a, b)).collect()
}

pub(super) fn add_bias(x: &Tensor, bias: &Tensor) -> Vec<f64> {
    x.rows().flat_map(|row| row.iter().zip(bias.data()).map(|(x, b)| x + b)).collect()
}

/// `weight` holds one row per output.
pub(super) fn matmul(x: &Tensor, weight: &Tensor) -> Vec<f64> {
    x.rows()
        .flat_map(|row| weight.rows().map(|w| row.iter().zip(w).map(|(x, w)| x * w).sum()))
        .collect()
}

pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Vec<f64> {
    x.rows()
        .flat_map(|row| {
            let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let scale = (mean_square + eps).sqrt().recip();
            row.iter().zip(weight.data()).map(move |(x, w)| w * x * scale)
        })
        .collect()
}

pub(super) fn argmax(x: &Tensor) -> Vec<f64> {
    let best = |row: &[f64]| {
        let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (0..row.len()).fold(0, larger) as f64
    };
    x.rows().map(best).collect()
}
