//! Vectors to codes of 8 bits.

use crate::kernels::simd::{LANES, ROUND, Simd};

/// The first `min(n, 16)` lanes as two's complement bytes, rounded to nearest even and saturated;
/// NaN is 0.
///
/// # Safety
/// As [`Simd`]; `out` is valid for `min(n, 16)` bytes.
#[inline(always)]
pub(super) unsafe fn store_i8<S: Simd>(out: *mut i8, v: S::V, n: usize) {
    // SAFETY: registers, an array of 16 and what the caller vouches for.
    unsafe {
        let bounded = S::max(S::min(v, S::splat(127.0)), S::splat(-128.0));
        let numbers = S::zero_below(bounded, v, f32::NEG_INFINITY);
        // The integer is in the low bits.
        let integers = S::to_bits(S::add(numbers, S::splat(ROUND)));
        if n >= LANES {
            return S::store_low_bytes(out.cast(), integers);
        }
        let mut codes = [0i8; LANES];
        S::store_low_bytes(codes.as_mut_ptr().cast(), integers);
        out.copy_from_nonoverlapping(codes.as_ptr(), n);
    }
}

/// Both vectors as two's complement bytes, rounded to nearest even, unless a lane is so near to the middle of two integers
/// that a quotient could be on the other side of it; returns whether it stored them. `v` is at most 127 and some units in
/// the last place, and not NaN; it is a product with a reciprocal, two units from the quotient at most.
///
/// # Safety
/// As [`Simd`]; `out` is valid for 32 bytes.
#[inline(always)]
pub(super) unsafe fn store_rounded<S: Simd>(out: *mut i8, v: [S::V; 2]) -> bool {
    /// Two units of 127 are less than 2^-15.
    const SURE: f32 = 0.5 - 1.0 / 8192.0;
    // SAFETY: registers and what the caller vouches for.
    unsafe {
        let round = S::splat(ROUND);
        let shifted = [S::add(v[0], round), S::add(v[1], round)];
        let mut furthest = S::splat(0.0);
        for (v, shifted) in v.into_iter().zip(shifted) {
            furthest = S::max(furthest, S::abs(S::sub(v, S::sub(shifted, round))));
        }
        if S::any_above(furthest, SURE) {
            return false;
        }
        S::store_low_bytes(out.cast(), S::to_bits(shifted[0]));
        S::store_low_bytes(out.add(LANES).cast(), S::to_bits(shifted[1]));
        true
    }
}

/// The first `min(n, 16)` lanes as E4M3, rounded to nearest even and saturated to 448; NaN stays
/// NaN.
///
/// # Safety
/// As [`Simd`]; `out` is valid for `min(n, 16)` bytes.
#[inline(always)]
pub(crate) unsafe fn store_fp8<S: Simd>(out: *mut u8, v: S::V, n: usize) {
    // SAFETY: as above.
    unsafe {
        let lanes = S::lanes(v);
        let mut codes = [0u8; LANES];
        for (code, lane) in codes.iter_mut().zip(lanes) {
            *code = fp8(lane);
        }
        out.copy_from_nonoverlapping(codes.as_ptr(), n.min(LANES));
    }
}

/// Without branches, so that a loop of it becomes vector instructions.
#[inline(always)]
fn fp8(x: f32) -> u8 {
    /// Largest number, and the smallest with all bits of precision.
    const MOST: f32 = 448.0;
    const NORMAL: f32 = 1.0 / 64.0;
    /// Adding it leaves a multiple of `2^-9`, the distance of numbers below [`NORMAL`], in the low
    /// bits.
    const ROUND_SMALL: f32 = 16_384.0;
    /// Exponent biases differ by 120; 20 bits of the mantissa go.
    const REBIAS: u32 = 120 << 3;
    const NAN: u32 = 0x7f;

    let sign = (x.to_bits() >> 24) & 0x80;
    let size = if x.abs() < MOST { x.abs() } else { MOST };
    let bits = size.to_bits();
    let rounded = (bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20;
    let small = (size + ROUND_SMALL).to_bits() & 0xf;
    let code = if size < NORMAL { small } else { rounded.wrapping_sub(REBIAS) };
    let code = if x.is_nan() { NAN } else { code };
    (sign | code) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference;

    /// Every code, every middle between two codes, and the neighbours of both.
    #[test]
    fn fp8_rounds_to_the_nearest_even_code() {
        let values: Vec<f32> = (0..=0x7e).map(reference::fp8_value).collect();
        let middles = values.windows(2).map(|w| (w[0] + w[1]) / 2.0);
        let points =
            values.iter().copied().chain(middles).chain([1e-30, 464.0, 1e9, f32::INFINITY]);
        for point in points.collect::<Vec<_>>() {
            for x in [point.next_down(), point, point.next_up()] {
                assert_eq!(fp8(x), reference::to_fp8(x), "{x}");
                assert_eq!(fp8(-x), reference::to_fp8(-x), "{}", -x);
            }
        }
        assert_eq!(fp8(f32::NAN) & 0x7f, 0x7f);
    }
}
