//! Several KV heads of an item, which take turns block by block.

use super::tile::{CHUNK_BLOCKS, CHUNK_TOKENS, KvElement, Scores, Values};
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};

/// KV heads that take turns block by block, in the order in which they lie in memory. What belongs to the queries of a
/// head lies behind that of the head before it.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Turns {
    pub(super) heads: usize,
    /// Elements from the keys, or values, of a head to those of the next.
    pub(super) step: usize,
}

impl Turns {
    /// One head, which takes all blocks in one go.
    pub(super) const NONE: Self = Self { heads: 1, step: 0 };

    /// Whether there are several heads.
    #[inline(always)]
    pub(super) fn any(self) -> bool {
        self.heads > 1
    }
}

/// Runs `body`, as a function of its own unless heads take `TURNS`: then inside one that was compiled for the
/// instruction set.
///
/// # Safety
/// As for [`Vectorised::run`].
#[inline(always)]
pub(super) unsafe fn run<S: Simd, const TURNS: bool, F: Vectorised>(body: F) -> F::Output {
    // SAFETY: the caller's promise.
    unsafe { if TURNS { body.run::<S>() } else { S::enter(body) } }
}

impl<T> Scores<'_, T> {
    /// Those of the `queries` queries of a head and the chunk's block `block`, with its keys.
    ///
    /// # Safety
    /// The pointers are valid for it.
    #[inline(always)]
    unsafe fn of<'a>(
        &'a self,
        head: usize,
        queries: usize,
        block: usize,
        keys: &'a [*const T; 1],
    ) -> Scores<'a, T> {
        let query = head * queries;
        // SAFETY: the caller's promise.
        unsafe {
            Scores {
                blocks: keys,
                q: self.q.add(query * self.stride),
                factors: self.factors.add(query),
                scores: self.scores.add(query * CHUNK_TOKENS + block * BLOCK_TOKENS),
                largest: self.largest.add(query * LANES),
                turns: Turns::NONE,
                ..*self
            }
        }
    }
}

impl<T> Values<'_, T> {
    /// Those of the `queries` queries of a head and the chunk's block `block`, with the head's values.
    ///
    /// # Safety
    /// The pointers are valid for it.
    #[inline(always)]
    unsafe fn of<'a>(
        &'a self,
        head: usize,
        queries: usize,
        block: usize,
        values: &'a [*const T; CHUNK_BLOCKS],
    ) -> Values<'a, T> {
        let query = head * queries;
        let (from, to) = (block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS);
        // SAFETY: the caller's promise.
        unsafe {
            Values {
                blocks: values,
                tokens: (self.tokens.0.max(from), self.tokens.1.min(to)),
                weights: self.weights.add(query * CHUNK_TOKENS),
                rounded: self.rounded.add(query * CHUNK_TOKENS),
                factors: self.factors.add(query),
                whole: self.whole.wrapping_add(query * self.stride),
                sums: self.sums.add(query * self.stride),
                turns: Turns::NONE,
                ..*self
            }
        }
    }
}

/// [`KvElement::scores`] of `Q` queries of each head.
pub(super) struct HeadScores<'a, T, const Q: usize>(pub(super) &'a Scores<'a, T>);

impl<T: KvElement, const Q: usize> Vectorised for HeadScores<'_, T, Q> {
    type Output = ();
    const DOTS: Dots = T::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Turns { heads, step } = self.0.turns;
        // SAFETY: as for `KvElement::scores`.
        unsafe {
            for (b, keys) in self.0.blocks.iter().enumerate() {
                for head in 0..heads {
                    let keys = [keys.wrapping_add(head * step)];
                    let scores = self.0.of(head, Q, b, &keys);
                    let mut largest = [S::splat(0.0); Q];
                    for (q, largest) in largest.iter_mut().enumerate() {
                        *largest = S::load(scores.largest.add(q * LANES));
                    }
                    T::block_scores::<S, Q>(&scores, &mut largest);
                    for (q, largest) in largest.into_iter().enumerate() {
                        S::store(scores.largest.add(q * LANES), largest);
                    }
                }
            }
        }
    }
}

/// [`KvElement::accumulate`] of `Q` queries of each head.
pub(super) struct HeadValues<'a, T, const Q: usize>(pub(super) &'a Values<'a, T>);

impl<T: KvElement, const Q: usize> Vectorised for HeadValues<'_, T, Q> {
    type Output = ();
    const DOTS: Dots = T::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (Turns { heads, step }, (from, to)) = (self.0.turns, self.0.tokens);
        // SAFETY: as for `KvElement::accumulate`.
        unsafe {
            for b in from / BLOCK_TOKENS..to.div_ceil(BLOCK_TOKENS) {
                for head in 0..heads {
                    let blocks = self.0.blocks.map(|values| values.wrapping_add(head * step));
                    T::head_values::<S, Q, true>(&self.0.of(head, Q, b, &blocks));
                }
            }
        }
    }
}
