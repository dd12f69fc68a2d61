//! The innermost loop of few rows: a panel is unpacked in registers.

use super::super::WIDTH;
use super::octets::{loaded, octet_pairs, unpack};
use super::weight::{Panel, first_pair, patch};
use super::{NARROW_ROWS, OCTET_PAIRS, OCTET_WORDS};
use crate::kernels::product::Inner;
use crate::kernels::simd::{LANES, Simd, Vectorised};

/// Vectors of a panel.
const VECTORS: usize = WIDTH / LANES;
/// How far ahead of its use a panel is asked for.
const AHEAD_BYTES: usize = 4096;

/// A panel and the rows of the one tile that meets it, which unpacks it in registers.
pub(crate) struct Coded<'a, P: Inner> {
    pub(crate) panel: &'a Panel,
    /// Pairs along `K`.
    pub(crate) pairs: usize,
    /// The first input of each row.
    pub(crate) x: [*const P::X; 6],
    /// Sums `[rows][64]`.
    pub(crate) sums: *mut f32,
}

impl<P: Inner> Coded<'_, P> {
    /// Whether so many rows are worth unpacking a panel in registers for.
    #[inline(always)]
    pub(crate) fn fits<S: Simd>(rows: usize) -> bool {
        rows <= if S::WIDE { S::MAX_ROWS } else { NARROW_ROWS }
    }

    /// Makes the sums of `rows` rows, as many as [`Coded::fits`].
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name.
    #[inline(always)]
    pub(crate) unsafe fn multiply<S: Simd>(&self, rows: usize) {
        // SAFETY: as the caller's.
        by_count!(rows, [1 2 3 4 5 6], R => unsafe { self.rows::<S, R>() })
    }

    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self) {
        // SAFETY: as the caller's.
        unsafe {
            if S::WIDE || R == 1 {
                return S::enter(CodedTile::<P, R, VECTORS>(self, 0));
            }
            for v in (0..WIDTH).step_by(LANES) {
                S::enter(CodedTile::<P, R, 1>(self, v));
            }
        }
    }
}

/// `R` rows by `V` vectors of a panel, from an output on.
struct CodedTile<'a, P: Inner, const R: usize, const V: usize>(&'a Coded<'a, P>, usize);

impl<P: Inner, const R: usize, const V: usize> Vectorised for CodedTile<'_, P, R, V> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self(coded, lane) = self;
        let &Coded { panel, pairs, x, sums } = coded;
        // SAFETY: as for `Coded::multiply`; a prefetch may name any address.
        unsafe {
            let Panel { escapes, lowest, mut octets, .. } = *panel;
            let mut acc = [[[P::start::<S>(0)]; R]; V];
            let mut x: [_; R] = std::array::from_fn(|r| x[r]);
            let mut block = [0; OCTET_PAIRS * WIDTH];
            let (mut next, mut next_at) = (0, first_pair(escapes, 0));
            for pair in (0..pairs).step_by(OCTET_PAIRS) {
                if lane == 0 {
                    let ahead = octets.wrapping_byte_add(AHEAD_BYTES);
                    for line in (0..OCTET_WORDS).step_by(LANES) {
                        S::prefetch_far(ahead.wrapping_add(line).cast());
                    }
                }
                let patched = pair == next_at;
                if patched {
                    unpack::<S>(octets, block.as_mut_ptr(), lowest);
                    next = patch(escapes, next, (pair, OCTET_PAIRS), block.as_mut_ptr());
                    next_at = first_pair(escapes, next);
                }
                let octet = Octet {
                    words: octets,
                    patched: if patched { block.as_ptr() } else { std::ptr::null() },
                    rest: OCTET_PAIRS.min(pairs - pair),
                };
                // Not a loop, which compilers may leave one, with sums in memory.
                octet.multiply::<S, P, R>(lane, lowest, x, &mut acc[0]);
                if V > 1 {
                    octet.multiply::<S, P, R>(lane + LANES, lowest, x, &mut acc[1]);
                }
                if V > 2 {
                    octet.multiply::<S, P, R>(lane + 2 * LANES, lowest, x, &mut acc[2]);
                    octet.multiply::<S, P, R>(lane + 3 * LANES, lowest, x, &mut acc[3]);
                }
                octets = octets.wrapping_add(OCTET_WORDS);
                for x in &mut x {
                    *x = x.wrapping_add(2 * OCTET_PAIRS);
                }
            }
            for (v, acc) in acc.iter().enumerate() {
                for (r, acc) in acc.iter().enumerate() {
                    P::store::<S>(sums.add(r * WIDTH + lane + v * LANES), acc[0]);
                }
            }
        }
    }
}

/// An octet that meets the rows of a tile.
struct Octet {
    words: *const u32,
    /// Its pairs with escapes, `[4][64]`, if it has any.
    patched: *const u32,
    /// How many of its pairs are inside `K`.
    rest: usize,
}

impl Octet {
    /// Adds the products of the 16 outputs from `at` on.
    ///
    /// # Safety
    /// As [`Coded::multiply`].
    #[inline(always)]
    unsafe fn multiply<S: Simd, P: Inner, const R: usize>(
        &self,
        at: usize,
        lowest: u32,
        x: [*const P::X; R],
        sums: &mut [[P::Sum<S>; 1]; R],
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let words = if self.patched.is_null() {
                octet_pairs::<S>(self.words.add(at), lowest)
            } else {
                loaded::<S>(self.patched.add(at))
            };
            if self.rest == OCTET_PAIRS {
                steps::<S, P, R>(&words, x, sums);
            } else {
                steps::<S, P, R>(&words[..self.rest], x, sums);
            }
        }
    }
}

/// Adds the products of words after one another.
///
/// # Safety
/// As [`Inner::step`].
#[inline(always)]
unsafe fn steps<S: Simd, P: Inner, const R: usize>(
    words: &[S::I],
    x: [*const P::X; R],
    sums: &mut [[P::Sum<S>; 1]; R],
) {
    for (i, &word) in words.iter().enumerate() {
        let mut x = x;
        for x in &mut x {
            *x = x.wrapping_add(2 * i);
        }
        // SAFETY: as the caller's.
        unsafe { P::step::<S, R, 1>([word], x, sums) }
    }
}
