//! Memory of one slot for each sequence: convolution and the gated delta rule.
//!
//! Rows of one sequence stand together. A row whose position is not above 0 begins with a memory
//! of zeros. A row whose slot does not exist gives zeros and writes nothing.

mod conv;
mod delta;
mod gate;
mod slab;

pub(crate) use conv::CausalConv;
pub(crate) use delta::GatedDelta;
pub(crate) use gate::DeltaGate;

use super::bind::{Binder, Rows};
use std::ops::Range;

/// Slots and positions of the rows of a step.
struct Sequences {
    rows: usize,
    slots: usize,
    sequences: Rows<i32>,
    positions: Rows<i32>,
}

/// Rows that follow one another in one memory.
struct Segment {
    rows: Range<usize>,
    /// `None` where the slot does not exist.
    slot: Option<usize>,
    /// Whether the memory before the first row is zeros rather than what the slot holds.
    from_zeros: bool,
    /// Whether the slot keeps what the last row leaves; it does not when the next row begins
    /// there again.
    kept: bool,
}

impl Sequences {
    fn bind(b: &mut Binder<'_>, rows: usize, slots: usize) -> Result<Self, String> {
        Ok(Self {
            rows,
            slots,
            sequences: b.input("sequences", 1, rows, rows)?,
            positions: b.input("positions", 1, rows, rows)?,
        })
    }

    /// The slot of row `t` and whether the row begins with zeros.
    ///
    /// # Safety
    /// The buffers are alive and `t` is one of the rows.
    #[inline(always)]
    unsafe fn row(&self, t: usize) -> (i32, bool) {
        // SAFETY: the caller's promise.
        unsafe { (*self.sequences.row(0).add(t), *self.positions.row(0).add(t) <= 0) }
    }

    /// The segment that begins at row `start`, which is one of the rows.
    ///
    /// # Safety
    /// The buffers are alive.
    #[inline(always)]
    unsafe fn segment(&self, start: usize) -> Segment {
        // SAFETY: only rows are looked at.
        unsafe {
            let (id, from_zeros) = self.row(start);
            let mut end = start + 1;
            while end < self.rows && self.row(end) == (id, false) {
                end += 1;
            }
            Segment {
                rows: start..end,
                slot: usize::try_from(id).ok().filter(|&s| s < self.slots),
                from_zeros,
                kept: end == self.rows || self.row(end) != (id, true),
            }
        }
    }
}
