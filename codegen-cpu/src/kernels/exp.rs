//! The exponential and what is made of it, on vectors. Every kernel uses this one.

use super::simd::{ROUND, Simd};

/// Below it `e^x` is no longer a normal number; such results are zero.
const LEAST: f32 = -87.33654;
/// Above it `e^x` is no longer finite.
const MOST: f32 = 88.37626;
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

/// `2^r` on `|r| <= 1/2`, from the fifth power down.
#[allow(clippy::approx_constant, reason = "fitted to the interval: near ln 2, and not ln 2")]
const POWER_OF_TWO: [f32; 6] =
    [1.326_472_7e-3, 9.671_513e-3, 0.055_507_336, 0.240_222_42, 0.693_147, 1.0];

/// `2^x` for `x` up to 127 with a relative error below 3e-7, for what is rounded to bf16 afterwards. 1 at
/// zero; below -125 and where `x` is NaN `2^-125`.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn exp2_short<S: Simd>(x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let x = S::max(x, S::splat(-125.0));
        let shifted = S::add(x, S::splat(ROUND));
        let r = S::sub(x, S::sub(shifted, S::splat(ROUND)));
        let mut p = S::splat(POWER_OF_TWO[0]);
        for c in &POWER_OF_TWO[1..] {
            p = S::mul_add(p, r, S::splat(*c));
        }
        let exponent = S::shl::<23>(S::to_bits(shifted));
        S::from_bits(S::add_bits(S::to_bits(p), exponent))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{LANES, Vectorised, on_every_set};

    #[derive(Clone, Copy)]
    struct Powers;

    impl Vectorised for Powers {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: called where the machine has `S`.
            let of = |x: [f32; LANES]| unsafe { S::lanes(exp2_short::<S>(S::load(x.as_ptr()))) };
            for i in -125 * 64..127 * 64 {
                let x: [f32; LANES] = std::array::from_fn(|j| (i * 16 + j as i32) as f32 / 1024.0);
                for (x, got) in x.into_iter().zip(of(x)) {
                    let want = f64::from(x).exp2();
                    let error = (f64::from(got) - want).abs() / want;
                    assert!(error < 3e-7, "2^{x}: {got}, expected {want}");
                }
            }
            let edges = [0.0, -0.0, -151.0, -1e30, f32::NEG_INFINITY, f32::NAN];
            let got = of(std::array::from_fn(|i| edges[i % edges.len()]));
            let least = 2f32.powi(-125);
            assert_eq!(got[..edges.len()], [1.0, 1.0, least, least, least, least]);
        }
    }

    #[test]
    fn short_powers_of_two_keep_their_error() {
        on_every_set(Powers);
    }
}
