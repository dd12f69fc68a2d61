//! Weights of codes with AMX: tiles meet the pairs of bf16 that the codes stand for, which are made beside the products of
//! those before them.
//!
//! Pairs have scales that are powers of two in them (MXFP4). Otherwise the sums of each group leave the tiles, and are added
//! up as [`Fold`] says.

use super::Product;
use super::codes::{Bf16, TileCode};
use super::fold::{Fold, InputScales, Place};
use super::inner::Pairs;
use super::method::Method;
use super::tile::VECTORS;
use crate::kernels::epilogue::{PanelSums, ResultRows};
use crate::kernels::matmul::squares::{MADE_STEPS, Make, Panels};
use crate::kernels::matmul::{FewPanels, Meet, STEP_GROUPS, Sums, Tiles, WIDTH};
use crate::kernels::simd::{Dots, LANES, LINE_BYTES, Simd, Vectorised};
use std::marker::PhantomData;
use std::ops::Range;

/// Cache lines of a word of all outputs.
const WORD_LINES: usize = WIDTH * size_of::<u32>() / LINE_BYTES;
/// How far ahead of its use a panel is asked for where few rows meet it.
const AHEAD_BYTES: usize = 12 << 10;

/// Whether tiles can meet groups of `group` words: each is whole steps that fit a block, or has its scale in its pairs, or
/// is all of `K`.
pub(super) fn fits<M: Method>(group: usize, groups: usize) -> bool {
    let pairs = group * M::PER_WORD / 2;
    let steps = pairs / STEP_GROUPS;
    let whole = pairs.is_multiple_of(STEP_GROUPS) && steps <= MADE_STEPS;
    M::Tile::SCALED || groups == 1 || whole
}

/// The panels of an expert, and the rows that meet them.
pub(super) struct CodeTiles<'a, M: Method> {
    pub(super) product: &'a Product<M>,
    pub(super) scales: InputScales,
    pub(super) expert: usize,
    /// Rows of inputs, and the rows of the result.
    pub(super) sources: &'a [u32],
    pub(super) results: ResultRows<'a>,
}

impl<M: Method> Clone for CodeTiles<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Method> Copy for CodeTiles<'_, M> {}

impl<M: Method> CodeTiles<'_, M> {
    const WORD_PAIRS: usize = M::PER_WORD / 2;

    /// The steps of a group, where groups leave the tiles.
    #[inline(always)]
    pub(super) fn group_steps(&self) -> Option<usize> {
        let leave = !M::Tile::SCALED && self.product.groups > 1;
        leave.then(|| self.product.group * Self::WORD_PAIRS / STEP_GROUPS)
    }

    /// Which of all panels is panel `panel`.
    #[inline(always)]
    fn index(&self, panel: usize) -> usize {
        self.expert * self.product.panels + panel
    }

    /// Where a word is stored.
    #[inline(always)]
    fn word(&self, panel: usize, word: usize) -> *const u32 {
        let Product { weight, weights, .. } = self.product;
        // SAFETY: the weight was bound.
        let base = unsafe { weight.row(0) };
        base.cast_const().wrapping_add((self.index(panel) * weights.words + word) * WIDTH)
    }

    /// Makes the pairs `pairs` of some vectors of outputs in their places at `to`, and asks for as many lines at `ahead` as
    /// are read.
    ///
    /// # Safety
    /// As [`Make::make`]; panel and pairs exist.
    #[inline(always)]
    unsafe fn expand<S: Simd>(
        &self,
        panel: usize,
        pairs: Range<usize>,
        vectors: Range<usize>,
        to: *mut u32,
        ahead: Option<*const u8>,
    ) {
        let words = pairs.start / Self::WORD_PAIRS..pairs.end / Self::WORD_PAIRS;
        let from = self.word(panel, words.start);
        // SAFETY: as the caller's; pairs are those of whole words.
        unsafe {
            let scales = self.product.scales(self.index(panel));
            let (group, of) = (self.product.group, PhantomData::<M::Tile>);
            S::enter(Expand { from, scales, words, group, vectors, to, ahead, of });
        }
    }

    /// Adds the sums `from` of some vectors of a group of a panel, `[rows][64]`, to those of the groups before it at `to`.
    ///
    /// # Safety
    /// As [`Simd`]; rows and panel exist.
    #[inline(always)]
    unsafe fn fold<S: Simd>(
        &self,
        (panel, group): (usize, usize),
        rows: Range<usize>,
        vectors: Range<usize>,
        from: *const f32,
        to: *mut f32,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let fold = self.product.fold(self.index(panel), self.scales);
            for (i, &source) in self.sources[rows].iter().enumerate() {
                for v in vectors.clone() {
                    let at = i * WIDTH + v * LANES;
                    let place = Place { group, row: source as usize, lane: v * LANES };
                    fold.fold::<S, Pairs<Bf16>>(S::load(from.add(at)), place, to.add(at));
                }
            }
        }
    }

    /// Gives sums over all of `K` their scales, where they have none yet.
    ///
    /// # Safety
    /// As [`CodeTiles::fold`].
    #[inline(always)]
    unsafe fn scale<S: Simd>(&self, panel: usize, rows: Range<usize>, sums: *mut f32) {
        if !M::Tile::SCALED && self.product.groups == 1 {
            // SAFETY: as the caller's.
            unsafe { self.fold::<S>((panel, 0), rows, 0..VECTORS, sums, sums) }
        }
    }
}

impl<M: Method> FewPanels for CodeTiles<'_, M> {
    type Panel = ();

    fn groups(&self) -> usize {
        self.product.weights.words * Self::WORD_PAIRS
    }

    unsafe fn panel(&self, _: usize) {}

    unsafe fn after<S: Simd>(&self, _: usize, _: usize) {}

    #[inline(always)]
    fn first(&self, panel: usize, _: &()) -> *const u8 {
        self.word(panel, 0).cast()
    }

    #[inline(always)]
    unsafe fn meet<S: Simd>(&self, meet: &Meet<'_>, panel: usize, _: &(), next: *const u8) {
        let of_groups = self.group_steps().map(|_| meet.apart);
        let sums = Sums::row(of_groups.unwrap_or(meet.sums).cast());
        // SAFETY: as the caller's.
        unsafe {
            sums.zero(meet.tiles);
            let made = Few { weight: self, panel, next, from: meet.apart, to: meet.sums };
            meet.made::<S>(sums, made);
            if of_groups.is_none() {
                sums.store();
                self.scale::<S>(panel, 0..self.sources.len(), meet.sums);
            }
        }
    }
}

/// A panel that few rows meet.
struct Few<'a, M: Method> {
    weight: &'a CodeTiles<'a, M>,
    panel: usize,
    /// What is read after the panel.
    next: *const u8,
    /// Sums of a group, and of all groups before it.
    from: *mut f32,
    to: *mut f32,
}

impl<M: Method> Make for Few<'_, M> {
    #[inline(always)]
    unsafe fn make<S: Simd>(&mut self, groups: Range<usize>, to: *mut u32) {
        let &mut Self { weight, panel, next, .. } = self;
        let word = groups.start / CodeTiles::<M>::WORD_PAIRS;
        let end: *const u8 = weight.word(panel + 1, 0).cast();
        let ahead = weight.word(panel, word).cast::<u8>().wrapping_add(AHEAD_BYTES);
        let ahead = match ahead < end {
            true => ahead,
            false => next.wrapping_add(ahead.addr() - end.addr()),
        };
        // SAFETY: as the caller's.
        unsafe { weight.expand::<S>(panel, groups, 0..VECTORS, to, Some(ahead)) }
    }

    #[inline(always)]
    unsafe fn met<S: Simd>(&mut self, end: usize, tiles: &Tiles, sums: Sums) {
        let &mut Self { weight, panel, from, to, .. } = self;
        let Some(steps) = weight.group_steps() else { return };
        if end.is_multiple_of(steps) || end == weight.groups().div_ceil(STEP_GROUPS) {
            let at = (panel, (end - 1) / steps);
            // SAFETY: as the caller's.
            unsafe {
                sums.store();
                weight.fold::<S>(at, 0..weight.sources.len(), 0..VECTORS, from, to);
                sums.zero(tiles);
            }
        }
    }
}

impl<'a, M: Method> Panels for CodeTiles<'a, M> {
    type Half = CodeHalf<'a, M>;

    const BYTES: bool = false;

    #[inline(always)]
    fn group_lines(&self) -> usize {
        WORD_LINES.div_ceil(Self::WORD_PAIRS)
    }

    #[inline(always)]
    fn at(&self, panel: usize, pair: usize) -> *const u8 {
        self.word(panel, pair / Self::WORD_PAIRS).cast()
    }

    #[inline(always)]
    unsafe fn block<S: Simd>(
        &self,
        panel: usize,
        groups: Range<usize>,
        to: *mut u32,
    ) -> *const u32 {
        // SAFETY: as the caller's.
        unsafe { self.expand::<S>(panel, groups, 0..VECTORS, to, None) };
        to
    }

    #[inline(always)]
    fn halves(
        &self,
        panel: usize,
        groups: Range<usize>,
        next: *const u8,
    ) -> Option<[CodeHalf<'a, M>; 2]> {
        let half_bytes = groups.len() / Self::WORD_PAIRS * WORD_LINES / 2 * LINE_BYTES;
        let ahead = |half| next.wrapping_add(half * half_bytes);
        Some([0, 1].map(|half| CodeHalf { weight: *self, panel, half, ahead: ahead(half) }))
    }

    #[inline(always)]
    fn added_steps(&self) -> Option<usize> {
        self.group_steps()
    }

    #[inline(always)]
    unsafe fn add<S: Simd>(
        &self,
        (panel, half): (usize, usize),
        end: usize,
        rows: Range<usize>,
        from: *const f32,
        to: *mut f32,
    ) {
        let group = (end - 1) / self.group_steps().unwrap_or(end);
        // SAFETY: as the caller's.
        unsafe { self.fold::<S>((panel, group), rows, half_vectors(half), from, to) }
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&self, panel: usize, rows: Range<usize>, sums: *mut f32) {
        // SAFETY: as the caller's.
        unsafe {
            self.scale::<S>(panel, rows.clone(), sums);
            let rows = self.results.part(rows);
            self.product.end.store::<S>(PanelSums { panel, sums, rows, factors: None });
        }
    }
}

/// Half of a panel that two tiles of rows meet.
pub(super) struct CodeHalf<'a, M: Method> {
    weight: CodeTiles<'a, M>,
    panel: usize,
    half: usize,
    /// What is asked for next.
    ahead: *const u8,
}

impl<M: Method> Make for CodeHalf<'_, M> {
    #[inline(always)]
    unsafe fn make<S: Simd>(&mut self, groups: Range<usize>, to: *mut u32) {
        let &mut Self { weight, panel, half, ahead } = self;
        let lines = groups.len() / CodeTiles::<M>::WORD_PAIRS * WORD_LINES / 2;
        self.ahead = ahead.wrapping_add(lines * LINE_BYTES);
        // SAFETY: as the caller's.
        unsafe { weight.expand::<S>(panel, groups, half_vectors(half), to, Some(ahead)) }
    }
}

/// The vectors of half a panel.
#[inline(always)]
fn half_vectors(half: usize) -> Range<usize> {
    half * VECTORS / 2..(half + 1) * VECTORS / 2
}

/// Words of a panel as pairs of bf16.
struct Expand<C> {
    /// The first of them.
    from: *const u32,
    /// The scales of the panel.
    scales: *const u32,
    /// Which words of the panel they are, and words of a group.
    words: Range<usize>,
    group: usize,
    /// Which vectors of outputs.
    vectors: Range<usize>,
    /// `[words][pairs][64]`.
    to: *mut u32,
    /// Where what is asked for meanwhile begins, as many lines as are read.
    ahead: Option<*const u8>,
    of: PhantomData<C>,
}

impl<C: TileCode> Vectorised for Expand<C> {
    type Output = ();
    const DOTS: Dots = Dots::PAIRS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { from, scales, words, group, vectors, to, mut ahead, .. } = self;
        let pairs = const { C::PER_WORD / 2 };
        let mut at = words.start;
        while at < words.end {
            let stop = words.end.min((at / group + 1) * group);
            for v in vectors.clone() {
                // SAFETY: all is valid for as many words, by the caller's promise; a prefetch may name any address.
                unsafe {
                    let lower = C::lower::<S>(scales, at / group, v * LANES);
                    for word in at - words.start..stop - words.start {
                        let codes = S::load_bits(from.add(word * WIDTH + v * LANES));
                        let to = to.add(word * pairs * WIDTH + v * LANES);
                        for i in 0..pairs {
                            let pair = C::tile_pair::<S>(codes, i, lower);
                            S::store_bits(to.add(i * WIDTH), pair);
                        }
                        if let Some(line) = ahead {
                            S::prefetch_far(line);
                            ahead = Some(line.wrapping_add(LINE_BYTES));
                        }
                    }
                }
            }
            at = stop;
        }
    }
}
