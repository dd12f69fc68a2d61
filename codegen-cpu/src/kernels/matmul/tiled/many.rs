//! More than 16 rows. Two tiles of rows meet half a panel at a time, from its beginning to its end where the inputs are
//! so short that all of them stay in the second-level cache, else block by block along `K`. Storing sums that wait for their
//! next block, and loading them again, costs as much as a quarter of a block's products.
//!
//! Inputs are copied to tiles first, each in one piece: loaded from rows that are a power of two apart they displace each
//! other in the nearest cache.

use super::super::OCTET_PAIRS;
use super::super::amx::HALF;
use super::*;
use crate::kernels::epilogue::End;
use crate::kernels::matmul::even_blocks;
use std::ops::Range;

/// The most tiles of rows that go through all panels before others do.
const MOST_TILES: usize = 32;
/// The most bytes of inputs that stay in the second-level cache, and of those of a block where that is not all of them: there
/// sums wait in it too.
const INPUTS_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 256 << 10;
/// The most bytes of sums that wait for their next block, and the most panels that they are of.
const WAITING_BYTES: usize = 512 << 10;
const MOST_PANELS: usize = 8;
/// Bytes from a half of a panel to the other.
const HALF_BYTES: usize = HALF * size_of::<u32>();
/// The most bytes of unpacked panels.
const UNPACKED_BYTES: usize = 1 << 20;

impl Tiled {
    fn cut(&self) -> Cut {
        Cut::new(self.product.rows, self.steps())
    }

    /// Panels that go through the blocks together.
    fn group_panels(&self) -> usize {
        let cut = self.cut();
        if cut.is_one_block() {
            return 1;
        }
        let unpacked = UNPACKED_BYTES / self.unpacked_bytes().max(1);
        (WAITING_BYTES / cut.sums_bytes()).min(unpacked).clamp(1, MOST_PANELS)
    }

    /// Bytes of an unpacked panel, whole octets; none where panels are plain.
    fn unpacked_bytes(&self) -> usize {
        if !self.compact {
            return 0;
        }
        self.product.k.div_ceil(2).next_multiple_of(OCTET_PAIRS) * GROUP_BYTES
    }

    /// Part of a step, a tile that is stored for nothing, sums, and unpacked panels; the inputs for all threads.
    pub(super) fn scratch_of_many(&self) -> Scratch {
        let (cut, panels) = (self.cut(), self.group_panels());
        let private = STEP_BYTES + TILE_BYTES + panels * (cut.sums_bytes() + self.unpacked_bytes());
        Scratch { private, shared: cut.tiles * self.steps() * TILE_BYTES }
    }

    /// Multiplies and stores this thread's panels.
    ///
    /// # Safety
    /// As [`Kernel::run`]; there are more than 16 rows.
    #[inline(always)]
    pub(super) unsafe fn many<S: Simd>(&self, worker: &Worker<'_>) {
        let (cut, steps) = (self.cut(), self.steps());
        // SAFETY: rows, tiles and steps stay inside what was bound; scratch is large enough.
        unsafe {
            for tile in worker.share(cut.tiles) {
                let to = worker.shared.add(tile * steps * TILE_BYTES);
                for row in 0..cut.tile_rows {
                    let to = to.add(row * ROW_BYTES);
                    match tile * cut.tile_rows + row {
                        x if x < cut.rows => self.pack::<S>(x, to),
                        _ => {
                            let step = |step| to.add(step * TILE_BYTES);
                            (0..steps).for_each(|at| step(at).write_bytes(0, ROW_BYTES));
                        }
                    }
                }
            }
            worker.barrier.wait();
            let share = worker.share(self.product.panels);
            if share.is_empty() {
                return;
            }
            let tiles = Tiles::new(cut.tile_rows);
            for rows in (0..cut.tiles).step_by(cut.chunk_tiles) {
                let rows = rows..cut.tiles.min(rows + cut.chunk_tiles);
                for first in share.clone().step_by(self.group_panels()) {
                    let panels = first..share.end.min(first + self.group_panels());
                    self.group::<S>(worker, &tiles, rows.clone(), panels, share.end);
                }
            }
        }
    }

    /// Multiplies and stores the panels of a group for some tiles of rows; this thread's panels end before `end`.
    ///
    /// # Safety
    /// As [`Tiled::many`].
    #[inline(always)]
    unsafe fn group<S: Simd>(
        &self,
        worker: &Worker<'_>,
        tiles: &Tiles,
        rows: Range<usize>,
        panels: Range<usize>,
        end: usize,
    ) {
        let (cut, groups) = (self.cut(), self.product.k.div_ceil(2));
        let panel_bytes = if self.compact { self.unpacked_bytes() } else { groups * GROUP_BYTES };
        let sums_len = cut.sums_bytes() / size_of::<f32>();
        // SAFETY: as for `Tiled::many`.
        unsafe {
            let part = worker.private;
            let awake = part.add(STEP_BYTES);
            let sums: *mut f32 = awake.add(TILE_BYTES).cast();
            let packed = self.compact.then(|| self.packed());
            let base: *const u8 = match &packed {
                None => self.product.weight.row(0).cast::<u8>().add(panels.start * panel_bytes),
                Some(packed) => {
                    let unpacked = sums.add(self.group_panels() * sums_len).cast::<u8>();
                    for panel in panels.clone() {
                        let to: *mut u32 =
                            unpacked.add((panel - panels.start) * panel_bytes).cast();
                        let panel = packed.panel(panel);
                        match panel.pairs() {
                            Some(pairs) => to.copy_from_nonoverlapping(pairs, groups * WIDTH),
                            None => {
                                panel.unpack_pairs::<S>((0, groups), to, 0);
                            }
                        }
                    }
                    unpacked
                }
            };
            for step in (0..self.steps()).step_by(cut.block_steps) {
                let last = step + cut.block_steps >= self.steps();
                for panel in panels.clone() {
                    let i = panel - panels.start;
                    let weights = base.wrapping_add(i * panel_bytes + step * STEP_BYTES);
                    let left = groups - step * STEP_GROUPS;
                    let next = match &packed {
                        None if panel + 1 == end && last => worker.upcoming,
                        None if panel + 1 < panels.end => weights.wrapping_add(panel_bytes),
                        None if last => base.wrapping_add(panels.len() * panel_bytes),
                        None => base.wrapping_add((step + cut.block_steps) * STEP_BYTES),
                        Some(_) if panel + panels.len() >= end => worker.upcoming,
                        Some(packed) => {
                            let panel = packed.panel(panel + panels.len());
                            panel.octets_of((step * STEP_GROUPS, 0), part.cast()).from.cast()
                        }
                    };
                    let block = Block {
                        weights,
                        groups: left.min(cut.block_steps * STEP_GROUPS),
                        x: worker.shared.wrapping_add(step * TILE_BYTES),
                        between: self.steps() * TILE_BYTES,
                        fresh: step == 0,
                        next,
                        lines: if self.compact {
                            CompactPanel::PAIR_LINES * STEP_GROUPS
                        } else {
                            STEP_LINES
                        },
                        sums: sums.add(i * sums_len),
                        part,
                        awake,
                    };
                    let end = last.then_some((&self.product.end, panel));
                    block.rows::<S>(tiles, cut, rows.clone(), end);
                }
            }
        }
    }
}

/// How rows are cut into tiles, and steps into blocks.
#[derive(Clone, Copy, Debug)]
struct Cut {
    rows: usize,
    /// Rows of a tile; the last ones may have some of zeros.
    tile_rows: usize,
    tiles: usize,
    /// Tiles that go through all panels together, an even number.
    chunk_tiles: usize,
    steps: usize,
    block_steps: usize,
}

impl Cut {
    fn new(rows: usize, steps: usize) -> Self {
        let tiles = rows.div_ceil(TILE_ROWS).max(1);
        let tile_rows = rows.div_ceil(tiles).max(1);
        let chunk_tiles = tiles.div_ceil(tiles.div_ceil(MOST_TILES)).next_multiple_of(2);
        let step_bytes = chunk_tiles * TILE_BYTES;
        let most =
            if steps * step_bytes <= INPUTS_BYTES { steps } else { BLOCK_BYTES / step_bytes };
        let block_steps = even_blocks(steps, most, 1);
        Self { rows, tile_rows, tiles, chunk_tiles, steps, block_steps }
    }

    /// Whether no sums wait.
    fn is_one_block(&self) -> bool {
        self.block_steps >= self.steps
    }

    /// Bytes of a panel's sums: of two tiles where none wait.
    fn sums_bytes(&self) -> usize {
        let tiles = if self.is_one_block() { 2 } else { self.chunk_tiles };
        tiles * self.tile_rows * GROUP_BYTES
    }
}

/// Some steps of a panel and what meets them.
struct Block {
    weights: *const u8,
    /// Pairs of a row, all steps but the last whole.
    groups: usize,
    /// Inputs of the first tile, and the bytes from there to the next tile's.
    x: *const u8,
    between: usize,
    /// Whether sums begin at zero.
    fresh: bool,
    /// Memory to ask for meanwhile, so many lines for each step.
    next: *const u8,
    lines: usize,
    sums: *mut f32,
    part: *mut u8,
    awake: *mut u8,
}

impl Block {
    /// Adds the products of some tiles of rows, and hands their sums to the end, with the panel they are of, where there is one.
    ///
    /// # Safety
    /// As [`Tiled::many`].
    #[inline(always)]
    unsafe fn rows<S: Simd>(
        &self,
        tiles: &Tiles,
        cut: Cut,
        rows: Range<usize>,
        end: Option<(&End, usize)>,
    ) {
        let (count, rest) = (self.groups / STEP_GROUPS, self.groups % STEP_GROUPS);
        // SAFETY: as the caller's.
        unsafe {
            let part = self.weights.wrapping_add(count * STEP_BYTES);
            let part = if rest > 0 { part_of_step(part, rest, self.part) } else { part };
            for tile in rows.clone().step_by(2) {
                let is_pair = tile + 1 < rows.end;
                let waiting = if cut.is_one_block() { 0 } else { tile - rows.start };
                let sums = self.sums.add(waiting * cut.tile_rows * WIDTH);
                for half in 0..if is_pair { 2 } else { 1 } {
                    // Of a single tile all outputs are met at once.
                    let pass = tile - rows.start + half;
                    let steps = Steps {
                        weights: self.weights.wrapping_add(half * HALF_BYTES),
                        count,
                        x: self.x.wrapping_add(tile * self.between),
                        stride: ROW_BYTES,
                        x_step: TILE_BYTES,
                        ahead: Ahead::spread(self.next, count, self.lines, pass, rows.len()),
                    };
                    let last = Steps {
                        weights: part.wrapping_add(half * HALF_BYTES),
                        count: 1,
                        x: steps.x.wrapping_add(count * TILE_BYTES),
                        ahead: NOTHING,
                        ..steps
                    };
                    let in_tiles = match is_pair {
                        true => Sums::square(sums.add(half * HALF).cast(), cut.tile_rows),
                        false => Sums::row(sums.cast()),
                    };
                    let multiply = |steps: Steps| match is_pair {
                        true => steps.square_pairs(tiles, in_tiles, self.between, self.awake),
                        false => steps.pairs(tiles, in_tiles),
                    };
                    if self.fresh {
                        in_tiles.zero(tiles)
                    } else {
                        in_tiles.load()
                    }
                    if count > 0 {
                        multiply(steps);
                    }
                    if rest > 0 {
                        multiply(last);
                    }
                    in_tiles.store();
                }
                if let Some((end, panel)) = end {
                    let first = tile * cut.tile_rows;
                    let most = if is_pair { 2 * cut.tile_rows } else { cut.tile_rows };
                    let rows = ResultRows::From(first, most.min(cut.rows - first));
                    end.store::<S>(PanelSums { panel, sums, rows, factors: None });
                }
            }
        }
    }
}
