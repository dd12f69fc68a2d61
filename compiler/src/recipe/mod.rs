//! Weight recipes: what a packed weight is made of, evaluated a few rows at a time so that memory
//! stays near one tensor.
//!
//! Every recipe stands once in a table, so that equal ones have equal ids. A tensor of any rank is
//! a matrix here: its rows are those of all leading axes one after the other, and a vector is one
//! row.

mod build;
mod computed;
mod read;
mod show;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use build::{Constants, constants};
pub(crate) use read::Reader;

use ir::{DType, Layout};
use std::{collections::HashMap, sync::Arc};

/// A recipe of a [`Recipes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(u32);

/// How rows are made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Recipe {
    /// A tensor of the checkpoint.
    Tensor { name: Arc<str> },
    /// The same values in another element type.
    Cast { x: Id },
    /// Parts one below the other, as often as each of them has `rows` rows.
    Rows { parts: Vec<Part> },
    /// Parts side by side.
    Columns { parts: Vec<Id> },
    /// Rows of `a` and `b` in alternating blocks.
    Interleave { block: u64, a: Id, b: Id },
    /// Rows `start .. start + len` of every `period` rows.
    RowBlocks { x: Id, period: u64, start: u64, len: u64 },
    /// Columns from `start` on.
    ColumnRange { x: Id, start: u64 },
    /// The same elements in the same order in rows of another length.
    Refold { x: Id },
    /// Rows and columns of every slice of `rows` rows exchanged.
    Transpose { x: Id, rows: u64 },
    /// Every row `times` times.
    Repeat { x: Id, times: u64 },
    /// Every element plus the number with these bits.
    AddScalar { x: Id, bits: u32 },
    /// Codes times the scale of their group.
    Dequantize { codes: Id, scale: Id, group: u64 },
    /// Integer codes of groups of a row.
    Codes { x: Id, group: u64 },
    /// The scales of [`Recipe::Codes`] of `bits` bits.
    Scales { x: Id, bits: u64, group: u64 },
    /// The sum of each row times the number with these bits.
    RowSums { x: Id, bits: u32 },
    /// The bits of each number as a whole number.
    FloatBits { x: Id },
    /// What an op makes of small operands, computed as a whole by the reference interpreter. The op
    /// stands in a function as text, by which equal ones are known.
    Computed { formula: Arc<str>, args: Vec<Id> },
}

/// A part of [`Recipe::Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) id: Id,
    /// Rows it gives at a time.
    pub(crate) rows: u64,
    /// Where they begin among the rows that all parts give at a time.
    pub(crate) start: u64,
}

/// A recipe with the shape and the element type of what it makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) recipe: Recipe,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    pub(crate) dtype: DType,
}

impl Entry {
    fn row_bytes(&self) -> usize {
        self.dtype.bytes_for(self.cols) as usize
    }
}

/// Every recipe, once.
#[derive(Debug, Default)]
pub(crate) struct Recipes {
    entries: Vec<Arc<Entry>>,
    ids: HashMap<Arc<Entry>, Id>,
}

/// A recipe with the arrangement it is stored in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Packed {
    pub(crate) recipe: Id,
    pub(crate) layout: Layout,
    pub(crate) dims: Vec<u64>,
}

impl Recipes {
    fn add(&mut self, entry: Entry) -> Id {
        if let Some(&known) = self.ids.get(&entry) {
            return known;
        }
        let id = Id(u32::try_from(self.entries.len()).expect("fewer recipes than 2^32"));
        let entry = Arc::new(entry);
        self.entries.push(Arc::clone(&entry));
        self.ids.insert(entry, id);
        id
    }

    pub(crate) fn get(&self, id: Id) -> &Entry {
        &self.entries[id.0 as usize]
    }

    /// Whether `id` is codes of 4 bits in a wider type.
    pub(crate) fn widens(&self, id: Id) -> bool {
        match self.get(id).recipe {
            Recipe::Cast { x } => self.get(x).dtype == DType::I4,
            _ => false,
        }
    }

    /// Whether making `id` quantises a weight.
    pub(crate) fn quantizes(&self, id: Id) -> bool {
        match &self.get(id).recipe {
            Recipe::Codes { .. } => true,
            Recipe::Rows { parts } => parts.iter().any(|p| self.quantizes(p.id)),
            Recipe::Columns { parts } => parts.iter().any(|&p| self.quantizes(p)),
            Recipe::Interleave { a, b, .. } => self.quantizes(*a) || self.quantizes(*b),
            Recipe::RowBlocks { x, .. } | Recipe::Refold { x } => self.quantizes(*x),
            _ => false,
        }
    }
}
