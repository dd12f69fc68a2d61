//! The sums of a panel for any number of rows.

use super::fold::Fold;
use super::inner::Inner;
use super::inputs::Inputs;
use super::tile::{Expand, Stretch};
use crate::kernels::matmul::{Ahead, WIDTH, tile_rows};
use crate::kernels::simd::{Simd, Vectorised};
use std::marker::PhantomData;

/// Words of a block along `K` after expansion, for each output: 16 KiB.
const BLOCK_WORDS: usize = 64;
/// Bytes of a block that was expanded; one may be a group of up to twice as many words.
pub(super) const EXPANDED_BYTES: usize = 2 * BLOCK_WORDS * WIDTH * size_of::<u32>();
/// Cache lines of a word of all outputs of a panel.
const WORD_LINES: usize = WIDTH * size_of::<u32>() / 64;
/// How many words ahead of its use a panel that is read once is asked for.
const WORDS_AHEAD: usize = 16;

/// Inputs and a thread's working memory.
pub(super) struct Work<'a, X> {
    pub(super) inputs: &'a Inputs<X>,
    /// Words of a panel and of a group for each output.
    pub(super) words: usize,
    pub(super) group: usize,
    /// Memory for a block that was expanded.
    pub(super) expanded: *mut u32,
    /// Sums `[rows][64]`.
    pub(super) sums: *mut f32,
    /// Sums of a group that goes on after a block, `[rows][64]`.
    pub(super) partial: *mut f32,
}

/// A panel and the rows of inputs that meet it; makes their sums. A function of its own for each
/// inner product, whatever becomes of the sums.
pub(super) struct Panel<'a, P: Inner, F> {
    pub(super) work: &'a Work<'a, P::X>,
    pub(super) weights: *const u32,
    pub(super) fold: F,
    pub(super) rows: &'a [u32],
}

impl<P: Inner, F: Fold> Vectorised for Panel<'_, P, F> {
    type Output = ();

    /// The panel has as many words and groups as `work` says; the rows exist.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { work, weights, fold, rows } = self;
        let &Work { inputs, words, group, expanded, sums, partial } = work;
        let tiles = rows.len().div_ceil(S::MAX_ROWS);
        // SAFETY: words and rows stay inside what the caller vouches for.
        unsafe {
            if tiles == 1 {
                let next = weights.wrapping_add(WORDS_AHEAD * WIDTH);
                let stretch = Stretch::<P, F> {
                    weights,
                    first: 0,
                    count: words,
                    total: words,
                    group,
                    inputs,
                    next: &[],
                    fold,
                    ahead: Ahead::part(next, words, 0, 1),
                    partial,
                    sums,
                };
                return stretch.multiply::<S>(rows);
            }
            let block = block_words(group, P::EXPANSION.max(1));
            for first in (0..words).step_by(block) {
                let count = block.min(words - first);
                let from = weights.add(first * WIDTH);
                let block = Block {
                    weights: if P::EXPANSION == 0 { from } else { expanded },
                    first,
                    count,
                    next: from.wrapping_add(count * WIDTH),
                    fold,
                };
                if P::EXPANSION == 0 {
                    block.tiles::<S, P>(work, rows, tiles, 1);
                } else {
                    S::enter(Expand::<P> { from, to: expanded, count, of: PhantomData });
                    block.tiles::<S, P::Expanded>(work, rows, tiles, P::EXPANSION);
                }
            }
        }
    }
}

/// Some words of a panel that several tiles of rows meet, one after another.
struct Block<F> {
    /// The first of them, perhaps expanded.
    weights: *const u32,
    first: usize,
    count: usize,
    /// Words after these, to ask for meanwhile.
    next: *const u32,
    fold: F,
}

impl<F: Fold> Block<F> {
    /// Adds the products of all tiles; `P` is the inner product of words, each of which was
    /// expanded to `expansion`.
    ///
    /// # Safety
    /// As [`Stretch::multiply`].
    #[inline(always)]
    unsafe fn tiles<S: Simd, P: Inner>(
        &self,
        work: &Work<'_, P::X>,
        rows: &[u32],
        tiles: usize,
        expansion: usize,
    ) {
        let steps = self.count * expansion;
        for tile in 0..tiles {
            let (row, count) = tile_rows(rows.len(), tiles, tile);
            let lines = WORD_LINES.div_ceil(expansion);
            let stretch = Stretch::<P, F> {
                weights: self.weights,
                first: self.first * expansion,
                count: steps,
                total: work.words * expansion,
                group: work.group * expansion,
                inputs: work.inputs,
                next: &rows[row + count..],
                fold: self.fold,
                ahead: Ahead::spread(self.next.cast(), steps, lines, tile, tiles),
                partial: work.partial.wrapping_add(row * WIDTH),
                sums: work.sums.wrapping_add(row * WIDTH),
            };
            // SAFETY: as the caller's.
            unsafe { stretch.multiply::<S>(&rows[row..row + count]) }
        }
    }
}

/// How many words of a panel a block has when a group has `group` and each expands to `expansion`:
/// whole groups, unless they are longer than memory for expanded blocks.
fn block_words(group: usize, expansion: usize) -> usize {
    let wanted = (BLOCK_WORDS / expansion).max(1);
    match group {
        _ if group <= wanted => wanted / group * group,
        _ if group <= 2 * wanted => group,
        _ => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_groups_that_fit() {
        for expansion in [1, 2, 4, 8] {
            for group in 1..=600 {
                let words = block_words(group, expansion);
                assert!(words > 0 && words * expansion * WIDTH * 4 <= EXPANDED_BYTES);
                assert!(words.is_multiple_of(group) || group > 2 * BLOCK_WORDS / expansion);
            }
        }
    }
}
