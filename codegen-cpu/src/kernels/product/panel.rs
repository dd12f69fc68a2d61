//! The sums of a panel for any number of rows.

use super::beside::Gates;
use super::fold::Fold;
use super::inner::Inner;
use super::inputs::Inputs;
use super::store::Stored;
use super::tile::{Expand, MOST_TILE_ROWS, Stretch};
use crate::kernels::epilogue::{End, PanelSums, ResultRows};
use crate::kernels::matmul::{
    Ahead, FAR_WORDS, OCTET_PAIRS, STEP_GROUPS, TILE_ROWS, TURN, WIDTH, even_blocks, most_words,
    one_pass, tile_rows,
};
use crate::kernels::simd::{Dots, Simd, Vectorised};
use std::marker::PhantomData;

/// Bytes of a block that was expanded; one may be a group of up to twice as many words. Behind it what unpacking
/// makes too much.
pub(super) const EXPANDED_BYTES: usize = (2 * FAR_WORDS + OCTET_PAIRS) * WIDTH * size_of::<u32>();
/// Steps of a block that AMX tiles meet: 32 KiB.
const BLOCK_STEPS: usize = 8;
/// With so many tiles or more, each has [`MOST_TILE_ROWS`] rows or one less.
const TILES_BESIDE: usize = MOST_TILE_ROWS - 1;
/// How many words ahead of its use a panel that is read once is asked for.
const WORDS_AHEAD: usize = 16;

/// Inputs and a thread's working memory.
pub(super) struct Work<'a, X> {
    pub(super) inputs: &'a Inputs<X>,
    /// Words of a panel and of a group for each output.
    pub(super) words: usize,
    pub(super) group: usize,
    /// Whether many rows may go through AMX tiles.
    pub(super) tiles: bool,
    /// Memory for a block that was expanded.
    pub(super) expanded: *mut u32,
    /// Sums `[rows][64]`.
    pub(super) sums: *mut f32,
    /// Sums of a group that goes on after a block, `[rows][64]`.
    pub(super) partial: *mut f32,
}

/// A panel and the rows of inputs that meet it; makes their sums and hands these to the end. A
/// function of its own for each inner product, whatever becomes of the sums.
pub(super) struct Panel<'a, P: Inner, F, W> {
    pub(super) work: &'a Work<'a, P::X>,
    pub(super) weight: &'a W,
    /// Words after the panel, to ask for meanwhile.
    pub(super) after: *const u32,
    pub(super) fold: F,
    pub(super) rows: &'a [u32],
    pub(super) results: Results<'a>,
}

/// What becomes of the sums of a panel.
#[derive(Clone, Copy)]
pub(super) struct Results<'a> {
    pub(super) end: &'a End,
    pub(super) panel: usize,
    /// The row of the result for each row of inputs.
    pub(super) rows: &'a [u32],
    /// Factors by row of the inputs.
    pub(super) factors: Option<*const f32>,
}

impl<'a> Results<'a> {
    /// The sums of the rows of inputs `sources`, which are those from the `first` on.
    #[inline(always)]
    fn sums(&self, first: usize, sources: &'a [u32], sums: *mut f32) -> PanelSums<'a> {
        let rows = ResultRows::List(&self.rows[first..first + sources.len()]);
        let factors = self.factors.map(|factors| (factors, sources));
        PanelSums { panel: self.panel, sums, rows, factors }
    }

    /// Takes the sums of the rows of inputs `sources`, which are those from the `first` on.
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, first: usize, sources: &'a [u32], sums: *mut f32) {
        // SAFETY: as the caller's.
        unsafe { self.end.store::<S>(self.sums(first, sources, sums)) }
    }

    /// Asks for the lines that the results of `count` rows from the `first` on go to.
    ///
    /// # Safety
    /// As [`End::store`].
    #[inline(always)]
    unsafe fn ask<S: Simd>(&self, first: usize, count: usize) {
        let rows = ResultRows::List(&self.rows[first..first + count]);
        // SAFETY: as the caller's.
        unsafe { self.end.ask::<S>(self.panel, rows) }
    }
}

impl<P: Inner, F: Fold, W: Stored> Vectorised for Panel<'_, P, F, W> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    /// The panel has as many words and groups as `work` says; the rows exist.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { work, weight, after, fold, rows, results } = self;
        let &Work { inputs, words, group, expanded, sums, partial, .. } = work;
        let way = Way::new::<S, P>(work, rows.len());
        let tiles = way.tiles;
        // SAFETY: words and rows stay inside what the caller vouches for.
        unsafe {
            if let Some(weights) = weight.words().filter(|_| way.once) {
                let next: *const u32 = weights.wrapping_add(WORDS_AHEAD * WIDTH);
                let stretch = Stretch::<P, F> {
                    weights,
                    first: 0,
                    count: words,
                    total: words,
                    group,
                    inputs,
                    next: &[],
                    fold,
                    ahead: way.ahead(next, words, W::WORD_LINES, 0),
                    partial,
                    sums,
                };
                stretch.multiply::<S>(rows);
                return results.store::<S>(0, rows, sums);
            }
            let x = rows.iter().map(|&row| inputs.row(row as usize));
            let coded = tiles == 1 && weight.words().is_none();
            if coded && weight.multiply::<S, P>((words, after), x, sums) {
                return results.store::<S>(0, rows, sums);
            }
            let expansion = if way.expands { P::EXPANSION } else { 1 };
            let unit = TURN.max(way.step / expansion);
            let block = block_words(words, group, way.most_words / expansion, unit);
            for first in (0..words).step_by(block) {
                let count = block.min(words - first);
                // Where it ends as what it is expanded to.
                let unpacked = expanded.add((expansion - 1) * count * WIDTH);
                let from = weight.words().map_or(unpacked.cast_const(), |w| w.add(first * WIDTH));
                if weight.words().is_none() {
                    weight.unpack::<S>(first, count, unpacked);
                }
                let ends = first + count == words;
                let block = Block {
                    weights: if way.expands { expanded } else { from },
                    first,
                    count,
                    next: if ends { after } else { weight.at(first + count) },
                    lines: W::WORD_LINES,
                    fold,
                    results: ends.then_some(results),
                };
                if way.expands {
                    S::enter(Expand::<P> { from, to: expanded, count, of: PhantomData });
                    block.tiles::<S, P::Expanded>(work, rows, way, expansion);
                } else {
                    block.tiles::<S, P>(work, rows, way, 1);
                }
            }
        }
    }
}

/// Whether weights are bytes, or expanded to them, which AMX tiles multiply: whoever has these has wide vectors.
pub(super) const fn in_tiles<S: Simd, P: Inner>() -> bool {
    S::WIDE && (P::BYTES || P::EXPANSION > 0 && P::Expanded::BYTES)
}

/// How rows meet a panel.
#[derive(Clone, Copy)]
struct Way {
    /// Tiles of rows.
    tiles: usize,
    /// Whether the weights are read once, as they are, from the first word of a panel to its last.
    once: bool,
    /// Words that requests are counted by.
    step: usize,
    /// Whether weights are expanded first.
    expands: bool,
    /// The most words of a block, expanded.
    most_words: usize,
}

impl Way {
    #[inline(always)]
    fn new<S: Simd, P: Inner>(work: &Work<'_, P::X>, rows: usize) -> Self {
        let expansion = P::EXPANSION.max(1);
        if work.tiles
            && const { in_tiles::<S, P>() }
            && rows > P::most_rows::<S>()
            // Shorter groups have no whole step.
            && work.group * expansion >= STEP_GROUPS
        {
            return Self {
                tiles: rows.div_ceil(TILE_ROWS),
                once: false,
                step: STEP_GROUPS,
                expands: P::EXPANSION > 0,
                most_words: BLOCK_STEPS * STEP_GROUPS,
            };
        }
        let mut tiles = rows.div_ceil(P::most_rows::<S>());
        let expands = P::EXPANSION > 0 && tiles >= P::EXPANDED_FROM;
        if expands {
            tiles = rows.div_ceil(P::Expanded::most_rows::<S>());
        }
        // Words that each tile takes apart for itself come as fast from the second-level cache.
        let apart = const { P::PARTS > 1 && P::EXPANSION == 0 };
        let most_words = if apart { FAR_WORDS } else { most_words::<S>(tiles) };
        let once = tiles == 1 && !expands && one_pass::<S>(rows);
        Self { tiles, once, step: 1, expands, most_words }
    }

    /// What a tile asks for of `words` words at `next`, each of `lines` lines.
    #[inline(always)]
    fn ahead(self, next: *const u32, words: usize, lines: usize, tile: usize) -> Ahead {
        let steps = words.div_ceil(self.step);
        Ahead::spread(next.cast(), steps, lines * self.step, tile, self.tiles)
    }
}

/// Some words of a panel that several tiles of rows meet, one after another.
struct Block<'a, F> {
    /// The first of them, perhaps expanded.
    weights: *const u32,
    first: usize,
    count: usize,
    /// Words after these, to ask for meanwhile, and cache lines of each.
    next: *const u32,
    lines: usize,
    fold: F,
    /// What becomes of the sums after this block.
    results: Option<Results<'a>>,
}

impl<'a, F: Fold> Block<'a, F> {
    /// Adds the products of all tiles; `P` is the inner product of words, each of which was
    /// expanded to `expansion`.
    ///
    /// # Safety
    /// As [`Stretch::multiply`].
    #[inline(always)]
    unsafe fn tiles<S: Simd, P: Inner>(
        &self,
        work: &Work<'_, P::X>,
        rows: &'a [u32],
        way: Way,
        expansion: usize,
    ) {
        let steps = self.count * expansion;
        // The gates of a tile are found beside the products of the next one.
        let gates = self.results.filter(|results| {
            way.step == 1
                && way.tiles >= TILES_BESIDE
                && results.end.only_gates()
                && const { gates_beside::<S, P>() }
        });
        let mut before = None;
        for tile in 0..way.tiles {
            let (row, count) = tile_rows(rows.len(), way.tiles, tile);
            let lines = self.lines.div_ceil(expansion);
            // Sums that are not kept for another block stay in the nearest cache.
            let is_only = self.first == 0 && self.results.is_some();
            let slot = if gates.is_some() { tile % 2 * MOST_TILE_ROWS } else { 0 };
            let at = if is_only { slot } else { row } * WIDTH;
            let stretch = Stretch::<P, F> {
                weights: self.weights,
                first: self.first * expansion,
                count: steps,
                total: work.words * expansion,
                group: work.group * expansion,
                inputs: work.inputs,
                next: &rows[row + count..],
                fold: self.fold,
                ahead: way.ahead(self.next, steps, lines, tile),
                partial: work.partial.wrapping_add(at),
                sums: work.sums.wrapping_add(at),
            };
            let (rows, sums) = (&rows[row..row + count], stretch.sums);
            // SAFETY: as the caller's.
            unsafe {
                if let Some(results) = self.results {
                    results.ask::<S>(row, count);
                }
                if const { gates_beside::<S, P>() }
                    && let Some(results) = gates
                {
                    stretch.multiply_beside::<S>(rows, Gates::new(results.end, before));
                    before = Some(results.sums(row, rows, sums));
                    continue;
                }
                stretch.multiply::<S>(rows);
                if let Some(results) = self.results {
                    results.store::<S>(row, rows, sums);
                }
            }
        }
        if let (Some(results), Some(sums)) = (gates, before) {
            // SAFETY: as the caller's.
            unsafe { results.end.store::<S>(sums) }
        }
    }
}

/// Whether gates are found beside products: of bytes, whose tiles are so short that gates take a twentieth as long, where the
/// sums of a tile leave registers.
const fn gates_beside<S: Simd, P: Inner>() -> bool {
    P::BYTES && S::WIDE && S::MAX_ROWS == MOST_TILE_ROWS
}

/// Words of a block of a panel of `words`, about `most` at most: whole groups of `group` words, or of `unit` words where
/// groups are much longer.
fn block_words(words: usize, group: usize, most: usize, unit: usize) -> usize {
    let most = most.max(1);
    match group {
        _ if group <= most => even_blocks(words, most, group),
        _ if group <= 2 * most => group,
        _ => even_blocks(words, most, unit.min(most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_groups_that_fit_and_as_long_as_each_other() {
        for expansion in [1, 2, 4, 8] {
            for group in 1..=1200 {
                let total = group * 1200usize.div_ceil(group);
                let words = block_words(total, group, FAR_WORDS / expansion, TURN);
                assert!(
                    words > 0 && (words * expansion + OCTET_PAIRS) * WIDTH * 4 <= EXPANDED_BYTES
                );
                assert!(words.is_multiple_of(group) || group > 2 * FAR_WORDS / expansion);
                let blocks = total.div_ceil(words);
                // The last is shorter by less than a group, or a turn, for each of the others.
                assert!(blocks * words - total < blocks * group.max(TURN));
            }
        }
        assert_eq!(block_words(1216, 1216, FAR_WORDS, TURN), 408, "not 512, 512 and 192");
        let steps = block_words(1216, 1216, BLOCK_STEPS * STEP_GROUPS, STEP_GROUPS);
        assert_eq!(steps, 128, "whole steps, not 124");
    }
}
