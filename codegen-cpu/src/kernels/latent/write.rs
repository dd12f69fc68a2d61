//! The kernel that writes rows into a paged memory.

use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// `paged_write_{kv}`: a slot outside the state writes nothing. When rows share a slot, as padding
/// rows do, the last one stays.
pub(crate) struct PagedWrite<T> {
    rows: usize,
    n: usize,
    slot_count: usize,
    x: Rows<f32>,
    slots: Rows<i32>,
    state: Rows<T>,
}

impl<T: Element> Kernel for PagedWrite<T> {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("T")?, b.positive("C")?);
        let block_len = super::block_len::<T>(n, b.count("block tokens")?)?;
        let x_stride = b.count("x stride")?;
        let x = b.input("x", rows, n, x_stride)?;
        let slots = b.input("slots", 1, rows, rows)?;
        let (blocks, state) = b.blocks::<T>("state", block_len, true)?;
        Ok(Self { rows, n, slot_count: product(&[blocks, BLOCK_TOKENS])?, x, slots, state })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // Split by columns alone: rows that share a slot then meet in one thread.
        let lines = worker.share(self.n.div_ceil(LANES));
        let columns = lines.start * LANES..(lines.end * LANES).min(self.n);
        for row in 0..self.rows {
            // SAFETY: the slot is checked against the state before it is used.
            unsafe {
                let slot = *self.slots.row(0).add(row);
                let Some(slot) = usize::try_from(slot).ok().filter(|&s| s < self.slot_count) else {
                    continue;
                };
                let (x, to) = (self.x.row(row), self.state.row(0).add(slot * self.n));
                for i in columns.clone().step_by(LANES) {
                    let left = columns.end - i;
                    T::store_part::<S>(to.add(i), f32::load_part::<S>(x.add(i), left), left);
                }
            }
        }
    }
}
