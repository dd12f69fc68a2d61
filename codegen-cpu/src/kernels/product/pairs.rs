//! Pairs of bf16 with AMX, by the tiles of [`crate::kernels::matmul::tiled`], whatever the number of rows: no other
//! instruction sums in the same order.

use super::Product;
use super::inputs::Inputs;
use super::method::Method;
use super::store::Store;
use crate::kernels::epilogue::ResultRows;
use crate::kernels::matmul::squares::{Cut, Memory, chunk_rows};
use crate::kernels::matmul::{FewRows, ManyRows, TILE_ROWS, TileInputs, TileWeight};
use crate::kernels::simd::{Simd, Vectorised};
use half::bf16;
use std::ops::Range;

/// Bytes of the inputs, as tiles, of up to `rows` rows of `k` inputs.
fn inputs_bytes(rows: usize, k: usize) -> usize {
    TileInputs::bytes(k).max(Cut::most(rows, k.div_ceil(2)).inputs_bytes())
}

/// Bytes of working memory for up to `rows` rows of `k` inputs.
pub(super) fn bytes(rows: usize, k: usize) -> usize {
    inputs_bytes(rows, k) + FewRows::BYTES.max(Memory::bytes(rows))
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
        let Self { product, inputs, expert, panels, sources, results, after, memory } = self;
        let (rows, k, end) = (sources.len(), product.weights.k, &product.end);
        // SAFETY: the caller's promise.
        unsafe {
            let base = product.weight.row(0).cast_const();
            let compact = M::Store::compact(base, product.weights);
            let weight = TileWeight::new(base, compact.as_ref(), expert * product.panels, k);
            let row = |i: usize| inputs.row(sources[i] as usize).cast::<u8>();
            let rest = memory.add(inputs_bytes(product.company.outputs, k));
            if rows <= TILE_ROWS {
                for i in 0..rows {
                    TileInputs::copy::<S>(memory, i, row(i), k);
                }
                let (inputs, results) = (TileInputs::copied(memory), ResultRows::List(results));
                let one = FewRows { weight, inputs, end, results, memory: rest };
                return one.multiply::<S>(panels, after);
            }
            let chunk_rows = chunk_rows(rows);
            for first in (0..rows).step_by(chunk_rows) {
                let count = chunk_rows.min(rows - first);
                let cut = Cut::new(count, k.div_ceil(2), compact.is_some());
                for i in 0..count {
                    cut.pack::<S>(i, row(first + i), k * size_of::<bf16>(), memory);
                }
                let results = ResultRows::List(&results[first..first + count]);
                let many = ManyRows { weight, end, results };
                let is_last = first + count == rows;
                let after = if is_last { after } else { many.first(panels.start) };
                cut.multiply::<S, _>(memory, &Memory::at(rest), &many, panels.clone(), after);
            }
        }
    }
}
