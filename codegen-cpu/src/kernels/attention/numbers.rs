//! Queries and weights as whole numbers, which meet keys and values of 8 bits.
//!
//! A number has 15 bits, sign included, and is kept in two planes that the instructions of a machine
//! multiply with codes: bytes above and below `2^7` for the dot product of bytes, else pairs of 16 bits of
//! every other element. Either way all products of a row are summed exactly.

use super::ahead::{Pace, Taken};
use super::soften::ones;
use super::tile::CHUNK_TOKENS;
use crate::kernels::element::Element;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::quantize::magnitude;
use crate::kernels::simd::{LANES, LINE_BYTES, ROUND, Simd};
use std::ops::Range;

/// The largest number: its upper byte is at most 127.
const LARGEST: f32 = 127.0 * 128.0;
/// What is smaller than this at most counts as zero, since [`LARGEST`] by it must be finite.
const LEAST: f32 = 1e-30;
/// What codes are kept above their number.
const BIAS: i32 = 128;

// The products of a chunk's weights with codes have a sum of 32 bits.
const _: () = assert!(CHUNK_TOKENS * 255 * LARGEST as usize <= i32::MAX as usize);

/// What the sums of products with codes still need: `scale * (sum + offset)`.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    pub(super) scale: f32,
    /// `-128` times the sum of the numbers, since codes are kept with 128 added.
    pub(super) offset: i32,
}

impl Factors {
    /// Of numbers whose sum is in the lanes of `total`.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn new<S: Simd>(scale: f32, total: S::I) -> Self {
        // SAFETY: as the caller's.
        let total = unsafe { S::sum_bits(total) } as i32;
        Self { scale, offset: total.wrapping_mul(-BIAS) }
    }
}

/// What `most` is divided by, and multiplied with, for numbers of which it is the largest.
#[inline(always)]
fn scales(most: f32) -> (f32, f32) {
    // What is not finite is kept in the scale.
    if most < LEAST { (0.0, 0.0) } else { (LARGEST / most, most / LARGEST) }
}

/// Makes numbers of a query's `d` elements at `x`, the second plane `plane` bytes behind the first, and each line of 64
/// numbers `step` bytes behind the one before. Scores are to be multiplied with `scale`, which is put into the factors.
///
/// # Safety
/// As [`Simd`]; `x` is valid for `d` elements, `to` for two planes of whole vectors.
#[inline(always)]
pub(super) unsafe fn query<S: Simd>(
    x: *const f32,
    d: usize,
    scale: f32,
    to: *mut u8,
    (plane, step): (usize, usize),
) -> Factors {
    // SAFETY: as the caller's.
    unsafe {
        let (by, back) = scales(magnitude::<S, f32>(x, d));
        let mut total = S::splat_bits(0);
        for i in (0..d).step_by(LANES) {
            let x = f32::load_part::<S>(x.add(i), d - i);
            let to = to.add(i / LINE_BYTES * step + i % LINE_BYTES);
            total = S::add_bits(total, store::<S>(S::mul(x, S::splat(by)), to, plane));
        }
        Factors::new::<S>(scale * back, total)
    }
}

/// Multiplies a query's weights of the tokens `tokens` of a chunk with the scales of the values, of which each
/// block from the chunk's block `first` on has its own; what else these blocks hold become zeros. The largest lane
/// of what is written to `most` is the largest of them, or all of it NaN where one is not finite.
///
/// # Safety
/// As [`Simd`]; weights are valid for a chunk, `most` for a vector.
#[inline(always)]
pub(super) unsafe fn scale<S: Simd>(
    weights: *mut f32,
    value_scales: &[*const f32],
    first: usize,
    tokens: (usize, usize),
    most: *mut f32,
    pace: Pace<'_>,
) {
    // SAFETY: as the caller's.
    unsafe {
        let (mut largest, mut strange) = (S::splat(0.0), S::splat_bits(0));
        let mut ahead = Taken::new(pace.ahead);
        let all = (first * BLOCK_TOKENS, (first + value_scales.len()) * BLOCK_TOKENS);
        for (b, &scales) in value_scales.iter().enumerate() {
            ahead.ask::<S>(pace.lines);
            let begin = (first + b) * BLOCK_TOKENS;
            let at = weights.add(begin);
            let mut weight = S::mul(S::load(at), S::load(scales));
            if tokens != all {
                let inside = |token: usize| token.saturating_sub(begin).min(BLOCK_TOKENS);
                let seen = inside(tokens.0)..inside(tokens.1);
                let seen = ones::<S>(seen.start..seen.end.max(seen.start));
                weight = S::from_bits(S::and_bits(S::to_bits(weight), seen));
            }
            S::store(at, weight);
            largest = S::max(largest, weight);
            // Zero, or NaN where the weight is not finite.
            strange = S::or_bits(strange, S::to_bits(S::sub(weight, weight)));
        }
        ahead.put_back();
        let strange = S::from_bits(S::and_bits(strange, S::splat_bits(1f32.to_bits())));
        S::store(most, if S::any_above(strange, 0.0) { S::splat(f32::NAN) } else { largest });
    }
}

/// What the weights for which [`scale`] wrote `most` are to be multiplied with, which takes its place, and the scale of
/// their factors.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub(super) unsafe fn weight_factors<S: Simd>(most: *mut f32) -> Factors {
    // SAFETY: as the caller's.
    unsafe {
        let (by, back) = match (*most).is_nan() {
            true => (0.0, f32::NAN),
            false => scales(S::largest(S::load(most))),
        };
        *most = by;
        Factors { scale: back, offset: 0 }
    }
}

/// Makes numbers of the weights of blocks `blocks` of a chunk, times `by`; returns the offset of their factors.
///
/// # Safety
/// As [`Simd`]; weights are valid for a chunk, `to` for two planes of [`CHUNK_TOKENS`] bytes.
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(
    weights: *const f32,
    blocks: Range<usize>,
    by: f32,
    to: *mut u8,
    pace: Pace<'_>,
) -> i32 {
    // SAFETY: as the caller's.
    unsafe {
        let mut total = S::splat_bits(0);
        let mut ahead = Taken::new(pace.ahead);
        for b in blocks {
            ahead.ask::<S>(pace.lines);
            let at = b * BLOCK_TOKENS;
            let weight = S::mul(S::load(weights.add(at)), S::splat(by));
            total = S::add_bits(total, store::<S>(weight, to.add(at), CHUNK_TOKENS));
        }
        ahead.put_back();
        Factors::new::<S>(0.0, total).offset
    }
}

/// Stores the numbers nearest to `v` in two planes, `plane` bytes apart, and returns them.
///
/// # Safety
/// As [`Simd`]; both are valid for 16 bytes.
#[inline(always)]
unsafe fn store<S: Simd>(v: S::V, to: *mut u8, plane: usize) -> S::I {
    // SAFETY: as the caller's.
    unsafe {
        let biased = S::to_bits(S::add(v, S::splat(ROUND)));
        let numbers = S::add_bits(biased, S::splat_bits(ROUND.to_bits().wrapping_neg()));
        if S::HALF_DOT {
            S::store_crossed(to.cast(), to.add(plane).cast(), numbers);
        } else {
            // The upper byte rounds, so that the lower one has a sign.
            let up = S::add_bits(numbers, S::splat_bits(64));
            let low = S::and_bits(up, S::splat_bits(127));
            S::store_low_bytes(to, S::sar::<7>(up));
            S::store_low_bytes(
                to.add(plane),
                S::add_bits(low, S::splat_bits(64u32.wrapping_neg())),
            );
        }
        numbers
    }
}

/// Four codes in each lane, or one of their [`Codes::PARTS`], as the planes of numbers meet them.
#[derive(Clone, Copy)]
pub(super) struct Codes<S: Simd> {
    codes: S::I,
    part: usize,
}

impl<S: Simd> Codes<S> {
    /// Parts of the codes that planes meet one after another: each plane of pairs its own, those of bytes all codes.
    pub(super) const PARTS: usize = if S::HALF_DOT { 2 } else { 1 };

    /// Part `part` of the codes in the bytes of each lane.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn new(words: S::I, part: usize) -> Self {
        // SAFETY: as the caller's.
        let codes = unsafe {
            match part {
                _ if !S::HALF_DOT => words,
                0 => S::and_bits(words, S::splat_bits(0x00ff_00ff)),
                _ => S::odd_bytes(words),
            }
        };
        Self { codes, part }
    }

    /// Adds the products with four numbers, whose planes lie at `at`, `plane` bytes apart.
    ///
    /// # Safety
    /// As [`Simd`]; both are valid.
    #[inline(always)]
    pub(super) unsafe fn add_products(self, sum: &mut Sum<S>, at: *const u8, plane: usize) {
        let (Self { codes, part }, Sum([a, b])) = (self, *sum);
        // SAFETY: as the caller's.
        unsafe {
            let word = |plane| S::splat_bits(at.add(plane).cast::<u32>().read_unaligned());
            sum.0 = if S::HALF_DOT {
                [S::half_dot(a, codes, word(part * plane)), b]
            } else {
                [S::byte_dot(a, codes, word(0)), S::byte_dot(b, codes, word(plane))]
            };
        }
    }
}

/// Sums of products of codes and numbers.
#[derive(Clone, Copy)]
pub(super) struct Sum<S: Simd>([S::I; 2]);

impl<S: Simd> Sum<S> {
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn zero() -> Self {
        // SAFETY: as the caller's.
        unsafe { Self([S::splat_bits(0); 2]) }
    }

    /// That of 16 products with bytes above `2^7` and as many with bytes below, where the machine multiplies bytes.
    ///
    /// # Safety
    /// As [`Simd`]; both are valid for a vector.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn of_planes([high, low]: [*mut i32; 2]) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { [S::load_bits(high.cast()), S::load_bits(low.cast())] })
    }

    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn plus(self, other: Self) -> Self {
        let (Self([a, b]), Self([c, d])) = (self, other);
        // SAFETY: as the caller's.
        unsafe { Self([S::add_bits(a, c), S::add_bits(b, d)]) }
    }

    /// As [`Sum::store`] put it there.
    ///
    /// # Safety
    /// As [`Simd`]; `from` is valid for a vector.
    #[inline(always)]
    pub(super) unsafe fn load(from: *const u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let (sum, zero) = (S::load_bits(from), S::splat_bits(0));
            Self(if S::HALF_DOT { [sum, zero] } else { [zero, sum] })
        }
    }

    /// Stores both planes' sums as one.
    ///
    /// # Safety
    /// As [`Simd`]; `to` is valid for a vector.
    #[inline(always)]
    pub(super) unsafe fn store(self, to: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { S::store_bits(to, self.joined()) }
    }

    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn joined(self) -> S::I {
        let Self([sum, low]) = self;
        // SAFETY: as the caller's.
        unsafe { if S::HALF_DOT { sum } else { S::add_bits(S::shl::<7>(sum), low) } }
    }

    /// The sum, without what codes are kept above their number.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn total(self, factors: Factors) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::to_float(S::add_bits(self.joined(), S::splat_bits(factors.offset as u32))) }
    }
}
