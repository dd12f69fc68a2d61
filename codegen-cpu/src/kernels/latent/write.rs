//! The kernel that writes rows into a paged memory.

use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::kv::{BLOCK_TOKENS, Slots};
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// `paged_write_{kv}`: a slot outside the state writes nothing. When rows share a slot, as padding
/// rows do, the last one alone writes it.
pub(crate) struct PagedWrite<T> {
    rows: usize,
    n: usize,
    x: Rows<f32>,
    slots: Slots,
    state: Rows<T>,
}

impl<T: Element> Kernel for PagedWrite<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("T")?, b.positive("C")?);
        let block_len = super::block_len::<T>(n, b.count("block tokens")?)?;
        let x_stride = b.count("x stride")?;
        let x = b.input("x", rows, n, x_stride)?;
        let slots = Slots::bind(b, rows)?;
        let (blocks, state) = b.blocks::<T>("state", block_len, true)?;
        Ok(Self { rows, n, x, slots: slots.below(product(&[blocks, BLOCK_TOKENS])?), state })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for row in rows {
            // SAFETY: the row is one of those bound; the slot is inside the state and of this row
            // alone.
            unsafe {
                let Some(slot) = self.slots.of(row) else { continue };
                let (x, to) = (self.x.row(row), self.state.row(0).add(slot * self.n));
                for i in columns.clone().step_by(LANES) {
                    let left = columns.end - i;
                    T::store_part::<S>(to.add(i), f32::load_part::<S>(x.add(i), left), left);
                }
            }
        }
    }
}
