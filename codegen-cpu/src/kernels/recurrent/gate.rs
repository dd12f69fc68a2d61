//! The decay of the gated delta rule.

use crate::kernels::bind::{Binder, Kernel, Rows};
use crate::kernels::element::Element;
use crate::kernels::exp::{exp, nan_where};
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// `ln((1 + z) / (1 - z)) / (2 z)` in powers of `z^2`, highest first; `|z| <= 1/3`.
const INVERSE_TANH: [f32; 7] =
    [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];

/// `ln(1 + e^x)`; NaN stays NaN.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
unsafe fn softplus<S: Simd>(x: S::V) -> S::V {
    // SAFETY: registers only; the instructions are the caller's promise.
    unsafe {
        let negative = S::min(x, S::sub(S::splat(0.0), x));
        let e = exp::<S>(negative);
        // `1 + e` is `(1 + z) / (1 - z)`.
        let z = S::div(e, S::add(S::splat(2.0), e));
        let square = S::mul(z, z);
        let mut series = S::splat(INVERSE_TANH[0]);
        for c in &INVERSE_TANH[1..] {
            series = S::mul_add(series, square, S::splat(*c));
        }
        let logarithm = S::mul(S::add(z, z), series);
        nan_where::<S>(S::add(S::max(x, S::splat(0.0)), logarithm), x)
    }
}

/// `delta_gate`: `-exp(a_log) * softplus(a + dt_bias)`. The output may be the buffer of `a`.
pub(crate) struct DeltaGate {
    rows: usize,
    heads: usize,
    a: Rows<f32>,
    a_log: Rows<f32>,
    dt_bias: Rows<f32>,
    out: Rows<f32>,
}

impl Kernel for DeltaGate {
    const ROW_WISE: bool = true;
    const IN_PLACE: bool = true;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, heads) = (b.count("T")?, b.positive("heads")?);
        let (a_stride, out_stride) = (b.count("a stride")?, b.count("out stride")?);
        Ok(Self {
            rows,
            heads,
            a: b.input("a", rows, heads, a_stride)?,
            a_log: b.table("a_log", 1, heads, heads)?,
            dt_bias: b.table("dt_bias", 1, heads, heads)?,
            out: b.output("out", rows, heads, out_stride)?,
        })
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for row in worker.share(self.rows) {
            // SAFETY: the row is inside what was bound.
            unsafe {
                let (a, out) = (self.a.row(row), self.out.row(row));
                for i in (0..self.heads).step_by(LANES) {
                    let left = self.heads - i;
                    let a_log = f32::load_part::<S>(self.a_log.row(0).add(i), left);
                    let bias = f32::load_part::<S>(self.dt_bias.row(0).add(i), left);
                    let x = S::add(f32::load_part::<S>(a.add(i), left), bias);
                    let rate = nan_where::<S>(exp::<S>(a_log), a_log);
                    let decay = S::mul(S::sub(S::splat(0.0), rate), softplus::<S>(x));
                    f32::store_part::<S>(out.add(i), decay, left);
                }
            }
        }
    }
}
