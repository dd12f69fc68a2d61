//! The largest of each row.

use super::bind::{Binder, Kernel, Rows};
use super::simd::Simd;
use super::worker::Worker;

/// `argmax_f32`: the smallest index when several are equal. NaN is never the largest; a row
/// without numbers gives 0.
pub(crate) struct Argmax {
    rows: usize,
    n: usize,
    x: Rows<f32>,
    ids: Rows<i32>,
}

impl Kernel for Argmax {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n, x_stride) = (b.count("T")?, b.positive("N")?, b.count("x stride")?);
        if i32::try_from(n).is_err() {
            return Err(format!("`N` is {n}, too large for an index"));
        }
        Ok(Self {
            rows,
            n,
            x: b.input("x", rows, n, x_stride)?,
            ids: b.output_column("ids", rows)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for r in worker.share(self.rows) {
            // SAFETY: the row is inside what was bound.
            unsafe {
                let x = self.x.row(r);
                let (mut best, mut index) = (f32::NEG_INFINITY, 0);
                for i in 0..self.n {
                    if *x.add(i) > best {
                        (best, index) = (*x.add(i), i);
                    }
                }
                *self.ids.row(0).add(r) = index as i32;
            }
        }
    }
}
