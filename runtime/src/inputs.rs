//! The inputs of a step as the device reads them.

use crate::{bind::Ports, memory::Held};
use artifact::{BufferRef, Manifest};
use hal::Device;
use std::ops::Range;

/// Sizes and spare pieces of the memories that inputs name.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) block_tokens: u32,
    spare_block: u32,
    spare_window_block: u32,
    spare_slot: u32,
}

impl Layout {
    pub(crate) fn new(manifest: &Manifest) -> Self {
        Self {
            block_tokens: manifest.kv.block_tokens,
            spare_block: manifest.kv.blocks,
            spare_window_block: manifest.window.map_or(0, |window| window.blocks),
            spare_slot: manifest.sequences.map_or(0, |sequences| sequences.slots),
        }
    }

    /// Blocks in a row of the tables of a plan for `context_tokens`.
    pub(crate) fn table_width(&self, context_tokens: u32) -> usize {
        (context_tokens / self.block_tokens) as usize
    }

    /// Where `position` lies in a paged memory.
    fn slot(&self, blocks: &[u32], position: u32) -> u32 {
        blocks[(position / self.block_tokens) as usize] * self.block_tokens
            + position % self.block_tokens
    }
}

/// A token to feed.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) token: u32,
    pub(crate) position: u32,
    /// What its sequence holds, with blocks for `position`.
    pub(crate) held: &'a Held,
}

/// The inputs of a step on their way to the device. All are sent before every replay: plans share one
/// arena, so the last replay may have put something else there.
pub(crate) struct Staging {
    integers: Vec<[u8; 4]>,
    used: usize,
    /// Where each input goes, and where it ends in `integers`.
    parts: Vec<(BufferRef, usize)>,
}

impl Staging {
    /// Room for `integers`, all of which is taken from the system now.
    pub(crate) fn with_room(integers: usize) -> Self {
        Self { integers: vec![[0; 4]; integers], used: 0, parts: Vec::with_capacity(MOST_INPUTS) }
    }

    /// Makes every input of a plan that feeds `rows`, then `padding` rows more. The block tables
    /// are `width` wide; `tables` gives the last row of each sequence, and `spare_tables` more are
    /// spare.
    pub(crate) fn feed<'r>(
        &mut self,
        ports: &Ports,
        layout: &Layout,
        (rows, padding): (impl Iterator<Item = Row<'r>> + Clone, usize),
        (tables, spare_tables): (impl Iterator<Item = Row<'r>> + Clone, usize),
        width: usize,
    ) {
        // First, for `set_tokens`.
        self.put(ports.token_ids, rows.clone().map(|r| r.token), padding, 0);
        self.put(ports.positions, rows.clone().map(|r| r.position), padding, 0);

        let spare = layout.spare_block;
        let slots = rows.clone().map(|r| layout.slot(r.held.blocks(), r.position));
        self.put(ports.slots, slots, padding, spare * layout.block_tokens);
        let block_tables = tables.clone().map(|r| (r.position, r.held.blocks()));
        self.tables(ports.block_table, layout, block_tables, width, (spare_tables, spare));

        if let Some((slots_at, table_at)) = ports.window {
            let spare = layout.spare_window_block;
            let slots = rows.clone().map(|r| layout.slot(&r.held.window, r.position));
            self.put(slots_at, slots, padding, spare * layout.block_tokens);
            let window_tables = tables.map(|r| (r.position, &r.held.window[..]));
            self.tables(table_at, layout, window_tables, width, (spare_tables, spare));
        }
        if let Some(at) = ports.sequences {
            let spare = layout.spare_slot;
            self.put(at, rows.map(|r| r.held.slot.unwrap_or(spare)), padding, spare);
        }
    }

    /// Makes what a head reads of a sequence that holds `held`: the positions of its rows, of which the
    /// first stands for padding too, and one table.
    pub(crate) fn look_back(
        &mut self,
        ports: &Ports,
        layout: &Layout,
        (positions, padding): (Range<u32>, usize),
        held: &Held,
        width: usize,
    ) {
        let last = positions.end - 1;
        self.put(ports.positions, positions.clone(), padding, positions.start);
        let table = [(last, held.blocks())].into_iter();
        self.tables(ports.block_table, layout, table, width, (0, layout.spare_block));
    }

    /// Makes one row of a table for each sequence: its blocks up to the one of the position, then
    /// spare ones; then `spare_tables` rows of spare blocks.
    fn tables<'r>(
        &mut self,
        at: BufferRef,
        layout: &Layout,
        sequences: impl Iterator<Item = (u32, &'r [u32])>,
        width: usize,
        (spare_tables, spare): (usize, u32),
    ) {
        for (position, blocks) in sequences {
            let used = (position / layout.block_tokens) as usize + 1;
            for (to, block) in self.take(used).iter_mut().zip(&blocks[..used]) {
                *to = block.to_le_bytes();
            }
            self.take(width - used).fill(spare.to_le_bytes());
        }
        self.take(spare_tables * width).fill(spare.to_le_bytes());
        self.parts.push((at, self.used));
    }

    /// Makes an input of `values`, then `padding` times `pad`.
    pub(crate) fn put(
        &mut self,
        at: BufferRef,
        values: impl Iterator<Item = u32>,
        padding: usize,
        pad: u32,
    ) {
        for value in values {
            self.take(1)[0] = value.to_le_bytes();
        }
        self.take(padding).fill(pad.to_le_bytes());
        self.parts.push((at, self.used));
    }

    /// Other tokens for the rows that were fed.
    pub(crate) fn set_tokens(&mut self, tokens: impl Iterator<Item = u32>) {
        for (to, token) in self.integers.iter_mut().zip(tokens) {
            *to = token.to_le_bytes();
        }
    }

    /// Writes everything to the device and begins anew.
    pub(crate) fn send(&mut self, device: &mut impl Device) {
        let mut start = 0;
        for (at, end) in self.parts.drain(..) {
            device.write(at, self.integers[start..end].as_flattened());
            start = end;
        }
        self.used = 0;
    }

    /// Forgets what was made.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.used = 0;
    }

    /// The places of the next `count` integers.
    fn take(&mut self, count: usize) -> &mut [[u8; 4]] {
        let start = self.used;
        self.used += count;
        if self.used > self.integers.len() {
            self.integers.resize(self.used, [0; 4]);
        }
        &mut self.integers[start..self.used]
    }
}

/// Token ids, positions, slots and table of both paged memories, sequences.
const MOST_INPUTS: usize = 7;
