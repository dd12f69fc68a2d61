//! One step of the running softmax: scores of a chunk become weights.

use super::ahead::{Pace, Taken};
use super::item::Layout;
use super::tile::{CHUNK_TOKENS, KvElement, pairs};
use crate::kernels::exp::{EXP2_UNIT, exp, exp2_short};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};
use half::bf16;
use std::{f32::consts::LOG2_E, marker::PhantomData, ops::Range};

/// The power of two that a score is the natural logarithm of, as [`exp2_short`] takes it.
const POWER: f32 = LOG2_E * EXP2_UNIT;

/// A pair of bf16 ones, whose dot product with weights is their sum.
const ONES: u32 = 0x3f80_3f80;

/// How far a score may be above what is subtracted from all. Weights are floating-point numbers, as accurate at
/// `e^5.5 = 245` as at 1 (FlashAttention-4 leaves out such scaling, too).
pub(super) const MARGIN: f32 = 5.5;
/// `e` to the power of [`MARGIN`].
pub(super) const MARGIN_WEIGHT: f32 = 244.691_93;

/// The softmax of some queries. Every query has the bits that it has alone.
#[derive(Clone, Copy)]
pub(super) struct Softmax<'a> {
    /// Scores, [`CHUNK_TOKENS`] for each query, which become weights.
    pub(super) scores: *mut f32,
    /// The weights as bf16 where [`pairs`] are multiplied; for others it is not written.
    pub(super) rounded: *mut bf16,
    /// Whether weights are wanted as `f32`, in place of the scores: everywhere but where [`pairs`] alone are multiplied.
    pub(super) floats: bool,
    /// What scores are still to be multiplied with where [`pairs`] are, else 1.
    pub(super) scale: f32,
    /// A vector for each query, whose largest lane is its largest score of the chunk.
    pub(super) largest: *mut f32,
    /// What is subtracted from all scaled scores: at most [`MARGIN`] less than the largest so far.
    pub(super) maxima: *mut f32,
    /// A vector for each query, whose lanes add up to all of its weights so far, as they are multiplied with values.
    pub(super) totals: *mut f32,
    /// Weighted values so far, whole vectors.
    pub(super) sums: *mut f32,
    pub(super) layout: Layout,
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
                let queries = begin..end;
                match (self.floats, self.pace.ahead.is_some()) {
                    (false, false) => {
                        S::enter(Weights::<T, false, false>::new(self, queries, part))
                    }
                    (false, true) => S::enter(Weights::<T, false, true>::new(self, queries, part)),
                    (true, false) => S::enter(Weights::<T, true, false>::new(self, queries, part)),
                    (true, true) => S::enter(Weights::<T, true, true>::new(self, queries, part)),
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

    /// Where a score of `query` is further than [`MARGIN`] above what is subtracted, subtracts the largest of the chunk
    /// from now on and scales sums and totals to it. Few chunks but the first have one.
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
            if !S::any_above(largest, before + MARGIN) {
                return;
            }
            let now = S::largest(largest);
            *self.maxima.add(query) = now;
            if before == f32::NEG_INFINITY {
                // Nothing was summed up but a sink that has no weight.
                S::store(self.totals.add(query * LANES), S::splat(0.0));
                return;
            }
            let factor = match const { short::<S, T>() } {
                true => exp2_short::<S, 1>([S::splat((before - now) * POWER)])[0],
                false => exp::<S>(S::splat(before - now)),
            };
            let totals = self.totals.add(query * LANES);
            S::store(totals, S::mul(S::load(totals), factor));
            let Layout { stride, tile } = self.layout;
            let first = self.sums.add(self.layout.first(query));
            for j in (0..stride).step_by(LANES) {
                let sums = first.add(j * tile);
                S::store(sums, S::mul(S::load(sums), factor));
            }
        }
    }

    /// The weights of a query, which sees something of the vectors `part` and nothing else.
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn weights<S: Simd, T: KvElement, const FLOATS: bool, const PACED: bool>(
        self,
        query: usize,
        part: (usize, usize),
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let most = *self.maxima.add(query);
            let less = S::splat(if const { short::<S, T>() } { -most * POWER } else { most });
            let totals = self.totals.add(query * LANES);
            let (mut total, (mut at, end)) = (S::load(totals), part);
            let mut ahead = Taken::new(if PACED { self.pace.ahead } else { None });
            let mut ask = |vectors: usize| {
                if PACED {
                    ahead.ask::<S>(vectors * self.pace.lines);
                }
            };
            let at_once = |vectors: usize| vectors * LANES;
            while at + at_once(4) <= end {
                ask(4);
                total = self.vectors::<S, T, FLOATS, 4>(query, at, less, total);
                at += at_once(4);
            }
            if at + at_once(2) <= end {
                ask(2);
                total = self.vectors::<S, T, FLOATS, 2>(query, at, less, total);
                at += at_once(2);
            }
            if at < end {
                ask(1);
                total = self.vectors::<S, T, FLOATS, 1>(query, at, less, total);
            }
            S::store(totals, total);
            ahead.put_back();
        }
    }

    /// The weights of the `N` vectors of scores of `query` from `at` on, one or an even number, from which `less` is
    /// taken (already negated, times [`POWER`], where weights are [`short`]); returns `total` with them.
    ///
    /// # Safety
    /// As for [`Softmax::chunk`].
    #[inline(always)]
    unsafe fn vectors<S: Simd, T: KvElement, const FLOATS: bool, const N: usize>(
        self,
        query: usize,
        at: usize,
        less: S::V,
        mut total: S::V,
    ) -> S::V {
        let short = const { short::<S, T>() };
        // SAFETY: as the caller's.
        unsafe {
            let scores = self.scores.add(query * CHUNK_TOKENS + at);
            let rounded = self.rounded.add(query * CHUNK_TOKENS + at);
            let mut weights = [less; N];
            for (i, weight) in weights.iter_mut().enumerate() {
                let score = S::load(scores.add(i * LANES));
                *weight = match short {
                    true => S::mul_add(score, S::splat(self.scale * POWER), less),
                    false => exp::<S>(S::sub(score, less)),
                };
            }
            if short {
                weights = exp2_short::<S, N>(weights);
            }
            if const { !pairs::<S, T>() } {
                for (i, weight) in weights.into_iter().enumerate() {
                    S::store(scores.add(i * LANES), weight);
                    total = S::add(total, weight);
                }
                return total;
            }
            let (twos, one) = weights.as_chunks();
            for (i, &two) in twos.iter().enumerate() {
                let to = rounded.add(2 * i * LANES);
                S::store_bf16_normals(to, two);
                total = S::pair_dot(total, to.cast(), ONES);
            }
            for &weight in one {
                S::store_bf16_normal(rounded, weight);
                total = S::add(total, S::load_bf16(rounded));
            }
            if FLOATS {
                for i in 0..N {
                    S::store(scores.add(i * LANES), S::load_bf16(rounded.add(i * LANES)));
                }
            }
            total
        }
    }
}

/// The weights of some queries, which see something of the same vectors: a function of its own, so that what is the
/// same for all vectors stays in registers; for weights that are wanted as `f32`, and for memory that is asked for
/// meanwhile, or not.
struct Weights<'a, T, const FLOATS: bool, const PACED: bool> {
    of: Softmax<'a>,
    queries: Range<usize>,
    part: (usize, usize),
    kv: PhantomData<T>,
}

impl<'a, T, const FLOATS: bool, const PACED: bool> Weights<'a, T, FLOATS, PACED> {
    #[inline(always)]
    fn new(of: Softmax<'a>, queries: Range<usize>, part: (usize, usize)) -> Self {
        Self { of, queries, part, kv: PhantomData }
    }
}

impl<T: KvElement, const FLOATS: bool, const PACED: bool> Vectorised
    for Weights<'_, T, FLOATS, PACED>
{
    type Output = ();
    const DOTS: Dots = T::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: as for `Softmax::chunk`.
        unsafe {
            for query in self.queries.clone() {
                self.of.raise::<S, T>(query);
            }
            for query in self.queries {
                self.of.weights::<S, T, FLOATS, PACED>(query, self.part);
            }
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
