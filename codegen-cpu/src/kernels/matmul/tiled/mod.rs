//! Products of bf16 with AMX tiles, whatever the number of rows: no other instruction sums in the
//! same order.
//!
//! Up to 16 rows are one tile, which meets all outputs of a panel ([`one`]). More go by two tiles ([`many`]).

mod many;
mod one;
mod weight;

pub(crate) use many::ManyRows;
pub(crate) use one::{FEW_ROWS_BYTES, FewPanels, FewRows, Meet, TileInputs};
pub(crate) use weight::TileWeight;

use super::amx::{ROW_BYTES, STEP_BYTES, STEP_LINES, Steps, Sums, TILE_BYTES, Tiles};
use super::squares::{Make, copy_steps, part_of_step};
use super::tile::{GROUP_BYTES, STEP_GROUPS, TILE_ROWS, WIDTH};
use super::{Ahead, Compact, CompactPanel, CompactWeight, Matmul, compact_weight, first_octets};
use crate::kernels::bind::{Binder, Kernel};
use crate::kernels::epilogue::{End, PanelSums, ResultRows};
use crate::kernels::simd::{Dots, Simd};
use crate::kernels::worker::{Scratch, Worker};
use half::bf16;

/// Inputs of a step.
const STEP: usize = ROW_BYTES / size_of::<bf16>();
/// Bytes of the sums of a tile of inputs and a panel.
const SUMS_BYTES: usize = TILE_ROWS * GROUP_BYTES;

/// [`Matmul`] with bf16 weights on a machine with AMX.
pub(crate) struct Tiled {
    product: Matmul<bf16>,
    /// Whether weights are compact. Panels are then unpacked to scratch memory first.
    compact: bool,
}

impl From<Matmul<bf16>> for Tiled {
    fn from(product: Matmul<bf16>) -> Self {
        Self { product, compact: false }
    }
}

/// [`Tiled`] with compact weights.
pub(crate) struct TiledCompact(Tiled);

impl Kernel for TiledCompact {
    const DOTS: Dots = Dots::PAIRS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let Compact(product) = Compact::bind(b)?;
        Ok(Self(Tiled { product, compact: true }))
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        self.0.scratch::<S>()
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        Some(first_octets(&self.0.product, index, count))
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe { self.0.run::<S>(worker) }
    }
}

impl Kernel for Tiled {
    const DOTS: Dots = Dots::PAIRS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Matmul::bind(b).map(Self::from)
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        if self.product.rows <= TILE_ROWS { self.scratch_of_one() } else { self.scratch_of_many() }
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        self.product.first_weights(index, count)
    }

    /// The machine must have AMX besides the instructions of `S`.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe {
            match self.product.rows {
                0 => {}
                1..=TILE_ROWS => self.one::<S>(worker),
                _ => self.many::<S>(worker),
            }
            self.product.end.finish::<S>(worker);
        }
    }
}

impl Tiled {
    /// The weight, if it is compact.
    #[inline(always)]
    fn compact_weight(&self) -> Option<CompactWeight> {
        self.compact.then(|| compact_weight(&self.product))
    }

    /// The weight as tiles meet it; `compact` is [`Tiled::compact_weight`].
    #[inline(always)]
    fn weight<'a>(&self, compact: Option<&'a CompactWeight>) -> TileWeight<'a> {
        // SAFETY: the weight was bound.
        let base = unsafe { self.product.weight.row(0) };
        TileWeight::new(base.cast_const().cast(), compact, 0, self.product.k)
    }
}
