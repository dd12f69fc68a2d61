//! Normalisation to a length.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::norm::sum_of_squares;
use super::simd::{LANES, Simd};
use super::worker::Worker;

/// `l2_norm_f32`: `scale * x / sqrt(sum(x^2) + eps)` over each of `groups` runs of `n` elements in
/// a row. The output may be the input's buffer.
pub(crate) struct L2Norm {
    rows: usize,
    groups: usize,
    n: usize,
    eps: f32,
    scale: f32,
    x: Rows<f32>,
    out: Rows<f32>,
}

impl Kernel for L2Norm {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, groups, n) = (b.count("rows")?, b.positive("groups")?, b.positive("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        let (eps, scale) = (b.factor("eps")?, b.factor("scale")?);
        let width = product(&[groups, n])?;
        Ok(Self {
            rows,
            groups,
            n,
            eps,
            scale,
            x: b.input("x", rows, width, x_stride)?,
            out: b.output("out", rows, width, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for item in worker.share(self.rows * self.groups) {
            let at = item % self.groups * self.n;
            // SAFETY: row and group are inside what was bound.
            unsafe {
                let row = item / self.groups;
                let (x, out) = (self.x.row(row).add(at), self.out.row(row).add(at));
                let squares = sum_of_squares::<S, f32>(x, self.n);
                let factor = S::splat(self.scale / (squares + self.eps).sqrt());
                for i in (0..self.n).step_by(LANES) {
                    let v = f32::load_part::<S>(x.add(i), self.n - i);
                    f32::store_part::<S>(out.add(i), S::mul(v, factor), self.n - i);
                }
            }
        }
    }
}
