//! Plain arrays: any architecture. The compiler turns the loops into whatever vectors it has.

use super::{LANES, Simd, Vectorised};
use half::bf16;

/// No instructions beyond the architecture's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Without the instruction a fused multiply-add is a library call.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (i, o) in out.iter_mut().enumerate() {
        *o = f(i);
    }
    out
}

#[inline(always)]
fn words(f: impl Fn(usize) -> u32) -> [u32; LANES] {
    let mut out = [0; LANES];
    for (i, o) in out.iter_mut().enumerate() {
        *o = f(i);
    }
    out
}

#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// bf16 bits of `x`, rounded to nearest even; NaN becomes a quiet NaN.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    if x.is_nan() { quiet } else { rounded }
}

impl Simd for Portable {
    type V = [f32; LANES];
    type I = [u32; LANES];
    const MAX_ROWS: usize = 3;
    const WIDE: bool = false;
    const PAIR_DOT: bool = false;
    const BYTE_DOT: bool = true;

    #[inline(never)]
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output {
        // SAFETY: the baseline is always there; the rest is the caller's promise.
        unsafe { body.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: valid for 16 elements by the trait's contract.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: as above.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: as above.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        let mut bits = [0u16; LANES];
        for (b, x) in bits.iter_mut().zip(v) {
            *b = round_bf16(x);
        }
        // SAFETY: as above.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn load_even(p: *const u32) -> Self::V {
        // SAFETY: as above.
        let pairs = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        each(|i| f32::from_bits(pairs[i] << 16))
    }

    #[inline(always)]
    unsafe fn load_odd(p: *const u32) -> Self::V {
        // SAFETY: as above.
        let pairs = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        each(|i| f32::from_bits(pairs[i] & 0xffff_0000))
    }

    #[inline(always)]
    unsafe fn pair_dot(acc: Self::V, w: *const u32, x: u32) -> Self::V {
        // SAFETY: as above.
        let (even, odd) = unsafe { (Self::load_even(w), Self::load_odd(w)) };
        let (x0, x1) = (f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000));
        each(|i| mul_add(odd[i], x1, mul_add(even[i], x0, acc[i])))
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| mul_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn power_of_two(v: Self::V) -> Self::V {
        each(|i| f32::from_bits((v[i].to_bits() << 23).wrapping_add(0x3f80_0000)))
    }

    #[inline(always)]
    unsafe fn zero_below(v: Self::V, x: Self::V, limit: f32) -> Self::V {
        each(|i| if x[i] >= limit { v[i] } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {
        // SAFETY: part of the baseline; a prefetch may name any address.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_p.cast())
        }
    }
    #[inline(always)]
    unsafe fn prefetch_far(_p: *const u8) {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(_p.cast())
        }
    }

    #[inline(always)]
    unsafe fn load_bits(p: *const u32) -> Self::I {
        // SAFETY: as above.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_bits(p: *mut u32, v: Self::I) {
        // SAFETY: as above.
        unsafe { p.cast::<Self::I>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn splat_bits(x: u32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn and_bits(a: Self::I, b: Self::I) -> Self::I {
        words(|i| a[i] & b[i])
    }

    #[inline(always)]
    unsafe fn or_bits(a: Self::I, b: Self::I) -> Self::I {
        words(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn xor_bits(a: Self::I, b: Self::I) -> Self::I {
        words(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    unsafe fn add_bits(a: Self::I, b: Self::I) -> Self::I {
        words(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    unsafe fn max_bits(a: Self::I, b: Self::I) -> Self::I {
        words(|i| (a[i] as i32).max(b[i] as i32) as u32)
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(v: Self::I) -> Self::I {
        words(|i| v[i] << N)
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(v: Self::I) -> Self::I {
        words(|i| v[i] >> N)
    }

    #[inline(always)]
    unsafe fn shr_by(v: Self::I, n: u32) -> Self::I {
        words(|i| v[i] >> n)
    }

    #[inline(always)]
    unsafe fn sar<const N: u32>(v: Self::I) -> Self::I {
        words(|i| (v[i] as i32 >> N) as u32)
    }

    #[inline(always)]
    unsafe fn from_bits(v: Self::I) -> Self::V {
        each(|i| f32::from_bits(v[i]))
    }

    #[inline(always)]
    unsafe fn to_bits(v: Self::V) -> Self::I {
        words(|i| v[i].to_bits())
    }

    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::V {
        each(|i| v[i] as i32 as f32)
    }

    #[inline(always)]
    unsafe fn to_whole(v: Self::V) -> Self::I {
        v.map(|x| x as i32 as u32)
    }

    #[inline(always)]
    unsafe fn look_up(table: &[f32; LANES], v: Self::I) -> Self::V {
        each(|i| table[v[i] as usize % LANES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_half() {
        let mut bits = 1u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(round_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
        assert!(bf16::from_bits(round_bf16(f32::from_bits(0x7f80_0001))).is_nan());
        assert_eq!(round_bf16(f32::MAX), 0x7f80, "overflow rounds to infinity");
    }
}
