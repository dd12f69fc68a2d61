//! One step of the running softmax: scores of a chunk become weights.

use super::ahead::{Pace, Taken};
use super::tile::{CHUNK_TOKENS, KvElement, pairs};
use crate::kernels::exp::{exp, exp2_short};
use crate::kernels::simd::{LANES, Simd};
use half::bf16;
use std::{f32::consts::LOG2_E, ops::Range};

/// The softmax of some queries. Every query has the bits that it has alone.
#[derive(Clone, Copy)]
pub(super) struct Softmax<'a> {
    /// Scores, [`CHUNK_TOKENS`] for each query, which become weights.
    pub(super) scores: *mut f32,
    /// The weights as bf16 where [`pairs`] are multiplied; for others it is not written.
    pub(super) rounded: *mut bf16,
    /// Whether weights are also wanted as they are, in place of the scores.
    pub(super) floats: bool,
    /// What scores are still to be multiplied with where [`pairs`] are, else 1.
    pub(super) scale: f32,
    /// A vector for each query, whose largest lane is its largest score of the chunk.
    pub(super) largest: *mut f32,
    /// The largest scaled score so far, which is subtracted from all.
    pub(super) maxima: *mut f32,
    /// A vector for each query, whose lanes add up to all of its weights so far.
    pub(super) totals: *mut f32,
    /// Weighted values so far, `stride` for each query, whole vectors.
    pub(super) sums: *mut f32,
    pub(super) stride: usize,
    pub(super) pace: Pace<'a>,
}

impl Softmax<'_> {
    /// Takes the chunk's scores of the queries of some rows, `group` a row, of which each sees the
    /// tokens that `parts` has for it, perhaps none, of those that have scores, `all`.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for so many queries, parts are inside `all`.
    #[inline(always)]
    pub(super) unsafe fn chunk<S: Simd, T: KvElement>(
        self,
        group: usize,
        parts: &[(usize, usize)],
        all: (usize, usize),
    ) {
        let vectors = |&(from, to): &(usize, usize)| {
            (from / LANES * LANES, if from < to { to.next_multiple_of(LANES) } else { 0 })
        };
        let mut end = 0;
        for alike in parts.chunk_by(|a, b| vectors(a) == vectors(b)) {
            let begin = end;
            end += alike.len() * group;
            let part = vectors(&alike[0]);
            if part.0 >= part.1 {
                continue;
            }
            // SAFETY: as the caller's; vectors end where the chunk does or before.
            unsafe {
                for (r, &tokens) in alike.iter().enumerate() {
                    if tokens != all {
                        let first = begin + r * group;
                        self.hide::<S>(first..first + group, tokens, part);
                    }
                }
                for query in begin..end {
                    self.raise::<S, T>(query);
                }
                for query in begin..end {
                    self.weights::<S, T>(query, part);
                }
            }
        }
    }

    /// Makes the scores of the vectors `part` beside `tokens` those of nothing seen, and finds the largest
    /// of the others. The weights of what is not seen, at most `2^-125`, are lost in a total, which has a
    /// weight of 1 in it, and meet no values.
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
                let mut largest = S::load(scores.add(part.0));
                for i in (part.0 + LANES..part.1).step_by(LANES) {
                    largest = S::max(largest, S::load(scores.add(i)));
                }
                S::store(self.largest.add(query * LANES), largest);
            }
        }
    }

    /// Where a score of `query` is above all before, scales sums and totals to it. Most chunks have none and
    /// only compare.
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn raise<S: Simd, T: KvElement>(self, query: usize) {
        // SAFETY: as the caller's.
        unsafe {
            let largest = S::load(self.largest.add(query * LANES));
            let largest = S::mul(largest, S::splat(self.scale));
            let before = *self.maxima.add(query);
            if !S::any_above(largest, before) {
                return;
            }
            let now = S::largest(largest);
            *self.maxima.add(query) = now;
            let factor = match const { short::<S, T>() } {
                true => exp2_short::<S>(S::splat((before - now) * LOG2_E)),
                false => exp::<S>(S::splat(before - now)),
            };
            let totals = self.totals.add(query * LANES);
            S::store(totals, S::mul(S::load(totals), factor));
            for j in (0..self.stride).step_by(LANES) {
                let sums = self.sums.add(query * self.stride + j);
                S::store(sums, S::mul(S::load(sums), factor));
            }
        }
    }

    /// The weights of a query, which sees something of the vectors `part` and nothing else.
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn weights<S: Simd, T: KvElement>(self, query: usize, part: (usize, usize)) {
        let (pairs, short) = const { (pairs::<S, T>(), short::<S, T>()) };
        // SAFETY: as the caller's.
        unsafe {
            let most = *self.maxima.add(query);
            let less = S::splat(if short { -most * LOG2_E } else { most });
            let totals = self.totals.add(query * LANES);
            let scores = self.scores.add(query * CHUNK_TOKENS);
            let rounded = self.rounded.add(query * CHUNK_TOKENS);
            let (mut total, mut at) = (S::load(totals), part.0);
            let mut ahead = Taken::new(self.pace.ahead);
            while at + 2 * LANES <= part.1 {
                ahead.ask::<S>(2 * self.pace.lines);
                let first = self.weight::<S, T>(scores.add(at), less);
                let second = self.weight::<S, T>(scores.add(at + LANES), less);
                if pairs {
                    S::store_bf16_normals(rounded.add(at), [first, second]);
                }
                total = S::add(S::add(total, first), second);
                at += 2 * LANES;
            }
            if at < part.1 {
                let last = self.weight::<S, T>(scores.add(at), less);
                if pairs {
                    S::store_bf16_normal(rounded.add(at), last);
                }
                total = S::add(total, last);
            }
            S::store(totals, total);
            ahead.put_back();
        }
    }

    /// The weights of a vector of scores, from which `less` is taken (already negated, times `log2(e)`, where weights
    /// are [`short`]).
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn weight<S: Simd, T: KvElement>(self, scores: *mut f32, less: S::V) -> S::V {
        // SAFETY: as the caller's.
        unsafe {
            let score = S::load(scores);
            let weight = match const { short::<S, T>() } {
                true => exp2_short::<S>(S::mul_add(score, S::splat(self.scale * LOG2_E), less)),
                false => exp::<S>(S::sub(score, less)),
            };
            if self.floats {
                S::store(scores, weight);
            }
            weight
        }
    }
}

/// Whether weights are rounded afterwards.
#[inline(always)]
const fn short<S: Simd, T: KvElement>() -> bool {
    pairs::<S, T>() || T::CODES
}

/// All bits of the lanes `lanes`, and none of the others.
///
/// # Safety
/// As [`Simd`]; `lanes` is a part of a vector.
#[inline(always)]
pub(super) unsafe fn ones<S: Simd>(lanes: Range<usize>) -> S::I {
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
        S::and_bits(from, to)
    }
}

/// Keeps some scores of the vector at `scores` and makes the others those of nothing seen.
///
/// # Safety
/// As for [`ones`].
#[inline(always)]
unsafe fn keep<S: Simd>(scores: *mut f32, lanes: Range<usize>) {
    // SAFETY: as the caller's.
    unsafe {
        let kept = ones::<S>(lanes);
        let hidden = S::xor_bits(kept, S::splat_bits(u32::MAX));
        let scores: *mut u32 = scores.cast();
        let score = S::and_bits(S::load_bits(scores), kept);
        let nothing = S::and_bits(hidden, S::splat_bits(f32::NEG_INFINITY.to_bits()));
        S::store_bits(scores, S::or_bits(score, nothing));
    }
}
