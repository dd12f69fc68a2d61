//! More than 16 rows and AMX, by [`crate::kernels::matmul::squares`]: sums of bytes over all of `K` are exact, and so those of
//! [`super::tile`].

use super::Product;
use super::fold::{Fold, Place};
use super::inner::Inner;
use super::inputs::Inputs;
use super::method::Method;
use super::panel::Results;
use super::store::{Store, Stored};
use super::tile::{Expand, VECTORS};
use crate::kernels::matmul::WIDTH;
use crate::kernels::matmul::squares::{Cut, Memory, Panels, chunk_rows};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of the inputs, as tiles, of up to `rows` rows of `groups` words along `K`.
fn inputs_bytes(rows: usize, groups: usize) -> usize {
    Cut::most(rows, groups).inputs_bytes()
}

/// Bytes of working memory for up to `rows` rows of `groups` words along `K`.
pub(super) fn bytes(rows: usize, groups: usize) -> usize {
    inputs_bytes(rows, groups) + Memory::bytes(rows)
}

/// Some panels of an expert and the rows that meet them.
pub(super) struct Squares<'a, M: Method, P: Inner> {
    pub(super) product: &'a Product<M>,
    pub(super) inputs: &'a Inputs<P::X>,
    pub(super) expert: usize,
    pub(super) panels: Range<usize>,
    /// Rows of inputs, and the row of the result of each.
    pub(super) sources: &'a [u32],
    pub(super) results: &'a [u32],
    /// Factors by row of inputs.
    pub(super) factors: Option<*const f32>,
    /// What is read after these panels.
    pub(super) after: *const u32,
    /// As much as [`bytes`] says.
    pub(super) memory: *mut u8,
}

impl<M: Method, P: Inner> Vectorised for Squares<'_, M, P> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    /// Rows, panels and expert exist; the product has one group.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (rows, words) = (self.sources.len(), self.product.weights.words);
        let groups = words * P::EXPANSION.max(1);
        let chunk_rows = chunk_rows(rows);
        let memory = Memory::at(self.memory.wrapping_add(inputs_bytes(rows, groups)));
        for first in (0..rows).step_by(chunk_rows) {
            let rows = first..rows.min(first + chunk_rows);
            let made = (P::EXPANSION > 0).then_some(1);
            let cut = Cut::new(rows.len(), groups, made);
            let is_last = rows.end == self.sources.len();
            let chunk = Chunk { of: &self, rows };
            // SAFETY: the caller's promise.
            unsafe {
                for (i, &source) in self.sources[chunk.rows.clone()].iter().enumerate() {
                    let from: *const u8 = self.inputs.row(source as usize).cast();
                    let bytes = words * P::GROUP * size_of::<P::X>();
                    cut.pack::<S>(i, from, bytes, self.memory);
                }
                let panels = self.panels.clone();
                let after = match is_last {
                    true => self.after.cast(),
                    false => chunk.at(panels.start, 0),
                };
                cut.multiply::<S, _>(self.memory, &memory, &chunk, panels, after);
            }
        }
    }
}

/// The panels for some of the rows.
struct Chunk<'a, M: Method, P: Inner> {
    of: &'a Squares<'a, M, P>,
    rows: Range<usize>,
}

impl<M: Method, P: Inner> Chunk<'_, M, P> {
    /// Where the word that a group is, or is made of, is stored.
    #[inline(always)]
    fn word(&self, panel: usize, group: usize) -> *const u32 {
        let Product { weight, weights, .. } = self.of.product;
        // SAFETY: the weight was bound, expert and panel exist.
        let panel = unsafe {
            M::Store::panel(weight.row(0).cast_const(), *weights, (self.of.expert, panel))
        };
        panel.at(group / P::EXPANSION.max(1))
    }
}

impl<M: Method, P: Inner> Panels for Chunk<'_, M, P> {
    type Half = Infallible;

    const BYTES: bool = true;

    #[inline(always)]
    fn group_lines(&self) -> usize {
        <M::Store as Store>::Panel::WORD_LINES.div_ceil(P::EXPANSION.max(1))
    }

    #[inline(always)]
    fn at(&self, panel: usize, group: usize) -> *const u8 {
        self.word(panel, group).cast()
    }

    #[inline(always)]
    unsafe fn block<S: Simd>(
        &self,
        panel: usize,
        groups: Range<usize>,
        to: *mut u32,
    ) -> *const u32 {
        let from = self.word(panel, groups.start);
        if P::EXPANSION == 0 {
            return from;
        }
        let count = groups.len() / P::EXPANSION;
        // SAFETY: as the caller's; blocks are whole words.
        unsafe { S::enter(Expand::<P> { from, to, count, of: PhantomData }) };
        to
    }

    fn halves(&self, _: usize, _: Range<usize>, _: *const u8) -> Option<[Infallible; 2]> {
        None
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&self, panel: usize, rows: Range<usize>, sums: *mut f32) {
        let Squares { product, inputs, expert, factors, .. } = *self.of;
        let rows = self.rows.start + rows.start..self.rows.start + rows.end;
        let sources = &self.of.sources[rows.clone()];
        // SAFETY: as the caller's.
        unsafe {
            let fold = product.fold(expert * product.panels + panel, inputs.scales);
            for (i, &source) in sources.iter().enumerate() {
                let row = source as usize;
                let start = S::splat_bits(inputs.start::<P::Expanded>(row, 0) as u32);
                for v in 0..VECTORS {
                    let at = sums.add(i * WIDTH + v * LANES);
                    let sum = S::add_bits(S::load_bits(at.cast()), start);
                    S::store_bits(at.cast(), sum);
                    let place = Place { group: 0, row, lane: v * LANES };
                    fold.fold::<S, P::Expanded>(P::Expanded::load::<S>(at), place, at);
                }
            }
            let results =
                Results { end: &product.end, panel, rows: &self.of.results[rows], factors };
            results.store::<S>(0, sources, sums);
        }
    }
}
