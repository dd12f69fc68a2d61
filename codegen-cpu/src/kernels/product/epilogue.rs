//! The end of an exact product.

use crate::kernels::bind::{Binder, Rows};
use crate::kernels::element::Element;
use crate::kernels::matmul::{Epilogue, Sizes, WIDTH};
use crate::kernels::simd::{LANES, Simd};

/// `static_matmul_*`: `(sum + bias) * scale` of sums that are integers.
pub(crate) struct BiasScale<O> {
    n: usize,
    bias: Rows<i32>,
    scale: Rows<f32>,
    out: Rows<O>,
}

impl<O: Element> Epilogue for BiasScale<O> {
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let Sizes { rows, n, out_stride } = *sizes;
        Ok(Self {
            n,
            bias: b.input("bias", 1, n, n)?,
            scale: b.input("scale", 1, n, n)?,
            out: b.output("out", rows, n, out_stride)?,
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
            let out = self.out.row(row).add(first);
            for i in (0..width).step_by(LANES) {
                O::store_part::<S>(out.add(i), S::load(values.as_ptr().add(i)), width - i);
            }
        }
    }
}
