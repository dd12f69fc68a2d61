//! The exponential in loops over many values.

/// `e^-d` for `d >= 0`, within 2 units in the last place; 0 when `d` is above 87 or not a number.
///
/// Free of branches and of calls, so that loops over it become vector code.
#[inline(always)]
pub(crate) fn exp_neg(d: f32) -> f32 {
    /// Adding and subtracting it rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if d <= 87.0 { -d } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let f = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * f + c;
    }
    // The integer stands in the low bits of `rounded`; a conversion would saturate, which costs
    // more than the rest.
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits());
    let scale = f32::from_bits(n.wrapping_add(127) << 23);
    if d <= 87.0 { p * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_exact_one() {
        for i in 0..87_000 {
            let d = i as f32 * 1e-3;
            let exact = (-f64::from(d)).exp();
            let error = (f64::from(exp_neg(d)) - exact).abs() / exact;
            assert!(error < 2.5e-7, "e^-{d}: relative error {error}");
        }
        assert_eq!(exp_neg(0.0), 1.0);
        assert_eq!(exp_neg(f32::INFINITY), 0.0);
        assert_eq!(exp_neg(f32::NAN), 0.0);
    }
}
