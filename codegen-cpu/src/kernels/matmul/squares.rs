//! More than 16 rows and AMX tiles: two tiles of rows meet two tiles of outputs, half a panel, so that what is loaded is used
//! twice.
//!
//! They meet the panel from its beginning to its end where the inputs are so short that all of them stay in the second-level
//! cache, else block by block along `K`, with sums that wait in memory, which loses nothing. Storing these and loading them
//! again costs as much as a quarter of a block's products.
//!
//! Where there is but one pair of tiles of rows, a weight that is made of what is stored is made half a panel and a step at a
//! time, beside the products of the step before, so that it stays in the nearest cache.
//!
//! Inputs are copied to tiles first, in the order in which they are met: loaded from rows that are a power of two apart they
//! displace each other in the nearest cache.

use super::OCTET_PAIRS;
use super::amx::{HALF, ROW_BYTES, STEP_BYTES, Squares, Sums, TILE_BYTES, Tiles};
use super::tile::{Ahead, GROUP_BYTES, STEP_GROUPS, TILE_ROWS, WIDTH, even_blocks};
use crate::kernels::simd::Simd;
use std::convert::Infallible;
use std::ops::Range;

/// The most rows that go through panels together.
const MOST_ROWS: usize = 512;
/// Bytes of a step of inputs of a pair of tiles.
const PAIR_BYTES: usize = 2 * TILE_BYTES;
/// Bytes from a half of a panel to the other.
const HALF_BYTES: usize = HALF * size_of::<u32>();
/// The most bytes of inputs that stay in the second-level cache, and of those of a block where that is not all of them: there
/// sums wait in it too.
const INPUTS_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 256 << 10;
/// The most steps of a block that is made.
pub(crate) const MADE_STEPS: usize = 32;
/// How many steps of made halves are from a tile that is stored for nothing to the next.
const AWAKE_STEPS: usize = 4;
/// The most bytes of sums that wait for their next block, and the most panels that they are of.
const WAITING_BYTES: usize = 512 << 10;
const MOST_PANELS: usize = 8;

/// A panel, or half of one, that is made of what is stored.
pub(crate) trait Make {
    /// Makes some groups, after those that it made before, in their places of `[groups][64]` at `to`, and asks for a part of
    /// what is stored next.
    ///
    /// # Safety
    /// As [`Panels::block`].
    unsafe fn make<S: Simd>(&mut self, groups: Range<usize>, to: *mut u32);

    /// Few rows have met the steps before `end`, and `sums` are in tiles.
    ///
    /// # Safety
    /// As there; `tiles` is this thread's.
    #[inline(always)]
    unsafe fn met<S: Simd>(&mut self, _end: usize, _tiles: &Tiles, _sums: Sums) {}
}

/// Of a weight none of which is made by halves.
impl Make for Infallible {
    unsafe fn make<S: Simd>(&mut self, _: Range<usize>, _: *mut u32) {
        match *self {}
    }
}

/// The panels of a weight.
pub(crate) trait Panels {
    /// How half a panel is made.
    type Half: Make;

    /// Whether groups are four bytes of which sums are integers, else pairs of bf16.
    const BYTES: bool;

    /// Cache lines of a group of all outputs as it is stored.
    fn group_lines(&self) -> usize;

    /// Where a group of a panel is stored.
    fn at(&self, panel: usize, group: usize) -> *const u8;

    /// Where some groups of a panel are, `[groups][64]`: as they are stored, or made at `to`.
    ///
    /// # Safety
    /// As [`Simd`]; they exist, and `to` is valid for as many and an octet.
    unsafe fn block<S: Simd>(&self, panel: usize, groups: Range<usize>, to: *mut u32)
    -> *const u32;

    /// Both halves of some groups of a panel, which begin with a whole step, where it is made by halves; what is to be asked
    /// for meanwhile begins at `next`.
    fn halves(
        &self,
        panel: usize,
        groups: Range<usize>,
        next: *const u8,
    ) -> Option<[Self::Half; 2]>;

    /// Steps after which sums go to [`Panels::add`], none where they are summed up as they are. No more than
    /// [`MADE_STEPS`].
    #[inline(always)]
    fn added_steps(&self) -> Option<usize> {
        None
    }

    /// Adds the sums `from` of half `half` of a panel and some of the rows, `[rows][64]`, over the steps that end before step
    /// `end`, to those of the steps before them, `to`.
    ///
    /// # Safety
    /// As [`Simd`]; rows, panel and steps exist.
    #[inline(always)]
    unsafe fn add<S: Simd>(
        &self,
        _at: (usize, usize),
        _end: usize,
        _rows: Range<usize>,
        _from: *const f32,
        _to: *mut f32,
    ) {
    }

    /// Takes the sums of a panel and some of the rows, `[rows][64]`.
    ///
    /// # Safety
    /// As [`Simd`]; rows and panel exist.
    unsafe fn take<S: Simd>(&self, panel: usize, rows: Range<usize>, sums: *mut f32);
}

/// Rows that go through panels together, of `rows` as many each time.
#[inline(always)]
pub(crate) fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(MOST_ROWS).max(1)).max(1)
}

/// Working memory of a thread.
pub(crate) struct Memory {
    awake: *mut u8,
    /// A step that is not whole.
    part: *mut u8,
    made: *mut u32,
    /// Sums that [`Panels::add`] adds to others.
    apart: *mut f32,
    sums: *mut f32,
}

impl Memory {
    /// Bytes of a block that is made, and of what making it makes too much.
    const MADE_BYTES: usize = MADE_STEPS * STEP_BYTES + OCTET_PAIRS * GROUP_BYTES;
    /// Bytes of the sums of two tiles of rows.
    const APART_BYTES: usize = 2 * TILE_ROWS * GROUP_BYTES;

    /// Bytes for up to `rows` rows.
    pub(crate) fn bytes(rows: usize) -> usize {
        let sums = Cut::most(rows, 1).sums_bytes();
        let waiting = (MOST_PANELS * sums).min(WAITING_BYTES).max(sums);
        TILE_BYTES + STEP_BYTES + Self::MADE_BYTES + Self::APART_BYTES + waiting
    }

    /// That memory from `at` on, which is at the beginning of a cache line.
    pub(crate) fn at(at: *mut u8) -> Self {
        let part = at.wrapping_add(TILE_BYTES);
        let made = part.wrapping_add(STEP_BYTES);
        let apart = made.wrapping_add(Self::MADE_BYTES);
        let sums = apart.wrapping_add(Self::APART_BYTES).cast();
        Self { awake: at, part, made: made.cast(), apart: apart.cast(), sums }
    }
}

/// How rows are cut into tiles of as many each, and steps into blocks. The last tile may have rows that nobody asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    rows: usize,
    tile_rows: usize,
    /// Pairs of tiles.
    pairs: usize,
    /// Words along `K`, of which the last step may have fewer than a whole one.
    groups: usize,
    block_steps: usize,
}

impl Cut {
    /// Of 1 to [`MOST_ROWS`] rows of `groups` groups of inputs; `made` says, where weights are made of what is stored, of how
    /// many steps blocks are multiples.
    pub(crate) fn new(rows: usize, groups: usize, made: Option<usize>) -> Self {
        let pairs = rows.div_ceil(2 * TILE_ROWS);
        let tile_rows = rows.div_ceil(2 * pairs);
        let (steps, step_bytes) = (groups.div_ceil(STEP_GROUPS), pairs * PAIR_BYTES);
        let fits = steps * step_bytes <= INPUTS_BYTES;
        let most = if fits { steps } else { BLOCK_BYTES / step_bytes };
        let (most, unit) = made.map_or((most, 1), |unit| (most.min(MADE_STEPS), unit));
        Self { rows, tile_rows, pairs, groups, block_steps: even_blocks(steps, most, unit) }
    }

    /// Of as many of `rows` rows as go through panels together: no cut of fewer rows needs more memory.
    pub(crate) fn most(rows: usize, groups: usize) -> Self {
        Self::new(rows.clamp(1, MOST_ROWS), groups, None)
    }

    #[inline(always)]
    fn steps(&self) -> usize {
        self.groups.div_ceil(STEP_GROUPS)
    }

    /// Whether no sums wait.
    fn is_one_block(&self) -> bool {
        self.block_steps >= self.steps()
    }

    /// Bytes of the inputs as tiles.
    pub(crate) fn inputs_bytes(&self) -> usize {
        self.pairs * self.steps() * PAIR_BYTES
    }

    /// Bytes of a panel's sums.
    fn sums_bytes(&self) -> usize {
        self.pairs * 2 * self.tile_rows * GROUP_BYTES
    }

    /// Panels that go through the blocks together.
    fn group_panels(&self) -> usize {
        if self.is_one_block() || self.inputs_bytes() <= INPUTS_BYTES {
            return 1;
        }
        (WAITING_BYTES / self.sums_bytes()).clamp(1, MOST_PANELS)
    }

    /// Copies row `row` of the inputs, `bytes` at `from`, to the tiles at `x`, with zeros up to a whole step.
    ///
    /// # Safety
    /// As [`Simd`]; the row exists, `x` is valid for [`Cut::inputs_bytes`].
    #[inline(always)]
    pub(crate) unsafe fn pack<S: Simd>(
        &self,
        row: usize,
        from: *const u8,
        bytes: usize,
        x: *mut u8,
    ) {
        let (tile, steps) = (row / self.tile_rows, self.steps());
        let place = tile % 2 * TILE_BYTES + row % self.tile_rows * ROW_BYTES;
        for first in (0..steps).step_by(self.block_steps) {
            let count = self.block_steps.min(steps - first);
            let at = first * self.pairs + tile / 2 * count;
            let done = first * ROW_BYTES;
            // SAFETY: inside what the caller vouches for.
            unsafe {
                let to = x.add(at * PAIR_BYTES + place);
                copy_steps::<S>(from.add(done), bytes - done, count, to, PAIR_BYTES);
            }
        }
    }

    /// Multiplies the inputs `x`, packed, by some panels. At last asks for what is at `after`.
    ///
    /// # Safety
    /// As [`Panels`] of all groups; `memory` is this thread's for as many rows, which has no other tiles.
    #[inline(always)]
    pub(crate) unsafe fn multiply<S: Simd, P: Panels>(
        &self,
        x: *const u8,
        memory: &Memory,
        weight: &P,
        panels: Range<usize>,
        after: *const u8,
    ) {
        let (group_panels, steps) = (self.group_panels(), self.steps());
        let sums_len = self.sums_bytes() / size_of::<f32>();
        // SAFETY: as the caller's.
        unsafe {
            let tiles = Tiles::new(self.tile_rows);
            for first in panels.clone().step_by(group_panels) {
                let together = first..panels.end.min(first + group_panels);
                for step in (0..steps).step_by(self.block_steps) {
                    let end = (step + self.block_steps).min(steps);
                    for panel in together.clone() {
                        let next = if panel + 1 < together.end {
                            weight.at(panel + 1, step * STEP_GROUPS)
                        } else if end < steps {
                            weight.at(together.start, end * STEP_GROUPS)
                        } else if together.end < panels.end {
                            weight.at(together.end, 0)
                        } else {
                            after
                        };
                        let block = Block {
                            cut: self,
                            tiles: &tiles,
                            panel,
                            steps: step..end,
                            x: x.wrapping_add(step * self.pairs * PAIR_BYTES),
                            next,
                            sums: memory.sums.wrapping_add((panel - first) * sums_len),
                        };
                        block.multiply::<S, P>(memory, weight);
                    }
                }
            }
        }
    }
}

/// Some steps of a panel and what meets them.
struct Block<'a> {
    cut: &'a Cut,
    tiles: &'a Tiles,
    panel: usize,
    steps: Range<usize>,
    /// Inputs of these steps.
    x: *const u8,
    /// Memory to ask for meanwhile.
    next: *const u8,
    sums: *mut f32,
}

impl Block<'_> {
    /// Adds the products of all rows, and lets `weight` take the sums where there are no more steps.
    ///
    /// # Safety
    /// As [`Cut::multiply`].
    #[inline(always)]
    unsafe fn multiply<S: Simd, P: Panels>(&self, memory: &Memory, weight: &P) {
        let &Cut { rows, tile_rows, pairs, groups, .. } = self.cut;
        let (first, steps) = (self.steps.start * STEP_GROUPS, self.steps.len());
        let words = (steps * STEP_GROUPS).min(groups - first);
        let (count, rest) = (words / STEP_GROUPS, words % STEP_GROUPS);
        if pairs == 1
            && let Some(halves) = weight.halves(self.panel, first..first + words, self.next)
        {
            // SAFETY: as the caller's.
            return unsafe { self.by_halves::<S, P>(halves, memory, weight) };
        }
        let lines = weight.group_lines() * STEP_GROUPS;
        // SAFETY: as the caller's.
        unsafe {
            let from =
                weight.block::<S>(self.panel, first..first + words, memory.made).cast::<u8>();
            let part = from.wrapping_add(count * STEP_BYTES);
            let part = if rest > 0 { part_of_step(part, rest, memory.part) } else { part };
            for pair in 0..pairs {
                let row = pair * 2 * tile_rows;
                // Sums that do not wait stay in the nearest cache.
                let waiting = if self.cut.is_one_block() { 0 } else { row };
                let sums = self.sums.wrapping_add(waiting * WIDTH);
                let met = row..rows.min(row + 2 * tile_rows);
                let added = weight.added_steps();
                let summed = added.map_or(sums, |_| memory.apart);
                for half in 0..2 {
                    let pass = 2 * pair + half;
                    let squares = Squares {
                        weights: from.wrapping_add(half * HALF_BYTES),
                        count,
                        x: self.x.wrapping_add(pair * steps * PAIR_BYTES),
                        ahead: Ahead::spread(self.next, count, lines, pass, 2 * pairs),
                        awake: memory.awake,
                    };
                    let last = Squares {
                        weights: part.wrapping_add(half * HALF_BYTES),
                        count: 1,
                        x: squares.x.wrapping_add(count * PAIR_BYTES),
                        ahead: Ahead::NOTHING,
                        ..squares
                    };
                    let in_tiles = Sums::square(summed.wrapping_add(half * HALF).cast(), tile_rows);
                    let run = added.unwrap_or(steps);
                    for begin in (0..steps).step_by(run) {
                        let end = steps.min(begin + run);
                        let some = Squares {
                            weights: squares.weights.wrapping_add(begin * STEP_BYTES),
                            count: count.min(end) - begin,
                            x: squares.x.wrapping_add(begin * PAIR_BYTES),
                            ahead: squares.ahead.after(begin),
                            ..squares
                        };
                        if first == 0 || added.is_some() {
                            in_tiles.zero(self.tiles);
                        } else {
                            in_tiles.load();
                        }
                        if some.count > 0 {
                            self.add::<P>(some, in_tiles);
                        }
                        if end > count {
                            self.add::<P>(last, in_tiles);
                        }
                        in_tiles.store();
                        if added.is_some() {
                            let (at, end) = ((self.panel, half), self.steps.start + end);
                            weight.add::<S>(at, end, met.clone(), summed, sums);
                        }
                    }
                }
                if first + words == groups {
                    weight.take::<S>(self.panel, met, sums);
                }
            }
        }
    }

    /// [`Block::multiply`] with the halves of a panel, of which steps are made in turn at two places.
    ///
    /// # Safety
    /// As there; all rows are one pair of tiles.
    #[inline(always)]
    unsafe fn by_halves<S: Simd, P: Panels>(
        &self,
        halves: [P::Half; 2],
        memory: &Memory,
        weight: &P,
    ) {
        let &Cut { rows, tile_rows, groups, .. } = self.cut;
        let groups_of = |step: usize| step * STEP_GROUPS..groups.min((step + 1) * STEP_GROUPS);
        let Range { start, end } = self.steps;
        // SAFETY: as the caller's.
        unsafe {
            let (mut made, mut other) = (memory.made, memory.made.wrapping_byte_add(STEP_BYTES));
            let added = weight.added_steps();
            let summed = added.map_or(self.sums, |_| memory.apart);
            for (half, mut weights) in halves.into_iter().enumerate() {
                let sums = Sums::square(summed.wrapping_add(half * HALF).cast(), tile_rows);
                if start == 0 || added.is_some() {
                    sums.zero(self.tiles);
                } else {
                    sums.load();
                }
                weights.make::<S>(groups_of(start), made);
                for step in start..end {
                    if step + 1 < end {
                        weights.make::<S>(groups_of(step + 1), other);
                    }
                    let mut from = made.cast::<u8>().cast_const();
                    let count = groups_of(step).len();
                    if count < STEP_GROUPS {
                        from = part_of_step(from, count, memory.part);
                    }
                    let squares = Squares {
                        weights: from.wrapping_add(half * HALF_BYTES),
                        count: 1,
                        x: self.x.wrapping_add((step - start) * PAIR_BYTES),
                        ahead: Ahead::NOTHING,
                        awake: memory.awake,
                    };
                    self.add::<P>(squares, sums);
                    if step % AWAKE_STEPS == 0 {
                        self.tiles.stay_awake(memory.awake);
                    }
                    (made, other) = (other, made);
                    let is_last = step + 1 == end;
                    if let Some(added) = added
                        && (is_last || (step + 1).is_multiple_of(added))
                    {
                        sums.store();
                        let at = (self.panel, half);
                        weight.add::<S>(at, step + 1, 0..rows, summed, self.sums);
                        sums.zero(self.tiles);
                    }
                }
                if added.is_none() {
                    sums.store();
                }
            }
            if end == self.cut.steps() {
                weight.take::<S>(self.panel, 0..rows, self.sums);
            }
        }
    }

    /// Adds the products of a pair of tiles.
    ///
    /// # Safety
    /// As [`Squares::pairs`].
    #[inline(always)]
    unsafe fn add<P: Panels>(&self, squares: Squares, sums: Sums) {
        // SAFETY: the caller's promise.
        unsafe {
            if P::BYTES {
                squares.bytes(self.tiles, sums);
            } else {
                squares.pairs(self.tiles, sums);
            }
        }
    }
}

/// Copies up to `bytes` of a row at `from` to `steps` steps, `apart` bytes from each other, with zeros up to a whole one.
///
/// # Safety
/// As [`Simd`]; `from` is valid for as many bytes, which reach into the last step, and `to` for a row of a tile of each step.
#[inline(always)]
pub(super) unsafe fn copy_steps<S: Simd>(
    from: *const u8,
    bytes: usize,
    steps: usize,
    to: *mut u8,
    apart: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for step in 0..steps {
            let (from, to) = (from.add(step * ROW_BYTES), to.add(step * apart));
            let left = bytes - step * ROW_BYTES;
            if left >= ROW_BYTES {
                S::store_bits(to.cast(), S::load_bits(from.cast()));
            } else {
                to.write_bytes(0, ROW_BYTES);
                to.copy_from_nonoverlapping(from, left);
            }
        }
    }
}

/// The weights of a step of which there are but `rest` groups, at `from`, with zeros up to a whole one.
///
/// # Safety
/// `from` is valid for as many groups, `to` for a step.
#[inline(always)]
pub(super) unsafe fn part_of_step(from: *const u8, rest: usize, to: *mut u8) -> *const u8 {
    // SAFETY: as the caller's.
    unsafe {
        to.copy_from_nonoverlapping(from, rest * GROUP_BYTES);
        to.add(rest * GROUP_BYTES).write_bytes(0, STEP_BYTES - rest * GROUP_BYTES);
    }
    to
}
