//! What follows the products of experts.

use super::expert;
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// `expert_bias_f32`: row `ids[t,j]` of a table of biases on each pair. The output may be the
/// buffer of `x`.
pub(crate) struct ExpertBias {
    rows: usize,
    k: usize,
    n: usize,
    experts: usize,
    x: Rows<f32>,
    ids: Rows<i32>,
    bias: Rows<f32>,
    out: Rows<f32>,
}

impl Kernel for ExpertBias {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, k, n) = (b.count("T")?, b.positive("k")?, b.positive("N")?);
        let experts = b.positive("experts")?;
        let (x_stride, ids_stride) = (b.count("x stride")?, b.count("ids stride")?);
        let out_stride = b.count("out stride")?;
        let width = product(&[k, n])?;
        Ok(Self {
            rows,
            k,
            n,
            experts,
            x: b.input("x", rows, width, x_stride)?,
            ids: b.input("ids", rows, k, ids_stride)?,
            bias: b.table("bias", experts, n, n)?,
            out: b.output("out", rows, width, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for pair in worker.share(self.rows * self.k) {
            let (row, j) = (pair / self.k, pair % self.k);
            // SAFETY: the pair is inside what was bound and the expert is bounded.
            unsafe {
                let bias = self.bias.row(expert(*self.ids.row(row).add(j), self.experts));
                let (x, out) = (self.x.row(row).add(j * self.n), self.out.row(row).add(j * self.n));
                for i in (0..self.n).step_by(LANES) {
                    let left = self.n - i;
                    let v = f32::load_part::<S>(x.add(i), left);
                    let v = S::add(v, f32::load_part::<S>(bias.add(i), left));
                    f32::store_part::<S>(out.add(i), v, left);
                }
            }
        }
    }
}

/// `combine_experts_{out}`: the weighted sum of a row's experts, in the order of the experts.
pub(crate) struct CombineExperts<O> {
    rows: usize,
    k: usize,
    n: usize,
    x: Rows<f32>,
    weights: Rows<f32>,
    out: Rows<O>,
}

impl<O: Element> Kernel for CombineExperts<O> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, k, n) = (b.count("T")?, b.positive("k")?, b.positive("N")?);
        let (x_stride, weights_stride) = (b.count("x stride")?, b.count("weights stride")?);
        let out_stride = b.count("out stride")?;
        let width = product(&[k, n])?;
        Ok(Self {
            rows,
            k,
            n,
            x: b.input("x", rows, width, x_stride)?,
            weights: b.input("weights", rows, k, weights_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for row in rows {
            // SAFETY: row, pairs and columns are inside what was bound.
            unsafe {
                let (x, weights, out) = (self.x.row(row), self.weights.row(row), self.out.row(row));
                for i in columns.clone().step_by(LANES) {
                    let left = columns.end - i;
                    let mut sum = S::splat(0.0);
                    for j in 0..self.k {
                        let v = f32::load_part::<S>(x.add(j * self.n + i), left);
                        sum = S::mul_add(v, S::splat(*weights.add(j)), sum);
                    }
                    O::store_part::<S>(out.add(i), sum, left);
                }
            }
        }
    }
}
