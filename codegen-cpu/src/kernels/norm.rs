//! Root-mean-square normalisation.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::simd::{LANES, Simd};
use super::worker::Worker;

/// `rms_norm_{in}_{out}`: `groups` runs of `n` elements in each row, all with the same weight.
pub(crate) struct RmsNorm<I, O> {
    rows: usize,
    groups: usize,
    n: usize,
    eps: f32,
    x: Rows<I>,
    weight: Rows<f32>,
    out: Rows<O>,
}

/// Sum of squares of `n` elements in four interleaved vectors, so the order depends on `n` alone.
///
/// # Safety
/// As [`Simd`]; `x` is valid for `n` elements.
#[inline(always)]
pub(super) unsafe fn sum_of_squares<S: Simd, T: Element>(x: *const T, n: usize) -> f32 {
    // SAFETY: every access is below `n`.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * LANES <= n {
            for (j, sum) in sums.iter_mut().enumerate() {
                let v = T::load::<S>(x.add(i + j * LANES));
                *sum = S::mul_add(v, v, *sum);
            }
            i += 4 * LANES;
        }
        while i < n {
            let v = T::load_part::<S>(x.add(i), n - i);
            sums[0] = S::mul_add(v, v, sums[0]);
            i += LANES;
        }
        S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])))
    }
}

/// `out = x * scale * weight`.
///
/// # Safety
/// As [`Simd`]; all pointers are valid for `n` elements.
#[inline(always)]
unsafe fn scaled<S: Simd, I: Element, O: Element>(
    x: *const I,
    scale: f32,
    weight: *const f32,
    out: *mut O,
    n: usize,
) {
    // SAFETY: every access is below `n`.
    unsafe {
        let scale = S::splat(scale);
        for i in (0..n).step_by(LANES) {
            let v = S::mul(I::load_part::<S>(x.add(i), n - i), scale);
            let w = f32::load_part::<S>(weight.add(i), n - i);
            O::store_part::<S>(out.add(i), S::mul(v, w), n - i);
        }
    }
}

#[inline(always)]
fn scale(sum_of_squares: f32, n: usize, eps: f32) -> f32 {
    1.0 / (sum_of_squares / n as f32 + eps).sqrt()
}

impl<I: Element, O: Element> Kernel for RmsNorm<I, O> {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, groups, n) = (b.count("rows")?, b.positive("groups")?, b.positive("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        let eps = b.factor("eps")?;
        let width = product(&[groups, n])?;
        Ok(Self {
            rows,
            groups,
            n,
            eps,
            x: b.input("x", rows, width, x_stride)?,
            weight: b.table("weight", 1, n, n)?,
            out: b.output("out", rows, width, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for item in worker.share(self.rows * self.groups) {
            let at = item % self.groups * self.n;
            // SAFETY: row and group are inside what was bound.
            unsafe {
                let (row, weight) = (item / self.groups, self.weight.row(0));
                let (x, out) = (self.x.row(row).add(at), self.out.row(row).add(at));
                if self.groups > 1 {
                    // Of a long prompt the heads of the next row are in no near cache.
                    self.x.ask::<S>(row + 1, at, self.n);
                }
                let squares = sum_of_squares::<S, I>(x, self.n);
                scaled::<S, I, O>(x, scale(squares, self.n, self.eps), weight, out, self.n);
            }
        }
    }
}

/// `add_rms_norm_{out}`: `sum = a + b`, `out` is the norm of `sum`. `sum` may be `a` or `b`.
pub(crate) struct AddRmsNorm<O> {
    rows: usize,
    n: usize,
    eps: f32,
    a: Rows<f32>,
    b: Rows<f32>,
    weight: Rows<f32>,
    sum: Rows<f32>,
    out: Rows<O>,
}

impl<O: Element> Kernel for AddRmsNorm<O> {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.positive("n")?);
        let (a_stride, b_stride) = (b.count("a stride")?, b.count("b stride")?);
        let (sum_stride, out_stride) = (b.count("sum stride")?, b.count("out stride")?);
        let eps = b.factor("eps")?;
        Ok(Self {
            rows,
            n,
            eps,
            a: b.input("a", rows, n, a_stride)?,
            b: b.input("b", rows, n, b_stride)?,
            weight: b.table("weight", 1, n, n)?,
            sum: b.output("sum", rows, n, sum_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let n = self.n;
        for r in worker.share(self.rows) {
            // SAFETY: the row is inside what was bound.
            unsafe {
                let (a, b, sum) = (self.a.row(r), self.b.row(r), self.sum.row(r));
                for i in (0..n).step_by(LANES) {
                    let va = f32::load_part::<S>(a.add(i), n - i);
                    let vb = f32::load_part::<S>(b.add(i), n - i);
                    f32::store_part::<S>(sum.add(i), S::add(va, vb), n - i);
                }
                let scale = scale(sum_of_squares::<S, f32>(sum, n), n, self.eps);
                scaled::<S, f32, O>(sum, scale, self.weight.row(0), self.out.row(r), n);
            }
        }
    }
}
