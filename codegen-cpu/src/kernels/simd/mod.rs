//! Vectors of 16 `f32` lanes, one implementation per instruction set. Kernels are written once
//! against [`Simd`] and compiled for each implementation.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Avx512, Avx512Bf16};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{BYTE_DOTS, NO_DOTS, Neon, PAIR_DOTS};
pub(crate) use portable::Portable;

use half::bf16;

/// Adding and subtracting it rounds to an integer.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;
/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Makes the frame of the function that this is inlined into begin at a cache line, where vectors are wider than the 16 bytes
/// that calls align it to. Sums without a register else lie across lines or not as the callers happen to leave it: a step of
/// 24 rows with weights of 4 bits took 91 ms or 71 on a Zen 3. It costs the function an address register.
#[inline(always)]
pub(crate) fn align_frame() {
    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "it takes a place alone")] [u8; LINE_BYTES]);
    if cfg!(target_arch = "x86_64") {
        std::hint::black_box(&mut std::mem::MaybeUninit::<Line>::uninit());
    }
}

/// Which dot products code multiplies by. Instruction sets that differ in others alone have one copy of it.
#[derive(Clone, Copy)]
pub(crate) struct Dots {
    /// [`Simd::byte_dot`] and [`Simd::half_dot`], and what is chosen by [`Simd::BYTE_DOT`].
    pub(crate) bytes: bool,
    /// [`Simd::pair_dot`], what is chosen by [`Simd::PAIR_DOT`], and what comes with it: rounding to bf16 by
    /// [`Simd::store_bf16_normal`], and lookups of pairs.
    pub(crate) pairs: bool,
}

impl Dots {
    pub(crate) const NONE: Self = Self { bytes: false, pairs: false };
    pub(crate) const BYTES: Self = Self { bytes: true, pairs: false };
    pub(crate) const PAIRS: Self = Self { bytes: false, pairs: true };
    pub(crate) const ALL: Self = Self { bytes: true, pairs: true };
}

/// A body that [`Simd::enter`] compiles with an instruction set enabled.
pub(crate) trait Vectorised {
    /// What it returns.
    type Output;
    /// The dot products of the body, and of those that it enters.
    const DOTS: Dots = Dots::ALL;

    /// The body; must be `#[inline(always)]` so that it is compiled inside [`Simd::enter`].
    ///
    /// # Safety
    /// The machine has the instructions of `S`; further conditions are the body's own.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// bf16 bits of an fp8 code (E4M3), which are exact; NaN, all ones, reads as 480.
pub(crate) const fn fp8_as_bf16(code: u8) -> u16 {
    let (sign, magnitude) = ((code as u16 & 0x80) << 8, code as u16 & 0x7f);
    let bits = match magnitude {
        // Denormals, multiples of 2^-9.
        0 => 0,
        m @ 1..8 => {
            let top = m.ilog2() as u16;
            (127 - 9 + top) << 7 | ((m << (7 - top)) & 0x7f)
        }
        m => (m << 4) + (120 << 7),
    };
    sign | bits
}

/// An instruction set.
///
/// # Safety
/// Every function needs a machine that has the instructions. Pointers are valid for 16 elements
/// of their type, or for `n` where `n` is a parameter; they need no alignment.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// 16 lanes of `f32`.
    type V: Copy;
    /// 16 lanes of 32 bits: words of codes, or sums of integers.
    type I: Copy;
    /// The most rows of a matrix tile whose accumulators stay in registers.
    const MAX_ROWS: usize;
    /// Whether a tile is a whole panel wide (four vectors) rather than one vector.
    const WIDE: bool;
    /// Whether [`Simd::pair_dot`] is one instruction.
    const PAIR_DOT: bool;
    /// Whether products take integers by [`Simd::byte_dot`] rather than [`Simd::half_dot`] and
    /// [`Simd::byte_dot_in_halves`].
    const BYTE_DOT: bool;
    /// Whether attention multiplies codes and numbers of 16 bits by [`Simd::half_dot`] rather than two
    /// [`Simd::byte_dot`], which need twice the sums.
    const HALF_DOT: bool = false;

    /// Runs `body` compiled for this instruction set, or for a plainer one that is the same for it
    /// ([`Vectorised::DOTS`]), as a function of its own.
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// As [`Simd::store`], past the caches where the machine can. `p` is a multiple of 64 bytes; other
    /// threads see it after [`Simd::fence`].
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: Self::V) {
        // SAFETY: as the caller's.
        unsafe { Self::store(p, v) }
    }
    /// `p`; what is loaded from it is not kept in registers from what was loaded there before, where they are few.
    #[inline(always)]
    unsafe fn again(p: *const u32) -> *const u32 {
        p
    }
    /// Ends what was stored by [`Simd::stream`].
    #[inline(always)]
    unsafe fn fence() {}
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// Rounds to nearest even; NaN stays NaN.
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);
    /// As [`Simd::store_bf16`]; numbers below the normal ones may become zero.
    #[inline(always)]
    unsafe fn store_bf16_normal(p: *mut bf16, v: Self::V) {
        // SAFETY: as the caller's.
        unsafe { Self::store_bf16(p, v) }
    }
    /// [`Simd::store_bf16_normal`] of two vectors, one behind the other.
    #[inline(always)]
    unsafe fn store_bf16_normals(p: *mut bf16, v: [Self::V; 2]) {
        // SAFETY: as the caller's.
        unsafe {
            Self::store_bf16_normal(p, v[0]);
            Self::store_bf16_normal(p.add(LANES), v[1]);
        }
    }
    /// As [`Simd::store_bf16`], to every other place from `p` on; what lies between is not touched.
    #[inline(always)]
    unsafe fn store_bf16_apart(p: *mut bf16, v: Self::V) {
        let mut lanes = [bf16::ZERO; LANES];
        // SAFETY: the array has 16 elements; the rest is the caller's promise.
        unsafe {
            Self::store_bf16(lanes.as_mut_ptr(), v);
            for (i, &lane) in lanes.iter().enumerate() {
                *p.add(2 * i) = lane;
            }
        }
    }
    /// Each lane without its sign.
    #[inline(always)]
    unsafe fn abs(v: Self::V) -> Self::V {
        // SAFETY: as the caller's.
        unsafe {
            Self::from_bits(Self::and_bits(Self::to_bits(v), Self::splat_bits(u32::MAX >> 1)))
        }
    }
    /// Bytes to every fourth place from `p` on; what lies between is not touched.
    #[inline(always)]
    unsafe fn store_bytes_apart(p: *mut i8, bytes: &[i8; LANES]) {
        for (i, &byte) in bytes.iter().enumerate() {
            // SAFETY: as the caller's.
            unsafe { *p.add(4 * i) = byte };
        }
    }
    /// The first of each of 16 pairs of bf16.
    unsafe fn load_even(p: *const u32) -> Self::V;
    /// The second of each of 16 pairs of bf16.
    unsafe fn load_odd(p: *const u32) -> Self::V;
    /// `acc` plus the product of each of 16 pairs of bf16 at `w` with the pair `x`.
    unsafe fn pair_dot(acc: Self::V, w: *const u32, x: u32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, in one rounding where the machine can.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `2^n` where `v = 1.5 * 2^23 + n` and `n` is an integer in `-126..=127`.
    unsafe fn power_of_two(v: Self::V) -> Self::V;
    /// `x` less the nearest whole number, and that number as [`Simd::times_power_of_two`] takes it. Below -125 the
    /// number may be -125 and what is left zero, also where `x` is NaN.
    #[inline(always)]
    unsafe fn split(x: Self::V) -> (Self::V, Self::V) {
        // SAFETY: as the caller's.
        unsafe {
            let x = Self::max(x, Self::splat(-125.0));
            let n = Self::add(x, Self::splat(ROUND));
            (Self::sub(x, Self::sub(n, Self::splat(ROUND))), n)
        }
    }
    /// `v * 2^n`, `n` from [`Simd::split`] and at most 127; `v` is normal and below 2.
    #[inline(always)]
    unsafe fn times_power_of_two(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: as the caller's.
        unsafe {
            let exponent = Self::shl::<23>(Self::to_bits(n));
            Self::from_bits(Self::add_bits(Self::to_bits(v), exponent))
        }
    }
    /// `v` where `x >= limit`, else zero (also where `x` is NaN).
    unsafe fn zero_below(v: Self::V, x: Self::V, limit: f32) -> Self::V;
    /// Asks for the cache line at `p`; any address may be given.
    unsafe fn prefetch(p: *const u8);
    /// Asks for the cache line at `p` without taking room in the first-level cache.
    unsafe fn prefetch_far(p: *const u8);
    /// Asks for the cache line at `p` in one of these ways.
    #[inline(always)]
    unsafe fn prefetch_to(p: *const u8, near: bool) {
        // SAFETY: any address may be given.
        unsafe { if near { Self::prefetch(p) } else { Self::prefetch_far(p) } }
    }
    /// Asks for the cache line at `p` to write to it, so that no other processor has it when that is done;
    /// nothing where there is no such instruction.
    #[inline(always)]
    unsafe fn prefetch_to_write(_p: *const u8) {}

    unsafe fn load_bits(p: *const u32) -> Self::I;
    unsafe fn store_bits(p: *mut u32, v: Self::I);
    /// The lowest byte of each lane.
    #[inline(always)]
    unsafe fn store_low_bytes(p: *mut u8, v: Self::I) {
        let mut words = [0u32; LANES];
        // SAFETY: the array has 16 elements; the rest is the caller's promise.
        unsafe {
            Self::store_bits(words.as_mut_ptr(), v);
            p.cast::<[u8; LANES]>().write_unaligned(words.map(|w| w as u8));
        }
    }
    /// The lower halves of the lanes: of each four, those of 0 and 2 as a word at `even`, those of 1 and 3 as one at `odd`.
    #[inline(always)]
    unsafe fn store_crossed(even: *mut u32, odd: *mut u32, v: Self::I) {
        let mut lanes = [0u32; LANES];
        // SAFETY: the array has 16 elements; the rest is the caller's promise.
        unsafe {
            Self::store_bits(lanes.as_mut_ptr(), v);
            for (i, four) in lanes.chunks(4).enumerate() {
                even.add(i).write_unaligned(four[0] & 0xffff | four[2] << 16);
                odd.add(i).write_unaligned(four[1] & 0xffff | four[3] << 16);
            }
        }
    }
    unsafe fn splat_bits(x: u32) -> Self::I;
    unsafe fn and_bits(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or_bits(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor_bits(a: Self::I, b: Self::I) -> Self::I;
    /// `a | b & mask`.
    #[inline(always)]
    unsafe fn or_masked(a: Self::I, b: Self::I, mask: Self::I) -> Self::I {
        // SAFETY: as the caller's.
        unsafe { Self::or_bits(a, Self::and_bits(b, mask)) }
    }
    /// Sums of 32 bits, which wrap.
    unsafe fn add_bits(a: Self::I, b: Self::I) -> Self::I;
    /// The larger of each two lanes, as signed integers.
    unsafe fn max_bits(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl<const N: u32>(v: Self::I) -> Self::I;
    /// Zeros come in from above.
    unsafe fn shr<const N: u32>(v: Self::I) -> Self::I;
    /// [`Simd::shr`] by a number that is not known beforehand.
    unsafe fn shr_by(v: Self::I, n: u32) -> Self::I;
    /// The sign comes in from above.
    unsafe fn sar<const N: u32>(v: Self::I) -> Self::I;
    /// The same bits as `f32`.
    unsafe fn from_bits(v: Self::I) -> Self::V;
    /// The bits of `f32`.
    unsafe fn to_bits(v: Self::V) -> Self::I;
    /// Signed integers as `f32`, rounded to nearest even.
    unsafe fn to_float(v: Self::I) -> Self::V;
    /// A whole number less than 1 away, as a signed integer, for numbers from `-2^31` to below `2^31`: the nearest one or the
    /// next towards zero, whichever the machine finds sooner.
    unsafe fn to_whole(v: Self::V) -> Self::I;
    /// `acc` plus, for each lane, the four products of an unsigned byte of `w` and a signed byte of
    /// `x`, in 32 bits.
    #[inline(always)]
    unsafe fn byte_dot(acc: Self::I, w: Self::I, x: Self::I) -> Self::I {
        let product = |w: u32, x: u32| i32::from(w as u8) * i32::from(x as i8);
        let dot = |w: u32, x: u32| (0..32).step_by(8).map(|n| product(w >> n, x >> n)).sum::<i32>();
        // SAFETY: as the caller's.
        unsafe { Self::each_three(acc, w, x, |acc, w, x| acc.wrapping_add(dot(w, x) as u32)) }
    }
    /// The upper byte of each half of a lane, as 16 bits.
    #[inline(always)]
    unsafe fn odd_bytes(v: Self::I) -> Self::I {
        // SAFETY: as the caller's.
        unsafe { Self::and_bits(Self::shr::<8>(v), Self::splat_bits(0x00ff_00ff)) }
    }
    /// Each half of a lane of `a` less that of `b`, as unsigned integers; 0 where `b`'s is the larger.
    #[inline(always)]
    unsafe fn sub_halves(a: Self::I, b: Self::I) -> Self::I {
        let half = |a: u32, b: u32| (a & 0xffff).saturating_sub(b & 0xffff);
        let halves = |a: u32, b: u32, _| half(a, b) | half(a >> 16, b >> 16) << 16;
        // SAFETY: as the caller's.
        unsafe { Self::each_three(a, b, a, halves) }
    }
    /// `acc` plus, for each lane, the two products of a half of `w` and a half of `x`, signed
    /// integers of 16 bits, in 32 bits.
    #[inline(always)]
    unsafe fn half_dot(acc: Self::I, w: Self::I, x: Self::I) -> Self::I {
        let product = |w: u32, x: u32| i32::from(w as i16) * i32::from(x as i16);
        let dot = |w: u32, x: u32| product(w, x).wrapping_add(product(w >> 16, x >> 16));
        // SAFETY: as the caller's.
        unsafe { Self::each_three(acc, w, x, |acc, w, x| acc.wrapping_add(dot(w, x) as u32)) }
    }
    /// `acc` plus, for each 16 bits, the two products of an unsigned byte of `w` and a signed byte of `x`, which
    /// together and with `acc` fit 16 bits.
    #[inline(always)]
    unsafe fn byte_dot_in_halves(acc: Self::I, w: Self::I, x: Self::I) -> Self::I {
        let product = |w: u32, x: u32| w as u8 as i16 * i16::from(x as i8);
        let half = |acc: u32, w: u32, x: u32| {
            let sum = product(w, x).wrapping_add(product(w >> 8, x >> 8));
            u32::from((acc as i16).wrapping_add(sum) as u16)
        };
        let halves =
            |acc: u32, w: u32, x: u32| half(acc, w, x) | half(acc >> 16, w >> 16, x >> 16) << 16;
        // SAFETY: as the caller's.
        unsafe { Self::each_three(acc, w, x, halves) }
    }
    /// The entry of `table` that the lowest four bits of each lane name.
    unsafe fn look_up(table: &[f32; LANES], v: Self::I) -> Self::V;

    /// [`Simd::pair_dot`] with the pairs in a register.
    #[inline(always)]
    unsafe fn pair_dot_bits(acc: Self::V, w: Self::I, x: u32) -> Self::V {
        // SAFETY: as the caller's.
        unsafe {
            let even = Self::from_bits(Self::shl::<16>(w));
            let odd = Self::from_bits(Self::and_bits(w, Self::splat_bits(0xffff_0000)));
            let x0 = Self::splat(f32::from_bits(x << 16));
            let x1 = Self::splat(f32::from_bits(x & 0xffff_0000));
            Self::mul_add(odd, x1, Self::mul_add(even, x0, acc))
        }
    }

    /// The entries of `table`, which has its 16 twice, that the lowest four bits of each half of a
    /// lane name.
    #[inline(always)]
    unsafe fn look_up_pairs(table: &[u16; 2 * LANES], v: Self::I) -> Self::I {
        // SAFETY: as the caller's.
        unsafe {
            Self::each_word(v, |w| {
                let at = |w: u32| u32::from(table[w as usize % LANES]);
                at(w) | at(w >> 16) << 16
            })
        }
    }

    /// bf16 of the fp8 bytes 0 and 2 of each lane as a pair, and of bytes 1 and 3. NaN is 480.
    #[inline(always)]
    unsafe fn fp8_pairs(v: Self::I) -> [Self::I; 2] {
        // SAFETY: as the caller's.
        unsafe {
            let pair = |w: u32| {
                let at = |byte: u32| u32::from(fp8_as_bf16(byte as u8));
                at(w) | at(w >> 16) << 16
            };
            [Self::each_word(v, pair), Self::each_word(v, |w| pair(w >> 8))]
        }
    }

    /// `f` of the lanes of three.
    #[inline(always)]
    unsafe fn each_three(
        a: Self::I,
        b: Self::I,
        c: Self::I,
        f: impl Fn(u32, u32, u32) -> u32,
    ) -> Self::I {
        let (mut first, mut second, mut third) = ([0u32; LANES], [0u32; LANES], [0u32; LANES]);
        // SAFETY: arrays have 16 elements; the instructions are the caller's promise.
        unsafe {
            Self::store_bits(first.as_mut_ptr(), a);
            Self::store_bits(second.as_mut_ptr(), b);
            Self::store_bits(third.as_mut_ptr(), c);
            for i in 0..LANES {
                first[i] = f(first[i], second[i], third[i]);
            }
            Self::load_bits(first.as_ptr())
        }
    }

    /// `f` of every lane.
    #[inline(always)]
    unsafe fn each_word(v: Self::I, f: impl Fn(u32) -> u32) -> Self::I {
        let mut words = [0u32; LANES];
        // SAFETY: the array has 16 elements; the instructions are the caller's promise.
        unsafe {
            Self::store_bits(words.as_mut_ptr(), v);
            Self::load_bits(words.map(f).as_ptr())
        }
    }

    /// Lanes as an array.
    #[inline(always)]
    unsafe fn lanes(v: Self::V) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array has 16 elements; the instructions are the caller's promise.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        lanes
    }

    /// Sum of the lanes, in halves.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: as the caller's.
        let mut a = unsafe { Self::lanes(v) };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] += a[i + half];
            }
            half /= 2;
        }
        a[0]
    }

    /// Sum of the lanes, which wraps.
    #[inline(always)]
    unsafe fn sum_bits(v: Self::I) -> u32 {
        let mut lanes = [0u32; LANES];
        // SAFETY: the array has 16 elements; the instructions are the caller's promise.
        unsafe { Self::store_bits(lanes.as_mut_ptr(), v) };
        lanes.into_iter().fold(0, u32::wrapping_add)
    }

    /// Whether a lane is above `limit`; one that is NaN is not.
    #[inline(always)]
    unsafe fn any_above(v: Self::V, limit: f32) -> bool {
        // SAFETY: as the caller's.
        let lanes = unsafe { Self::lanes(v) };
        // All of them, without a branch for each.
        lanes.iter().fold(false, |any, &x| any | (x > limit))
    }

    /// Largest lane.
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        // SAFETY: as the caller's.
        let a = unsafe { Self::lanes(v) };
        a.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::on_every_set;
