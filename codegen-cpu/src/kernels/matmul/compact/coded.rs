//! The innermost loop of few rows: a panel is unpacked in registers.

use super::super::{WIDTH, one_pass};
use super::octets::{octet_pairs, unpack_vector};
use super::weight::{Panel, first_pair, patch};
use super::{NARROW_ROWS, OCTET_PAIRS, OCTET_WORDS, VECTOR_WORDS, VECTORS};
use crate::device::asks_near;
use crate::kernels::product::Inner;
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};

/// How many octets ahead of its use a panel is asked for.
const AHEAD: usize = 9;

/// A panel and the rows of the one tile that meets it, which unpacks it in registers.
pub(crate) struct Coded<'a, P: Inner> {
    pub(crate) panel: &'a Panel,
    /// Pairs along `K`.
    pub(crate) pairs: usize,
    /// What is read after the panel, or null.
    pub(crate) after: *const u32,
    /// The first input of each row.
    pub(crate) x: [*const P::X; 6],
    /// Sums `[rows][64]`.
    pub(crate) sums: *mut f32,
}

impl<P: Inner> Coded<'_, P> {
    /// Whether so many rows of an expert are worth unpacking a panel in registers for.
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
            if one_pass::<S>(R) {
                return S::enter(CodedTile::<P, R, VECTORS>(self, 0));
            }
            // As many vectors as there are registers for: one has too few sums to hide the latency of multiply-adds.
            if R == 2 {
                S::enter(CodedTile::<P, R, 2>(self, 0));
                return S::enter(CodedTile::<P, R, 2>(self, 2));
            }
            for v in 0..VECTORS {
                S::enter(CodedTile::<P, R, 1>(self, v));
            }
        }
    }
}

/// `R` rows by `V` vectors of a panel, from a vector on.
struct CodedTile<'a, P: Inner, const R: usize, const V: usize>(&'a Coded<'a, P>, usize);

impl<P: Inner, const R: usize, const V: usize> Vectorised for CodedTile<'_, P, R, V> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self(coded, vector) = self;
        let &Coded { panel, pairs, x, sums, .. } = coded;
        // SAFETY: as for `Coded::multiply`; a prefetch may name any address.
        unsafe {
            let Panel { escapes, lowest, mut octets, .. } = *panel;
            let mut acc = [[[P::start::<S>(0)]; R]; V];
            let mut x: [_; R] = std::array::from_fn(|r| x[r]);
            let mut block = [0; OCTET_PAIRS * WIDTH];
            let (mut next, mut next_at) = (0, first_pair(escapes, 0));
            let near = asks_near();
            for pair in (0..pairs).step_by(OCTET_PAIRS) {
                let left = pairs - pair;
                let ahead = Ahead { words: self.ahead(octets, left), near };
                let octet = if left >= OCTET_PAIRS && pair != next_at {
                    Octet::Coded(octets, lowest)
                } else {
                    for v in vector..vector + V {
                        let to = block.as_mut_ptr().add(v * LANES);
                        unpack_vector::<S>(octets.add(v * VECTOR_WORDS), to, lowest);
                    }
                    if pair == next_at {
                        next = patch(escapes, next, (pair, OCTET_PAIRS), block.as_mut_ptr());
                        next_at = first_pair(escapes, next);
                    }
                    Octet::Pairs(block.as_ptr(), left.min(OCTET_PAIRS))
                };
                octet.multiply::<S, P, R, V>(vector, x, ahead, &mut acc);
                octets = octets.wrapping_add(OCTET_WORDS);
                for x in &mut x {
                    *x = x.wrapping_add(2 * OCTET_PAIRS);
                }
            }
            for (v, acc) in acc.iter().enumerate() {
                for (r, acc) in acc.iter().enumerate() {
                    P::store::<S>(sums.add(r * WIDTH + (vector + v) * LANES), acc[0]);
                }
            }
        }
    }
}

impl<P: Inner, const R: usize, const V: usize> CodedTile<'_, P, R, V> {
    /// The words of the tile's first vector in the octet that is [`AHEAD`] after the one at `octets`, where `left` pairs of
    /// the panel begin, or what is read then: the vectors of the next tile, and after the last what is after the panel.
    #[inline(always)]
    fn ahead(&self, octets: *const u32, left: usize) -> *const u32 {
        let &Self(&Coded { panel, after, .. }, vector) = self;
        let left = left.div_ceil(OCTET_PAIRS);
        let (first, octet, vector) = match vector + V {
            _ if left > AHEAD => (octets, AHEAD, vector),
            next if next < VECTORS => (panel.octets, AHEAD - left, next),
            _ => (if after.is_null() { octets } else { after }, AHEAD - left, 0),
        };
        first.wrapping_add(octet * OCTET_WORDS + vector * VECTOR_WORDS)
    }
}

/// Words to ask for.
#[derive(Clone, Copy)]
struct Ahead {
    words: *const u32,
    /// Whether into the nearest cache.
    near: bool,
}

impl Ahead {
    /// Asks for the words of vector `v` of those of a tile.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn ask<S: Simd>(self, v: usize) {
        let words = self.words.wrapping_add(v * VECTOR_WORDS);
        for line in (0..VECTOR_WORDS).step_by(LANES) {
            // SAFETY: the caller's promise; a prefetch may name any address.
            unsafe { S::prefetch_to(words.wrapping_add(line).cast(), self.near) };
        }
    }
}

/// An octet that meets the rows of a tile.
#[derive(Clone, Copy)]
enum Octet {
    /// As it is stored, with the exponent that a nibble of 0 stands for.
    Coded(*const u32, u32),
    /// As pairs, `[4][64]`, so many of which are inside `K`.
    Pairs(*const u32, usize),
}

impl Octet {
    /// Adds the products of `V` vectors of outputs from `vector` on, and asks for as many of the octet `ahead`: a few lines at
    /// a time, since requests that come faster than memory answers may be dropped.
    ///
    /// # Safety
    /// As [`Coded::multiply`].
    #[inline(always)]
    unsafe fn multiply<S: Simd, P: Inner, const R: usize, const V: usize>(
        self,
        vector: usize,
        x: [*const P::X; R],
        ahead: Ahead,
        sums: &mut [[[P::Sum<S>; 1]; R]; V],
    ) {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                // No loops, which compilers may leave such, with sums in memory.
                Octet::Coded(words, lowest) => {
                    let words = words.add(vector * VECTOR_WORDS);
                    meet::<S, P, R>((words, lowest), 0, ahead, x, &mut sums[0]);
                    if V > 1 {
                        meet::<S, P, R>((words, lowest), 1, ahead, x, &mut sums[1]);
                    }
                    if V > 2 {
                        meet::<S, P, R>((words, lowest), 2, ahead, x, &mut sums[2]);
                        meet::<S, P, R>((words, lowest), 3, ahead, x, &mut sums[3]);
                    }
                }
                Octet::Pairs(pairs, count) => {
                    (0..V).for_each(|v| ahead.ask::<S>(v));
                    for i in 0..count {
                        let x = x.map(|x| x.wrapping_add(2 * i));
                        for (v, sums) in sums.iter_mut().enumerate() {
                            let word = S::load_bits(pairs.add(i * WIDTH + (vector + v) * LANES));
                            P::step::<S, R, 1>([word], x, sums);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the products of vector `v` of those whose words of an [`Octet::Coded`] begin at `words`, and asks for its words
/// `ahead`.
///
/// # Safety
/// As [`Coded::multiply`].
#[inline(always)]
unsafe fn meet<S: Simd, P: Inner, const R: usize>(
    (words, lowest): (*const u32, u32),
    v: usize,
    ahead: Ahead,
    x: [*const P::X; R],
    sums: &mut [[P::Sum<S>; 1]; R],
) {
    // SAFETY: as the caller's.
    unsafe {
        ahead.ask::<S>(v);
        let pairs = octet_pairs::<S>(words.add(v * VECTOR_WORDS), lowest);
        for (i, pair) in pairs.into_iter().enumerate() {
            P::step::<S, R, 1>([pair], x.map(|x| x.wrapping_add(2 * i)), sums);
        }
    }
}
