//! Passes over a row of logits.
//!
//! Each is compiled for several instruction sets, one of which is chosen when it is first called. The
//! lanes in which a sum is taken belong to its definition, so all of them give the same bits.

use super::exp::exp_neg;
use multiversion::multiversion;

const LANES: usize = 16;

/// The largest of `values`, ignoring what is not a number; `-inf` when there is none.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (best, &x) in best.iter_mut().zip(chunk) {
            *best = if x > *best { x } else { *best };
        }
    }
    best.iter().chain(tail).fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
}

/// Whether any of `values` is above `limit`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn any_above(values: &[f32], limit: f32) -> bool {
    // Without branches, so that it becomes vector code.
    values.iter().fold(false, |any, &x| any | (x > limit))
}

/// Writes `e^((x - max) * rate)` of each value to `out`; 0 for those that are not numbers. None is above
/// `max`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn weights(values: &[f32], max: f32, rate: f32, out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(values) {
        *out = exp_neg((max - x) * rate);
    }
}

/// Sum of `e^((x - max) * rate)` over `values`, none of which is above `max`; values that are not
/// numbers count as 0. The order of the sum depends on the length alone.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn sum_exp(values: &[f32], max: f32, rate: f32) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(exp_neg((max - x) * rate));
        }
    }
    let rest: f64 = tail.iter().map(|&x| f64::from(exp_neg((max - x) * rate))).sum();
    sums.iter().sum::<f64>() + rest
}

/// Those of `weights` that are above `limit`: their sum, and how many they are.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn mass_above(weights: &[f32], limit: f32) -> (f64, usize) {
    let mut sums = [0.0f64; LANES];
    let mut counts = [0u32; LANES];
    let (chunks, tail) = weights.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..tail.len()].copy_from_slice(tail);
    for chunk in chunks.iter().chain([&last]) {
        for ((sum, count), &w) in sums.iter_mut().zip(&mut counts).zip(chunk) {
            *sum += f64::from(if w > limit { w } else { 0.0 });
            *count += u32::from(w > limit);
        }
    }
    (sums.iter().sum(), counts.iter().sum::<u32>() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima_skip_what_is_no_number() {
        let mut values = vec![1.0f32; 37];
        values[3] = f32::NAN;
        values[36] = f32::NEG_INFINITY;
        assert_eq!(largest(&values), 1.0);
        assert_eq!(sum_exp(&values, 1.0, 1.0), 35.0);
        assert_eq!(largest(&[f32::NAN]), f32::NEG_INFINITY);
    }
}
