//! The end of a product: one for all element types of results, which are the last word of a
//! kernel's name. Compiling it for each of them would cost more than asking once a row.

use crate::kernels::bind::{Binder, Rows};
use crate::kernels::element::Element;
use crate::kernels::matmul::{Epilogue, Sizes, WIDTH};
use crate::kernels::simd::{LANES, Simd};
use half::bf16;

/// Where results go.
enum Out {
    F32(Rows<f32>),
    Bf16(Rows<bf16>),
}

impl Out {
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let Sizes { rows, n, out_stride } = *sizes;
        if b.name().ends_with("_bf16") {
            Ok(Self::Bf16(b.output("out", rows, n, out_stride)?))
        } else {
            Ok(Self::F32(b.output("out", rows, n, out_stride)?))
        }
    }

    /// Stores `width` values from column `first` of `row` on.
    ///
    /// # Safety
    /// As [`Simd`]; row and columns were bound, `values` is valid for a panel.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, first: usize, width: usize, values: *const f32) {
        #[inline(always)]
        unsafe fn part<S: Simd, O: Element>(out: *mut O, width: usize, values: *const f32) {
            for i in (0..width).step_by(LANES) {
                // SAFETY: as the caller's.
                unsafe { O::store_part::<S>(out.add(i), S::load(values.add(i)), width - i) }
            }
        }
        // SAFETY: as the caller's.
        unsafe {
            match self {
                Self::F32(out) => part::<S, f32>(out.row(row).add(first), width, values),
                Self::Bf16(out) => part::<S, bf16>(out.row(row).add(first), width, values),
            }
        }
    }
}

/// The sums as they are.
pub(crate) struct Plain {
    n: usize,
    out: Out,
}

impl Epilogue for Plain {
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        Ok(Self { n: sizes.n, out: Out::bind(b, sizes)? })
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32) {
        let first = panel * WIDTH;
        // SAFETY: `first + width <= n`.
        unsafe { self.out.store::<S>(row, first, (self.n - first).min(WIDTH), sums) }
    }
}

/// `static_matmul_*`: `(sum + bias) * scale` of sums that are integers.
pub(crate) struct BiasScale {
    n: usize,
    bias: Rows<i32>,
    scale: Rows<f32>,
    out: Out,
}

impl Epilogue for BiasScale {
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let n = sizes.n;
        Ok(Self {
            n,
            bias: b.input("bias", 1, n, n)?,
            scale: b.input("scale", 1, n, n)?,
            out: Out::bind(b, sizes)?,
        })
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32) {
        let first = panel * WIDTH;
        let width = (self.n - first).min(WIDTH);
        // SAFETY: `first + width <= n`.
        unsafe {
            let (bias, scale) = (self.bias.row(0).add(first), self.scale.row(0).add(first));
            let mut values = [0.0; WIDTH];
            for (i, value) in values[..width].iter_mut().enumerate() {
                let sum = (*sums.add(i)).to_bits() as i32;
                *value = sum.wrapping_add(*bias.add(i)) as f32 * *scale.add(i);
            }
            self.out.store::<S>(row, first, width, values.as_ptr());
        }
    }
}
