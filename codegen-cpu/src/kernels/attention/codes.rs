//! The innermost loops of attention with keys and values of 8 bits: what [`super::tile`] does with floats.

use super::ahead::Taken;
use super::numbers::{Codes, Sum};
use super::tile::{CHUNK_TOKENS, Scores, Values};
use super::turns::run;
use crate::kernels::element::Element;
use crate::kernels::kv::{BLOCK_TOKENS, CODE_GROUP};
use crate::kernels::simd::{Dots, LANES, LINE_BYTES, Simd, Vectorised};

/// Groups of tokens of a block.
const BLOCK_GROUPS: usize = BLOCK_TOKENS / CODE_GROUP;
/// Cache lines asked for with four vectors of values where heads take turns: one fewer, since some are asked for while
/// scores become weights.
const TURN_LINES: usize = 3;

/// The scores of `Q` queries.
pub(super) struct ScoreTile<'a, const Q: usize>(pub(super) &'a Scores<'a, i8>);

impl<const Q: usize> Vectorised for ScoreTile<'_, Q> {
    type Output = ();
    const DOTS: Dots = Dots::BYTES;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (scores, mut block) = (self.0, 0);
        // SAFETY: as for `KvElement::scores`; there are so many blocks.
        unsafe {
            let mut largest = [S::splat(f32::NEG_INFINITY); Q];
            // Enough sums at once to hide the latency of the instruction, as registers allow.
            if const { S::WIDE && Q < 4 } {
                while block + 4 <= scores.blocks.len() {
                    some_blocks::<S, Q, 4>(scores, block, &mut largest);
                    block += 4;
                }
            } else if const { S::WIDE } {
                while block + 2 <= scores.blocks.len() {
                    some_blocks::<S, Q, 2>(scores, block, &mut largest);
                    block += 2;
                }
            }
            while block < scores.blocks.len() {
                some_blocks::<S, Q, 1>(scores, block, &mut largest);
                block += 1;
            }
            for (q, largest) in largest.into_iter().enumerate() {
                S::store(scores.largest.add(q * LANES), largest);
            }
        }
    }
}

/// The scores of `Q` queries and `B` blocks from `block` on; `largest` becomes the larger of itself and them.
///
/// # Safety
/// As for [`super::tile::KvElement::scores`]; there are so many blocks.
#[inline(always)]
pub(super) unsafe fn some_blocks<S: Simd, const Q: usize, const B: usize>(
    of: &Scores<'_, i8>,
    block: usize,
    largest: &mut [S::V; Q],
) {
    let &Scores { blocks, ahead, q, factors, stride, groups, scores, .. } = of;
    // SAFETY: as the caller's; the scales of a block come after its codes.
    unsafe {
        let keys: [*const u32; B] = std::array::from_fn(|b| blocks[block + b].cast());
        let mut ahead = Taken::new(ahead);
        let q: [*const u8; Q] = std::array::from_fn(|i| q.add(i * stride).cast());
        let (mut sums, mut others) = ([[Sum::<S>::zero(); B]; Q], [[Sum::<S>::zero(); B]; Q]);
        let mut g = 0;
        if const { !S::HALF_DOT && B == 1 && Q < 4 } {
            // One block has too few sums to hide the latency of the instruction.
            while g + 4 <= groups {
                ahead.ask::<S>(4);
                add_group(keys, q, stride, g, &mut sums);
                add_group(keys, q, stride, g + 1, &mut others);
                add_group(keys, q, stride, g + 2, &mut sums);
                add_group(keys, q, stride, g + 3, &mut others);
                g += 4;
            }
            for (row, others) in sums.iter_mut().zip(others) {
                for (sum, other) in row.iter_mut().zip(others) {
                    *sum = sum.plus(other);
                }
            }
        }
        while g < groups {
            ahead.ask::<S>(B);
            add_group(keys, q, stride, g, &mut sums);
            g += 1;
        }
        ahead.ask::<S>(B);
        ahead.put_back();
        let mut scales = [S::splat(0.0); B];
        for (scales, k) in scales.iter_mut().zip(keys) {
            *scales = S::load(k.add(groups * LANES).cast());
        }
        for (i, row) in sums.into_iter().enumerate() {
            let factors = *factors.add(i);
            for (b, sum) in row.into_iter().enumerate() {
                let by = S::mul(scales[b], S::splat(factors.scale));
                let score = S::mul(sum.total(factors), by);
                S::store(scores.add(i * CHUNK_TOKENS + (block + b) * BLOCK_TOKENS), score);
                largest[i] = S::max(largest[i], score);
            }
        }
    }
}

/// Adds the products of the group `g` of codes of each block with those of each query.
///
/// # Safety
/// As for [`super::tile::KvElement::scores`].
#[inline(always)]
unsafe fn add_group<S: Simd, const Q: usize, const B: usize>(
    mut keys: [*const u32; B],
    q: [*const u8; Q],
    stride: usize,
    g: usize,
    sums: &mut [[Sum<S>; B]; Q],
) {
    // SAFETY: as the caller's.
    unsafe {
        // No closure: with AVX2 the compiler calls it, and each instruction in it, as a function.
        for part in 0..Codes::<S>::PARTS {
            let mut codes = [Codes::<S>::new(S::splat_bits(0), part); B];
            for (codes, k) in codes.iter_mut().zip(&mut keys) {
                *codes = Codes::new(S::load_bits(k.add(g * LANES)), part);
                *k = S::again(*k);
            }
            for (row, q) in sums.iter_mut().zip(q) {
                for (sum, codes) in row.iter_mut().zip(codes) {
                    codes.add_products(sum, q.cast::<u32>().wrapping_add(g).cast(), stride);
                }
            }
        }
    }
}

/// [`super::tile::KvElement::head_values`] of codes.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn columns<S: Simd, const Q: usize, const TURNS: bool>(values: &Values<'_, i8>) {
    let mut i = 0;
    // SAFETY: as the caller's.
    unsafe {
        // As many vectors as there are registers for.
        while S::WIDE && Q < 4 && i + 4 * LANES <= values.d {
            run::<S, TURNS, _>(ValueTile::<Q, 4, TURNS, true>(values, i));
            i += 4 * LANES;
        }
        while S::WIDE && i + 2 * LANES <= values.d {
            run::<S, TURNS, _>(ValueTile::<Q, 2, TURNS, true>(values, i));
            i += 2 * LANES;
        }
        while i + LANES <= values.d {
            run::<S, TURNS, _>(ValueTile::<Q, 1, TURNS, true>(values, i));
            i += LANES;
        }
        // A function of its own even where heads take turns: with one tile more in theirs, the compiler leaves calls in it.
        if i < values.d {
            S::enter(ValueTile::<Q, 1, false, false>(values, i));
        }
    }
}

/// `Q` queries by `V` vectors from an element of the values on, or by what is left of one, which is not `WHOLE`.
struct ValueTile<'a, const Q: usize, const V: usize, const TURNS: bool, const WHOLE: bool>(
    &'a Values<'a, i8>,
    usize,
);

impl<const Q: usize, const V: usize, const TURNS: bool, const WHOLE: bool> Vectorised
    for ValueTile<'_, Q, V, TURNS, WHOLE>
{
    type Output = ();
    const DOTS: Dots = Dots::BYTES;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let ValueTile(values, first) = self;
        let &Values { blocks, ahead, tokens, all, factors, whole, sums, stride, .. } = values;
        // SAFETY: as for `KvElement::accumulate`.
        unsafe {
            let (mut acc, mut ahead) = ([[Sum::<S>::zero(); V]; Q], Taken::new(ahead));
            let at = |q: usize, v: usize| whole.add(q * stride + first + v * LANES);
            if tokens.0 > all.0 {
                for (q, row) in acc.iter_mut().enumerate() {
                    for (v, sum) in row.iter_mut().enumerate() {
                        *sum = Sum::load(at(q, v));
                    }
                }
            }
            for block in tokens.0 / BLOCK_TOKENS..tokens.1 / BLOCK_TOKENS {
                if const { TURNS && V == 4 } {
                    let instead = blocks.get_unchecked(block).add(first * CODE_GROUP).cast();
                    let (from, near) = ahead.next_or(BLOCK_GROUPS * TURN_LINES, instead);
                    match near {
                        true => self.add_block::<S, true>(block, from, &mut acc),
                        false => self.add_block::<S, false>(block, from, &mut acc),
                    }
                    continue;
                }
                for group in 0..BLOCK_GROUPS {
                    ahead.ask::<S>(V);
                    self.add_group::<S>(block, group, &mut acc);
                }
                if first == 0 && !TURNS {
                    ahead.ask::<S>(1);
                }
            }
            ahead.put_back();
            if tokens.1 < all.1 {
                for (q, row) in acc.into_iter().enumerate() {
                    for (v, sum) in row.into_iter().enumerate() {
                        sum.store(at(q, v));
                    }
                }
                return;
            }
            for (q, row) in acc.into_iter().enumerate() {
                let factors = *factors.add(q);
                for (v, sum) in row.into_iter().enumerate() {
                    let at = sums.add(q * stride + first + v * LANES);
                    let by = S::splat(factors.scale);
                    S::store(at, S::mul_add(sum.total(factors), by, S::load(at)));
                }
            }
        }
    }
}

impl<const Q: usize, const V: usize, const TURNS: bool, const WHOLE: bool>
    ValueTile<'_, Q, V, TURNS, WHOLE>
{
    /// Adds the products of a block, and asks for [`TURN_LINES`] lines from `ahead` on with each group. With a branch
    /// between them, as where each group's lines are found by themselves, the compiler loads all groups before it
    /// multiplies, for which there are too few registers.
    ///
    /// # Safety
    /// As for [`super::tile::KvElement::accumulate`].
    #[inline(always)]
    unsafe fn add_block<S: Simd, const NEAR: bool>(
        &self,
        block: usize,
        ahead: *const u8,
        acc: &mut [[Sum<S>; V]; Q],
    ) {
        for group in 0..BLOCK_GROUPS {
            // SAFETY: as the caller's; what is asked for may be anywhere.
            unsafe {
                for line in group * TURN_LINES..(group + 1) * TURN_LINES {
                    S::prefetch_to(ahead.wrapping_add(line * LINE_BYTES), NEAR);
                }
                self.add_group::<S>(block, group, acc);
            }
        }
    }

    /// Adds the products of a block's group of tokens.
    ///
    /// # Safety
    /// As for [`super::tile::KvElement::accumulate`].
    #[inline(always)]
    unsafe fn add_group<S: Simd>(&self, block: usize, group: usize, acc: &mut [[Sum<S>; V]; Q]) {
        let &ValueTile(&Values { blocks, d, rounded, .. }, first) = self;
        let left = if WHOLE { LANES } else { d - first };
        // SAFETY: as the caller's; only the last vector may be short.
        unsafe {
            let mut at =
                blocks.get_unchecked(block).add((first + group * d) * CODE_GROUP).cast::<u32>();
            let numbers = rounded.cast::<u8>().add(block * BLOCK_TOKENS + group * CODE_GROUP);
            for part in 0..Codes::<S>::PARTS {
                let mut codes = [Codes::<S>::new(S::splat_bits(0), part); V];
                for (v, codes) in codes.iter_mut().enumerate() {
                    let words = f32::load_part::<S>(at.add(v * LANES).cast(), left);
                    *codes = Codes::new(S::to_bits(words), part);
                }
                for (q, row) in acc.iter_mut().enumerate() {
                    let numbers = numbers.add(q * 2 * CHUNK_TOKENS);
                    for (sum, codes) in row.iter_mut().zip(codes) {
                        codes.add_products(sum, numbers, CHUNK_TOKENS);
                    }
                }
                at = S::again(at);
            }
        }
    }
}
