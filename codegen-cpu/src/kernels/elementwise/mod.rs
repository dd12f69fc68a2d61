//! Kernels that compute each element from the elements at its place.

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::simd::{LANES, Simd};
use super::worker::Worker;

mod functions;

pub(crate) use functions::{Add, AddScalar, Identity, Mul, Sigmoid, Silu, SiluMul, SwigluClamped};

/// A function of one vector.
pub(crate) trait Unary: Sized + Send + Sync + 'static {
    /// Takes its factors, which follow the strides.
    fn bind(b: &mut Binder<'_>) -> Result<Self, String>;

    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn apply<S: Simd>(&self, x: S::V) -> S::V;
}

/// A function of two vectors.
pub(crate) trait Binary: Sized + Send + Sync + 'static {
    /// Takes its factors, which follow the strides.
    fn bind(b: &mut Binder<'_>) -> Result<Self, String>;

    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn apply<S: Simd>(&self, a: S::V, b: S::V) -> S::V;
}

/// `cast_{in}_{out}`, `silu_f32`, `sigmoid_f32`, `add_scalar_f32`. The output may be the input's buffer when the types agree.
pub(crate) struct Map<I, O, F> {
    rows: usize,
    n: usize,
    x: Rows<I>,
    out: Rows<O>,
    function: F,
}

impl<I: Element, O: Element, F: Unary> Kernel for Map<I, O, F> {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.count("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        Ok(Self {
            rows,
            n,
            function: F::bind(b)?,
            x: b.input("x", rows, n, x_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for r in rows {
            // SAFETY: rows and columns are inside what was bound.
            unsafe {
                let (x, out) = (self.x.row(r), self.out.row(r));
                for i in columns.clone().step_by(LANES) {
                    let left = columns.end - i;
                    let v = I::load_part::<S>(x.add(i), left);
                    O::store_part::<S>(out.add(i), self.function.apply::<S>(v), left);
                }
            }
        }
    }
}

/// `add_f32`, `mul_f32`, `silu_mul_{out}`, `swiglu_clamped_{out}`, `add_bias_f32`. The output may
/// be the buffer of an input of its type.
pub(crate) struct Zip<O, F> {
    rows: usize,
    n: usize,
    a: Rows<f32>,
    b: Rows<f32>,
    out: Rows<O>,
    function: F,
}

impl<O: Element, F: Binary> Zip<O, F> {
    #[inline(always)]
    unsafe fn share<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for r in rows {
            // SAFETY: rows and columns are inside what was bound.
            unsafe {
                let (a, b, out) = (self.a.row(r), self.b.row(r), self.out.row(r));
                for i in columns.clone().step_by(LANES) {
                    let left = columns.end - i;
                    let va = f32::load_part::<S>(a.add(i), left);
                    let vb = f32::load_part::<S>(b.add(i), left);
                    O::store_part::<S>(out.add(i), self.function.apply::<S>(va, vb), left);
                }
            }
        }
    }
}

impl<O: Element, F: Binary> Kernel for Zip<O, F> {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.count("n")?);
        let (a_stride, b_stride) = (b.count("first stride")?, b.count("second stride")?);
        let out_stride = b.count("out stride")?;
        Ok(Self {
            rows,
            n,
            function: F::bind(b)?,
            a: b.input("first", rows, n, a_stride)?,
            b: b.input("second", rows, n, b_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe { self.share::<S>(worker) }
    }
}

/// `silu_mul_pairs_{out}`, `swiglu_clamped_pairs_{out}`: columns of `x` are 32 of the first side,
/// then 32 of the second, as a product of a panel with rows of both gives them.
pub(crate) struct Pairs<O, F> {
    rows: usize,
    n: usize,
    x: Rows<f32>,
    out: Rows<O>,
    function: F,
}

/// Columns of a side that lie together.
const BLOCK: usize = 32;

impl<O: Element, F: Binary> Kernel for Pairs<O, F> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.count("n")?);
        if !n.is_multiple_of(BLOCK) {
            return Err(format!("`n` is {n}, expected a multiple of {BLOCK}"));
        }
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        Ok(Self {
            rows,
            n,
            function: F::bind(b)?,
            x: b.input("x", rows, product(&[2, n])?, x_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for r in rows {
            // SAFETY: rows and columns are inside what was bound, twice as many in `x`; blocks are
            // whole, and shares are blocks.
            unsafe {
                let (x, out) = (self.x.row(r), self.out.row(r));
                for i in columns.clone().step_by(LANES) {
                    let x = x.add(i / BLOCK * 2 * BLOCK + i % BLOCK);
                    let (a, b) = (S::load(x), S::load(x.add(BLOCK)));
                    O::store::<S>(out.add(i), self.function.apply::<S>(a, b));
                }
            }
        }
    }
}

/// `add_bias_f32`: [`Zip`] with the same second row for every row.
pub(crate) struct AddBias(Zip<f32, Add>);

impl Kernel for AddBias {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.count("n")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        Ok(Self(Zip {
            rows,
            n,
            a: b.input("x", rows, n, x_stride)?,
            b: b.table::<f32>("bias", 1, n, n)?.repeated(),
            out: b.output("out", rows, n, out_stride)?,
            function: Add,
        }))
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe { self.0.share::<S>(worker) }
    }
}

/// `scale_rows_f32`: each row times a factor of its own. The output may be the buffer of `x`.
pub(crate) struct ScaleRows {
    rows: usize,
    n: usize,
    x: Rows<f32>,
    scale: Rows<f32>,
    out: Rows<f32>,
}

impl Kernel for ScaleRows {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n) = (b.count("rows")?, b.positive("n")?);
        let (x_stride, scale_stride) = (b.count("x stride")?, b.count("scale stride")?);
        let out_stride = b.count("out stride")?;
        Ok(Self {
            rows,
            n,
            x: b.input("x", rows, n, x_stride)?,
            scale: b.input("scale", rows, 1, scale_stride)?,
            out: b.output("out", rows, n, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        for r in rows {
            // SAFETY: rows and columns are inside what was bound.
            unsafe {
                let (x, out) = (self.x.row(r), self.out.row(r));
                let scale = S::splat(*self.scale.row(r));
                for i in columns.clone().step_by(LANES) {
                    let left = columns.end - i;
                    let v = S::mul(f32::load_part::<S>(x.add(i), left), scale);
                    f32::store_part::<S>(out.add(i), v, left);
                }
            }
        }
    }
}
