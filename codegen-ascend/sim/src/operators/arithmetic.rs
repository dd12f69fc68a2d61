//! Arithmetic that operators share, on dense rows.

use crate::objects::{Element, Tensor};
use half::{bf16, f16};

/// The right side of a product, `[k,n]`, in the order in which it is stored.
pub(super) struct Right<T> {
    values: Vec<T>,
    /// Columns follow one another, not rows.
    by_column: bool,
}

impl<T> From<Vec<T>> for Right<T> {
    fn from(values: Vec<T>) -> Self {
        Self { values, by_column: false }
    }
}

impl Tensor {
    fn right<T>(&self, read: impl FnOnce(&Tensor) -> Vec<T>) -> Right<T> {
        let by_column = self.stored_matrix().2;
        let values = if by_column { read(&self.transposed()) } else { read(self) };
        Right { values, by_column }
    }

    /// A matrix as the right side of a product of floats.
    pub(super) fn right_reals(&self) -> Right<f32> {
        self.right(Tensor::reals)
    }

    /// A matrix as the right side of a product of whole numbers.
    pub(super) fn right_words(&self) -> Right<i32> {
        self.right(Tensor::words)
    }
}

/// `x [m,k]` times `w [k,n]`. Each sum runs in the order of `k`, whatever the other rows are.
pub(super) fn product(x: &[f32], w: &Right<f32>, k: usize, n: usize) -> Vec<f32> {
    rows(x, w, k, n, |sum, a, b| sum + a * b)
}

/// `x [m,k]` times `w [k,n]` in whole numbers of 32 bits.
pub(super) fn whole_product(x: &[i32], w: &Right<i32>, k: usize, n: usize) -> Vec<i32> {
    rows(x, w, k, n, |sum, a, b| sum.wrapping_add(a.wrapping_mul(b)))
}

/// Columns whose sums run side by side.
const LANES: usize = 8;

fn rows<T: Copy + Default>(
    x: &[T],
    w: &Right<T>,
    k: usize,
    n: usize,
    add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let m = x.len().checked_div(k).unwrap_or(0);
    let mut out = vec![T::default(); m * n];
    if n == 0 || k == 0 {
        return out;
    }
    for (row, sums) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        if w.by_column {
            let columns = w.values.chunks(LANES * k);
            for (sums, columns) in sums.chunks_mut(LANES).zip(columns) {
                for (p, &a) in row.iter().enumerate() {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = add(*sum, a, columns[i * k + p]);
                    }
                }
            }
        } else {
            for (&a, own) in row.iter().zip(w.values.chunks_exact(n)) {
                for (sum, &b) in sums.iter_mut().zip(own) {
                    *sum = add(*sum, a, b);
                }
            }
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
