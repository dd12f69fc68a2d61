//! Up to 16 rows. Every weight meets few products, so what matters is that reading memory never pauses.

use super::*;
use std::ops::Range;

/// How far ahead of its use a plain panel is asked for.
const AHEAD_BYTES: usize = 2 * STEP_BYTES;
/// Steps of a compact panel in the nearest cache: one that is multiplied, and the next, which is unpacked meanwhile.
const BLOCK_STEPS: usize = 2;
const BLOCK_BYTES: usize = BLOCK_STEPS * STEP_BYTES;

/// Up to 16 rows of inputs and a weight that they meet.
pub(crate) struct FewRows<'a, W> {
    pub(crate) weight: W,
    /// Inputs of all steps, zeros up to a whole one.
    pub(crate) inputs: TileInputs,
    pub(crate) end: &'a End,
    pub(crate) results: ResultRows<'a>,
    /// As much as [`FewRows::BYTES`] says.
    pub(crate) memory: *mut u8,
}

/// Rows of inputs: the first, the bytes between rows, and those between steps.
#[derive(Clone, Copy)]
pub(crate) struct TileInputs {
    pub(crate) x: *const u8,
    pub(crate) stride: usize,
    pub(crate) step: usize,
}

impl TileInputs {
    /// Rows that were copied to `x`, step by step.
    pub(crate) fn copied(x: *const u8) -> Self {
        Self { x, stride: ROW_BYTES, step: TILE_BYTES }
    }

    /// Copies a row of `k` inputs at `from` to its place among the [`TileInputs::copied`].
    ///
    /// # Safety
    /// As [`Simd`]; there are as many inputs, and room for [`TileInputs::bytes`].
    #[inline(always)]
    pub(crate) unsafe fn copy<S: Simd>(to: *mut u8, row: usize, from: *const u8, k: usize) {
        let bytes = k * size_of::<bf16>();
        // SAFETY: as the caller's.
        unsafe {
            copy_steps::<S>(from, bytes, k.div_ceil(STEP), to.add(row * ROW_BYTES), TILE_BYTES);
        }
    }

    /// Bytes of the copies of rows of `k` inputs.
    pub(crate) const fn bytes(k: usize) -> usize {
        k.div_ceil(STEP) * TILE_BYTES
    }
}

/// The panels of a weight that few rows meet.
pub(crate) trait FewPanels {
    /// What is known of a panel before it is met.
    type Panel;

    /// Pairs along `K`.
    fn groups(&self) -> usize;

    /// A panel.
    ///
    /// # Safety
    /// The panel exists.
    unsafe fn panel(&self, panel: usize) -> Self::Panel;

    /// The panel after `panel`, unless that is the last before `end`. What reading ahead does not find is asked for.
    ///
    /// # Safety
    /// As [`Simd`]; panels up to `end` exist.
    unsafe fn after<S: Simd>(&self, panel: usize, end: usize) -> Self::Panel;

    /// Where panel `panel` begins, which is `known`.
    fn first(&self, panel: usize, known: &Self::Panel) -> *const u8;

    /// Makes the sums of panel `panel`, which is `known`, at [`Meet::sums`]. At last asks for what is at `next`.
    ///
    /// # Safety
    /// As [`FewRows::multiply`].
    unsafe fn meet<S: Simd>(
        &self,
        meet: &Meet<'_>,
        panel: usize,
        known: &Self::Panel,
        next: *const u8,
    );
}

/// Bytes of part of a step, of a block of an unpacked panel, of sums and of those that are added to them.
pub(crate) const FEW_ROWS_BYTES: usize = STEP_BYTES + BLOCK_BYTES + 2 * SUMS_BYTES;

impl<W: FewPanels> FewRows<'_, W> {
    /// Multiplies by some panels and stores the results. At last asks for what is at `after`.
    ///
    /// # Safety
    /// As [`Simd`]; weight, rows and panels were bound, and this thread has no other tiles.
    #[inline(always)]
    pub(crate) unsafe fn multiply<S: Simd>(&self, panels: Range<usize>, after: *const u8) {
        let &Self { ref weight, inputs: TileInputs { x, stride, step }, end, results, memory } =
            self;
        if panels.is_empty() {
            return;
        }
        // SAFETY: panels, rows and steps stay inside what was bound; memory is large enough.
        unsafe {
            let (part, block) = (memory, memory.add(STEP_BYTES));
            let sums: *mut f32 = block.add(BLOCK_BYTES).cast();
            let apart = sums.byte_add(SUMS_BYTES);
            let inputs = Steps {
                weights: std::ptr::null(),
                count: 0,
                x,
                stride,
                x_step: step,
                ahead: Ahead::NOTHING,
            };
            let tiles = Tiles::new(results.count());
            let groups = weight.groups();
            let meet = Meet { inputs, tiles: &tiles, groups, part, block, sums, apart };
            let mut following = weight.panel(panels.start);
            for panel in panels.clone() {
                let known = following;
                following = weight.after::<S>(panel, panels.end);
                let is_last = panel + 1 == panels.end;
                let next = if is_last { after } else { weight.first(panel + 1, &following) };
                weight.meet::<S>(&meet, panel, &known, next);
                end.store::<S>(PanelSums { panel, sums, rows: results, factors: None });
            }
        }
    }
}

impl Tiled {
    /// What [`FewRows`] needs, and the inputs where they are copied.
    pub(super) fn scratch_of_one(&self) -> Scratch {
        let copied = if self.copies() { TileInputs::bytes(self.product.k) } else { 0 };
        Scratch { private: FEW_ROWS_BYTES + copied, shared: 0 }
    }

    /// Whether rows of inputs are no whole number of steps.
    fn copies(&self) -> bool {
        !self.product.k.is_multiple_of(STEP)
    }

    /// Multiplies and stores this thread's panels.
    ///
    /// # Safety
    /// As [`Kernel::run`]; there are 1 to 16 rows.
    #[inline(always)]
    pub(super) unsafe fn one<S: Simd>(&self, worker: &Worker<'_>) {
        let Matmul { rows, k, panels, ref x, ref end, .. } = self.product;
        // SAFETY: rows are those bound; scratch is large enough.
        unsafe {
            let mut inputs = TileInputs {
                x: x.row(0).cast_const().cast(),
                stride: x.stride() * size_of::<bf16>(),
                step: ROW_BYTES,
            };
            if self.copies() {
                let to = worker.private.add(FEW_ROWS_BYTES);
                for row in 0..rows {
                    TileInputs::copy::<S>(to, row, x.row(row).cast_const().cast(), k);
                }
                inputs = TileInputs::copied(to);
            }
            let compact = self.compact_weight();
            let (weight, results) = (self.weight(compact.as_ref()), ResultRows::From(0, rows));
            let one = FewRows { weight, inputs, end, results, memory: worker.private };
            one.multiply::<S>(worker.share(panels), worker.upcoming);
        }
    }
}

impl FewPanels for TileWeight<'_> {
    type Panel = Option<CompactPanel>;

    fn groups(&self) -> usize {
        self.groups
    }

    #[inline(always)]
    unsafe fn panel(&self, panel: usize) -> Option<CompactPanel> {
        // SAFETY: the caller's promise.
        unsafe { self.compact(panel) }
    }

    #[inline(always)]
    unsafe fn after<S: Simd>(&self, panel: usize, end: usize) -> Option<CompactPanel> {
        // SAFETY: the caller's promise.
        unsafe { self.compact_after::<S>(panel, end) }
    }

    #[inline(always)]
    fn first(&self, panel: usize, compact: &Option<CompactPanel>) -> *const u8 {
        match compact {
            Some(compact) => compact.octets.cast(),
            None => self.plain(panel, 0),
        }
    }

    #[inline(always)]
    unsafe fn meet<S: Simd>(
        &self,
        meet: &Meet<'_>,
        panel: usize,
        compact: &Option<CompactPanel>,
        next: *const u8,
    ) {
        let sums = Sums::row(meet.sums.cast());
        // SAFETY: as the caller's.
        unsafe {
            sums.zero(meet.tiles);
            match compact {
                None => meet.plain(sums, self.plain(panel, 0), next),
                Some(coded) => match coded.pairs() {
                    Some(pairs) => meet.plain(sums, pairs.cast(), next),
                    None => {
                        let of = (meet.groups, next);
                        meet.made::<S>(sums, Unpacked { panel: coded, escape: 0, of });
                    }
                },
            }
            sums.store();
        }
    }
}

/// Octets of a compact panel of so many pairs, and what is asked for when these end.
struct Unpacked<'a> {
    panel: &'a CompactPanel,
    /// Its next escape.
    escape: usize,
    of: (usize, *const u8),
}

impl Make for Unpacked<'_> {
    #[inline(always)]
    unsafe fn make<S: Simd>(&mut self, groups: Range<usize>, to: *mut u32) {
        let groups = (groups.start, groups.len());
        // SAFETY: as the caller's.
        unsafe {
            self.escape = self.panel.unpack_ahead::<S>(groups, to, self.escape, self.of);
        }
    }
}

/// All rows, and where sums of a panel are made.
pub(crate) struct Meet<'a> {
    /// Inputs of all steps.
    inputs: Steps,
    pub(crate) tiles: &'a Tiles,
    /// Pairs of a row.
    groups: usize,
    /// Memory for a step and for a block.
    part: *mut u8,
    block: *mut u8,
    /// Sums of a panel, `[rows][64]`.
    pub(crate) sums: *mut f32,
    /// Room for as many.
    pub(crate) apart: *mut f32,
}

impl Meet<'_> {
    /// Adds the products of the pairs of `groups` that are at `weights`, from step `step` on; all but the last steps are
    /// whole.
    ///
    /// # Safety
    /// As [`Steps::pairs`].
    #[inline(always)]
    unsafe fn steps(
        &self,
        sums: Sums,
        weights: *const u8,
        step: usize,
        groups: usize,
        ahead: Ahead,
    ) {
        let (count, rest) = (groups / STEP_GROUPS, groups % STEP_GROUPS);
        let at = |step| self.inputs.x.wrapping_add(step * self.inputs.x_step);
        // SAFETY: as the caller's.
        unsafe {
            if count > 0 {
                let steps = Steps { weights, count, x: at(step), ahead, ..self.inputs };
                steps.pairs(self.tiles, sums);
            }
            if rest > 0 {
                let weights = part_of_step(weights.add(count * STEP_BYTES), rest, self.part);
                let last = Steps { weights, count: 1, x: at(step + count), ..self.inputs };
                last.pairs(self.tiles, sums);
            }
        }
    }

    /// Adds the products of a plain panel. Its last steps ask for what is at `next`.
    ///
    /// # Safety
    /// As [`Steps::pairs`].
    #[inline(always)]
    unsafe fn plain(&self, sums: Sums, weights: *const u8, next: *const u8) {
        let main = (self.groups / STEP_GROUPS).saturating_sub(AHEAD_BYTES / STEP_BYTES);
        let rest = self.groups - main * STEP_GROUPS;
        let from = weights.wrapping_add(AHEAD_BYTES);
        let ahead = Ahead { from, lines: STEP_LINES, more: 0 };
        // SAFETY: as the caller's.
        unsafe {
            self.steps(sums, weights, 0, main * STEP_GROUPS, ahead);
            let ahead = Ahead::spread(next, rest / STEP_GROUPS, STEP_LINES, 0, 1);
            self.steps(sums, weights.wrapping_add(main * STEP_BYTES), main, rest, ahead);
        }
    }

    /// Adds the products of a panel that is made.
    ///
    /// # Safety
    /// As [`Steps::pairs`] and [`Make::make`] of all pairs.
    #[inline(always)]
    pub(crate) unsafe fn made<S: Simd>(&self, sums: Sums, mut panel: impl Make) {
        let (mut block, mut other) = (self.block, self.block.wrapping_add(STEP_BYTES));
        let pairs = |first: usize| first..self.groups.min(first + STEP_GROUPS);
        // SAFETY: as the caller's.
        unsafe {
            panel.make::<S>(pairs(0), block.cast());
            for first in (0..self.groups).step_by(STEP_GROUPS) {
                let after = first + STEP_GROUPS;
                if after < self.groups {
                    panel.make::<S>(pairs(after), other.cast());
                }
                let step = first / STEP_GROUPS;
                self.steps(sums, block, step, pairs(first).len(), Ahead::NOTHING);
                panel.met::<S>(step + 1, self.tiles, sums);
                (block, other) = (other, block);
            }
        }
    }
}
