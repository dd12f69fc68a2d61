//! The exponential and what is made of it, on vectors. Every kernel uses this one.

use super::simd::Simd;

/// Below it `e^x` is no longer a normal number; such results are zero.
const LEAST: f32 = -87.33654;
/// Above it `e^x` is no longer finite.
const MOST: f32 = 88.37626;
/// Adding and subtracting it rounds to an integer.
const ROUND: f32 = 12_582_912.0;
/// `ln 2` in two parts; the first has few enough bits that its small multiples are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `e^r` on `|r| <= ln(2) / 2`, from the fifth power down to the square.
const POLYNOMIAL: [f32; 5] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1];

/// `e^x` to about one unit in the last place; zero below -87.3, `e^88.3` above 88.3.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let bounded = S::max(S::min(x, S::splat(MOST)), S::splat(LEAST));
        let shifted = S::mul_add(bounded, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
        let n = S::sub(shifted, S::splat(ROUND));
        let r = S::mul_add(n, S::splat(-LN2_HIGH), bounded);
        let r = S::mul_add(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(POLYNOMIAL[0]);
        for c in &POLYNOMIAL[1..] {
            p = S::mul_add(p, r, S::splat(*c));
        }
        p = S::mul_add(p, r, S::splat(0.5));
        let p = S::add(S::mul_add(S::mul(r, r), p, r), S::splat(1.0));
        S::zero_below(S::mul(p, S::power_of_two(shifted)), x, LEAST)
    }
}

/// `x / (1 + e^-x)`.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let e = exp::<S>(S::sub(S::splat(0.0), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

/// `1 / (1 + e^-x)`; NaN stays NaN.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let e = nan_where::<S>(exp::<S>(S::sub(S::splat(0.0), x)), x);
        S::div(S::splat(1.0), S::add(S::splat(1.0), e))
    }
}

/// `v`, which is not negative, but NaN where `x` is NaN; [`exp`] gives zero there.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn nan_where<S: Simd>(v: S::V, x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise. `min` and `max` give the
    // second operand where one is NaN, and `-|x|` is never above `v`.
    unsafe { S::max(v, S::min(x, S::sub(S::splat(0.0), x))) }
}
