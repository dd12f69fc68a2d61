//! AVX2 and FMA: two registers per vector. Processors that have AVX-VNNI also multiply bytes by one instruction.

use super::{LANES, Simd, Vectorised};
use half::bf16;
use std::arch::x86_64::*;

/// AVX2 with fused multiply-add, and with the dot product of bytes where `VNNI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>;

/// 16 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

/// [`enter_avx2`], not inlined: the compiler inlines a function that has target features into others that have them, whatever
/// its `#[inline(never)]` says, and a kernel with all its tiles in it has their sums on the stack.
#[inline(never)]
unsafe fn enter_apart<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { enter_avx2(body) }
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn enter_avx2<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Avx2<false>>() }
}

/// As [`enter_apart`].
#[inline(never)]
unsafe fn enter_vnni_apart<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { enter_avx_vnni(body) }
}

#[target_feature(enable = "avx2,fma,avxvnni")]
#[inline(never)]
unsafe fn enter_avx_vnni<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Avx2<true>>() }
}

/// 16 lanes of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Bits(__m256i, __m256i);

/// Asks for the cache line at `p` to write to it. Not among the intrinsics; processors without it take it for nothing.
///
/// # Safety
/// None is needed: a prefetch may name any address.
#[inline(always)]
pub(super) unsafe fn prefetchw(p: *const u8) {
    // SAFETY: as said.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags)) }
}

/// `sum`, in a register, before anything is added to it: the compiler would add up the products of several steps first, which
/// do not fit the registers beside the sums.
#[target_feature(enable = "avx2")]
#[inline]
fn in_order(mut sum: __m256i) -> __m256i {
    // SAFETY: nothing is executed.
    unsafe {
        std::arch::asm!(
            "/* {0} */",
            inout(ymm_reg) sum,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Two products, in registers, before either is added to a sum: the compiler would add each as soon as it is there, and a
/// Zen 3 takes 14.4 cycles for a word of five rows instead of 12.9 (in a loop of nothing else).
#[target_feature(enable = "avx2")]
#[inline]
fn at_once(mut a: __m256i, mut b: __m256i) -> (__m256i, __m256i) {
    // SAFETY: nothing is executed.
    unsafe {
        std::arch::asm!(
            "/* {0} {1} */",
            inout(ymm_reg) a,
            inout(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    (a, b)
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

struct Half;

impl Half {
    ops! {
        fn widen(halves: __m128i) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
        fn round_bf16(v: __m256) -> __m256i {
            let bits = _mm256_castps_si256(v);
            let upper = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
            let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
            _mm256_blendv_epi8(rounded, quiet, nan)
        }
        fn even(p: *const u32) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(p.cast())))
        }
        fn odd(p: *const u32) -> __m256 {
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p.cast()), upper))
        }
        fn look_up(table: *const f32, v: __m256i) -> __m256 {
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), v);
            let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.add(8)), v);
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(v)))
        }
        fn byte_dot(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
            let even = _mm256_and_si256(w, _mm256_set1_epi16(0xff));
            let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
            let (odd, x_odd) = (_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
            let evens = _mm256_madd_epi16(even, x_even);
            _mm256_add_epi32(acc, _mm256_add_epi32(evens, _mm256_madd_epi16(odd, x_odd)))
        }
        fn power_of_two(v: __m256) -> __m256 {
            let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
            _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f80_0000)))
        }
    }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type V = Pair;
    type I = Bits;
    const MAX_ROWS: usize = 6;
    const WIDE: bool = false;
    const PAIR_DOT: bool = false;
    const BYTE_DOT: bool = VNNI;
    const HALF_DOT: bool = true;

    #[inline(always)]
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output {
        // SAFETY: the caller's promise.
        unsafe {
            if const { VNNI && F::DOTS.bytes } { enter_vnni_apart(body) } else { enter_apart(body) }
        }
    }

    ops! {
        fn splat(x: f32) -> Pair {
            let v = _mm256_set1_ps(x);
            Pair(v, v)
        }
        fn load(p: *const f32) -> Pair {
            Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)))
        }
        fn store(p: *mut f32, v: Pair) {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1)
        }
        fn stream(p: *mut f32, v: Pair) {
            _mm256_stream_ps(p, v.0);
            _mm256_stream_ps(p.add(8), v.1)
        }
        fn fence() {
            _mm_sfence()
        }
        fn load_bf16(p: *const bf16) -> Pair {
            Pair(
                Half::widen(_mm_loadu_si128(p.cast())),
                Half::widen(_mm_loadu_si128(p.add(8).cast())),
            )
        }
        fn store_bf16(p: *mut bf16, v: Pair) {
            let packed = _mm256_packus_epi32(Half::round_bf16(v.0), Half::round_bf16(v.1));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
        }
        fn load_even(p: *const u32) -> Pair {
            Pair(Half::even(p), Half::even(p.add(8)))
        }
        fn load_odd(p: *const u32) -> Pair {
            Pair(Half::odd(p), Half::odd(p.add(8)))
        }
        fn pair_dot(acc: Pair, w: *const u32, x: u32) -> Pair {
            let (even, odd) = (Self::load_even(w), Self::load_odd(w));
            let x0 = Self::splat(f32::from_bits(x << 16));
            let x1 = Self::splat(f32::from_bits(x & 0xffff_0000));
            Self::mul_add(odd, x1, Self::mul_add(even, x0, acc))
        }
        fn add(a: Pair, b: Pair) -> Pair {
            Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1))
        }
        fn sub(a: Pair, b: Pair) -> Pair {
            Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1))
        }
        fn mul(a: Pair, b: Pair) -> Pair {
            Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1))
        }
        fn div(a: Pair, b: Pair) -> Pair {
            Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1))
        }
        fn min(a: Pair, b: Pair) -> Pair {
            Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1))
        }
        fn max(a: Pair, b: Pair) -> Pair {
            Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1))
        }
        fn mul_add(a: Pair, b: Pair, c: Pair) -> Pair {
            Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
        }
        fn power_of_two(v: Pair) -> Pair {
            Pair(Half::power_of_two(v.0), Half::power_of_two(v.1))
        }
        fn zero_below(v: Pair, x: Pair, limit: f32) -> Pair {
            let limit = _mm256_set1_ps(limit);
            Pair(
                _mm256_and_ps(v.0, _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, limit)),
                _mm256_and_ps(v.1, _mm256_cmp_ps::<_CMP_GE_OQ>(x.1, limit)),
            )
        }
        fn any_above(v: Pair, limit: f32) -> bool {
            let limit = _mm256_set1_ps(limit);
            let low = _mm256_cmp_ps::<_CMP_GT_OQ>(v.0, limit);
            let high = _mm256_cmp_ps::<_CMP_GT_OQ>(v.1, limit);
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
        fn prefetch(p: *const u8) {
            _mm_prefetch::<_MM_HINT_T0>(p.cast())
        }
        fn prefetch_far(p: *const u8) {
            _mm_prefetch::<_MM_HINT_T1>(p.cast())
        }
        fn prefetch_to_write(p: *const u8) {
            prefetchw(p)
        }
        fn load_bits(p: *const u32) -> Bits {
            Bits(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast()))
        }
        fn store_bits(p: *mut u32, v: Bits) {
            _mm256_storeu_si256(p.cast(), v.0);
            _mm256_storeu_si256(p.add(8).cast(), v.1)
        }
        fn splat_bits(x: u32) -> Bits {
            let v = _mm256_set1_epi32(x as i32);
            Bits(v, v)
        }
        fn and_bits(a: Bits, b: Bits) -> Bits {
            Bits(_mm256_and_si256(a.0, b.0), _mm256_and_si256(a.1, b.1))
        }
        fn or_bits(a: Bits, b: Bits) -> Bits {
            Bits(_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1))
        }
        fn xor_bits(a: Bits, b: Bits) -> Bits {
            Bits(_mm256_xor_si256(a.0, b.0), _mm256_xor_si256(a.1, b.1))
        }
        fn add_bits(a: Bits, b: Bits) -> Bits {
            Bits(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1))
        }
        fn max_bits(a: Bits, b: Bits) -> Bits {
            Bits(_mm256_max_epi32(a.0, b.0), _mm256_max_epi32(a.1, b.1))
        }
        fn shr_by(v: Bits, n: u32) -> Bits {
            let n = _mm_cvtsi32_si128(n as i32);
            Bits(_mm256_srl_epi32(v.0, n), _mm256_srl_epi32(v.1, n))
        }
        fn from_bits(v: Bits) -> Pair {
            Pair(_mm256_castsi256_ps(v.0), _mm256_castsi256_ps(v.1))
        }
        fn to_bits(v: Pair) -> Bits {
            Bits(_mm256_castps_si256(v.0), _mm256_castps_si256(v.1))
        }
        fn to_float(v: Bits) -> Pair {
            Pair(_mm256_cvtepi32_ps(v.0), _mm256_cvtepi32_ps(v.1))
        }
        fn to_whole(v: Pair) -> Bits {
            Bits(_mm256_cvtps_epi32(v.0), _mm256_cvtps_epi32(v.1))
        }
        fn odd_bytes(v: Bits) -> Bits {
            Bits(_mm256_srli_epi16::<8>(v.0), _mm256_srli_epi16::<8>(v.1))
        }
        fn store_crossed(even: *mut u32, odd: *mut u32, v: Bits) {
            // The bytes of both words of each four lanes.
            let words = _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
            let words = _mm256_broadcastsi128_si256(words);
            let (a, b) = (_mm256_shuffle_epi8(v.0, words), _mm256_shuffle_epi8(v.1, words));
            // Fours 0 and 2, then 1 and 3: an even word of each, and an odd one of each.
            let both = _mm256_unpacklo_epi32(a, b);
            let (a, b) = (_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
            _mm_storeu_si128(even.cast(), _mm_unpacklo_epi32(a, b));
            _mm_storeu_si128(odd.cast(), _mm_unpackhi_epi32(a, b));
        }
        fn byte_dot(acc: Bits, w: Bits, x: Bits) -> Bits {
            if VNNI {
                return Bits(
                    _mm256_dpbusd_avx_epi32(acc.0, w.0, x.0),
                    _mm256_dpbusd_avx_epi32(acc.1, w.1, x.1),
                );
            }
            Bits(Half::byte_dot(acc.0, w.0, x.0), Half::byte_dot(acc.1, w.1, x.1))
        }
        fn half_dot(acc: Bits, w: Bits, x: Bits) -> Bits {
            if VNNI {
                return Bits(
                    _mm256_dpwssd_avx_epi32(acc.0, w.0, x.0),
                    _mm256_dpwssd_avx_epi32(acc.1, w.1, x.1),
                );
            }
            let (a, b) = at_once(_mm256_madd_epi16(w.0, x.0), _mm256_madd_epi16(w.1, x.1));
            Bits(in_order(_mm256_add_epi32(acc.0, a)), in_order(_mm256_add_epi32(acc.1, b)))
        }
        fn byte_dot_in_halves(acc: Bits, w: Bits, x: Bits) -> Bits {
            let (a, b) = at_once(_mm256_maddubs_epi16(w.0, x.0), _mm256_maddubs_epi16(w.1, x.1));
            Bits(in_order(_mm256_add_epi16(acc.0, a)), in_order(_mm256_add_epi16(acc.1, b)))
        }
        fn look_up(table: &[f32; LANES], v: Bits) -> Pair {
            let table = table.as_ptr();
            Pair(Half::look_up(table, v.0), Half::look_up(table, v.1))
        }
    }

    #[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is executed")]
    #[inline(always)]
    unsafe fn again(mut p: *const u32) -> *const u32 {
        // SAFETY: as said.
        unsafe {
            std::arch::asm!(
                "/* {0} */",
                inout(reg) p,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        p
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(v: Bits) -> Bits {
        // SAFETY: the caller's promise.
        unsafe {
            let n = _mm_cvtsi32_si128(N as i32);
            Bits(_mm256_sll_epi32(v.0, n), _mm256_sll_epi32(v.1, n))
        }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(v: Bits) -> Bits {
        // SAFETY: the caller's promise.
        unsafe {
            let n = _mm_cvtsi32_si128(N as i32);
            Bits(_mm256_srl_epi32(v.0, n), _mm256_srl_epi32(v.1, n))
        }
    }

    #[inline(always)]
    unsafe fn sar<const N: u32>(v: Bits) -> Bits {
        // SAFETY: the caller's promise.
        unsafe {
            let n = _mm_cvtsi32_si128(N as i32);
            Bits(_mm256_sra_epi32(v.0, n), _mm256_sra_epi32(v.1, n))
        }
    }
}
