//! Pairs of bf16 with AMX, by the tiles of [`crate::kernels::matmul::tiled`], whatever the number of rows: no other
//! instruction sums in the same order.

use super::code_tiles::CodeTiles;
use super::codes::Code;
use super::inputs::Inputs;
use super::method::Method;
use super::store::Store;
use super::{Bf16, Product};
use crate::kernels::epilogue::ResultRows;
use crate::kernels::matmul::squares::{Cut, Memory, Panels, chunk_rows};
use crate::kernels::matmul::{
    FEW_ROWS_BYTES, FewPanels, FewRows, ManyRows, TILE_ROWS, TileInputs, TileWeight,
};
use crate::kernels::simd::{Simd, Vectorised};
use half::bf16;
use std::ops::Range;

/// Bytes of the inputs, as tiles, of up to `rows` rows of `k` inputs.
fn inputs_bytes(rows: usize, k: usize) -> usize {
    TileInputs::bytes(k).max(Cut::most(rows, k.div_ceil(2)).inputs_bytes())
}

/// Bytes of working memory for up to `rows` rows of `k` inputs.
pub(super) fn bytes(rows: usize, k: usize) -> usize {
    inputs_bytes(rows, k) + FEW_ROWS_BYTES.max(Memory::bytes(rows))
}

/// Some panels of an expert and the rows that meet them.
pub(super) struct Pairs<'a, M: Method, X> {
    pub(super) product: &'a Product<M>,
    pub(super) inputs: &'a Inputs<X>,
    pub(super) expert: usize,
    pub(super) panels: Range<usize>,
    /// Rows of inputs, and the row of the result of each.
    pub(super) sources: &'a [u32],
    pub(super) results: &'a [u32],
    /// What is read after these panels.
    pub(super) after: *const u8,
    /// As much as [`bytes`] says.
    pub(super) memory: *mut u8,
}

impl<M: Method, X> Vectorised for Pairs<'_, M, X> {
    type Output = ();

    /// Rows, panels and expert exist; inputs are of bf16.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { product, inputs, expert, sources, results, .. } = self;
        let (rows, k, end) = (sources.len(), self.k(), &product.end);
        // SAFETY: the caller's promise.
        unsafe {
            if const { M::PER_WORD > Bf16::PER_WORD } {
                let weight = |rows: Range<usize>| CodeTiles {
                    product,
                    scales: inputs.scales,
                    expert,
                    sources: &sources[rows.clone()],
                    results: ResultRows::List(&results[rows]),
                };
                let all = weight(0..rows);
                if rows <= TILE_ROWS {
                    return self.few::<S>(all);
                }
                return self.many::<S, _>(Some(all.group_steps().unwrap_or(1)), weight);
            }
            let base = product.weight.row(0).cast_const();
            let compact = M::Store::compact(base, product.weights);
            let weight = TileWeight::new(base, compact.as_ref(), expert * product.panels, k);
            if rows <= TILE_ROWS {
                return self.few::<S>(weight);
            }
            let results = |rows| ResultRows::List(&results[rows]);
            self.many::<S, _>(compact.as_ref().map(|_| 1), |rows| ManyRows {
                weight,
                end,
                results: results(rows),
            });
        }
    }
}

impl<M: Method, X> Pairs<'_, M, X> {
    /// Inputs of a row, zeros up to a whole word.
    #[inline(always)]
    fn k(&self) -> usize {
        self.product.weights.words * M::PER_WORD
    }

    /// Memory behind that for the inputs.
    #[inline(always)]
    fn rest(&self) -> *mut u8 {
        self.memory.wrapping_add(inputs_bytes(self.product.company.outputs, self.k()))
    }

    /// Where row `row` of the inputs is.
    ///
    /// # Safety
    /// The row exists.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.inputs.row(self.sources[row] as usize).cast() }
    }

    /// Up to 16 rows.
    ///
    /// # Safety
    /// As [`Vectorised::run`].
    #[inline(always)]
    unsafe fn few<S: Simd>(&self, weight: impl FewPanels) {
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..self.sources.len() {
                TileInputs::copy::<S>(self.memory, i, self.row(i), self.k());
            }
            let (inputs, results) =
                (TileInputs::copied(self.memory), ResultRows::List(self.results));
            let end = &self.product.end;
            let few = FewRows { weight, inputs, end, results, memory: self.rest() };
            few.multiply::<S>(self.panels.clone(), self.after);
        }
    }

    /// More rows, as many at a time as go through panels together; `made` as [`Cut::new`] has it.
    ///
    /// # Safety
    /// As [`Vectorised::run`].
    #[inline(always)]
    unsafe fn many<S: Simd, P: Panels>(
        &self,
        made: Option<usize>,
        weight: impl Fn(Range<usize>) -> P,
    ) {
        let (rows, k) = (self.sources.len(), self.k());
        let chunk_rows = chunk_rows(rows);
        for first in (0..rows).step_by(chunk_rows) {
            let end = rows.min(first + chunk_rows);
            let cut = Cut::new(end - first, k.div_ceil(2), made);
            let (weight, memory) = (weight(first..end), Memory::at(self.rest()));
            // SAFETY: the caller's promise.
            unsafe {
                for i in first..end {
                    cut.pack::<S>(i - first, self.row(i), k * size_of::<bf16>(), self.memory);
                }
                let panels = self.panels.clone();
                let after = if end == rows { self.after } else { weight.at(panels.start, 0) };
                cut.multiply::<S, P>(self.memory, &memory, &weight, panels, after);
            }
        }
    }
}
