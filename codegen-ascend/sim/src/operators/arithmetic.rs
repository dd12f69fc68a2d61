//! Arithmetic that operators share, on dense rows.

use half::{bf16, f16};

use crate::objects::Element;

/// `x [m,k]` times `w [k,n]`. Each sum runs in the order of `k`, whatever the other rows are.
pub(super) fn product(x: &[f32], w: &[f32], k: usize, n: usize) -> Vec<f32> {
    rows(x, k, n, |acc, p, a| {
        for (sum, &b) in acc.iter_mut().zip(&w[p * n..][..n]) {
            *sum += a * b;
        }
    })
}

/// `x [m,k]` times `w [k,n]` in whole numbers of 32 bits.
pub(super) fn whole_product(x: &[i32], w: &[i32], k: usize, n: usize) -> Vec<i32> {
    rows(x, k, n, |acc: &mut [i32], p, a: i32| {
        for (sum, &b) in acc.iter_mut().zip(&w[p * n..][..n]) {
            *sum = sum.wrapping_add(a.wrapping_mul(b));
        }
    })
}

fn rows<X: Copy, Y: Copy + Default>(
    x: &[X],
    k: usize,
    n: usize,
    add: impl Fn(&mut [Y], usize, X),
) -> Vec<Y> {
    let m = x.len().checked_div(k).unwrap_or(0);
    let mut out = vec![Y::default(); m * n];
    if n == 0 {
        return out;
    }
    for (row, acc) in x.chunks_exact(k.max(1)).zip(out.chunks_exact_mut(n)) {
        for (p, &a) in row.iter().enumerate() {
            add(acc, p, a);
        }
    }
    out
}

/// `v` as the nearest that `element` has, ties to even.
pub(super) fn round_to(element: Element, v: f32) -> f32 {
    match element {
        Element::BF16 => bf16::from_f32(v).to_f32(),
        Element::F16 => f16::from_f32(v).to_f32(),
        _ => v,
    }
}

/// The logistic function.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x` times its logistic function.
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// Symmetric codes of `row` and their scale: the largest magnitude becomes `limit`. A row of zeros
/// has scale 0 and codes 0.
pub(super) fn quantise(row: &[f32], limit: f32) -> (Vec<f32>, f32) {
    let scale = row.iter().fold(0.0f32, |m, v| m.max(v.abs())) / limit;
    let code = |v: &f32| if scale > 0.0 { (v / scale).round_ties_even() } else { 0.0 };
    (row.iter().map(code).collect(), scale)
}

/// The normalised row, and the reciprocal of its root mean square.
pub(super) fn rms_norm(row: &[f32], gamma: &[f32], epsilon: f32) -> (Vec<f32>, f32) {
    let squares: f32 = row.iter().map(|v| v * v).sum();
    let rstd = 1.0 / (squares / row.len() as f32 + epsilon).sqrt();
    (row.iter().zip(gamma).map(|(v, g)| v * rstd * g).collect(), rstd)
}

/// Softmax of a row.
pub(super) fn softmax(row: &[f32]) -> Vec<f32> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = row.iter().map(|v| (v - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// Positions of the `k` largest values, largest first, of equal ones the first.
pub(super) fn largest(values: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(k);
    order
}

/// A scale of the matrix unit's 64-bit form as a number: 19 significant bits of an `f32`, and the
/// whole number that is added after scaling.
pub(super) fn unit_scale(word: i64) -> (f32, f32) {
    let scale = f32::from_bits(word as u32 & !0x1fff);
    // Nine bits from bit 37 on, in two's complement.
    let offset = (word << (64 - 46)) >> (64 - 9);
    (scale, offset as f32)
}
