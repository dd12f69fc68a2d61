//! What happens to the sums of a panel: where they go and what is done to them on the way.

use crate::kernels::bind::{Binder, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::exp::silu;
use crate::kernels::matmul::tile::WIDTH;
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::Worker;

/// Sizes of a product as its scalars give them.
pub(crate) struct Sizes {
    /// Rows.
    pub(crate) rows: usize,
    /// Second scalar: outputs of a row as the kernel's result counts them.
    pub(crate) n: usize,
    /// Elements between output rows.
    pub(crate) out_stride: usize,
}

/// The end of a matrix product.
pub(crate) trait Epilogue: Sized + Send + Sync + 'static {
    /// Whether the scalars end with an output stride.
    const STRIDED: bool = true;

    /// Rows of the weight for `n` outputs.
    ///
    /// # Errors
    /// When `n` is not a size this epilogue can have.
    fn weight_rows(n: usize) -> Result<usize, String> {
        Ok(n)
    }

    /// Takes the buffers after the weight.
    ///
    /// # Errors
    /// What is wrong with them.
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String>;

    /// Takes the 64 sums of `panel` for `row`.
    ///
    /// # Safety
    /// As [`Simd`]; row and panel are among those bound, `sums` is valid for a panel.
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32);

    /// Called by every thread after its last panel.
    ///
    /// # Safety
    /// Every thread calls it once.
    unsafe fn finish(&self, _: &Worker<'_>) {}
}

/// `matmul_{w}_{out}`.
pub(crate) struct Store<O> {
    n: usize,
    out: Rows<O>,
}

impl<O> Store<O> {
    /// Stores `n` outputs of each row.
    pub(crate) fn new(n: usize, out: Rows<O>) -> Self {
        Self { n, out }
    }
}

impl<O: Element> Epilogue for Store<O> {
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let Sizes { rows, n, out_stride } = *sizes;
        Ok(Self { n, out: b.output("out", rows, n, out_stride)? })
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32) {
        let first = panel * WIDTH;
        let width = (self.n - first).min(WIDTH);
        // SAFETY: `first + width <= n`.
        unsafe {
            let out = self.out.row(row).add(first);
            for i in (0..width).step_by(LANES) {
                O::store_part::<S>(out.add(i), S::load(sums.add(i)), width - i);
            }
        }
    }
}

/// `matmul_bias_{w}_{out}`.
pub(crate) struct Bias<O> {
    n: usize,
    bias: Rows<f32>,
    out: Rows<O>,
}

impl<O: Element> Epilogue for Bias<O> {
    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let Sizes { rows, n, out_stride } = *sizes;
        let bias = b.input("bias", 1, n, n)?;
        Ok(Self { n, bias, out: b.output("out", rows, n, out_stride)? })
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32) {
        let first = panel * WIDTH;
        let width = (self.n - first).min(WIDTH);
        // SAFETY: `first + width <= n`.
        unsafe {
            let out = self.out.row(row).add(first);
            let bias = self.bias.row(0).add(first);
            for i in (0..width).step_by(LANES) {
                let b = f32::load_part::<S>(bias.add(i), width - i);
                O::store_part::<S>(out.add(i), S::add(S::load(sums.add(i)), b), width - i);
            }
        }
    }
}

/// `matmul_silu_mul_{w}_{out}`: a panel is 32 gates, then their 32 ups.
pub(crate) struct GateUp<O> {
    out: Rows<O>,
}

const HALF: usize = WIDTH / 2;

impl<O: Element> Epilogue for GateUp<O> {
    fn weight_rows(n: usize) -> Result<usize, String> {
        if !n.is_multiple_of(HALF) {
            return Err(format!("`I` is {n}, expected a multiple of {HALF}"));
        }
        product(&[2, n])
    }

    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let Sizes { rows, n, out_stride } = *sizes;
        Ok(Self { out: b.output("out", rows, n, out_stride)? })
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32) {
        // SAFETY: half a panel of outputs for each panel was bound.
        unsafe {
            let out = self.out.row(row).add(panel * HALF);
            for i in (0..HALF).step_by(LANES) {
                let gate = silu::<S>(S::load(sums.add(i)));
                O::store::<S>(out.add(i), S::mul(gate, S::load(sums.add(HALF + i))));
            }
        }
    }
}

/// The largest logit of a panel, or of a row.
#[derive(Clone, Copy)]
#[repr(C)]
struct Best {
    value: f32,
    index: u32,
}

/// `matmul_argmax_{w}`: stores the logits and the index of the largest of each row, the smallest
/// index when several are equal. NaN is never the largest; a row without numbers gives 0.
pub(crate) struct Argmax {
    rows: usize,
    panels: usize,
    logits: Store<f32>,
    ids: Rows<i32>,
    best: Rows<Best>,
}

impl Epilogue for Argmax {
    const STRIDED: bool = false;

    fn bind(b: &mut Binder<'_>, sizes: &Sizes) -> Result<Self, String> {
        let Sizes { rows, n, .. } = *sizes;
        let panels = n.div_ceil(WIDTH);
        if i32::try_from(n).is_err() {
            return Err(format!("`N` is {n}, too large for an index"));
        }
        Ok(Self {
            rows,
            panels,
            logits: Store { n, out: b.output("logits", rows, n, n)? },
            ids: b.output("ids", 1, rows, rows)?,
            best: b.output("scratch", rows, panels, panels)?,
        })
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(&self, row: usize, panel: usize, sums: *const f32) {
        let first = panel * WIDTH;
        let width = (self.logits.n - first).min(WIDTH);
        // SAFETY: `first + width <= n`; the scratch has a place for each row and panel.
        unsafe {
            self.logits.store::<S>(row, panel, sums);
            let mut best = Best { value: f32::NEG_INFINITY, index: first as u32 };
            for i in 0..width {
                let value = *sums.add(i);
                if value > best.value {
                    best = Best { value, index: (first + i) as u32 };
                }
            }
            *self.best.row(row).add(panel) = best;
        }
    }

    #[inline(always)]
    unsafe fn finish(&self, worker: &Worker<'_>) {
        worker.barrier.wait();
        for row in worker.share(self.rows) {
            // SAFETY: every panel's place was written before the barrier.
            unsafe {
                let mut best = Best { value: f32::NEG_INFINITY, index: 0 };
                for panel in 0..self.panels {
                    let candidate = *self.best.row(row).add(panel);
                    if candidate.value > best.value {
                        best = candidate;
                    }
                }
                *self.ids.row(0).add(row) = best.index as i32;
            }
        }
    }
}
