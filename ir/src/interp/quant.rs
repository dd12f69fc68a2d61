//! Codes and scales. Divisions round to `f32` before codes are rounded, as in the kernels, so that
//! a quotient near the middle of two codes falls on the same side.

use super::{Tensor, arith::dot};
use tensor::DType;

/// Symmetric quantisation of groups of `group` elements of each row: codes up to `largest`, and one
/// scale for each group.
pub(super) fn quantize_groups(x: &Tensor, group: usize, largest: f64) -> Vec<Vec<f64>> {
    quantize_rows(x, group, |max| (max / largest) as f32)
}

pub(super) fn quantize_fp8(x: &Tensor, group: usize, power_of_two: bool) -> Vec<Vec<f64>> {
    quantize_rows(x, group, |max| {
        let scale = max.max(f64::from(1e-4f32)) as f32 / 448.0;
        if power_of_two { next_power_of_two(scale) } else { scale }
    })
}

/// The smallest power of two that is not below the positive normal number `x`.
fn next_power_of_two(x: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    f32::from_bits((x.to_bits() + MANTISSA) & !MANTISSA)
}

/// [`quantize`] of every row.
fn quantize_rows(x: &Tensor, group: usize, scale: impl Fn(f64) -> f32) -> Vec<Vec<f64>> {
    let (codes, scales): (Vec<_>, Vec<_>) =
        x.rows().map(|row| quantize(row, group, &scale)).unzip();
    vec![codes.concat(), scales.concat()]
}

/// Quotients by the scales that `scale` makes of the largest magnitude of each group of `row`, which the
/// element type of the codes rounds, and the scales.
pub(super) fn quantize(
    row: &[f64],
    group: usize,
    scale: impl Fn(f64) -> f32,
) -> (Vec<f64>, Vec<f64>) {
    let (mut codes, mut scales) = (Vec::with_capacity(row.len()), Vec::new());
    for part in row.chunks(group.max(1)) {
        let scale = scale(part.iter().fold(0.0, |max, x| x.abs().max(max)));
        let code = |x: &f64| if scale == 0.0 { 0.0 } else { f64::from(*x as f32 / scale) };
        codes.extend(part.iter().map(code));
        scales.push(f64::from(scale));
    }
    (codes, scales)
}

pub(super) fn quantize_static(x: &Tensor, scale: &Tensor, offset: &Tensor) -> Vec<f64> {
    let (scale, offset) = (scale.data()[0] as f32, offset.data()[0] as f32);
    x.data().iter().map(|&x| f64::from(x as f32 / scale + offset)).collect()
}

pub(super) fn dequantize(codes: &Tensor, scale: &Tensor, group: usize) -> Vec<f64> {
    let factor = |s: f64| match scale.dtype() {
        DType::U8 => f64::powi(2.0, s as i32 - 127),
        _ => s,
    };
    let group_of = |(codes, s): (&[f64], &f64)| {
        let factor = factor(*s);
        codes.iter().map(move |c| c * factor).collect::<Vec<_>>()
    };
    let rows = codes.rows().zip(scale.rows());
    rows.flat_map(|(codes, scales)| codes.chunks(group).zip(scales).flat_map(group_of)).collect()
}

/// The product of a row of codes with one of weights: a sum over groups, each with its scales.
pub(super) fn dot_of_groups(
    (x, x_scale): (&[f64], &[f64]),
    (weight, weight_scale): (&[f64], &[f64]),
    group: usize,
) -> f64 {
    let mut sum = 0.0;
    for (g, (x, weight)) in x.chunks(group).zip(weight.chunks(group)).enumerate() {
        let x_scale = if x_scale.len() == 1 { x_scale[0] } else { x_scale[g] };
        sum += dot(x, weight) * weight_scale[g] * x_scale;
    }
    sum
}

pub(super) fn quant_matmul(args: &[&Tensor], group: usize) -> Vec<f64> {
    let (x, x_scale, weight, weight_scale) = (args[0], args[1], args[2], args[3]);
    let rows = x.rows().zip(x_scale.rows());
    rows.flat_map(|x| {
        let weights = weight.rows().zip(weight_scale.rows());
        weights.map(move |w| dot_of_groups(x, w, group))
    })
    .collect()
}

pub(super) fn static_matmul(args: &[&Tensor]) -> Vec<f64> {
    let (x, weight, bias, scale) = (args[0], args[1], args[2], args[3]);
    let parameters = || weight.rows().zip(bias.data().iter().zip(scale.data()));
    x.rows()
        .flat_map(|row| parameters().map(|(w, (bias, scale))| (dot(row, w) + bias) * scale))
        .collect()
}
