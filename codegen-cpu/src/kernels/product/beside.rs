//! What a tile does between its words, with units of the processor that products leave free.

use crate::kernels::epilogue::{End, PanelSums};
use crate::kernels::simd::Simd;

/// Something that is done a little at a time.
pub(super) trait Beside: Copy {
    /// Does a little.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn turn<S: Simd>(&mut self);

    /// Does what is left.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn finish<S: Simd>(self);
}

/// Nothing.
#[derive(Clone, Copy)]
pub(super) struct Nothing;

impl Beside for Nothing {
    #[inline(always)]
    unsafe fn turn<S: Simd>(&mut self) {}

    #[inline(always)]
    unsafe fn finish<S: Simd>(self) {}
}

/// The gates of the sums of the tile before, if there are any, a row at a time.
#[derive(Clone, Copy)]
pub(super) struct Gates<'a> {
    end: &'a End,
    sums: Option<PanelSums<'a>>,
    /// Rows that are done.
    done: usize,
}

impl<'a> Gates<'a> {
    /// Those of `sums`; [`End::only_gates`] holds.
    pub(super) fn new(end: &'a End, sums: Option<PanelSums<'a>>) -> Self {
        Self { end, sums, done: 0 }
    }

    /// What is still to be done.
    #[inline(always)]
    fn left(self) -> Option<PanelSums<'a>> {
        self.sums.filter(|sums| self.done < sums.rows.count())
    }
}

impl Beside for Gates<'_> {
    #[inline(always)]
    unsafe fn turn<S: Simd>(&mut self) {
        if let Some(sums) = self.left() {
            // SAFETY: as the caller's; the row is one of the sums'.
            unsafe { self.end.gate::<S>(sums, self.done) }
            self.done += 1;
        }
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(mut self) {
        while self.left().is_some() {
            // SAFETY: as the caller's.
            unsafe { self.turn::<S>() }
        }
    }
}
