//! Octets of a panel as pairs of bf16.

use super::super::WIDTH;
use super::{OCTET_PAIRS, OCTET_WORDS, VECTOR_WORDS, VECTORS};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};

/// Octets as pairs of bf16, `[4 octets][64]`.
#[derive(Clone, Copy)]
pub(crate) struct Unpack {
    pub(crate) from: *const u32,
    pub(super) to: *mut u32,
    pub(super) octets: usize,
    /// As [`Panel::lowest`](super::weight::Panel::lowest).
    pub(super) lowest: u32,
}

impl Vectorised for Unpack {
    type Output = ();
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { from, to, octets, lowest } = self;
        for octet in 0..octets {
            // SAFETY: both are valid for as many octets, by the caller's promise.
            unsafe {
                let to = to.add(octet * OCTET_PAIRS * WIDTH);
                unpack::<S>(from.add(octet * OCTET_WORDS), to, lowest);
            }
        }
    }
}

/// [`Unpack`], while what is `ahead` bytes further on is asked for.
#[cfg(target_arch = "x86_64")]
pub(super) struct UnpackAhead {
    pub(super) unpack: Unpack,
    pub(super) ahead: usize,
}

#[cfg(target_arch = "x86_64")]
impl Vectorised for UnpackAhead {
    type Output = ();
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { unpack: Unpack { from, to, octets, lowest }, ahead } = self;
        for at in 0..octets * VECTORS {
            let (octet, vector) = (at / VECTORS, at % VECTORS);
            let from = from.wrapping_add(at * VECTOR_WORDS);
            let to = to.wrapping_add(octet * OCTET_PAIRS * WIDTH + vector * LANES);
            // SAFETY: both are valid for as many octets, by the caller's promise.
            unsafe {
                unpack_vector::<S>(from, to, lowest);
                ask::<S>(from.wrapping_byte_add(ahead));
            }
        }
    }
}

/// [`Unpack`] of the outputs of half a panel, while as many words from `ahead` on are asked for.
#[cfg(target_arch = "x86_64")]
pub(super) struct UnpackHalf {
    pub(super) unpack: Unpack,
    pub(super) half: usize,
    pub(super) ahead: *const u32,
}

#[cfg(target_arch = "x86_64")]
impl Vectorised for UnpackHalf {
    type Output = ();
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { unpack: Unpack { from, to, octets, lowest }, half, ahead } = self;
        for at in 0..octets * VECTORS / 2 {
            let (octet, vector) = (at / (VECTORS / 2), half * VECTORS / 2 + at % (VECTORS / 2));
            let from = from.wrapping_add(octet * OCTET_WORDS + vector * VECTOR_WORDS);
            let to = to.wrapping_add(octet * OCTET_PAIRS * WIDTH + vector * LANES);
            // SAFETY: both are valid for as many octets, by the caller's promise.
            unsafe {
                unpack_vector::<S>(from, to, lowest);
                ask::<S>(ahead.wrapping_add(at * VECTOR_WORDS));
            }
        }
    }
}

/// Asks for the three words of a vector.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub(super) unsafe fn ask<S: Simd>(vector: *const u32) {
    // SAFETY: a prefetch may name any address.
    unsafe {
        S::prefetch_far(vector.cast());
        S::prefetch_far(vector.wrapping_add(LANES).cast());
        S::prefetch_far(vector.wrapping_add(2 * LANES).cast());
    }
}

/// An octet as pairs of bf16, `[4][64]`.
///
/// # Safety
/// As [`Simd`]; both are valid for one.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd>(octet: *const u32, to: *mut u32, lowest: u32) {
    for v in 0..VECTORS {
        // SAFETY: as the caller's.
        unsafe { unpack_vector::<S>(octet.add(v * VECTOR_WORDS), to.add(v * LANES), lowest) }
    }
}

/// The 16 outputs whose words begin at `words` as pairs of bf16, in their places of `[4][64]`.
///
/// # Safety
/// As [`unpack`].
#[inline(always)]
pub(super) unsafe fn unpack_vector<S: Simd>(words: *const u32, to: *mut u32, lowest: u32) {
    // SAFETY: as the caller's.
    unsafe {
        let [a, b, c, d] = octet_pairs::<S>(words, lowest);
        S::store_bits(to, a);
        S::store_bits(to.add(WIDTH), b);
        S::store_bits(to.add(2 * WIDTH), c);
        S::store_bits(to.add(3 * WIDTH), d);
    }
}

/// The four pairs of the 16 outputs whose words of an octet begin at `words`.
///
/// # Safety
/// As [`Simd`]; `words` is valid for three of each.
#[inline(always)]
pub(super) unsafe fn octet_pairs<S: Simd>(words: *const u32, lowest: u32) -> [S::I; OCTET_PAIRS] {
    // SAFETY: as the caller's.
    unsafe {
        let (first, second) = (S::load_bits(words), S::load_bits(words.add(LANES)));
        let nibbles = S::load_bits(words.add(2 * LANES));
        [
            pair::<S>(first, S::shl::<7>(nibbles), lowest),
            pair::<S>(rotated::<S>(first), S::shl::<3>(nibbles), lowest),
            pair::<S>(second, S::shr::<1>(nibbles), lowest),
            pair::<S>(rotated::<S>(second), S::shr::<5>(nibbles), lowest),
        ]
    }
}

/// Every word by a byte to the left.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
unsafe fn rotated<S: Simd>(words: S::I) -> S::I {
    // SAFETY: as the caller's.
    unsafe { S::or_bits(S::shl::<8>(words), S::shr::<24>(words)) }
}

/// Pairs of bf16 with the signs and mantissas of `words`, and exponents that are as far above `lowest` as bits 7
/// to 10 of the halves of `nibbles` say.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
unsafe fn pair<S: Simd>(words: S::I, nibbles: S::I, lowest: u32) -> S::I {
    // SAFETY: as the caller's.
    unsafe {
        let exponents = S::and_bits(nibbles, S::splat_bits(0x0780_0780));
        let pair = S::or_masked(exponents, words, S::splat_bits(0x807f_807f));
        S::add_bits(pair, S::splat_bits(lowest))
    }
}
