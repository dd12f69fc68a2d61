//! The innermost loops of attention: a few query heads against a chunk of keys or values.

use super::ahead::{Ahead, Taken};
use super::codes;
use super::numbers::Factors;
use super::turns::{HeadScores, HeadValues, Turns, run};
use crate::kernels::element::Element;
use crate::kernels::kv::{BLOCK_TOKENS, Cached};
use crate::kernels::matmul::{PairDot, Plain, Product, Widening};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};
use half::bf16;
use std::cell::Cell;

/// Tokens that are processed together; chunks begin at multiples of it.
pub(super) const CHUNK_TOKENS: usize = 128;
/// Blocks of a chunk.
pub(super) const CHUNK_BLOCKS: usize = CHUNK_TOKENS / BLOCK_TOKENS;
/// Elements of a key that AMX tiles multiply at once: of heads of whole steps only.
pub(super) const KEY_STEP: usize = 32;
/// The same of keys of codes, and tokens of values of codes.
pub(super) const CODE_STEP: usize = 64;
/// The most query heads of a tile, on machines with registers for them.
pub(super) const MOST_QUERIES: usize = 7;

/// Element types of keys and values.
pub(crate) trait KvElement: Cached {
    /// Whether they are bf16.
    const BF16: bool = false;
    /// Whether they are codes, which meet whole numbers.
    const CODES: bool = false;
    /// The dot products of attention.
    const DOTS: Dots = match (Self::BF16, Self::CODES) {
        (true, _) => Dots::PAIRS,
        (_, true) => Dots::BYTES,
        _ => Dots::NONE,
    };

    /// Computes the scores of `queries` queries, at most [`most_queries`], of each head.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name.
    #[inline(always)]
    unsafe fn scores<S: Simd>(scores: &Scores<'_, Self>, queries: usize) {
        // SAFETY: as the caller's.
        by_count!(queries, [1 2 3 4 5 6 7], Q => unsafe {
            if scores.turns.any() {
                S::enter(HeadScores::<Self, Q>(scores))
            } else {
                Self::head_scores::<S, Q>(scores)
            }
        })
    }

    /// Adds the weighted values to the sums of `queries` queries, at most [`most_queries`], of each head; of codes
    /// those of whole blocks.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name, those of `ahead`
    /// excepted, which has an entry for each block.
    #[inline(always)]
    unsafe fn accumulate<S: Simd>(values: &Values<'_, Self>, queries: usize) {
        // SAFETY: as the caller's.
        by_count!(queries, [1 2 3 4 5 6 7], Q => unsafe {
            if values.turns.any() {
                S::enter(HeadValues::<Self, Q>(values))
            } else {
                Self::head_values::<S, Q, false>(values)
            }
        })
    }

    /// [`KvElement::scores`] of one head.
    ///
    /// # Safety
    /// As there.
    unsafe fn head_scores<S: Simd, const Q: usize>(scores: &Scores<'_, Self>);

    /// The scores of one head's only block; `largest` becomes the larger of itself and them. To be called inside what
    /// was compiled for the instruction set.
    ///
    /// # Safety
    /// As for [`KvElement::scores`].
    unsafe fn block_scores<S: Simd, const Q: usize>(
        scores: &Scores<'_, Self>,
        largest: &mut [S::V; Q],
    );

    /// [`KvElement::accumulate`] of one head, inside what was compiled for the instruction set where heads take
    /// `TURNS`.
    ///
    /// # Safety
    /// As there.
    unsafe fn head_values<S: Simd, const Q: usize, const TURNS: bool>(values: &Values<'_, Self>);
}

/// Keys and values of floating point.
pub(in crate::kernels) trait FloatKv: KvElement + Element {
    /// How keys meet `f32` queries, and values `f32` weights.
    type Product: Product<X = f32>;
}

impl FloatKv for f32 {
    type Product = Plain;
}

impl FloatKv for bf16 {
    type Product = Widening;
}

macro_rules! float_kv {
    ($($type:ty, $bf16:literal;)*) => {$(
        impl KvElement for $type {
            const BF16: bool = $bf16;

            #[inline(always)]
            unsafe fn head_scores<S: Simd, const Q: usize>(scores: &Scores<'_, Self>) {
                // SAFETY: as the caller's.
                unsafe { S::enter(ScoreTile::<Self, Q>(scores)) }
            }

            #[inline(always)]
            unsafe fn block_scores<S: Simd, const Q: usize>(
                scores: &Scores<'_, Self>,
                largest: &mut [S::V; Q],
            ) {
                // SAFETY: as the caller's.
                unsafe { scores.some_blocks::<S, Q, 1>(0, largest) }
            }

            #[inline(always)]
            unsafe fn head_values<S: Simd, const Q: usize, const TURNS: bool>(
                values: &Values<'_, Self>,
            ) {
                // SAFETY: as the caller's.
                unsafe { values.columns::<S, Q, TURNS>() }
            }
        }
    )*};
}

float_kv! {
    f32, false;
    bf16, true;
}

impl KvElement for i8 {
    const CODES: bool = true;

    #[inline(always)]
    unsafe fn head_scores<S: Simd, const Q: usize>(scores: &Scores<'_, Self>) {
        // SAFETY: as the caller's.
        unsafe { S::enter(codes::ScoreTile::<Q>(scores)) }
    }

    #[inline(always)]
    unsafe fn block_scores<S: Simd, const Q: usize>(
        scores: &Scores<'_, Self>,
        largest: &mut [S::V; Q],
    ) {
        // SAFETY: as the caller's.
        unsafe { codes::some_blocks::<S, Q, 1>(scores, 0, largest) }
    }

    #[inline(always)]
    unsafe fn head_values<S: Simd, const Q: usize, const TURNS: bool>(values: &Values<'_, Self>) {
        // SAFETY: as the caller's.
        unsafe { codes::columns::<S, Q, TURNS>(values) }
    }
}

/// Whether queries and weights are rounded to bf16, for the dot product of pairs.
#[inline(always)]
pub(super) const fn pairs<S: Simd, T: KvElement>() -> bool {
    S::PAIR_DOT && T::BF16
}

/// The most query heads of a tile for `S`.
#[inline(always)]
pub(super) const fn most_queries<S: Simd, T: KvElement>() -> usize {
    let good = good_queries::<S, T>();
    if S::WIDE {
        MOST_QUERIES
    } else if S::MAX_ROWS < good {
        S::MAX_ROWS
    } else {
        good
    }
}

/// As many query heads as leave registers for four blocks of keys, or vectors of values, where there are 32: what a tile
/// has at most of more than [`most_queries`].
#[inline(always)]
pub(super) const fn good_queries<S: Simd, T: KvElement>() -> usize {
    // Pairs that are taken apart are in registers twice.
    if T::BF16 && !S::PAIR_DOT { 5 } else { 6 }
}

/// Keys of a chunk and the queries that meet them.
pub(in crate::kernels) struct Scores<'a, T> {
    /// Keys of each block.
    pub(super) blocks: &'a [*const T],
    /// Memory to ask for meanwhile, if there is any.
    pub(super) ahead: Option<&'a Cell<Ahead>>,
    /// Queries, `stride` floats apart; bf16 where [`pairs`] are multiplied, whole numbers where keys are
    /// codes, `4 * stride` bytes apart.
    pub(super) q: *const f32,
    /// Of whole numbers.
    pub(super) factors: *const Factors,
    /// Floats between queries.
    pub(super) stride: usize,
    /// Groups of elements of a key.
    pub(super) groups: usize,
    /// Scores, [`CHUNK_TOKENS`] for each query.
    pub(super) scores: *mut f32,
    /// A vector for each query, whose largest lane becomes the largest of its scores; where heads take turns, of these
    /// and what it was.
    pub(super) largest: *mut f32,
    /// What is above is of the first head.
    pub(super) turns: Turns,
}

/// Values of a chunk and the weights they are summed with.
pub(in crate::kernels) struct Values<'a, T> {
    /// Values of each block.
    pub(super) blocks: &'a [*const T; CHUNK_BLOCKS],
    /// Memory to ask for meanwhile, if there is any.
    pub(super) ahead: Option<&'a Cell<Ahead>>,
    /// First and past-the-last token of the chunk.
    pub(super) tokens: (usize, usize),
    /// The same of all that are taken, of codes.
    pub(super) all: (usize, usize),
    /// Elements of a value.
    pub(super) d: usize,
    /// Weights, [`CHUNK_TOKENS`] for each query.
    pub(super) weights: *const f32,
    /// The same as bf16 where [`pairs`] are multiplied, for all of a value but what is left after
    /// two vectors at a time; as whole numbers where values are codes.
    pub(super) rounded: *const bf16,
    /// Of whole numbers.
    pub(super) factors: *const Factors,
    /// Sums of products of codes where not all tokens are taken in one go, `stride` apart.
    pub(super) whole: *mut u32,
    /// Sums, `stride` apart.
    pub(super) sums: *mut f32,
    /// Elements between the sums of queries: `d`, rounded up to whole vectors.
    pub(super) stride: usize,
    /// What is above is of the first head.
    pub(super) turns: Turns,
}

struct ScoreTile<'a, T, const Q: usize>(&'a Scores<'a, T>);

impl<T: FloatKv, const Q: usize> Vectorised for ScoreTile<'_, T, Q> {
    type Output = ();
    const DOTS: Dots = T::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (scores, mut block) = (self.0, 0);
        // SAFETY: as for `KvElement::scores`; there are so many blocks.
        unsafe {
            let mut largest = [S::splat(f32::NEG_INFINITY); Q];
            let left = |block: usize| scores.blocks.len() - block;
            if S::WIDE {
                // Enough sums at once to hide the latency of the instruction, as registers allow; what waits for memory is
                // better asked for by fewer.
                let waits = scores.ahead.is_some();
                let four = Q < 4 || const { Q <= good_queries::<S, T>() } && !waits;
                while four && left(block) >= 4 && left(block) != 5 {
                    scores.some_blocks::<S, Q, 4>(block, &mut largest);
                    block += 4;
                }
                while left(block) >= 2 {
                    if left(block) == 3 || left(block) > 4 && !waits {
                        scores.some_blocks::<S, Q, 3>(block, &mut largest);
                        block += 3;
                    } else {
                        scores.some_blocks::<S, Q, 2>(block, &mut largest);
                        block += 2;
                    }
                }
            }
            while left(block) >= 1 {
                scores.some_blocks::<S, Q, 1>(block, &mut largest);
                block += 1;
            }
            for (q, largest) in largest.into_iter().enumerate() {
                S::store(scores.largest.add(q * LANES), largest);
            }
        }
    }
}

impl<T: FloatKv> Scores<'_, T> {
    /// The scores of `Q` queries and `B` blocks from `block` on; `largest` becomes the larger of itself and
    /// them.
    ///
    /// # Safety
    /// As for [`KvElement::scores`]; there are so many blocks.
    #[inline(always)]
    unsafe fn some_blocks<S: Simd, const Q: usize, const B: usize>(
        &self,
        block: usize,
        largest: &mut [S::V; Q],
    ) {
        let &Scores { blocks, ahead, q, stride, groups, scores, .. } = self;
        // SAFETY: as the caller's.
        unsafe {
            let keys: [*const u32; B] = std::array::from_fn(|b| blocks[block + b].cast());
            let mut ahead = Taken::new(ahead);
            let mut sums = [[S::splat(0.0); B]; Q];
            for g in 0..groups {
                ahead.ask_in_fours::<S, B>(g);
                let mut words = keys;
                for word in &mut words {
                    *word = word.add(g * LANES);
                }
                if const { pairs::<S, T>() } {
                    let x: *const bf16 = q.cast();
                    let x = x.add(g * PairDot::GROUP);
                    PairDot::columns::<S, Q, B>(words, x, 2 * stride, &mut sums);
                } else {
                    let x = q.add(g * T::Product::GROUP);
                    T::Product::columns::<S, Q, B>(words, x, stride, &mut sums);
                }
            }
            ahead.put_back();
            for (i, row) in sums.into_iter().enumerate() {
                for (b, sum) in row.into_iter().enumerate() {
                    let to = scores.add(i * CHUNK_TOKENS + (block + b) * BLOCK_TOKENS);
                    S::store(to, sum);
                    largest[i] = S::max(largest[i], sum);
                }
            }
        }
    }
}

impl<T: FloatKv> Values<'_, T> {
    /// [`KvElement::head_values`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn columns<S: Simd, const Q: usize, const TURNS: bool>(&self) {
        let mut i = 0;
        // SAFETY: as the caller's.
        unsafe {
            // As many vectors as there are registers for.
            let four = const { S::WIDE && Q <= good_queries::<S, T>() };
            while four && i + 4 * LANES <= self.d {
                run::<S, TURNS, _>(ValueTile::<T, Q, 4, true>(self, i));
                i += 4 * LANES;
            }
            while S::WIDE && i + 2 * LANES <= self.d {
                run::<S, TURNS, _>(ValueTile::<T, Q, 2, true>(self, i));
                i += 2 * LANES;
            }
            let in_twos = self.d / (2 * LANES) * (2 * LANES);
            while const { pairs::<S, T>() && !S::WIDE } && i < in_twos {
                run::<S, TURNS, _>(ValueTile::<T, Q, 1, true>(self, i));
                i += LANES;
            }
            while i < self.d {
                run::<S, TURNS, _>(ValueTile::<T, Q, 1, false>(self, i));
                i += LANES;
            }
        }
    }
}

/// `Q` queries by `V` vectors from an element of the values on, with weights that are `ROUNDED` where [`pairs`] are
/// multiplied.
struct ValueTile<'a, T, const Q: usize, const V: usize, const ROUNDED: bool>(
    &'a Values<'a, T>,
    usize,
);

impl<T: FloatKv, const Q: usize, const V: usize, const ROUNDED: bool> Vectorised
    for ValueTile<'_, T, Q, V, ROUNDED>
{
    type Output = ();
    const DOTS: Dots = T::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let ValueTile(&Values { tokens, sums, stride, ahead, .. }, first) = self;
        // SAFETY: as for `KvElement::accumulate`; only the last vector may be short.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; Q];
            for (q, row) in acc.iter_mut().enumerate() {
                for (v, a) in row.iter_mut().enumerate() {
                    *a = S::load(sums.add(q * stride + first + v * LANES));
                }
            }
            let group = const { 4 / size_of::<T>() };
            let (begin, end) = (tokens.0.next_multiple_of(group), tokens.1 / group * group);
            // Half of a pair that is not among the tokens may be anything.
            if tokens.0 < begin {
                let words = self.words::<S>(begin - group);
                self.step::<S>(begin - group, masked::<S, V>(words, 0xffff_0000), &mut acc);
            }
            let (mut token, mut ahead) = (begin, Taken::new(ahead));
            while token < end {
                let stop = end.min((token / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
                let words = self.at(token);
                for i in 0..(stop - token) / group {
                    ahead.ask::<S>(V);
                    let (at, words) = (token + i * group, words.add(i * group * self.0.d));
                    if V == 1 && self.left() < LANES {
                        let words = load::<S, T, V>(words, self.left());
                        self.step::<S>(at, words, &mut acc);
                    } else if const { pairs::<S, T>() && ROUNDED } {
                        let weights = self.0.rounded.add(at);
                        PairDot::step::<S, Q, V>(words.cast(), weights, CHUNK_TOKENS, &mut acc);
                    } else {
                        let weights = self.0.weights.add(at);
                        T::Product::step::<S, Q, V>(words.cast(), weights, CHUNK_TOKENS, &mut acc);
                    }
                }
                token = stop;
            }
            ahead.put_back();
            if end < tokens.1 && begin <= end {
                let words = self.words::<S>(end);
                self.step::<S>(end, masked::<S, V>(words, 0xffff), &mut acc);
            }
            for (q, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    S::store(sums.add(q * stride + first + v * LANES), *a);
                }
            }
        }
    }
}

impl<T: FloatKv, const Q: usize, const V: usize, const ROUNDED: bool>
    ValueTile<'_, T, Q, V, ROUNDED>
{
    /// Elements from the tile's first one on, where they may be fewer than a vector.
    #[inline(always)]
    fn left(&self) -> usize {
        if V == 1 { self.0.d - self.1 } else { LANES }
    }

    /// Where the values of the group of tokens that begins at `token` lie.
    ///
    /// # Safety
    /// As for [`KvElement::accumulate`].
    #[inline(always)]
    unsafe fn at(&self, token: usize) -> *const T {
        let &Values { blocks, d, .. } = self.0;
        let block = token / BLOCK_TOKENS;
        let inside = token % BLOCK_TOKENS * d + self.1 * const { 4 / size_of::<T>() };
        // SAFETY: as the caller's.
        unsafe { blocks.get_unchecked(block).add(inside) }
    }

    /// The values of the group of tokens that begins at `token`.
    ///
    /// # Safety
    /// As for [`KvElement::accumulate`].
    #[inline(always)]
    unsafe fn words<S: Simd>(&self, token: usize) -> [S::I; V] {
        // SAFETY: as the caller's.
        unsafe { load::<S, T, V>(self.at(token), self.left()) }
    }

    /// Adds the weighted values of a group of tokens.
    ///
    /// # Safety
    /// As for [`KvElement::accumulate`].
    #[inline(always)]
    unsafe fn step<S: Simd>(&self, token: usize, words: [S::I; V], acc: &mut [[S::V; V]; Q]) {
        let &Values { weights, rounded, .. } = self.0;
        // SAFETY: as the caller's.
        unsafe {
            for (q, row) in acc.iter_mut().enumerate() {
                let at = q * CHUNK_TOKENS + token;
                if const { pairs::<S, T>() && ROUNDED } {
                    let pair = rounded.add(at).cast::<u32>().read_unaligned();
                    for (a, pair_of_values) in row.iter_mut().zip(words) {
                        *a = S::pair_dot_bits(*a, pair_of_values, pair);
                    }
                    continue;
                }
                let weight = S::splat(*weights.add(at));
                for (a, word) in row.iter_mut().zip(words) {
                    if T::BF16 {
                        let next = S::splat(*weights.add(at + 1));
                        let odd = S::and_bits(word, S::splat_bits(0xffff_0000));
                        *a = S::mul_add(S::from_bits(S::shl::<16>(word)), weight, *a);
                        *a = S::mul_add(S::from_bits(odd), next, *a);
                    } else {
                        *a = S::mul_add(S::from_bits(word), weight, *a);
                    }
                }
            }
        }
    }
}

/// `V` vectors of words, of which a single one may have but `left`.
///
/// # Safety
/// As [`Simd`]; there are so many.
#[inline(always)]
unsafe fn load<S: Simd, T, const V: usize>(words: *const T, left: usize) -> [S::I; V] {
    let from: *const f32 = words.cast();
    // SAFETY: as the caller's.
    unsafe {
        let mut words = [S::splat_bits(0); V];
        for (v, words) in words.iter_mut().enumerate() {
            *words = S::to_bits(f32::load_part::<S>(from.add(v * LANES), left));
        }
        words
    }
}

/// Of every word the bits of `mask`.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
unsafe fn masked<S: Simd, const V: usize>(mut words: [S::I; V], mask: u32) -> [S::I; V] {
    for word in &mut words {
        // SAFETY: as the caller's.
        *word = unsafe { S::and_bits(*word, S::splat_bits(mask)) };
    }
    words
}
