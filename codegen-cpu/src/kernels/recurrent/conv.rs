//! Causal depthwise convolution.

use super::{Segment, Sequences};
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::simd::{Dots, LANES, Simd};
use crate::kernels::worker::{Scratch, Worker};
use std::ops::Range;

/// Channels that are computed together for all rows.
const BLOCK: usize = 64;

/// `causal_conv_{kv}`: `y[t,c] = sum_i weight[c,i] * x[t-K+1+i,c]`, in order of `i`, with `x`
/// rounded to the type of the state. The state holds the last `K-1` rows of `x`, oldest first.
pub(crate) struct CausalConv<T> {
    channels: usize,
    taps: usize,
    x: Rows<f32>,
    weight: Rows<f32>,
    sequences: Sequences,
    state: Rows<T>,
    y: Rows<f32>,
}

impl<T: Element> CausalConv<T> {
    /// The memory of `slot`, row by row.
    ///
    /// # Safety
    /// The slot and the row exist.
    #[inline(always)]
    unsafe fn remembered(&self, slot: usize, row: usize) -> *mut T {
        // SAFETY: a slot has `taps - 1` rows.
        unsafe { self.state.row(slot).add(row * self.channels) }
    }

    /// One segment of rows for the channels `at`; `weights [K,BLOCK]`, `rows [K,BLOCK]` is for
    /// the memory and the row that joins it.
    ///
    /// # Safety
    /// As [`Simd`]; channels and segment are inside what was bound.
    #[inline(always)]
    unsafe fn segment<S: Simd>(
        &self,
        segment: &Segment,
        at: Range<usize>,
        weights: *const f32,
        rows: *mut f32,
    ) {
        let (n, last) = (at.len(), self.taps - 1);
        // SAFETY: the caller's promise; both buffers are `[taps, BLOCK]`.
        unsafe {
            let Some(slot) = segment.slot else {
                for t in segment.rows.clone() {
                    self.y.row(t).add(at.start).write_bytes(0, n);
                }
                return;
            };
            for row in 0..last {
                for i in (0..n).step_by(LANES) {
                    let v = match segment.from_zeros {
                        true => S::splat(0.0),
                        false => {
                            let from = self.remembered(slot, row).add(at.start + i);
                            T::load_part::<S>(from, n - i)
                        }
                    };
                    S::store(rows.add(row * BLOCK + i), v);
                }
            }
            for t in segment.rows.clone() {
                let (x, y) = (self.x.row(t).add(at.start), self.y.row(t).add(at.start));
                for i in (0..n).step_by(LANES) {
                    let mut rounded = [T::ZERO; LANES];
                    T::store::<S>(rounded.as_mut_ptr(), f32::load_part::<S>(x.add(i), n - i));
                    S::store(rows.add(last * BLOCK + i), T::load::<S>(rounded.as_ptr()));
                    let mut sum = S::mul(S::load(weights.add(i)), S::load(rows.add(i)));
                    for row in 1..self.taps {
                        let v = S::load(rows.add(row * BLOCK + i));
                        sum = S::mul_add(S::load(weights.add(row * BLOCK + i)), v, sum);
                        S::store(rows.add((row - 1) * BLOCK + i), v);
                    }
                    f32::store_part::<S>(y.add(i), sum, n - i);
                }
            }
            for row in (0..last).take_while(|_| segment.kept) {
                for i in (0..n).step_by(LANES) {
                    let to = self.remembered(slot, row).add(at.start + i);
                    T::store_part::<S>(to, S::load(rows.add(row * BLOCK + i)), n - i);
                }
            }
        }
    }
}

impl<T: Element> Kernel for CausalConv<T> {
    const DOTS: Dots = Dots::NONE;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, channels) = (b.count("T")?, b.positive("C")?);
        let (taps, slots) = (b.count("K")?, b.positive("slots")?);
        let (x_stride, y_stride) = (b.count("x stride")?, b.count("y stride")?);
        if taps < 2 {
            return Err(format!("`K` is {taps}, expected 2 or more"));
        }
        let memory = product(&[taps - 1, channels])?;
        product(&[2 * BLOCK * size_of::<f32>(), taps])?;
        Ok(Self {
            channels,
            taps,
            x: b.input("x", rows, channels, x_stride)?,
            weight: b.input("weight", channels, taps, taps)?,
            sequences: Sequences::bind(b, rows, slots)?,
            state: b.output("state", slots, memory, memory)?,
            y: b.output("y", rows, channels, y_stride)?,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        Scratch { private: 2 * self.taps * BLOCK * size_of::<f32>(), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        for block in worker.share(self.channels.div_ceil(BLOCK)) {
            let at = block * BLOCK..self.channels.min((block + 1) * BLOCK);
            // SAFETY: channels and rows are inside what was bound; the working memory holds both
            // buffers.
            unsafe {
                let weights = worker.private.cast::<f32>();
                let rows = weights.add(self.taps * BLOCK);
                weights.write_bytes(0, 2 * self.taps * BLOCK);
                for (i, c) in at.clone().enumerate() {
                    for row in 0..self.taps {
                        *weights.add(row * BLOCK + i) = *self.weight.row(c).add(row);
                    }
                }
                let mut t = 0;
                while t < self.sequences.rows {
                    let segment = self.sequences.segment(t);
                    t = segment.rows.end;
                    self.segment::<S>(&segment, at.clone(), weights, rows);
                }
            }
        }
    }
}
