//! Codes of 8 bits.

use super::{
    codes::{store_i8, store_rounded},
    magnitude,
};
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// The largest code.
const LARGEST: f32 = 127.0;
/// From here on the reciprocal of a scale is a number like any other.
const LEAST: f32 = 1e-30;
/// Elements of two vectors.
const PAIR: usize = 2 * LANES;

/// `quantize_rows_{in}`: each of `runs` runs of `n` elements of a row by its own scale.
pub(crate) struct QuantizeRows<T> {
    rows: usize,
    runs: usize,
    n: usize,
    x: Rows<T>,
    codes: Rows<i8>,
    scales: Rows<f32>,
}

impl<T: Element> Kernel for QuantizeRows<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, runs, n) = (b.count("rows")?, b.positive("runs")?, b.positive("n")?);
        let x_stride = b.count("x stride")?;
        let width = product(&[runs, n])?;
        Ok(Self {
            rows,
            runs,
            n,
            x: b.input("x", rows, width, x_stride)?,
            codes: b.output("codes", rows, width, width)?,
            scales: b.output("scales", rows, runs, runs)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for item in worker.share(self.rows * self.runs) {
            let (row, run) = (item / self.runs, item % self.runs);
            // SAFETY: row and run are inside what was bound.
            unsafe {
                let x = self.x.row(row).add(run * self.n);
                let codes = self.codes.row(row).add(run * self.n);
                *self.scales.row(row).add(run) = quantize_row::<S, T>(x, self.n, codes);
            }
        }
    }
}

/// Codes of `n` elements by their own scale, which it returns. They are those of quotients, but where it decides nothing
/// a product with the reciprocal takes the place of one.
///
/// # Safety
/// As [`Simd`]; `x` and `codes` are valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn quantize_row<S: Simd, T: Element>(
    x: *const T,
    n: usize,
    codes: *mut i8,
) -> f32 {
    // SAFETY: every access is below `n`.
    unsafe {
        let scale = magnitude::<S, T>(x, n) / LARGEST;
        if scale == 0.0 {
            codes.write_bytes(0, n);
            return scale;
        }
        let quick = if scale >= LEAST { n / PAIR * PAIR } else { 0 };
        let (divisor, inverse) = (S::splat(scale), S::splat(1.0 / scale));
        for i in (0..quick).step_by(PAIR) {
            let (first, second) = (T::load::<S>(x.add(i)), T::load::<S>(x.add(i + LANES)));
            if !store_rounded::<S>(codes.add(i), [S::mul(first, inverse), S::mul(second, inverse)])
            {
                store_i8::<S>(codes.add(i), S::div(first, divisor), LANES);
                store_i8::<S>(codes.add(i + LANES), S::div(second, divisor), LANES);
            }
        }
        for i in (quick..n).step_by(LANES) {
            let v = S::div(T::load_part::<S>(x.add(i), n - i), divisor);
            store_i8::<S>(codes.add(i), v, n - i);
        }
        scale
    }
}

/// `quantize_static_{in}`: every element by one scale and offset.
pub(crate) struct QuantizeStatic<T> {
    rows: usize,
    n: usize,
    x: Rows<T>,
    scale: Rows<f32>,
    offset: Rows<f32>,
    codes: Rows<i8>,
}

impl<T: Element> Kernel for QuantizeStatic<T> {
    const ROW_WISE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, n, x_stride) = (b.count("rows")?, b.positive("n")?, b.count("x stride")?);
        Ok(Self {
            rows,
            n,
            x: b.input("x", rows, n, x_stride)?,
            scale: b.table("scale", 1, 1, 1)?,
            offset: b.table("offset", 1, 1, 1)?,
            codes: b.output("codes", rows, n, n)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let (rows, columns) = worker.share_matrix(self.rows, self.n);
        // SAFETY: rows and columns are inside what was bound.
        unsafe {
            let by = (*self.scale.row(0), *self.offset.row(0));
            for r in rows {
                let (x, codes) = (self.x.row(r), self.codes.row(r));
                let (x, codes) = (x.add(columns.start), codes.add(columns.start));
                quantize_static::<S, T>(x, columns.len(), by, codes);
            }
        }
    }
}

/// Codes of `n` elements by a scale and an offset.
///
/// # Safety
/// As [`Simd`]; `x` and `codes` are valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn quantize_static<S: Simd, T: Element>(
    x: *const T,
    n: usize,
    (scale, offset): (f32, f32),
    codes: *mut i8,
) {
    // SAFETY: every access is below `n`.
    unsafe {
        let (scale, offset) = (S::splat(scale), S::splat(offset));
        for i in (0..n).step_by(LANES) {
            let v = S::add(S::div(T::load_part::<S>(x.add(i), n - i), scale), offset);
            store_i8::<S>(codes.add(i), v, n - i);
        }
    }
}
