//! AVX-512 with VNNI: one register per vector. [`Avx512`] widens bf16 and multiplies in f32; [`Avx512Bf16`]
//! uses the bf16 dot product for matrices and is otherwise the same.

use super::avx2::prefetchw;
use super::{LANES, Simd, Vectorised, fp8_as_bf16};
use half::bf16;
use std::arch::{asm, x86_64::*};

/// F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// [`Avx512`] and the bf16 and VBMI extensions.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
#[inline(never)]
unsafe fn enter_avx512<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Avx512>() }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx512vbmi,avx2,fma"
)]
#[inline(never)]
unsafe fn enter_avx512_bf16<F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { body.run::<Avx512Bf16>() }
}

/// The nearest bf16, the even one of two, in the lower half of each lane; a quiet NaN for one.
#[target_feature(enable = "avx512f")]
#[inline]
fn as_bf16(v: __m512) -> __m512i {
    let bits = _mm512_castps_si512(v);
    let upper = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
    let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    _mm512_mask_mov_epi32(rounded, nan, quiet)
}

/// `a | b & mask` as one instruction: of the intrinsic, and where bits do not overlap, the compiler makes more.
#[target_feature(enable = "avx512f")]
#[inline]
fn or_masked(mut a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
    // SAFETY: registers only; the byte is the table of that function.
    unsafe {
        asm!(
            "vpternlogd {}, {}, {}, 0xf8",
            inout(zmm_reg) a, in(zmm_reg) b, in(zmm_reg) mask,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    a
}

/// The definitions that both implementations share.
macro_rules! shared {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: instructions and pointers are the caller's promise.
            unsafe { $body }
        }
    )*};
}

macro_rules! avx512 {
    () => {
        type V = __m512;
        type I = __m512i;
        const MAX_ROWS: usize = 6;
        const WIDE: bool = true;
        const BYTE_DOT: bool = true;

        shared! {
            fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
            fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
            fn store(p: *mut f32, v: __m512) { _mm512_storeu_ps(p, v) }
            fn stream(p: *mut f32, v: __m512) { _mm512_stream_ps(p, v) }
            fn fence() { _mm_sfence() }
            fn load_bf16(p: *const bf16) -> __m512 {
                let halves = _mm256_loadu_si256(p.cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
            }
            fn store_bf16(p: *mut bf16, v: __m512) {
                _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(as_bf16(v)))
            }
            fn store_bf16_apart(p: *mut bf16, v: __m512) {
                _mm512_mask_storeu_epi16(p.cast(), 0x5555_5555, as_bf16(v))
            }
            fn store_bytes_apart(p: *mut i8, bytes: &[i8; LANES]) {
                let words = _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
                _mm512_mask_storeu_epi8(p, 0x1111_1111_1111_1111, words)
            }
            fn load_even(p: *const u32) -> __m512 {
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(p.cast())))
            }
            fn load_odd(p: *const u32) -> __m512 {
                _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xaaaa_aaaa, p.cast()))
            }
            fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
            fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
            fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
            fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
            fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
            fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
            fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
            fn power_of_two(v: __m512) -> __m512 {
                let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(v));
                _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f80_0000)))
            }
            fn split(x: __m512) -> (__m512, __m512) {
                // Zero for the infinite.
                let left = _mm512_reduce_ps::<0>(x);
                (left, _mm512_sub_ps(x, left))
            }
            fn times_power_of_two(v: __m512, n: __m512) -> __m512 {
                // An Intel processor takes some hundred cycles where a result is below the normal numbers.
                let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(n, _mm512_set1_ps(-125.0));
                _mm512_maskz_scalef_ps(normal, v, n)
            }
            fn zero_below(v: __m512, x: __m512, limit: f32) -> __m512 {
                let keep = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(limit));
                _mm512_maskz_mov_ps(keep, v)
            }
            fn sum(v: __m512) -> f32 {
                let upper = _mm512_extractf32x8_ps::<1>(v);
                let eight = _mm256_add_ps(_mm512_castps512_ps256(v), upper);
                let upper = _mm256_extractf128_ps::<1>(eight);
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), upper);
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
            fn sum_bits(v: __m512i) -> u32 { _mm512_reduce_add_epi32(v) as u32 }
            fn any_above(v: __m512, limit: f32) -> bool {
                _mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_set1_ps(limit)) != 0
            }
            fn largest(v: __m512) -> f32 {
                // The second operand where one is NaN.
                let v = _mm512_max_ps(v, _mm512_set1_ps(f32::NEG_INFINITY));
                _mm512_reduce_max_ps(v)
            }
            fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
            fn prefetch_far(p: *const u8) { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
            fn prefetch_to_write(p: *const u8) { prefetchw(p) }
            fn load_bits(p: *const u32) -> __m512i { _mm512_loadu_si512(p.cast()) }
            fn store_bits(p: *mut u32, v: __m512i) { _mm512_storeu_si512(p.cast(), v) }
            fn store_low_bytes(p: *mut u8, v: __m512i) {
                _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v))
            }
            fn splat_bits(x: u32) -> __m512i { _mm512_set1_epi32(x as i32) }
            fn and_bits(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
            fn or_bits(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
            fn xor_bits(a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
            fn or_masked(a: __m512i, b: __m512i, mask: __m512i) -> __m512i { or_masked(a, b, mask) }
            fn add_bits(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
            fn max_bits(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
            fn shr_by(v: __m512i, n: u32) -> __m512i {
                _mm512_srl_epi32(v, _mm_cvtsi32_si128(n as i32))
            }
            fn from_bits(v: __m512i) -> __m512 { _mm512_castsi512_ps(v) }
            fn to_bits(v: __m512) -> __m512i { _mm512_castps_si512(v) }
            fn to_float(v: __m512i) -> __m512 { _mm512_cvtepi32_ps(v) }
            fn to_whole(v: __m512) -> __m512i { _mm512_cvtps_epi32(v) }
            fn byte_dot(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
                _mm512_dpbusd_epi32(acc, w, x)
            }
            fn look_up(table: &[f32; LANES], v: __m512i) -> __m512 {
                _mm512_permutexvar_ps(v, _mm512_loadu_ps(table.as_ptr()))
            }
        }

        #[inline(always)]
        unsafe fn shl<const N: u32>(v: __m512i) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_slli_epi32::<N>(v) }
        }

        #[inline(always)]
        unsafe fn shr<const N: u32>(v: __m512i) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_srli_epi32::<N>(v) }
        }

        #[inline(always)]
        unsafe fn sar<const N: u32>(v: __m512i) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_srai_epi32::<N>(v) }
        }
    };
}

impl Simd for Avx512 {
    avx512!();
    const PAIR_DOT: bool = false;

    #[inline(always)]
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output {
        // SAFETY: the caller's promise.
        unsafe { enter_avx512(body) }
    }

    #[inline(always)]
    unsafe fn pair_dot(acc: __m512, w: *const u32, x: u32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let (even, odd) = (Self::load_even(w), Self::load_odd(w));
            let x0 = _mm512_set1_ps(f32::from_bits(x << 16));
            let x1 = _mm512_set1_ps(f32::from_bits(x & 0xffff_0000));
            _mm512_fmadd_ps(odd, x1, _mm512_fmadd_ps(even, x0, acc))
        }
    }
}

/// Bytes of the bf16 of the fp8 magnitudes: all low ones, then all high ones.
static FP8_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut code = 0;
    while code < 128 {
        let bits = fp8_as_bf16(code as u8);
        bytes[code] = bits as u8;
        bytes[128 + code] = (bits >> 8) as u8;
        code += 1;
    }
    bytes
};

impl Simd for Avx512Bf16 {
    avx512!();
    const PAIR_DOT: bool = true;

    #[inline(always)]
    unsafe fn store_bf16_normal(p: *mut bf16, v: __m512) {
        // SAFETY: the caller's promise; the types differ in name only.
        unsafe {
            let halves = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
            _mm256_storeu_si256(p.cast(), halves)
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_normals(p: *mut bf16, v: [__m512; 2]) {
        // SAFETY: the caller's promise; the types differ in name only.
        unsafe {
            let halves = _mm512_cvtne2ps_pbh(v[1], v[0]);
            _mm512_storeu_si512(p.cast(), std::mem::transmute::<__m512bh, __m512i>(halves))
        }
    }

    #[inline(always)]
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output {
        // SAFETY: the caller's promise.
        unsafe {
            if const { F::DOTS.pairs } { enter_avx512_bf16(body) } else { enter_avx512(body) }
        }
    }

    #[inline(always)]
    unsafe fn pair_dot(acc: __m512, w: *const u32, x: u32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { Self::pair_dot_bits(acc, _mm512_loadu_si512(w.cast()), x) }
    }

    #[inline(always)]
    unsafe fn pair_dot_bits(acc: __m512, w: __m512i, x: u32) -> __m512 {
        // SAFETY: the caller's promise; the types differ in name only.
        unsafe {
            let w = std::mem::transmute::<__m512i, __m512bh>(w);
            let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32));
            _mm512_dpbf16_ps(acc, w, x)
        }
    }

    #[inline(always)]
    unsafe fn sub_halves(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_subs_epu16(a, b) }
    }

    #[inline(always)]
    unsafe fn look_up_pairs(table: &[u16; 2 * LANES], v: __m512i) -> __m512i {
        // SAFETY: the caller's promise. The instruction takes five bits: the table has all twice.
        unsafe { _mm512_permutexvar_epi16(v, _mm512_loadu_si512(table.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn fp8_pairs(v: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's promise. The lookups take seven bits of a byte, all but the sign.
        unsafe {
            let part = |i: usize| _mm512_loadu_si512(FP8_BYTES.as_ptr().add(64 * i).cast());
            let low = _mm512_permutex2var_epi8(part(0), v, part(1));
            let high = _mm512_permutex2var_epi8(part(2), v, part(3));
            let high = _mm512_or_si512(high, _mm512_and_si512(v, _mm512_set1_epi8(-128)));
            let (lower, upper) = (_mm512_set1_epi16(0xff), _mm512_set1_epi16(-256));
            let even = _mm512_and_si512(low, lower);
            let odd = _mm512_and_si512(high, upper);
            [
                _mm512_or_si512(even, _mm512_slli_epi16::<8>(high)),
                _mm512_or_si512(odd, _mm512_srli_epi16::<8>(low)),
            ]
        }
    }
}
