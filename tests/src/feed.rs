//! What a step of one sequence is fed, for plans and functions that tests run without an engine.

use artifact::Phase;

/// Where a sequence lies: its blocks in ascending order, the spare ones after all others.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// The spare KV block.
    pub spare: usize,
    /// The spare block of sliding windows.
    pub window_spare: usize,
    /// The spare slot of recurrent memory.
    pub sequence_spare: usize,
}

/// A step that feeds `tokens` after `before` others; rows beyond them are padding.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// Which functions it is for.
    pub phase: Phase,
    /// The tokens; for a head the rows whose logits are wanted.
    pub tokens: &'a [u32],
    /// Tokens in the memories; for a head those before the prefill whose rows it takes.
    pub before: usize,
    /// Of the memories.
    pub places: Places,
}

impl Feed<'_> {
    /// Tokens that its rows see together.
    pub fn end(&self) -> usize {
        let rows = match self.phase {
            Phase::Head => self.tokens.iter().max().map_or(0, |&row| row as usize + 1),
            Phase::Decode | Phase::Prefill => self.tokens.len(),
        };
        self.before + rows
    }

    /// The values of the input called `name` in row-major order.
    ///
    /// # Panics
    /// When no step has an input of this name.
    pub fn values(&self, name: &str, dims: &[u64]) -> Vec<i32> {
        let live = self.tokens.len();
        let width = dims.last().map_or(1, |&n| n as usize);
        let count = dims.iter().product::<u64>() as usize;
        let slot = |row: usize, spare: usize| match row {
            row if row < live => self.before + row,
            _ => spare * self.places.block_tokens,
        };
        let used = self.end().div_ceil(self.places.block_tokens);
        let entry = |i: usize, spare: usize| {
            let (row, block) = (i / width, i % width);
            if row < live && block < used { block } else { spare }
        };
        let value = |i: usize| match name {
            "token_ids" | "rows" => self.tokens.get(i).map_or(0, |&t| t as usize),
            "positions" if i >= live => 0,
            "positions" if self.phase == Phase::Head => self.before + self.tokens[i] as usize,
            "positions" => self.before + i,
            "slots" => slot(i, self.places.spare),
            "window_slots" => slot(i, self.places.window_spare),
            "block_table" => entry(i, self.places.spare),
            "window_table" => entry(i, self.places.window_spare),
            "sequences" if i < live => 0,
            "sequences" => self.places.sequence_spare,
            other => panic!("no step has an input called {other}"),
        };
        (0..count).map(|i| value(i) as i32).collect()
    }
}
