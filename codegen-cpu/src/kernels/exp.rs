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
        let p = S::mul_add(at::<S>(r, &POLYNOMIAL), r, S::splat(0.5));
        let p = S::add(S::mul_add(S::mul(r, r), p, r), S::splat(1.0));
        S::zero_below(S::mul(p, S::power_of_two(shifted)), x, LEAST)
    }
}

/// `2^r` on `|r| <= 1/2`, from the fourth power down, with a relative error below 3e-6.
#[allow(clippy::approx_constant, reason = "fitted to the interval: near ln 2, and not ln 2")]
const POWER_OF_TWO: [f32; 5] = [9.582_855e-3, 0.055_906_43, 0.240_240_99, 0.693_124_2, 1.0];
/// `e^r` on `|r| <= ln(2) / 2`, from the fifth power down, with a relative error below 2e-7.
const POWER_OF_E: [f32; 6] =
    [8.290_273e-3, 0.041_898_16, 0.166_676_39, 0.499_991_48, 0.999_999_7, 1.0];

/// A polynomial, its highest power first, at `x`.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
unsafe fn at<S: Simd>(x: S::V, polynomial: &[f32]) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let mut sum = S::splat(polynomial[0]);
        for coefficient in &polynomial[1..] {
            sum = S::mul_add(sum, x, S::splat(*coefficient));
        }
        sum
    }
}

/// `2^x` for `x` up to 127 with a relative error below 3e-6, for what is rounded to bf16 afterwards. 1 at
/// zero, at most `2^-125` below -125; where `x` is NaN that or NaN.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn exp2_short<S: Simd>(x: S::V) -> S::V {
    // SAFETY: as the caller's.
    unsafe {
        let (r, n) = S::split(x);
        S::times_power_of_two(at::<S>(r, &POWER_OF_TWO), n)
    }
}

/// `x / (1 + e^-x)` with a relative error below 5e-7 down to -87, and next to nothing below; NaN stays NaN.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let less = S::min(S::sub(S::splat(0.0), x), S::splat(88.0));
        let less = S::max(less, S::splat(-88.0));
        let power = S::mul(less, S::splat(std::f32::consts::LOG2_E));
        let (left, n) = S::split(power);
        let whole = S::sub(power, left);
        let r = S::mul_add(whole, S::splat(-LN2_HIGH), less);
        let r = S::mul_add(whole, S::splat(-LN2_LOW), r);
        let e = S::times_power_of_two(at::<S>(r, &POWER_OF_E), n);
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
                    assert!(error < 3e-6, "2^{x}: {got}, expected {want}");
                }
            }
            for i in -87 * 64..87 * 64 {
                let x: [f32; LANES] = std::array::from_fn(|j| (i * 16 + j as i32) as f32 / 1024.0);
                // SAFETY: as above; the array has 16 elements.
                let got = unsafe { S::lanes(silu::<S>(S::load(x.as_ptr()))) };
                for (x, got) in x.map(f64::from).into_iter().zip(got) {
                    let want = x / (1.0 + (-x).exp());
                    let error = (f64::from(got) - want).abs();
                    assert!(error <= 5e-7 * want.abs(), "silu({x}): {got}, expected {want}");
                }
            }
            let edges = [-100.0, -1e4, 1e4, f32::INFINITY, f32::NAN];
            let edges: [f32; LANES] = std::array::from_fn(|i| edges[i % edges.len()]);
            // SAFETY: as above.
            let got = unsafe { S::lanes(silu::<S>(S::load(edges.as_ptr()))) };
            assert!(got[..2].iter().all(|x| x.abs() < 1e-33), "{got:?}");
            assert_eq!(got[2..4], [1e4, f32::INFINITY]);
            assert!(got[4].is_nan(), "{got:?}");
            let edges = [0.0, -0.0, -151.0, -1e30, f32::NEG_INFINITY, f32::NAN];
            let got = of(std::array::from_fn(|i| edges[i % edges.len()]));
            assert_eq!(got[..2], [1.0, 1.0]);
            let least = 2f32.powi(-125);
            assert!(got[2..5].iter().all(|x| (0.0..=least).contains(x)), "{got:?}");
            assert!(got[5] == least || got[5].is_nan(), "{got:?}");
        }
    }

    #[test]
    fn short_powers_of_two_and_silu_keep_their_error() {
        on_every_set(Powers);
    }
}
