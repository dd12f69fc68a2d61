//! The inputs of the decode step that probably comes next, made while the device runs this one.

use crate::{
    bind::Ports,
    inputs::{Layout, Row, Staging},
};
use hal::Device;

/// Inputs of a decode replay, complete but for the tokens.
pub(crate) struct Ahead {
    staging: Staging,
    /// Context tier and rows of the graph.
    size: (u32, u32),
    /// What the rows were made from.
    rows: Vec<Seen>,
}

/// All that a row's inputs depend on but the token: [`crate::memory::Held::stay`], and the position.
type Seen = (u64, u32);

fn seen(row: Row<'_>) -> Seen {
    (row.held.stay, row.position)
}

impl Ahead {
    /// Nothing is made yet; there is room for `rows` rows and `integers`.
    pub(crate) fn with_room(rows: usize, integers: usize) -> Self {
        let staging = Staging::with_room(integers);
        Self { staging, size: (0, 0), rows: Vec::with_capacity(rows) }
    }

    /// Makes the inputs of a decode plan of `size` for `rows`, with block tables `width` wide.
    pub(crate) fn make<'r>(
        &mut self,
        (ports, layout): (&Ports, &Layout),
        size: (u32, u32),
        rows: impl Iterator<Item = Row<'r>> + Clone,
        width: usize,
    ) {
        self.forget();
        self.size = size;
        self.rows.extend(rows.clone().map(seen));
        let padded = (rows, size.1 as usize - self.rows.len());
        self.staging.feed(ports, layout, padded.clone(), padded, width);
    }

    /// Sends what was made to the device, with the tokens of `rows`, if it was made for these rows
    /// and a plan of `size`. Says whether it was.
    pub(crate) fn send<'r>(
        &mut self,
        device: &mut impl Device,
        size: (u32, u32),
        rows: impl Iterator<Item = Row<'r>> + Clone,
    ) -> bool {
        let fits = !self.rows.is_empty()
            && self.size == size
            && rows.clone().map(seen).eq(self.rows.iter().copied());
        if fits {
            self.staging.set_tokens(rows.map(|row| row.token));
            self.staging.send(device);
        }
        self.forget();
        fits
    }

    fn forget(&mut self) {
        self.rows.clear();
        self.staging.clear();
    }
}
