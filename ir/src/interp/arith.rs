//! Arithmetic on rows.

use super::Tensor;
use std::cmp::Ordering;

pub(super) fn zip(a: &Tensor, b: &Tensor, op: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.data().iter().zip(b.data()).map(|(&a, &b)| op(a, b)).collect()
}

pub(super) fn add_bias(x: &Tensor, bias: &Tensor) -> Vec<f64> {
    x.rows().flat_map(|row| row.iter().zip(bias.data()).map(|(x, b)| x + b)).collect()
}

/// `weight` holds one row per output.
pub(super) fn matmul(x: &Tensor, weight: &Tensor) -> Vec<f64> {
    x.rows().flat_map(|row| weight.rows().map(|w| dot(row, w))).collect()
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

/// Values and indices.
pub(super) fn top_k(x: &Tensor, k: usize) -> Vec<Vec<f64>> {
    let best = |row: &[f64]| {
        let rank = |i: usize| if row[i].is_nan() { f64::NEG_INFINITY } else { row[i] };
        let mut order: Vec<usize> = (0..row.len()).collect();
        // Stable, so that the smaller index comes first; what is no number after what is infinite.
        order.sort_by(|&a, &b| {
            let larger = rank(b).partial_cmp(&rank(a)).unwrap_or(Ordering::Equal);
            larger.then(row[a].is_nan().cmp(&row[b].is_nan()))
        });
        order.truncate(k);
        order
    };
    let chosen: Vec<Vec<usize>> = x.rows().map(best).collect();
    let values = x.rows().zip(&chosen).flat_map(|(row, ids)| ids.iter().map(|&i| row[i]));
    let ids = chosen.iter().flatten().map(|&i| i as f64);
    vec![values.collect(), ids.collect()]
}

/// One factor for each row.
pub(super) fn scale_rows(x: &Tensor, scale: &Tensor) -> Vec<f64> {
    x.rows().zip(scale.data()).flat_map(|(row, s)| row.iter().map(move |x| x * s)).collect()
}

/// `weight` holds a matrix for each head, with one row per output.
pub(super) fn head_matmul(x: &Tensor, weight: &Tensor) -> Vec<f64> {
    let (heads, outputs) = (weight.dims()[0], weight.dims()[1]);
    let weights: Vec<&[f64]> = weight.rows().collect();
    let row_of = |(i, row): (usize, _)| {
        let of_head = &weights[i % heads * outputs..][..outputs];
        of_head.iter().map(move |w| dot(row, w))
    };
    x.rows().enumerate().flat_map(row_of).collect()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Vec<f64> {
    x.rows()
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
            let scale = (variance + eps).sqrt().recip();
            let parameters = weight.data().iter().zip(bias.data());
            row.iter().zip(parameters).map(move |(x, (w, b))| w * (x - mean) * scale + b)
        })
        .collect()
}

pub(super) fn l2_norm(x: &Tensor, eps: f64, scale: f64) -> Vec<f64> {
    x.rows()
        .flat_map(|row| {
            let factor = scale / (dot(row, row) + eps).sqrt();
            row.iter().map(move |x| x * factor)
        })
        .collect()
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn swiglu_clamped(gate: &Tensor, up: &Tensor, alpha: f64, limit: f64) -> Vec<f64> {
    zip(gate, up, |gate, up| {
        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
        (up + 1.0) * gate * sigmoid(alpha * gate)
    })
}
