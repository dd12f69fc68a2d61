//! Pairs sorted by expert.

use super::expert;
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::simd::{Dots, Simd};
use crate::kernels::worker::{Scratch, Worker};

/// `expert_groups`: the pairs of `T` rows of `k` ids by expert, stable, and where each expert's
/// begin. One thread does it: there is less to do than to agree on.
pub(crate) struct ExpertGroups {
    rows: usize,
    k: usize,
    experts: usize,
    ids: Rows<i32>,
    order: Rows<i32>,
    starts: Rows<i32>,
}

impl Kernel for ExpertGroups {
    const DOTS: Dots = Dots::NONE;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, k, experts) = (b.count("T")?, b.positive("k")?, b.positive("experts")?);
        let ids_stride = b.count("ids stride")?;
        let pairs = product(&[rows, k])?;
        if i32::try_from(pairs).is_err() || i32::try_from(experts).is_err() {
            return Err(format!("{pairs} pairs of {experts} experts do not fit 32 bits"));
        }
        Ok(Self {
            rows,
            k,
            experts,
            ids: b.input("ids", rows, k, ids_stride)?,
            order: b.output("order", 1, pairs, pairs)?,
            starts: b.output("starts", 1, experts + 1, experts + 1)?,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        Scratch { private: self.experts * size_of::<i32>(), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        if worker.index != 0 {
            return;
        }
        // SAFETY: rows and places are inside what was bound, experts are bounded, the working
        // memory has a number for each of them, and only this thread gets here.
        unsafe {
            let next = std::slice::from_raw_parts_mut(worker.private.cast::<i32>(), self.experts);
            next.fill(0);
            for row in 0..self.rows {
                let ids = std::slice::from_raw_parts(self.ids.row(row), self.k);
                for &id in ids {
                    next[expert(id, self.experts)] += 1;
                }
            }
            let starts = self.starts.row(0);
            let mut place = 0;
            for (e, next) in next.iter_mut().enumerate() {
                *starts.add(e) = place;
                let count = *next;
                *next = place;
                place += count;
            }
            *starts.add(self.experts) = place;
            let order = self.order.row(0);
            let mut pair = 0;
            for row in 0..self.rows {
                let ids = std::slice::from_raw_parts(self.ids.row(row), self.k);
                for &id in ids {
                    let next = &mut next[expert(id, self.experts)];
                    *order.add(*next as usize) = pair;
                    *next += 1;
                    pair += 1;
                }
            }
        }
    }
}
