//! The inputs of a step as the device reads them.

use crate::{bind::Ports, memory::Held};
use artifact::{BufferRef, Manifest};
use hal::Device;

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

/// Writes integers as the device reads them. All inputs are written before every replay: plans
/// share one arena, so the last replay may have put something else there.
pub(crate) struct Input<'a, D: Device> {
    pub(crate) device: &'a mut D,
    pub(crate) staging: &'a mut Staging,
}

impl<D: Device> Input<'_, D> {
    /// Writes every input of a plan that feeds `rows`, then `padding` rows more. The block tables
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
        self.write(ports.token_ids, rows.clone().map(|r| r.token), padding, 0);
        self.write(ports.positions, rows.clone().map(|r| r.position), padding, 0);

        let spare = layout.spare_block;
        let slots = rows.clone().map(|r| layout.slot(r.held.blocks(), r.position));
        self.write(ports.slots, slots, padding, spare * layout.block_tokens);
        let block_tables = tables.clone().map(|r| (r.position, r.held.blocks()));
        self.tables(ports.block_table, layout, block_tables, width, (spare_tables, spare));

        if let Some((slots_at, table_at)) = ports.window {
            let spare = layout.spare_window_block;
            let slots = rows.clone().map(|r| layout.slot(&r.held.window, r.position));
            self.write(slots_at, slots, padding, spare * layout.block_tokens);
            let window_tables = tables.map(|r| (r.position, &r.held.window[..]));
            self.tables(table_at, layout, window_tables, width, (spare_tables, spare));
        }
        if let Some(at) = ports.sequences {
            let spare = layout.spare_slot;
            self.write(at, rows.map(|r| r.held.slot.unwrap_or(spare)), padding, spare);
        }
    }

    /// Writes one row of a table for each sequence: its blocks up to the one of the position, then
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
            for (to, block) in self.staging.take(used).iter_mut().zip(&blocks[..used]) {
                *to = block.to_le_bytes();
            }
            self.staging.take(width - used).fill(spare.to_le_bytes());
        }
        self.staging.take(spare_tables * width).fill(spare.to_le_bytes());
        self.flush(at);
    }

    /// Writes `values`, then `padding` times `pad`.
    pub(crate) fn write(
        &mut self,
        at: BufferRef,
        values: impl Iterator<Item = u32>,
        padding: usize,
        pad: u32,
    ) {
        for value in values {
            self.staging.take(1)[0] = value.to_le_bytes();
        }
        self.staging.take(padding).fill(pad.to_le_bytes());
        self.flush(at);
    }

    fn flush(&mut self, at: BufferRef) {
        self.device.write(at, self.staging.bytes[..self.staging.used].as_flattened());
        self.staging.used = 0;
    }
}

/// Integers on their way to the device.
pub(crate) struct Staging {
    bytes: Vec<[u8; 4]>,
    used: usize,
}

impl Staging {
    /// Room for `integers`, all of which is taken from the system now.
    pub(crate) fn with_room(integers: usize) -> Self {
        Self { bytes: vec![[0; 4]; integers], used: 0 }
    }

    /// The places of the next `count` integers.
    fn take(&mut self, count: usize) -> &mut [[u8; 4]] {
        let start = self.used;
        self.used += count;
        if self.used > self.bytes.len() {
            self.bytes.resize(self.used, [0; 4]);
        }
        &mut self.bytes[start..self.used]
    }
}
