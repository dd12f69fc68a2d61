//! Up to 16 rows. Every weight meets few products, so what matters is that reading memory never pauses.

use super::*;

/// How far ahead of its use a plain panel is asked for.
const AHEAD_BYTES: usize = 2 * STEP_BYTES;
/// Steps of a compact panel in the nearest cache: one that is multiplied, and the next, which is unpacked meanwhile.
const BLOCK_STEPS: usize = 2;
const BLOCK_BYTES: usize = BLOCK_STEPS * STEP_BYTES;

impl Tiled {
    /// Part of a step, a block of an unpacked panel, sums, and the inputs where they are copied.
    pub(super) fn scratch_of_one(&self) -> Scratch {
        let copied = if self.copies() { self.steps() * TILE_BYTES } else { 0 };
        Scratch { private: STEP_BYTES + BLOCK_BYTES + SUMS_BYTES + copied, shared: 0 }
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
        let Matmul { rows, k, panels, ref x, ref weight, ref end } = self.product;
        let share = worker.share(panels);
        if share.is_empty() {
            return;
        }
        let groups = k.div_ceil(2);
        // SAFETY: panels, rows and steps stay inside what was bound; scratch is large enough.
        unsafe {
            let part = worker.private;
            let block = part.add(STEP_BYTES);
            let sums: *mut f32 = block.add(BLOCK_BYTES).cast();
            let mut inputs = Steps {
                weights: std::ptr::null(),
                count: 0,
                x: x.row(0).cast_const().cast(),
                stride: x.stride() * size_of::<bf16>(),
                x_step: ROW_BYTES,
                ahead: NOTHING,
            };
            if self.copies() {
                let to = block.add(BLOCK_BYTES + SUMS_BYTES);
                for row in 0..rows {
                    let (from, to) = (x.row(row).cast_const().cast(), to.add(row * ROW_BYTES));
                    let bytes = k * size_of::<bf16>();
                    copy_steps::<S>(from, bytes, self.steps(), to, TILE_BYTES);
                }
                inputs = Steps { x: to, stride: ROW_BYTES, x_step: TILE_BYTES, ..inputs };
            }
            let tiles = Tiles::new(rows);
            let in_tiles = Sums::row(sums.cast());
            let meet = Meet { inputs, tiles: &tiles, sums: in_tiles, groups, part, block };
            let compact = self.compact.then(|| compact_weight(&self.product));
            let mut following = compact.as_ref().map(|compact| compact.panel(share.start));
            for panel in share.clone() {
                let coded = following;
                following = compact.as_ref().map(|compact| compact.after::<S>(panel, &share));
                let plain = weight.row(0).cast::<u32>().cast_const();
                let plain = |panel| plain.wrapping_add(panel * groups * WIDTH);
                let next: *const u8 = match &following {
                    _ if panel + 1 == share.end => worker.upcoming,
                    Some(following) => following.octets.cast(),
                    None => plain(panel + 1).cast(),
                };
                in_tiles.zero(&tiles);
                match &coded {
                    None => meet.plain(plain(panel).cast(), next),
                    Some(coded) => match coded.pairs() {
                        Some(pairs) => meet.plain(pairs.cast(), next),
                        None => meet.coded::<S>(coded, next),
                    },
                }
                in_tiles.store();
                let rows = ResultRows::From(0, rows);
                end.store::<S>(PanelSums { panel, sums, rows, factors: None });
            }
        }
    }
}

/// All rows, and where sums of a panel are made.
struct Meet<'a> {
    /// Inputs of all steps.
    inputs: Steps,
    tiles: &'a Tiles,
    sums: Sums,
    /// Pairs of a row.
    groups: usize,
    /// Memory for a step and for a block.
    part: *mut u8,
    block: *mut u8,
}

impl Meet<'_> {
    /// Adds the products of the pairs of `groups` that are at `weights`, from step `step` on; all but the last steps are
    /// whole.
    ///
    /// # Safety
    /// As [`Steps::pairs`].
    #[inline(always)]
    unsafe fn steps(&self, weights: *const u8, step: usize, groups: usize, ahead: Ahead) {
        let (count, rest) = (groups / STEP_GROUPS, groups % STEP_GROUPS);
        let at = |step| self.inputs.x.wrapping_add(step * self.inputs.x_step);
        // SAFETY: as the caller's.
        unsafe {
            if count > 0 {
                let steps = Steps { weights, count, x: at(step), ahead, ..self.inputs };
                steps.pairs(self.tiles, self.sums);
            }
            if rest > 0 {
                let weights = part_of_step(weights.add(count * STEP_BYTES), rest, self.part);
                let last = Steps { weights, count: 1, x: at(step + count), ..self.inputs };
                last.pairs(self.tiles, self.sums);
            }
        }
    }

    /// Adds the products of a plain panel. Its last steps ask for what is at `next`.
    ///
    /// # Safety
    /// As [`Steps::pairs`].
    #[inline(always)]
    unsafe fn plain(&self, weights: *const u8, next: *const u8) {
        let main = (self.groups / STEP_GROUPS).saturating_sub(AHEAD_BYTES / STEP_BYTES);
        let rest = self.groups - main * STEP_GROUPS;
        let ahead = Ahead { from: weights.wrapping_add(AHEAD_BYTES), lines: STEP_LINES };
        // SAFETY: as the caller's.
        unsafe {
            self.steps(weights, 0, main * STEP_GROUPS, ahead);
            let ahead = Ahead::spread(next, rest / STEP_GROUPS, STEP_LINES, 0, 1);
            self.steps(weights.wrapping_add(main * STEP_BYTES), main, rest, ahead);
        }
    }

    /// Adds the products of a compact panel. When all of it was asked for, asks for what is at `next`.
    ///
    /// # Safety
    /// As [`Steps::pairs`].
    #[inline(always)]
    unsafe fn coded<S: Simd>(&self, panel: &CompactPanel, next: *const u8) {
        let (mut block, mut other) = (self.block, self.block.wrapping_add(STEP_BYTES));
        let of = (self.groups, next);
        let count = |first: usize| STEP_GROUPS.min(self.groups - first);
        // SAFETY: as the caller's.
        unsafe {
            let mut escape = panel.unpack_ahead::<S>((0, count(0)), block.cast(), 0, of);
            for first in (0..self.groups).step_by(STEP_GROUPS) {
                let after = first + STEP_GROUPS;
                if after < self.groups {
                    let pairs = (after, count(after));
                    escape = panel.unpack_ahead::<S>(pairs, other.cast(), escape, of);
                }
                self.steps(block, first / STEP_GROUPS, count(first), NOTHING);
                (block, other) = (other, block);
            }
        }
    }
}
