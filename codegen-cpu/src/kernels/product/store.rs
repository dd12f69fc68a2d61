//! How the words of a panel are stored.

use super::inner::Inner;
use super::tile::MOST_TILE_ROWS;
use crate::kernels::bind::product;
use crate::kernels::matmul::{Coded, CompactPanel, CompactWeight, OCTET_PAIRS, WIDTH};
use crate::kernels::simd::Simd;

/// Weights of several experts.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(super) experts: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Words of a panel for each output.
    pub(super) words: usize,
    /// Words that all take.
    pub(super) stored: usize,
}

/// A way to store panels.
pub(crate) trait Store: Send + Sync + 'static {
    type Panel: Stored;

    /// The fewest words that all may take.
    fn len(weights: Weights) -> Result<usize, String>;

    /// A panel of an expert; `first` is the first word of all weights.
    ///
    /// # Safety
    /// There are as many words as `weights` says, at least [`Store::len`]; expert and panel exist.
    unsafe fn panel(first: *const u32, weights: Weights, at: (usize, usize)) -> Self::Panel;

    /// All panels, where they are compact.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn compact(_first: *const u32, _weights: Weights) -> Option<CompactWeight> {
        None
    }

    /// Asks for what [`Store::panel`] reads.
    #[inline(always)]
    fn ask<S: Simd>(_first: *const u32, _weights: Weights, _at: (usize, usize)) {}
}

/// A panel as it is stored.
pub(crate) trait Stored {
    /// Cache lines of a word of all outputs.
    const WORD_LINES: usize;

    /// Its words, `[words][64]`, if they are what is stored.
    fn words(&self) -> Option<*const u32>;

    /// Makes the sums of the rows of one tile, `[rows][64]`; `words` are how many the panel has and where those read
    /// after it begin. Returns whether it could.
    ///
    /// # Safety
    /// As [`Simd`]; rows have two inputs for each word.
    unsafe fn multiply<S: Simd, P: Inner>(
        &self,
        words: (usize, *const u32),
        rows: impl ExactSizeIterator<Item = *const P::X>,
        sums: *mut f32,
    ) -> bool;

    /// Makes `count` words from `first` on at `to`; `first` is a multiple of 4.
    ///
    /// # Safety
    /// As [`Simd`]; `to` is valid for as many, and as are missing to a multiple of 4.
    unsafe fn unpack<S: Simd>(&self, first: usize, count: usize, to: *mut u32);

    /// Where a word is stored.
    fn at(&self, word: usize) -> *const u32;

    /// Asks for what is read besides the words from [`Stored::at`] on.
    #[inline(always)]
    fn ask<S: Simd>(&self) {}
}

/// Words one after another.
pub(crate) struct AsIs;

impl Store for AsIs {
    type Panel = *const u32;

    fn len(Weights { experts, n, words, .. }: Weights) -> Result<usize, String> {
        product(&[experts, n.div_ceil(WIDTH), words, WIDTH])
    }

    #[inline(always)]
    unsafe fn panel(first: *const u32, weights: Weights, at: (usize, usize)) -> *const u32 {
        let Weights { n, words, .. } = weights;
        first.wrapping_add((at.0 * n.div_ceil(WIDTH) + at.1) * words * WIDTH)
    }
}

impl Stored for *const u32 {
    const WORD_LINES: usize = WIDTH * size_of::<u32>() / 64;

    #[inline(always)]
    fn words(&self) -> Option<*const u32> {
        Some(*self)
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, P: Inner>(
        &self,
        _: (usize, *const u32),
        _: impl ExactSizeIterator<Item = *const P::X>,
        _: *mut f32,
    ) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd>(&self, first: usize, count: usize, to: *mut u32) {
        // SAFETY: as the caller's.
        unsafe { to.copy_from_nonoverlapping(self.at(first), count * WIDTH) }
    }

    #[inline(always)]
    fn at(&self, word: usize) -> *const u32 {
        self.wrapping_add(word * WIDTH)
    }
}

/// [`tensor::Compact`]: words are pairs of bf16.
pub(crate) struct InCompact;

impl Store for InCompact {
    type Panel = CompactPanel;

    fn len(weights: Weights) -> Result<usize, String> {
        let Weights { experts, n, words, .. } = weights;
        product(&[experts, n.div_ceil(WIDTH), words, 2 * WIDTH, size_of::<u32>()])?;
        Ok(layout(weights).least_bytes() as usize / size_of::<u32>())
    }

    #[inline(always)]
    unsafe fn panel(first: *const u32, weights: Weights, at: (usize, usize)) -> CompactPanel {
        // SAFETY: as the caller's.
        unsafe {
            let weight = compact(first, weights);
            weight.panel(weight.index(at))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn compact(first: *const u32, weights: Weights) -> Option<CompactWeight> {
        Some(compact(first, weights))
    }

    #[inline(always)]
    fn ask<S: Simd>(first: *const u32, weights: Weights, at: (usize, usize)) {
        let weight = compact(first, weights);
        weight.ask::<S>(weight.index(at));
    }
}

#[inline(always)]
fn compact(first: *const u32, weights: Weights) -> CompactWeight {
    CompactWeight::new(first, weights.stored * size_of::<u32>(), layout(weights))
}

fn layout(Weights { experts, n, k, .. }: Weights) -> tensor::Compact {
    tensor::Compact::stack(experts as u64, n as u64, k as u64)
}

impl Stored for CompactPanel {
    const WORD_LINES: usize = CompactPanel::PAIR_LINES;

    #[inline(always)]
    fn words(&self) -> Option<*const u32> {
        self.pairs()
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, P: Inner>(
        &self,
        (pairs, after): (usize, *const u32),
        rows: impl ExactSizeIterator<Item = *const P::X>,
        sums: *mut f32,
    ) -> bool {
        let count = rows.len();
        if !Coded::<P>::fits::<S>(count) {
            return false;
        }
        let mut x = [std::ptr::null(); MOST_TILE_ROWS];
        for (x, row) in x.iter_mut().zip(rows) {
            *x = row;
        }
        // SAFETY: as the caller's.
        unsafe { Coded::<P> { panel: self, pairs, after, x, sums }.multiply::<S>(count) }
        true
    }

    #[inline(always)]
    unsafe fn unpack<S: Simd>(&self, first: usize, count: usize, to: *mut u32) {
        debug_assert!(first.is_multiple_of(OCTET_PAIRS));
        // SAFETY: as the caller's.
        unsafe { self.unpack_pairs::<S>((first, count), to, 0) };
    }

    #[inline(always)]
    fn ask<S: Simd>(&self) {
        CompactPanel::ask::<S>(self);
    }

    #[inline(always)]
    fn at(&self, word: usize) -> *const u32 {
        self.octets_of((word, 0), std::ptr::null_mut()).from
    }
}
