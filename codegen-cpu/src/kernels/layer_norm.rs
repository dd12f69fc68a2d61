//! Layer normalisation.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::simd::{LANES, Simd};
use super::worker::Worker;

/// `layer_norm_{in}_{out}`: `groups` runs of `n` elements in each row, all with the same weight and
/// bias. The variance is the mean square of the differences from the mean, in a second pass.
pub(crate) struct LayerNorm<I, O> {
    rows: usize,
    groups: usize,
    n: usize,
    eps: f32,
    x: Rows<I>,
    weight: Rows<f32>,
    bias: Rows<f32>,
    out: Rows<O>,
}

/// `f(v, w)` of whole vectors summed in the order of the elements, then over the lanes; `tail` says
/// which lanes of the last vector are elements.
///
/// # Safety
/// As [`Simd`]; `x` is valid for `n` elements.
#[inline(always)]
unsafe fn sum<S: Simd, T: Element>(x: *const T, n: usize, f: impl Fn(S::V) -> S::V) -> f32 {
    // SAFETY: every access is below `n`.
    unsafe {
        let mut sum = S::splat(0.0);
        let whole = n / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            sum = S::add(sum, f(T::load::<S>(x.add(i))));
        }
        if whole < n {
            let mut last = S::lanes(f(T::load_part::<S>(x.add(whole), n - whole)));
            last[n - whole..].fill(0.0);
            sum = S::add(sum, S::load(last.as_ptr()));
        }
        S::sum(sum)
    }
}

impl<I: Element, O: Element> Kernel for LayerNorm<I, O> {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, groups, n) = (b.count("rows")?, b.positive("groups")?, b.positive("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        let eps = b.factor("eps")?;
        let width = product(&[groups, n])?;
        product(&[rows, groups])?;
        Ok(Self {
            rows,
            groups,
            n,
            eps,
            x: b.input("x", rows, width, x_stride)?,
            weight: b.table("weight", 1, n, n)?,
            bias: b.table("bias", 1, n, n)?,
            out: b.output("out", rows, width, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let n = self.n;
        for item in worker.share(self.rows * self.groups) {
            // SAFETY: row and group are inside what was bound.
            unsafe {
                let (row, at) = (item / self.groups, item % self.groups * n);
                let (x, out) = (self.x.row(row).add(at), self.out.row(row).add(at));
                let (weight, bias) = (self.weight.row(0), self.bias.row(0));
                let mean = sum::<S, I>(x, n, |v| v) / n as f32;
                let mean = S::splat(mean);
                let squares = sum::<S, I>(x, n, |v| {
                    let difference = S::sub(v, mean);
                    S::mul(difference, difference)
                });
                let scale = S::splat(1.0 / (squares / n as f32 + self.eps).sqrt());
                for i in (0..n).step_by(LANES) {
                    let v = S::sub(I::load_part::<S>(x.add(i), n - i), mean);
                    let w = f32::load_part::<S>(weight.add(i), n - i);
                    let b = f32::load_part::<S>(bias.add(i), n - i);
                    O::store_part::<S>(out.add(i), S::mul_add(S::mul(v, scale), w, b), n - i);
                }
            }
        }
    }
}
