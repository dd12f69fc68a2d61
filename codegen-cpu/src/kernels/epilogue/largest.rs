//! The largest results of each row.

use super::{Out, Plan};
use crate::kernels::bind::{Binder, Rows};
use crate::kernels::matmul::WIDTH;
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::top_k::{Find, Top};
use crate::kernels::worker::Worker;

/// Finds the index of the largest of each row, the smallest index when several are equal. NaN is
/// never the largest; a row without numbers gives 0. And the largest several, as `top_k_f32`.
pub(super) struct Largest {
    rows: usize,
    panels: usize,
    ids: Option<Rows<i32>>,
    top: Option<Top>,
    out: Rows<f32>,
    n: usize,
    /// The largest value of each panel.
    best: Rows<f32>,
}

impl Largest {
    pub(super) fn bind(
        b: &mut Binder<'_>,
        plan: Plan,
        out: Out,
        (rows, n): (usize, usize),
    ) -> Result<Self, String> {
        if i32::try_from(n).is_err() {
            return Err(format!("`N` is {n}, too large for an index"));
        }
        let Out::F32(out) = out else { return Err("the largest of bf16".to_owned()) };
        let panels = n.div_ceil(WIDTH);
        let ids = if plan.argmax { Some(b.output("ids", 1, rows, rows)?) } else { None };
        let top = if plan.top_k > 0 { Some(Top::bind(b, rows, n, plan.top_k)?) } else { None };
        let best = b.output("scratch", rows, panels, panels)?;
        Ok(Self { rows, panels, ids, top, out, n, best })
    }

    /// Takes the results of a row and panel, of which there are `width`.
    ///
    /// # Safety
    /// As [`Simd`]; row and panel exist, buffers are alive.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd, const N: usize>(
        &self,
        row: usize,
        panel: usize,
        width: usize,
        values: [S::V; N],
    ) {
        // SAFETY: the scratch has a place for each row and panel. `max` gives its second operand
        // where the first is NaN.
        unsafe {
            let mut most = S::splat(f32::NEG_INFINITY);
            for (v, mut value) in values.into_iter().enumerate() {
                let rest = width.saturating_sub(v * LANES);
                if rest < LANES {
                    let mut lanes = S::lanes(value);
                    lanes[rest..].fill(f32::NEG_INFINITY);
                    value = S::load(lanes.as_ptr());
                }
                most = S::max(value, most);
            }
            *self.best.row(row).add(panel) = S::largest(most);
        }
    }

    /// # Safety
    /// As [`super::End::finish`].
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd>(&self, worker: &Worker<'_>) {
        worker.barrier.wait();
        // SAFETY: every panel's place was written before the barrier.
        unsafe {
            if let Some(ids) = &self.ids {
                for row in worker.share(self.rows) {
                    *ids.row(0).add(row) = self.index(row);
                }
            }
            if let Some(top) = &self.top {
                let (x, panels) = (self.out, Some(self.best));
                S::enter(Find { top, worker, rows: self.rows, x, panels });
            }
        }
    }

    /// The index of the largest of a row.
    ///
    /// # Safety
    /// The row and the largest values of its panels are written, buffers are alive.
    #[inline(always)]
    unsafe fn index(&self, row: usize) -> i32 {
        // SAFETY: as the caller's.
        unsafe {
            let (mut value, mut best) = (f32::NEG_INFINITY, 0);
            for panel in 0..self.panels {
                let candidate = *self.best.row(row).add(panel);
                if candidate > value {
                    (value, best) = (candidate, panel);
                }
            }
            let mut columns = best * WIDTH..self.n.min((best + 1) * WIDTH);
            let out = self.out.row(row);
            let index = columns.find(|&i| value > f32::NEG_INFINITY && *out.add(i) == value);
            index.unwrap_or(0) as i32
        }
    }
}
