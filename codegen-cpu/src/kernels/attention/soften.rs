//! One step of the running softmax: scores of a chunk become weights.

use super::tile::{CHUNK_TOKENS, KvElement, pairs};
use crate::kernels::exp::{exp, exp2_short};
use crate::kernels::simd::{LANES, Simd};
use half::bf16;
use std::{f32::consts::LOG2_E, ops::Range};

/// Queries that go vector by vector in turn: each waits for its largest score and its sum, and the
/// others have work meanwhile.
const IN_TURN: usize = 4;

/// The softmax of some queries. Every query has the bits that it has alone.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// Scores, [`CHUNK_TOKENS`] for each query, which become weights.
    pub(super) scores: *mut f32,
    /// The weights as bf16 where [`pairs`] are multiplied.
    pub(super) rounded: *mut bf16,
    /// What scores are still to be multiplied with where [`pairs`] are, else 1.
    pub(super) scale: f32,
    /// The largest scaled score so far, and the sum of all weights under it.
    pub(super) maxima: *mut f32,
    pub(super) totals: *mut f32,
    /// Weighted values so far, `stride` for each query, whole vectors.
    pub(super) sums: *mut f32,
    pub(super) stride: usize,
}

impl Softmax {
    /// Takes the chunk's scores of the queries of some rows, `group` a row, of which each sees the
    /// tokens that `parts` has for it, perhaps none. Sums and totals are multiplied with what a new
    /// maximum makes of them.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for so many queries, parts are inside the chunk.
    #[inline(always)]
    pub(super) unsafe fn chunk<S: Simd, T: KvElement>(
        self,
        group: usize,
        parts: &[(usize, usize)],
    ) {
        let vectors = |&(from, to): &(usize, usize)| {
            (from / LANES * LANES, if from < to { to.next_multiple_of(LANES) } else { 0 })
        };
        let mut query = 0;
        for alike in parts.chunk_by(|a, b| vectors(a) == vectors(b)) {
            let (begin, end) = (query, query + alike.len() * group);
            let part = vectors(&alike[0]);
            if part.0 < part.1 {
                // SAFETY: as the caller's; vectors end where the chunk does or before.
                unsafe {
                    for (r, &tokens) in alike.iter().enumerate() {
                        let first = begin + r * group;
                        self.hide::<S>(first..first + group, tokens, part);
                    }
                    while query + IN_TURN <= end {
                        self.some::<S, T, IN_TURN>(query, part);
                        query += IN_TURN;
                    }
                    while query < end {
                        self.some::<S, T, 1>(query, part);
                        query += 1;
                    }
                }
            }
            query = end;
        }
    }

    /// Makes the scores of the vectors `part` beside `tokens` those of nothing seen.
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn hide<S: Simd>(
        self,
        queries: Range<usize>,
        tokens: (usize, usize),
        part: (usize, usize),
    ) {
        // SAFETY: as the caller's; both are vectors of the part.
        unsafe {
            for query in queries {
                let scores = self.scores.add(query * CHUNK_TOKENS);
                if part.0 < tokens.0 {
                    keep::<S>(scores.add(part.0), tokens.0 - part.0..LANES);
                }
                if tokens.1 < part.1 {
                    keep::<S>(scores.add(part.1 - LANES), 0..tokens.1 + LANES - part.1);
                }
            }
        }
    }

    /// `Q` queries from `first` on, which all see something of the vectors `part` and nothing else.
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn some<S: Simd, T: KvElement, const Q: usize>(
        self,
        first: usize,
        part: (usize, usize),
    ) {
        let Self { scores, rounded, scale, maxima, totals, sums, stride } = self;
        let pairs = const { pairs::<S, T>() };
        // SAFETY: as the caller's.
        unsafe {
            let at: [usize; Q] = std::array::from_fn(|q| (first + q) * CHUNK_TOKENS);
            let mut most = at.map(|at| S::load(scores.add(at + part.0)));
            for i in (part.0 + LANES..part.1).step_by(LANES) {
                for (most, at) in most.iter_mut().zip(at) {
                    *most = S::max(*most, S::load(scores.add(at + i)));
                }
            }
            let before: [f32; Q] = std::array::from_fn(|q| *maxima.add(first + q));
            let now: [f32; Q] =
                std::array::from_fn(|q| (S::largest(most[q]) * scale).max(before[q]));
            let by = S::splat(scale * LOG2_E);
            let less = now.map(|now| S::splat(if pairs { -now * LOG2_E } else { now }));
            let mut sum = [S::splat(0.0); Q];
            for i in (part.0..part.1).step_by(LANES) {
                for q in 0..Q {
                    let (less, at) = (less[q], at[q]);
                    let score = S::load(scores.add(at + i));
                    let weight = match pairs {
                        true => exp2_short::<S>(S::mul_add(score, by, less)),
                        false => exp::<S>(S::sub(score, less)),
                    };
                    S::store(scores.add(at + i), weight);
                    if pairs {
                        S::store_bf16_normal(rounded.add(at + i), weight);
                    }
                    sum[q] = S::add(sum[q], weight);
                }
            }
            for q in 0..Q {
                let total = totals.add(first + q);
                if now[q] != before[q] {
                    let power = match pairs {
                        true => exp2_short::<S>(S::splat((before[q] - now[q]) * LOG2_E)),
                        false => exp::<S>(S::splat(before[q] - now[q])),
                    };
                    let factor = S::lanes(power)[0];
                    *maxima.add(first + q) = now[q];
                    *total *= factor;
                    let sums = sums.add((first + q) * stride);
                    for j in (0..stride).step_by(LANES) {
                        S::store(sums.add(j), S::mul(S::load(sums.add(j)), S::splat(factor)));
                    }
                }
                *total += S::sum(sum[q]);
            }
        }
    }
}

/// Keeps some scores of the vector at `scores` and makes the others those of nothing seen.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
unsafe fn keep<S: Simd>(scores: *mut f32, lanes: Range<usize>) {
    /// Ones between zeros: a vector of it has any run of lanes that touches an end.
    static ONES: [u32; 3 * LANES] = {
        let mut words = [0; 3 * LANES];
        let mut i = LANES;
        while i < 2 * LANES {
            words[i] = u32::MAX;
            i += 1;
        }
        words
    };
    // SAFETY: `lanes` is a part of a vector, and so both offsets are at most two vectors.
    unsafe {
        let from = S::load_bits(ONES.as_ptr().add(LANES - lanes.start));
        let to = S::load_bits(ONES.as_ptr().add(2 * LANES - lanes.end));
        let kept = S::and_bits(from, to);
        let hidden = S::xor_bits(kept, S::splat_bits(u32::MAX));
        let scores: *mut u32 = scores.cast();
        let score = S::and_bits(S::load_bits(scores), kept);
        let nothing = S::and_bits(hidden, S::splat_bits(f32::NEG_INFINITY.to_bits()));
        S::store_bits(scores, S::or_bits(score, nothing));
    }
}
