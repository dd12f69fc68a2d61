//! The definition of every kernel, in `f64` and for reading. Implementations are measured against
//! these; nothing else uses them. Matrices are dense and row-major.

mod attention;
mod experts;
mod latent;
mod product;
mod quantize;
mod recurrent;
mod rows;

pub use attention::{Heads, attention, sink_attention};
pub use experts::{combine_experts, expert_bias, expert_groups, route};
pub use latent::{
    LatentHeads, head_matmul, latent_attention, layer_norm, paged_write, select_keys,
};
pub use product::{Scaled, scaled_row};
pub use quantize::{fp8_value, quantize_fp8, quantize_rows, quantize_static, to_fp8};
pub use recurrent::{DeltaHeads, DeltaInputs, Sequences, causal_conv, delta_gate, gated_delta};
pub use rows::{add_bias, embed, gather_rows, kv_write, kv_write_codes};

/// `x [T,K]` times the transpose of `w [N,K]`.
pub fn matmul(x: &[f32], w: &[f32], n: usize, k: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| product(x, w)).sum();
    x.chunks(k).flat_map(|x| w.chunks(k).take(n).map(move |w| dot(x, w))).collect()
}

fn product(a: f32, b: f32) -> f64 {
    f64::from(a) * f64::from(b)
}

/// `x / (1 + e^-x)`.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `(u + 1) * g * sigmoid(alpha * g)` with `g = min(gate, limit)`, `u = clamp(up, -limit, limit)`.
pub fn swiglu_clamped(gate: f32, up: f32, alpha: f32, limit: f32) -> f64 {
    let gate = f64::from(gate.min(limit));
    (f64::from(up.clamp(-limit, limit)) + 1.0) * gate * sigmoid(f64::from(alpha) * gate)
}

/// One run of elements divided by its length, times `scale`: `scale * x / sqrt(sum(x^2) + eps)`.
pub fn l2_norm(x: &[f32], eps: f32, scale: f32) -> Vec<f64> {
    let squares = x.iter().map(|&v| product(v, v)).sum::<f64>();
    let factor = f64::from(scale) / (squares + f64::from(eps)).sqrt();
    x.iter().map(|&v| f64::from(v) * factor).collect()
}

/// One run of elements divided by the root of their mean square, times `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean_square = x.iter().map(|&v| product(v, v)).sum::<f64>() / x.len() as f64;
    let scale = (mean_square + f64::from(eps)).sqrt().recip();
    x.iter().zip(weight).map(|(&v, &w)| product(v, w) * scale).collect()
}

/// The index of the largest element, the smallest of several; NaN is never the largest.
pub fn argmax(x: &[f32]) -> usize {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter().position(|&v| v == largest && v > f32::NEG_INFINITY).unwrap_or(0)
}

/// Indices of the `k` largest elements in descending order, the smaller first among equals; NaN last.
pub fn top_k(x: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| match (x[a].is_nan(), x[b].is_nan()) {
        (false, false) => x[b].partial_cmp(&x[a]).unwrap_or(std::cmp::Ordering::Equal),
        (a, b) => a.cmp(&b),
    });
    order.truncate(k);
    order
}

/// Cosines, then sines, of a position times each frequency, all times `factor`.
pub fn rope_row(position: i32, frequencies: &[f32], factor: f32) -> Vec<f64> {
    let angle = |&f: &f32| f64::from(position.max(0)) * f64::from(f);
    let cos = frequencies.iter().map(|f| angle(f).cos() * f64::from(factor));
    cos.chain(frequencies.iter().map(|f| angle(f).sin() * f64::from(factor))).collect()
}

/// One head rotated by a row of the table; elements past the table's length stay.
pub fn rotary(x: &[f32], table: &[f32], interleaved: bool) -> Vec<f64> {
    let half = table.len() / 2;
    let mut out: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    for i in 0..half {
        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        out[a] = product(x[a], table[i]) - product(x[b], table[half + i]);
        out[b] = product(x[b], table[i]) + product(x[a], table[half + i]);
    }
    out
}
