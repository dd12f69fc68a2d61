//! How weights lie in the words of a panel, and what their codes stand for.

use super::fold::E8m0;
use crate::kernels::simd::{LANES, Simd};

/// Elements of a weight, 32 bits of them for each output.
pub(crate) trait Code: Send + Sync + 'static {
    /// Elements in 32 bits.
    const PER_WORD: usize;

    /// Element `i` of every word.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn float<S: Simd>(w: S::I, i: usize) -> S::V;
}

/// Codes that bf16 holds exactly.
pub(crate) trait PairCode: Code {
    /// Whether pairs are elements 0 and 2, 1 and 3 of each four rather than 0 and 1.
    const CROSSED: bool = true;

    /// Pair `i` of every word as bf16.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn pair<S: Simd>(w: S::I, i: usize) -> S::I;
}

/// How AMX tiles take codes: as pairs of bf16, with the scales of groups in them or without.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there are no tiles"))]
pub(crate) trait TileCode: PairCode {
    /// Whether pairs have the scales in them, which are powers of two.
    const SCALED: bool = false;

    /// What [`TileCode::tile_pair`] takes for group `group` and 16 outputs from `lane` on of the panel whose scales begin at
    /// `scales`.
    ///
    /// # Safety
    /// As [`Scale::at`](super::fold::Scale::at).
    #[inline(always)]
    unsafe fn lower<S: Simd>(_scales: *const u32, _group: usize, _lane: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { S::splat_bits(0) }
    }

    /// Pair `i` of every word, as in [`PairCode::pair`].
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn tile_pair<S: Simd>(w: S::I, i: usize, _lower: S::I) -> S::I {
        // SAFETY: as the caller's.
        unsafe { Self::pair::<S>(w, i) }
    }
}

/// Codes that are integers, whose sign bits are flipped in panels.
pub(crate) trait IntCode: Send + Sync + 'static {
    /// The same codes, each in a byte.
    type Wide: IntCode;
    /// Elements in 32 bits, by four.
    const FOURS: usize;
    /// What the bytes that are stored have more than the codes.
    const OFFSET: i32;

    /// Elements `4 i ..` of every word as unsigned bytes.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn bytes<S: Simd>(w: S::I, i: usize) -> S::I;
}

/// `f32`.
pub(crate) struct F32;
/// bf16.
pub(crate) struct Bf16;
/// Integers of 8 bits.
pub(crate) struct I8;
/// Integers of 4 bits.
pub(crate) struct I4;
/// [`I4`], each in a byte, as products make them for many rows.
pub(crate) struct WideI4;
/// FP8 E4M3. The code of NaN, which no checkpoint means, reads as 480.
pub(crate) struct Fp8;
/// FP4 E2M1.
pub(crate) struct MxFp4;

impl Code for F32 {
    const PER_WORD: usize = 1;

    #[inline(always)]
    unsafe fn float<S: Simd>(w: S::I, _: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::from_bits(w) }
    }
}

impl Code for Bf16 {
    const PER_WORD: usize = 2;

    #[inline(always)]
    unsafe fn float<S: Simd>(w: S::I, i: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe {
            S::from_bits(match i {
                0 => S::shl::<16>(w),
                _ => S::and_bits(w, S::splat_bits(0xffff_0000)),
            })
        }
    }
}

impl PairCode for Bf16 {
    const CROSSED: bool = false;

    #[inline(always)]
    unsafe fn pair<S: Simd>(w: S::I, _: usize) -> S::I {
        w
    }
}

impl TileCode for Bf16 {}
impl TileCode for I4 {}
impl TileCode for Fp8 {}

impl Code for I8 {
    const PER_WORD: usize = 4;

    #[inline(always)]
    unsafe fn float<S: Simd>(w: S::I, i: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe {
            let codes = S::xor_bits(w, S::splat_bits(0x8080_8080));
            S::to_float(S::sar::<24>(byte_on_top::<S>(codes, i)))
        }
    }
}

impl IntCode for I8 {
    type Wide = Self;
    const FOURS: usize = 1;
    const OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn bytes<S: Simd>(w: S::I, _: usize) -> S::I {
        w
    }
}

impl Code for I4 {
    const PER_WORD: usize = 8;

    #[inline(always)]
    unsafe fn float<S: Simd>(w: S::I, i: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::look_up(&I4_VALUES, nibble_below::<S>(w, i)) }
    }
}

impl PairCode for I4 {
    #[inline(always)]
    unsafe fn pair<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { nibble_pair::<S>(&I4_PAIRS, w, i) }
    }
}

impl IntCode for I4 {
    type Wide = WideI4;
    const FOURS: usize = 2;
    const OFFSET: i32 = 8;

    #[inline(always)]
    unsafe fn bytes<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe {
            let w = if i == 0 { w } else { S::shr::<4>(w) };
            S::and_bits(w, S::splat_bits(0x0f0f_0f0f))
        }
    }
}

impl IntCode for WideI4 {
    type Wide = Self;
    const FOURS: usize = 1;
    const OFFSET: i32 = I4::OFFSET;

    #[inline(always)]
    unsafe fn bytes<S: Simd>(w: S::I, _: usize) -> S::I {
        w
    }
}

impl Code for MxFp4 {
    const PER_WORD: usize = 8;

    #[inline(always)]
    unsafe fn float<S: Simd>(w: S::I, i: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::look_up(&FP4_VALUES, nibble_below::<S>(w, i)) }
    }
}

impl PairCode for MxFp4 {
    #[inline(always)]
    unsafe fn pair<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { nibble_pair::<S>(&FP4_PAIRS, w, i) }
    }
}

/// Subtracting from the exponent of what is looked up multiplies by the scale. Values that are 2^125 times too large are
/// never too small for that, and zero has no sign, so that it stays what it is. Scales above 2^125, NaN among them, count as
/// that: with them values leave the range of bf16.
impl TileCode for MxFp4 {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn lower<S: Simd>(scales: *const u32, group: usize, lane: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe {
            let exponents = E8m0::exponents::<S>(scales, group, lane);
            // 2^-126 for 2^-127, whose products with some values are denormals, which tiles take for zeros.
            let exponents = S::max_bits(exponents, S::splat_bits(1));
            let exponents = S::or_bits(S::shl::<7>(exponents), S::shl::<23>(exponents));
            S::sub_halves(S::splat_bits((RAISED + 127) * 0x0080_0080), exponents)
        }
    }

    #[inline(always)]
    unsafe fn tile_pair<S: Simd>(w: S::I, i: usize, lower: S::I) -> S::I {
        // SAFETY: as the caller's.
        unsafe { S::sub_halves(nibble_pair::<S>(&RAISED_FP4_PAIRS, w, i), lower) }
    }
}

impl Code for Fp8 {
    const PER_WORD: usize = 4;

    #[inline(always)]
    unsafe fn float<S: Simd>(w: S::I, i: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe {
            // The fields of the code in those of an `f32`, whose exponent is then 120 too small;
            // denormals are denormals of both.
            let fields = match i {
                0 => S::shl::<20>(w),
                1 => S::shl::<12>(w),
                2 => S::shl::<4>(w),
                _ => S::shr::<4>(w),
            };
            let size = S::and_bits(fields, S::splat_bits(0x07f0_0000));
            let sign = S::and_bits(byte_on_top::<S>(w, i), S::splat_bits(0x8000_0000));
            S::mul(
                S::from_bits(S::or_bits(size, sign)),
                S::splat(f32::from_bits((120 + 127) << 23)),
            )
        }
    }
}

impl PairCode for Fp8 {
    #[inline(always)]
    unsafe fn pair<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { S::fp8_pairs(w)[i] }
    }
}

/// Byte `i` of every word in the highest place, others below.
#[inline(always)]
unsafe fn byte_on_top<S: Simd>(w: S::I, i: usize) -> S::I {
    // SAFETY: as the caller's.
    unsafe {
        match i {
            0 => S::shl::<24>(w),
            1 => S::shl::<16>(w),
            2 => S::shl::<8>(w),
            _ => w,
        }
    }
}

/// Element `i` of every word of nibbles in the lowest place, others above.
#[inline(always)]
unsafe fn nibble_below<S: Simd>(w: S::I, i: usize) -> S::I {
    // SAFETY: as the caller's.
    unsafe {
        match i {
            0 => w,
            1 => S::shr::<8>(w),
            2 => S::shr::<16>(w),
            3 => S::shr::<24>(w),
            4 => S::shr::<4>(w),
            5 => S::shr::<12>(w),
            6 => S::shr::<20>(w),
            _ => S::shr::<28>(w),
        }
    }
}

/// Pair `i` of every word of nibbles: each half of a word has its two in the same places.
#[inline(always)]
unsafe fn nibble_pair<S: Simd>(table: &[u16; 2 * LANES], w: S::I, i: usize) -> S::I {
    // SAFETY: as the caller's.
    unsafe {
        let w = match i {
            0 => w,
            1 => S::shr::<8>(w),
            2 => S::shr::<4>(w),
            _ => S::shr::<12>(w),
        };
        S::look_up_pairs(table, w)
    }
}

static I4_VALUES: [f32; LANES] =
    [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
static FP4_VALUES: [f32; LANES] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
static I4_PAIRS: [u16; 2 * LANES] = twice_as_bf16(&I4_VALUES);
static FP4_PAIRS: [u16; 2 * LANES] = twice_as_bf16(&FP4_VALUES);

/// By how many powers of two those of the table are too large.
const RAISED: u32 = 125;
static RAISED_FP4_PAIRS: [u16; 2 * LANES] = raised(&FP4_PAIRS);

/// `pairs` times `2^RAISED`; zeros have no sign.
const fn raised(pairs: &[u16; 2 * LANES]) -> [u16; 2 * LANES] {
    let mut out = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        if pairs[i] & 0x7fff != 0 {
            out[i] = pairs[i] + ((RAISED as u16) << 7);
        }
        i += 1;
    }
    out
}

/// Values that bf16 holds exactly, two times over.
const fn twice_as_bf16(values: &[f32; LANES]) -> [u16; 2 * LANES] {
    let mut out = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        out[i] = (values[i % LANES].to_bits() >> 16) as u16;
        i += 1;
    }
    out
}
