//! NEON, which every 64-bit Arm has: four registers per vector. What later versions of the
//! architecture add are the dot products, written in assembly because the compiler has no stable
//! functions for them. The assembler is told of each, since a closure of a kernel may be compiled as a
//! function of its own, for the baseline.

use super::{LANES, Simd, Vectorised};
use half::bf16;
use std::arch::{aarch64::*, asm};

/// The dot products there are.
pub(crate) const NO_DOTS: u8 = 0;
/// Of signed bytes (`sdot`).
pub(crate) const BYTE_DOTS: u8 = 1;
/// Also of unsigned by signed bytes (`usdot`), and of pairs of bf16 (`bfdot`).
pub(crate) const PAIR_DOTS: u8 = 2;

/// NEON with these dot products.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOTS: u8>;

/// 16 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Quad([float32x4_t; 4]);

/// 16 lanes of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Bits([uint32x4_t; 4]);

#[inline(never)]
unsafe fn enter_plain<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Neon<NO_DOTS>>() }
}

#[target_feature(enable = "dotprod")]
#[inline(never)]
unsafe fn enter_bytes<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Neon<BYTE_DOTS>>() }
}

#[target_feature(enable = "dotprod,bf16,i8mm")]
#[inline(never)]
unsafe fn enter_pairs<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Neon<PAIR_DOTS>>() }
}

macro_rules! ops {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: instructions and pointers are the caller's promise.
            unsafe { $body }
        }
    )*};
}

/// An expression for each register. Closures could end up outside of what `enter` compiles.
macro_rules! quad {
    ($i:ident => $each:expr) => {
        [
            {
                let $i = 0;
                $each
            },
            {
                let $i = 1;
                $each
            },
            {
                let $i = 2;
                $each
            },
            {
                let $i = 3;
                $each
            },
        ]
    };
}

struct Part;

impl Part {
    ops! {
        fn even(w: uint32x4_t) -> float32x4_t {
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(w))
        }
        fn odd(w: uint32x4_t) -> float32x4_t {
            vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff_0000)))
        }
        fn round_bf16(v: float32x4_t) -> uint16x4_t {
            let bits = vreinterpretq_u32_f32(v);
            let upper = vshrq_n_u32::<16>(bits);
            let bias = vaddq_u32(vandq_u32(upper, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
            let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, bias));
            let quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
            vmovn_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet))
        }
        fn shift(v: uint32x4_t, left: i32) -> uint32x4_t {
            vshlq_u32(v, vdupq_n_s32(left))
        }
        fn sar(v: uint32x4_t, n: i32) -> uint32x4_t {
            vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(v), vdupq_n_s32(-n)))
        }
        fn max_signed(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
            let max = vmaxq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b));
            vreinterpretq_u32_s32(max)
        }
        fn byte_dot(acc: uint32x4_t, w: uint32x4_t, x: uint32x4_t) -> uint32x4_t {
            let (w, x) = (vreinterpretq_u8_u32(w), vreinterpretq_s8_u32(x));
            let w0 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w)));
            let w1 = vreinterpretq_s16_u16(vmovl_high_u8(w));
            let (x0, x1) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            let first = vpaddq_s32(
                vmull_s16(vget_low_s16(w0), vget_low_s16(x0)),
                vmull_high_s16(w0, x0),
            );
            let second = vpaddq_s32(
                vmull_s16(vget_low_s16(w1), vget_low_s16(x1)),
                vmull_high_s16(w1, x1),
            );
            vaddq_u32(acc, vreinterpretq_u32_s32(vpaddq_s32(first, second)))
        }
        fn sdot(acc: uint32x4_t, w: uint32x4_t, x: uint32x4_t) -> uint32x4_t {
            let mut acc = acc;
            asm!(
                ".arch_extension dotprod",
                "sdot {acc:v}.4s, {w:v}.16b, {x:v}.16b",
                acc = inout(vreg) acc, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
            acc
        }
        fn usdot(acc: uint32x4_t, w: uint32x4_t, x: uint32x4_t) -> uint32x4_t {
            let mut acc = acc;
            asm!(
                ".arch_extension i8mm",
                "usdot {acc:v}.4s, {w:v}.16b, {x:v}.16b",
                acc = inout(vreg) acc, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
            acc
        }
        fn bfdot(acc: float32x4_t, w: uint32x4_t, x: uint32x4_t) -> float32x4_t {
            let mut acc = acc;
            asm!(
                ".arch_extension bf16",
                "bfdot {acc:v}.4s, {w:v}.8h, {x:v}.8h",
                acc = inout(vreg) acc, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
            acc
        }
        // `w` is 128 more than the signed byte of its bits with the highest one turned over, so the
        // products are those of that byte and 128 times the sum of `x`.
        fn dot_by_signed(acc: uint32x4_t, w: uint32x4_t, x: uint32x4_t) -> uint32x4_t {
            let signed = veorq_u32(w, vdupq_n_u32(0x8080_8080));
            let sum = Self::sdot(vdupq_n_u32(0), vdupq_n_u32(0x0101_0101), x);
            Self::sdot(vaddq_u32(acc, vshlq_n_u32::<7>(sum)), signed, x)
        }
        fn power_of_two(v: float32x4_t) -> float32x4_t {
            let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(v));
            vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3f80_0000)))
        }
        // Magnitudes of fp8 as those of an f32 with a bias that is 120 less.
        fn fp8_as_bf16(byte: uint32x4_t) -> uint32x4_t {
            let sign = vshlq_n_u32::<24>(vandq_u32(byte, vdupq_n_u32(0x80)));
            let magnitude = vshlq_n_u32::<20>(vandq_u32(byte, vdupq_n_u32(0x7f)));
            let scale = vdupq_n_f32(f32::from_bits((127 + 120) << 23));
            let v = vmulq_f32(vreinterpretq_f32_u32(vorrq_u32(sign, magnitude)), scale);
            vshrq_n_u32::<16>(vreinterpretq_u32_f32(v))
        }
        // Of bytes 0 and 2.
        fn fp8_pair(v: uint32x4_t) -> uint32x4_t {
            let high = Self::fp8_as_bf16(vshrq_n_u32::<16>(v));
            vorrq_u32(Self::fp8_as_bf16(v), vshlq_n_u32::<16>(high))
        }
    }
}

impl<const DOTS: u8> Simd for Neon<DOTS> {
    type V = Quad;
    type I = Bits;
    const MAX_ROWS: usize = 6;
    const WIDE: bool = false;
    const PAIR_DOT: bool = DOTS == PAIR_DOTS;
    const BYTE_DOT: bool = true;

    #[inline(always)]
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output {
        // SAFETY: the caller's promise.
        unsafe {
            if const { DOTS == PAIR_DOTS && (F::DOTS.bytes || F::DOTS.pairs) } {
                enter_pairs(body)
            } else if const { DOTS == BYTE_DOTS && F::DOTS.bytes } {
                enter_bytes(body)
            } else {
                enter_plain(body)
            }
        }
    }

    ops! {
        fn splat(x: f32) -> Quad {
            Quad([vdupq_n_f32(x); 4])
        }
        fn load(p: *const f32) -> Quad {
            Quad(quad!(i => vld1q_f32(p.add(4 * i))))
        }
        fn store(p: *mut f32, v: Quad) {
            for (i, part) in v.0.into_iter().enumerate() {
                vst1q_f32(p.add(4 * i), part);
            }
        }
        fn load_bf16(p: *const bf16) -> Quad {
            Quad(quad!(i => {
                let halves = vmovl_u16(vld1_u16(p.add(4 * i).cast()));
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(halves))
            }))
        }
        fn store_bf16(p: *mut bf16, v: Quad) {
            for (i, part) in v.0.into_iter().enumerate() {
                vst1_u16(p.add(4 * i).cast(), Part::round_bf16(part));
            }
        }
        fn load_even(p: *const u32) -> Quad {
            let w = Self::load_bits(p);
            Quad(quad!(i => Part::even(w.0[i])))
        }
        fn load_odd(p: *const u32) -> Quad {
            let w = Self::load_bits(p);
            Quad(quad!(i => Part::odd(w.0[i])))
        }
        fn pair_dot(acc: Quad, w: *const u32, x: u32) -> Quad {
            Self::pair_dot_bits(acc, Self::load_bits(w), x)
        }
        fn pair_dot_bits(acc: Quad, w: Bits, x: u32) -> Quad {
            if DOTS == PAIR_DOTS {
                let x = vdupq_n_u32(x);
                return Quad(quad!(i => Part::bfdot(acc.0[i], w.0[i], x)));
            }
            let x0 = vdupq_n_f32(f32::from_bits(x << 16));
            let x1 = vdupq_n_f32(f32::from_bits(x & 0xffff_0000));
            Quad(quad!(i => {
                let even = vfmaq_f32(acc.0[i], Part::even(w.0[i]), x0);
                vfmaq_f32(even, Part::odd(w.0[i]), x1)
            }))
        }
        fn add(a: Quad, b: Quad) -> Quad {
            Quad(quad!(i => vaddq_f32(a.0[i], b.0[i])))
        }
        fn sub(a: Quad, b: Quad) -> Quad {
            Quad(quad!(i => vsubq_f32(a.0[i], b.0[i])))
        }
        fn mul(a: Quad, b: Quad) -> Quad {
            Quad(quad!(i => vmulq_f32(a.0[i], b.0[i])))
        }
        fn div(a: Quad, b: Quad) -> Quad {
            Quad(quad!(i => vdivq_f32(a.0[i], b.0[i])))
        }
        // `vminq_f32` and `vmaxq_f32` give NaN where only `a` is NaN, unlike the others.
        fn min(a: Quad, b: Quad) -> Quad {
            Quad(quad!(i => vbslq_f32(vcltq_f32(a.0[i], b.0[i]), a.0[i], b.0[i])))
        }
        fn max(a: Quad, b: Quad) -> Quad {
            Quad(quad!(i => vbslq_f32(vcgtq_f32(a.0[i], b.0[i]), a.0[i], b.0[i])))
        }
        fn mul_add(a: Quad, b: Quad, c: Quad) -> Quad {
            Quad(quad!(i => vfmaq_f32(c.0[i], a.0[i], b.0[i])))
        }
        fn power_of_two(v: Quad) -> Quad {
            Quad(quad!(i => Part::power_of_two(v.0[i])))
        }
        fn zero_below(v: Quad, x: Quad, limit: f32) -> Quad {
            let limit = vdupq_n_f32(limit);
            Quad(quad!(i => {
                let kept = vandq_u32(vreinterpretq_u32_f32(v.0[i]), vcgeq_f32(x.0[i], limit));
                vreinterpretq_f32_u32(kept)
            }))
        }
        fn prefetch(p: *const u8) {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly))
        }
        fn prefetch_far(p: *const u8) {
            asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly))
        }
        fn prefetch_to_write(p: *const u8) {
            asm!("prfm pstl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly))
        }
        fn load_bits(p: *const u32) -> Bits {
            Bits(quad!(i => vld1q_u32(p.add(4 * i))))
        }
        fn store_bits(p: *mut u32, v: Bits) {
            for (i, part) in v.0.into_iter().enumerate() {
                vst1q_u32(p.add(4 * i), part);
            }
        }
        fn splat_bits(x: u32) -> Bits {
            Bits([vdupq_n_u32(x); 4])
        }
        fn and_bits(a: Bits, b: Bits) -> Bits {
            Bits(quad!(i => vandq_u32(a.0[i], b.0[i])))
        }
        fn or_bits(a: Bits, b: Bits) -> Bits {
            Bits(quad!(i => vorrq_u32(a.0[i], b.0[i])))
        }
        fn xor_bits(a: Bits, b: Bits) -> Bits {
            Bits(quad!(i => veorq_u32(a.0[i], b.0[i])))
        }
        fn add_bits(a: Bits, b: Bits) -> Bits {
            Bits(quad!(i => vaddq_u32(a.0[i], b.0[i])))
        }
        fn max_bits(a: Bits, b: Bits) -> Bits {
            Bits(quad!(i => Part::max_signed(a.0[i], b.0[i])))
        }
        fn shr_by(v: Bits, n: u32) -> Bits {
            Bits(quad!(i => Part::shift(v.0[i], -(n as i32))))
        }
        fn from_bits(v: Bits) -> Quad {
            Quad(quad!(i => vreinterpretq_f32_u32(v.0[i])))
        }
        fn to_bits(v: Quad) -> Bits {
            Bits(quad!(i => vreinterpretq_u32_f32(v.0[i])))
        }
        fn to_float(v: Bits) -> Quad {
            Quad(quad!(i => vcvtq_f32_s32(vreinterpretq_s32_u32(v.0[i]))))
        }
        fn to_whole(v: Quad) -> Bits {
            Bits(quad!(i => vreinterpretq_u32_s32(vcvtnq_s32_f32(v.0[i]))))
        }
        fn byte_dot(acc: Bits, w: Bits, x: Bits) -> Bits {
            Bits(quad!(i => match DOTS {
                NO_DOTS => Part::byte_dot(acc.0[i], w.0[i], x.0[i]),
                BYTE_DOTS => Part::dot_by_signed(acc.0[i], w.0[i], x.0[i]),
                _ => Part::usdot(acc.0[i], w.0[i], x.0[i]),
            }))
        }
        fn look_up(table: &[f32; LANES], v: Bits) -> Quad {
            let table = vld1q_u8_x4(table.as_ptr().cast());
            Quad(quad!(i => {
                let entry = vandq_u32(v.0[i], vdupq_n_u32(15));
                let bytes = vmlaq_n_u32(vdupq_n_u32(0x0302_0100), entry, 0x0404_0404);
                vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
            }))
        }
        fn look_up_pairs(table: &[u16; 2 * LANES], v: Bits) -> Bits {
            let table = vld1q_u8_x2(table.as_ptr().cast());
            Bits(quad!(i => {
                let entries = vandq_u32(v.0[i], vdupq_n_u32(0x000f_000f));
                let bytes = vmlaq_n_u32(vdupq_n_u32(0x0100_0100), entries, 0x0202);
                vreinterpretq_u32_u8(vqtbl2q_u8(table, vreinterpretq_u8_u32(bytes)))
            }))
        }
        fn fp8_pairs(v: Bits) -> [Bits; 2] {
            let even = quad!(i => Part::fp8_pair(v.0[i]));
            let odd = quad!(i => Part::fp8_pair(vshrq_n_u32::<8>(v.0[i])));
            [Bits(even), Bits(odd)]
        }
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(v: Bits) -> Bits {
        // SAFETY: the caller's promise.
        unsafe { Bits(quad!(i => Part::shift(v.0[i], N as i32))) }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(v: Bits) -> Bits {
        // SAFETY: the caller's promise.
        unsafe { Bits(quad!(i => Part::shift(v.0[i], -(N as i32)))) }
    }

    #[inline(always)]
    unsafe fn sar<const N: u32>(v: Bits) -> Bits {
        // SAFETY: the caller's promise.
        unsafe { Bits(quad!(i => Part::sar(v.0[i], N as i32))) }
    }
}
