//! The definitions of quantisation. Quotients are rounded to `f32` before they become codes, so
//! codes have one right value.

/// Codes of a run by its own scale, and the scale: `max|x| / 127`.
pub fn quantize_rows(x: &[f32]) -> (Vec<i8>, f32) {
    let scale = magnitude(x) / 127.0;
    let code = |&v: &f32| if scale == 0.0 { 0 } else { (v / scale).round_ties_even() as i8 };
    (x.iter().map(code).collect(), scale)
}

/// Codes by a given scale and offset.
pub fn quantize_static(x: &[f32], scale: f32, offset: f32) -> Vec<i8> {
    x.iter().map(|&v| (v / scale + offset).round_ties_even() as i8).collect()
}

/// Codes of a group in E4M3 by its own scale, and the scale: `max(max|x|, 1e-4) / 448`, rounded
/// up to a power of two if asked for.
pub fn quantize_fp8(x: &[f32], power_of_two: bool) -> (Vec<u8>, f32) {
    let exact = magnitude(x).max(1e-4) / 448.0;
    let powers = (-149..128).map(|e| 2f64.powi(e) as f32);
    let scale = if power_of_two { powers.into_iter().find(|p| *p >= exact) } else { Some(exact) };
    let scale = scale.unwrap_or(f32::INFINITY);
    (x.iter().map(|&v| to_fp8(v / scale)).collect(), scale)
}

fn magnitude(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most, v| v.abs().max(most))
}

/// The E4M3 code nearest to `x`, the even one of two, 448 beyond it.
pub fn to_fp8(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_nan() {
        return sign | 0x7f;
    }
    let distance = |code: u8| (f64::from(fp8_value(code)) - f64::from(x.abs().min(448.0))).abs();
    let closer = |a: u8, b: u8| match distance(a).total_cmp(&distance(b)) {
        std::cmp::Ordering::Equal if a.is_multiple_of(2) => a,
        std::cmp::Ordering::Greater | std::cmp::Ordering::Equal => b,
        std::cmp::Ordering::Less => a,
    };
    sign | (0..=0x7e).fold(0, closer)
}

/// The number that a positive E4M3 code below 0x7f stands for: 4 bits of exponent with bias 7, 3
/// of mantissa.
pub fn fp8_value(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7) / 8.0);
    match exponent {
        0 => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    }
}
