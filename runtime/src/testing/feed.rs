//! The part of the fake device that feeds tokens, and what kernels take for granted about its
//! inputs.

use super::{
    device::FakeDevice,
    graph::{Feed, FeedTo, Paged, Past},
    hash,
};
use std::ops::Range;

/// What each place was written with: the hash of all tokens from the first of its sequence to that of
/// the place. `None` before anyone wrote. Whose tokens they are does not matter, for sequences share
/// what they have in common.
pub(super) type Written = Vec<Option<u64>>;

/// A live row.
#[derive(Clone, Copy)]
struct Row {
    index: usize,
    /// Row of the tables.
    table: usize,
    position: u32,
    entry: u64,
    /// The hash of the tokens before it.
    before: u64,
}

type Checked<T> = Result<T, &'static str>;

impl FakeDevice {
    /// Writes the memories of every row, then hashes what each row sees.
    pub(super) fn feed(&mut self, feed: &Feed) -> Checked<()> {
        for index in 0..feed.rows {
            if let Some(row) = self.row(feed, index)? {
                self.write_places(feed, &feed.kv, row, self.spare_block)?;
                if let Some(window) = &feed.window {
                    self.write_places(feed, window, row, self.spare_window_block)?;
                }
            }
        }
        for index in 0..feed.rows {
            let (entry, hidden) = match self.row(feed, index)? {
                Some(row) => (row.entry, self.hidden(feed, row)?),
                None => (hash::START, hash::START),
            };
            match feed.to {
                FeedTo::Outputs(outputs) => self.output(outputs, index, hidden),
                FeedTo::Hidden(at) => {
                    let kept = if self.model.head_attends() { entry } else { hidden };
                    self.store_entry(at, index, kept);
                }
            }
        }
        Ok(())
    }

    /// What the row `index` of a head sees, whose token a prefill left in `entry`.
    pub(super) fn look_back(&self, past: &Past, index: usize, entry: u64) -> Checked<u64> {
        let bt = self.block_tokens;
        let position = self.int(past.positions, index);
        if position as usize >= past.table_width * bt as usize {
            return Err("a position of a head is past the block table");
        }
        let (mut hash, mut last) = (hash::START, None);
        for place in 0..=position {
            let block = self.int(past.table, (place / bt) as usize);
            if block >= self.spare_block {
                return Err("the table of a head names no block where its row sees one");
            }
            let at = (block * bt + place % bt) as usize;
            let found = self.load_entry(past.state, at);
            (hash, last) = (hash::fold(hash, found), Some(found));
            if self.written[at] != Some(hash) {
                return Err("a head sees a place that was not written for its sequence");
            }
        }
        if last == Some(entry) { Ok(hash) } else { Err("a head has the position of another row") }
    }

    /// The row `index`; `None` for padding.
    fn row(&mut self, feed: &Feed, index: usize) -> Checked<Option<Row>> {
        let (token, position) = (self.int(feed.token_ids, index), self.int(feed.positions, index));
        if token >= self.vocab_size {
            return Err("a token id is out of range");
        }
        if position as usize >= feed.table_width * self.block_tokens as usize {
            return Err("a position is past the block table");
        }
        let table = if feed.is_decode() { index } else { 0 };
        let spare = self.is_spare(feed, &feed.kv, (index, table), self.spare_block)?;
        let window = feed.window.as_ref();
        let window_spare = match window {
            Some(window) => self.is_spare(feed, window, (index, table), self.spare_window_block)?,
            None => spare,
        };
        let slot_spare = match &feed.recurrent {
            Some((sequences, _)) => {
                let slot = self.int(*sequences, index);
                if slot > self.spare_slot {
                    return Err("a slot of recurrent memory is out of range");
                }
                slot == self.spare_slot
            }
            None => spare,
        };
        if (window_spare, slot_spare) != (spare, spare) {
            return Err("a row is padding to one memory and live to another");
        }
        if spare {
            let zero = token == 0 && position == 0;
            return if zero { Ok(None) } else { Err("a live row writes to the spare block") };
        }
        let follows = |before| self.int(feed.positions, before) + 1 == position;
        if !feed.is_decode() && index > 0 && !follows(index - 1) {
            return Err("positions of a chunk do not follow each other");
        }
        let before = self.read_places(feed, &feed.kv, table, 0..position)?;
        Ok(Some(Row { index, table, position, entry: hash::entry(token, position), before }))
    }

    /// Whether a row writes to the spare block, after a look at its slot and table.
    fn is_spare(
        &self,
        feed: &Feed,
        paged: &Paged,
        (row, table): (usize, usize),
        spare: u32,
    ) -> Checked<bool> {
        let width = feed.table_width;
        let mut blocks = (0..width).map(|i| self.int(paged.table, table * width + i));
        if blocks.clone().any(|block| block > spare) {
            return Err("a block table names no block");
        }
        let slot = self.int(paged.slots, row);
        if slot >= (spare + 1) * self.block_tokens {
            return Err("a slot is out of range");
        }
        if slot / self.block_tokens != spare {
            return Ok(false);
        }
        if !slot.is_multiple_of(self.block_tokens) {
            return Err("a padding row does not write to the first place of the spare block");
        }
        if feed.is_decode() && !blocks.all(|block| block == spare) {
            return Err("the table of a padding row names a block that is not spare");
        }
        Ok(true)
    }

    /// Writes the entry of `row` to one paged memory.
    fn write_places(&mut self, feed: &Feed, paged: &Paged, row: Row, spare: u32) -> Checked<()> {
        let slot = self.int(paged.slots, row.index) as usize;
        let at = row.position / self.block_tokens;
        let block = self.int(paged.table, row.table * feed.table_width + at as usize);
        if block == spare
            || slot as u32 != block * self.block_tokens + row.position % self.block_tokens
        {
            return Err("a row does not write where its table says");
        }
        if (0..row.index).any(|other| self.int(paged.slots, other) as usize == slot) {
            return Err("two rows write to one slot");
        }
        self.store_entry(paged.state, slot, row.entry);
        let is_kv = paged.state == feed.kv.state;
        let written = if is_kv { &mut self.written } else { &mut self.window_written };
        written[slot] = Some(hash::fold(row.before, row.entry));
        Ok(())
    }

    fn hidden(&mut self, feed: &Feed, row: Row) -> Checked<u64> {
        let context = hash::fold(row.before, row.entry);
        let window = match &feed.window {
            Some(window) => {
                let first = self.first_seen(row.position);
                self.check_passed(feed, window, row)?;
                Some(self.read_places(feed, window, row.table, first..row.position + 1)?)
            }
            None => None,
        };
        let recurrent = match feed.recurrent {
            Some((sequences, state)) => {
                let slot = self.int(sequences, row.index) as usize;
                let memory = if row.position == 0 {
                    hash::START
                } else if self.slot_written[slot] == Some(row.before) {
                    self.load_entry(state, slot)
                } else {
                    return Err("recurrent memory is not that of the tokens before");
                };
                let memory = hash::recur(memory, row.entry);
                self.store_entry(state, slot, memory);
                self.slot_written[slot] = Some(context);
                Some(memory)
            }
            None => None,
        };
        Ok(hash::join(context, window, recurrent))
    }

    /// The first place of the window that a token at `position` sees.
    fn first_seen(&self, position: u32) -> u32 {
        (position + 1).saturating_sub(self.window_tokens)
    }

    /// Hashes the entries of `places` in one paged memory, all of which must be of the tokens that KV
    /// memory holds up to there.
    fn read_places(
        &self,
        feed: &Feed,
        paged: &Paged,
        table: usize,
        places: Range<u32>,
    ) -> Checked<u64> {
        let bt = self.block_tokens;
        let slot = |paged: &Paged, place: u32| {
            let at = table * feed.table_width + (place / bt) as usize;
            (self.int(paged.table, at) * bt + place % bt) as usize
        };
        let is_kv = paged.state == feed.kv.state;
        let mut hash = hash::START;
        for place in places {
            let at = slot(paged, place);
            hash = hash::fold(hash, self.load_entry(paged.state, at));
            let right = if is_kv {
                self.written[at] == Some(hash)
            } else {
                self.window_written[at] == self.written[slot(&feed.kv, place)]
            };
            if !right {
                return Err("a row sees a place that was not written for its sequence");
            }
        }
        Ok(hash)
    }

    /// Blocks that no token from the first of the table's rows on sees were given back.
    fn check_passed(&self, feed: &Feed, window: &Paged, row: Row) -> Checked<()> {
        let follows = |index: usize| {
            let first_block = |index: usize| self.int(feed.kv.table, index * feed.table_width);
            let next = self.int(feed.positions, index - 1) + 1 == self.int(feed.positions, index);
            next && first_block(index - 1) == first_block(index)
        };
        let mut first_row = if feed.is_decode() { row.index } else { 0 };
        while first_row > 0 && follows(first_row) {
            first_row -= 1;
        }
        let passed = self.first_seen(self.int(feed.positions, first_row)) / self.block_tokens;
        let width = feed.table_width;
        let mut blocks =
            (0..passed as usize).map(|i| self.int(window.table, row.table * width + i));
        if blocks.any(|block| block != self.spare_window_block) {
            return Err("a table of the window names a block that no token sees");
        }
        Ok(())
    }
}
