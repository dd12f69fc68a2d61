//! Products of bf16 with AMX tiles, whatever the number of rows: no other instruction sums in the
//! same order.
//!
//! Up to 16 rows are one tile and a panel is read once from end to end. More rows are several tiles, all
//! with the same number of rows: the last one takes the last rows, even if others have
//! some of them too. They go block by block along `K`: a panel's block is in the first-level
//! cache while all rows use it, and the rows' block of inputs is in the second while a group of
//! panels does.

use super::amx::{ROW_BYTES, STEP_BYTES, STEP_LINES, Steps, Tiles};
use super::tile::{Ahead, GROUP_BYTES, STEP_GROUPS, TILE_ROWS, WIDTH};
use super::{Compact, CompactWeight, Matmul, OCTET_PAIRS, ROWS_TO_STAGE_ALONE};
use crate::kernels::bind::{Binder, Kernel};
use crate::kernels::epilogue::{PanelSums, ResultRows};
use crate::kernels::simd::Simd;
use crate::kernels::worker::{Scratch, Worker};
use half::bf16;

/// Inputs of a step.
const STEP: usize = ROW_BYTES / size_of::<bf16>();
/// Steps of a block: 32 KiB of a panel.
const BLOCK_STEPS: usize = 8;
/// The most bytes of sums that wait for their next block.
const GROUP_SUMS: usize = 512 << 10;
/// The most bytes of unpacked panels that are a group: what the second-level cache has room for.
const GROUP_UNPACKED: usize = 1 << 20;
/// How far ahead of its use a panel that is read once is asked for.
const AHEAD_BYTES: usize = 2 * STEP_BYTES;

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
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let Compact(product) = Compact::bind(b)?;
        Ok(Self(Tiled { product, compact: true }))
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        self.0.scratch::<S>()
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe { self.0.run::<S>(worker) }
    }
}

impl Kernel for Tiled {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Matmul::bind(b).map(Self::from)
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let staged = if self.must_stage() {
            self.product.rows * self.staged_stride() * size_of::<bf16>()
        } else {
            0
        };
        let alone = if self.product.rows <= ROWS_TO_STAGE_ALONE { staged } else { 0 };
        let private = self.unpacked_at() + self.unpacked_group() + alone;
        Scratch { private, shared: staged - alone }
    }

    /// The machine must have AMX besides the instructions of `S`.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe {
            if self.must_stage() {
                let x = self.stage::<S>(worker);
                self.panels::<S>(worker, x, self.staged_stride());
            } else {
                self.panels::<S>(worker, self.product.x.row(0), self.product.x.stride());
            }
            self.product.end.finish::<S>(worker);
        }
    }
}

impl Tiled {
    /// Whether rows of inputs are no whole number of steps.
    fn must_stage(&self) -> bool {
        !self.product.k.is_multiple_of(STEP)
    }

    /// Elements between staged rows: no multiple of a page.
    fn staged_stride(&self) -> usize {
        self.product.k.next_multiple_of(STEP) + STEP
    }

    /// Bytes of the sums of all tiles and a panel.
    fn sums_bytes(&self) -> usize {
        Cut::new(self.product.rows).sum_rows() * WIDTH * size_of::<f32>()
    }

    /// Panels whose sums are made together.
    fn group_panels(&self) -> usize {
        if Cut::new(self.product.rows).tiles == 1 {
            1
        } else {
            let most = GROUP_UNPACKED / self.unpacked_bytes().max(1);
            (GROUP_SUMS / self.sums_bytes()).min(most).clamp(1, 8)
        }
    }

    /// Where unpacked panels are in private scratch memory.
    fn unpacked_at(&self) -> usize {
        STEP_BYTES + self.group_panels() * self.sums_bytes()
    }

    /// Bytes of the unpacked panels of a group.
    fn unpacked_group(&self) -> usize {
        self.group_panels() * self.unpacked_bytes()
    }

    /// Bytes of an unpacked panel, whole octets; none where panels are plain.
    fn unpacked_bytes(&self) -> usize {
        if !self.compact {
            return 0;
        }
        self.product.k.div_ceil(2).next_multiple_of(OCTET_PAIRS) * GROUP_BYTES
    }

    /// Copies the inputs, each row with zeros up to a whole step. Returns the first.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn stage<S: Simd>(&self, worker: &Worker<'_>) -> *const bf16 {
        let Matmul { rows, k, ref x, .. } = self.product;
        let alone = rows <= ROWS_TO_STAGE_ALONE;
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let to: *mut bf16 = if alone {
                worker.private.add(self.unpacked_at() + self.unpacked_group()).cast()
            } else {
                worker.shared.cast()
            };
            for r in if alone { 0..rows } else { worker.share(rows) } {
                let (x, to) = (x.row(r), to.add(r * self.staged_stride()));
                to.copy_from_nonoverlapping(x, k);
                to.add(k).write_bytes(0, k.next_multiple_of(STEP) - k);
            }
            if !alone {
                worker.barrier.wait();
            }
            to
        }
    }

    /// Multiplies and stores this thread's panels.
    ///
    /// # Safety
    /// As [`Kernel::run`]; each row of `x` is valid for `K` elements, rounded up to a step.
    #[inline(always)]
    unsafe fn panels<S: Simd>(&self, worker: &Worker<'_>, x: *const bf16, x_stride: usize) {
        let (cut, share) = (Cut::new(self.product.rows), worker.share(self.product.panels));
        if self.product.rows == 0 || share.is_empty() {
            return;
        }
        let groups = self.product.k.div_ceil(2);
        let (whole, rest) = (groups / STEP_GROUPS, groups % STEP_GROUPS);
        let block_steps = if cut.tiles == 1 { whole.max(1) } else { BLOCK_STEPS };
        // SAFETY: panels, rows and steps stay inside what was bound; scratch is large enough.
        unsafe {
            let weights: *const u8 = self.product.weight.row(0).cast();
            let packed = CompactWeight::matrix(weights.cast(), self.product.panels, self.product.k);
            let unpacked = worker.private.add(self.unpacked_at());
            let last_step: *mut u8 = worker.private;
            last_step.write_bytes(0, STEP_BYTES);
            let inputs = Inputs { tiles: Tiles::new(cut.tile_rows), cut, x, x_stride };
            let sums: *mut f32 = worker.private.add(STEP_BYTES).cast();
            let group = self.group_panels();
            for first in share.clone().step_by(group) {
                let panels = first..share.end.min(first + group);
                let (base, panel_bytes) = if self.compact {
                    (unpacked.cast_const(), self.unpacked_bytes())
                } else {
                    (weights.wrapping_add(first * groups * GROUP_BYTES), groups * GROUP_BYTES)
                };
                let at = |panel: usize, step: usize| {
                    base.wrapping_add((panel - first) * panel_bytes + step * STEP_BYTES)
                };
                if self.compact {
                    for panel in panels.clone() {
                        let to: *mut u32 = at(panel, 0).cast_mut().cast();
                        let panel = packed.panel(panel);
                        match panel.pairs() {
                            Some(pairs) => to.copy_from_nonoverlapping(pairs, groups * WIDTH),
                            None => {
                                panel.unpack_pairs::<S>((0, groups), to, 0);
                            }
                        }
                    }
                }
                let sums = |panel: usize| sums.add((panel - first) * cut.sum_rows() * WIDTH);
                for step in (0..whole).step_by(block_steps) {
                    let count = block_steps.min(whole - step);
                    for panel in panels.clone() {
                        let next = if panel + 1 < panels.end {
                            at(panel + 1, step)
                        } else if step + count < whole {
                            at(first, step + count)
                        } else {
                            at(panels.end, 0)
                        };
                        inputs.multiply(at(panel, step), step, count, next, sums(panel));
                    }
                }
                for panel in panels {
                    if rest > 0 {
                        let from = at(panel, whole);
                        last_step.copy_from_nonoverlapping(from, rest * GROUP_BYTES);
                        inputs.multiply(last_step, whole, 1, at(panel + 1, 0), sums(panel));
                    }
                    for row in 0..self.product.rows {
                        let sums = sums(panel).add(cut.sum_row(row) * WIDTH);
                        let rows = ResultRows::From(row, 1);
                        self.product.end.store::<S>(PanelSums { panel, sums, rows, factors: None });
                    }
                }
            }
        }
    }
}

/// How rows are cut into tiles.
#[derive(Clone, Copy, Debug)]
struct Cut {
    rows: usize,
    /// Rows of every tile.
    tile_rows: usize,
    tiles: usize,
}

impl Cut {
    fn new(rows: usize) -> Self {
        let tiles = rows.div_ceil(TILE_ROWS).max(1);
        Self { rows, tile_rows: rows.div_ceil(tiles), tiles }
    }

    /// Rows of sums: tiles that have rows in common have sums of their own.
    fn sum_rows(&self) -> usize {
        self.tile_rows * self.tiles
    }

    /// The first row of a tile.
    #[inline(always)]
    fn first_row(&self, tile: usize) -> usize {
        (tile * self.tile_rows).min(self.rows - self.tile_rows)
    }

    /// Which row of sums is that of a row of inputs.
    #[inline(always)]
    fn sum_row(&self, row: usize) -> usize {
        let tile = row / self.tile_rows;
        tile * self.tile_rows + row - self.first_row(tile)
    }
}

/// All rows of inputs and the tiles they go through.
struct Inputs {
    tiles: Tiles,
    cut: Cut,
    x: *const bf16,
    x_stride: usize,
}

impl Inputs {
    /// Adds the products of all rows and `count` steps from `step` on, with the panel's weights of
    /// these steps at `weights`, to `sums`, which begin at zero when `step` does. Meanwhile asks
    /// for the `count` steps at `next`, or for those a little ahead when rows are but one tile.
    ///
    /// # Safety
    /// As [`Steps::pairs`] for every tile.
    #[inline(always)]
    unsafe fn multiply(
        &self,
        weights: *const u8,
        step: usize,
        count: usize,
        next: *const u8,
        sums: *mut f32,
    ) {
        let Cut { tile_rows, tiles, .. } = self.cut;
        let next = if tiles == 1 { weights.wrapping_add(AHEAD_BYTES) } else { next };
        for tile in 0..tiles {
            let row = self.cut.first_row(tile);
            let steps = Steps {
                weights,
                count,
                x: self.x.wrapping_add(row * self.x_stride + step * STEP).cast(),
                stride: self.x_stride * size_of::<bf16>(),
                fresh: step == 0,
                ahead: Ahead::spread(next, count, STEP_LINES, tile, tiles),
            };
            // SAFETY: as the caller's; rows of tiles are rows of inputs.
            unsafe { steps.pairs(&self.tiles, sums.add(tile * tile_rows * WIDTH)) }
        }
    }
}
