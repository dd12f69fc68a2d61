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

/// What the power of [`exp2_short`] is counted in: where the exponent of an `f32` begins.
pub(crate) const EXP2_UNIT: f32 = (1 << 23) as f32;
/// `2^(m - 1)` from 1 to 2, from the third power down, with a relative error below 1.1e-4 and none at 1 and 2.
const POWER_OF_TWO: [f32; 4] = [0.078_267_97, -0.008_496_23, 0.477_612_9, 0.452_615_36];
/// The bits of a mantissa.
const MANTISSA: u32 = (1 << 23) - 1;
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

/// `2^(x / 2^23)` for `x` below `128 * 2^23` with a relative error below 1.1e-4, a twentieth of what rounding to bf16
/// adds afterwards. 1 at zero; at most `2^-125` below `-125 * 2^23` and where `x` is NaN.
///
/// `x` becomes an integer, whose upper bits are the exponent and whose lower ones are, as a mantissa, a number from 1 to
/// 2 (N. N. Schraudolph, "A fast, compact approximation of the exponential function", 1999, here with a polynomial for
/// the powers between).
///
/// Of several vectors each step comes before the next, so that none waits for itself.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn exp2_short<S: Simd, const N: usize>(x: [S::V; N]) -> [S::V; N] {
    // SAFETY: as the caller's.
    unsafe {
        let mut bits = [S::splat_bits(0); N];
        for (bits, x) in bits.iter_mut().zip(x) {
            *bits = S::to_whole(S::max(x, S::splat(-126.0 * EXP2_UNIT)));
        }
        let (one, mantissa) = (S::splat_bits(1f32.to_bits()), S::splat_bits(MANTISSA));
        let mut between = x;
        for (between, bits) in between.iter_mut().zip(bits) {
            *between = S::from_bits(S::or_masked(one, bits, mantissa));
        }
        let mut powers = [S::splat(POWER_OF_TWO[0]); N];
        for coefficient in &POWER_OF_TWO[1..] {
            for (power, between) in powers.iter_mut().zip(between) {
                *power = S::mul_add(*power, between, S::splat(*coefficient));
            }
        }
        for (power, bits) in powers.iter_mut().zip(bits) {
            let exponent = S::and_bits(bits, S::splat_bits(!MANTISSA));
            *power = S::from_bits(S::add_bits(S::to_bits(*power), exponent));
        }
        powers
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
            let of = |x: [f32; LANES]| unsafe {
                let x = S::mul(S::load(x.as_ptr()), S::splat(EXP2_UNIT));
                let [power] = exp2_short::<S, 1>([x]).map(|v| S::lanes(v));
                // Several vectors have the bits of each.
                let zero = S::splat(0.0);
                let some = exp2_short::<S, 4>([zero, x, zero, x]).map(|v| S::lanes(v));
                assert_eq!(some, [[1.0; LANES], power, [1.0; LANES], power]);
                power
            };
            for i in -125 * 64..127 * 64 {
                let x: [f32; LANES] = std::array::from_fn(|j| (i * 16 + j as i32) as f32 / 1024.0);
                for (x, got) in x.into_iter().zip(of(x)) {
                    let want = f64::from(x).exp2();
                    let error = (f64::from(got) - want).abs() / want;
                    assert!(error < 1.1e-4, "2^{x}: {got}, expected {want}");
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
            assert!(got[2..6].iter().all(|x| (0.0..=least).contains(x)), "{got:?}");
        }
    }

    #[test]
    fn short_powers_of_two_and_silu_keep_their_error() {
        on_every_set(Powers);
    }
}
