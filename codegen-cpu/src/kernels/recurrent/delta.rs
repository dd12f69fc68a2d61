//! The gated delta rule.

use super::slab::{Columns, Slab, WIDTH};
use super::{Segment, Sequences};
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::exp::{exp, nan_where};
use crate::kernels::simd::{Dots, Simd};
use crate::kernels::worker::{Scratch, Worker};

/// `gated_delta`: for each head, with the memory `S [dk,dv]` of the row's slot,
/// `S' = exp(gate) S`, `S = S' + k (beta (v - k S'))^T`, `o = q S`.
///
/// Columns of a memory do not meet, so each [`Slab`] of them goes through all rows of a segment
/// on one thread: a memory is read and written once for a segment. One pass over a slab is one
/// row: it changes the memory and multiplies it by `q` and by the `k` of the next row. Sums run
/// in order of `dk`.
///
/// Prompts take this path too. Chunks of 64 rows (arXiv 2406.06484, 2412.06464) need at least as
/// many vector operations, `3 dk dv + 64 (dk + dv)` of a row and head against the `4 dk dv` here at
/// `dk = dv = 128`, and chunks of 16 a fifth less: they pay where a matrix unit takes f32. They also
/// sum in an order that depends on where a chunk begins. `benches/benches/recurrent.rs` prints the bound.
pub(crate) struct GatedDelta {
    key_heads: usize,
    heads: usize,
    dk: usize,
    dv: usize,
    q: Rows<f32>,
    k: Rows<f32>,
    v: Rows<f32>,
    gate: Rows<f32>,
    beta: Rows<f32>,
    sequences: Sequences,
    state: Rows<f32>,
    o: Rows<f32>,
}

impl GatedDelta {
    /// Slabs of a head.
    #[inline(always)]
    fn slabs(&self) -> usize {
        self.dv.div_ceil(WIDTH)
    }

    /// Head, first column and number of columns of an item.
    #[inline(always)]
    fn item(&self, item: usize) -> (usize, usize, usize) {
        let column = item % self.slabs() * WIDTH;
        (item / self.slabs(), column, WIDTH.min(self.dv - column))
    }

    /// Columns of the memory of `slot`; the address alone where the item does not exist.
    #[inline(always)]
    fn memory(&self, slot: *mut f32, item: usize) -> Columns {
        let (head, column, n) = self.item(item);
        let ptr = slot.wrapping_add(head * self.dk * self.dv + column);
        Columns { ptr, stride: self.dv, n }
    }

    /// The rows of a segment for one item.
    ///
    /// # Safety
    /// As [`Simd`]; segment and item are inside what was bound.
    #[inline(always)]
    unsafe fn segment<S: Simd>(&self, segment: &Segment, item: usize, slab: Slab) {
        let (head, column, n) = self.item(item);
        let key = head / (self.heads / self.key_heads) * self.dk;
        // SAFETY: the caller's promise; the slab is this thread's own.
        unsafe {
            let of_row = |rows: &Rows<f32>, t: usize| Columns {
                ptr: rows.row(t).add(head * self.dv + column),
                stride: 0,
                n,
            };
            let Some(slot) = segment.slot else {
                for t in segment.rows.clone() {
                    of_row(&self.o, t).store::<S>(0, [S::splat(0.0); 2]);
                }
                return;
            };
            let slot = self.state.row(slot);
            let memory = self.memory(slot, item);
            let mut dot = if segment.from_zeros {
                slab.clear();
                [S::splat(0.0); 2]
            } else {
                let ahead = self.memory(slot, item + 1).ptr;
                slab.take::<S>(memory, self.k.row(segment.rows.start).add(key), ahead)
            };
            for t in segment.rows.clone() {
                let last = t + 1 == segment.rows.end;
                let gate = S::splat(*self.gate.row(t).add(head));
                let decay = nan_where::<S>(exp::<S>(gate), gate);
                let beta = S::splat(*self.beta.row(t).add(head));
                let v = of_row(&self.v, t).load::<S>(0);
                let u = |i: usize| S::mul(beta, S::sub(v[i], S::mul(decay, dot[i])));
                let u = [u(0), u(1)];
                let to = if last && segment.kept { memory } else { slab.columns() };
                let k = self.k.row(t).add(key);
                let next = if last { k } else { self.k.row(t + 1).add(key) };
                let vectors = [self.q.row(t).add(key).cast_const(), k, next];
                let (o, ahead) = slab.advance::<S>(to, decay, u, vectors);
                of_row(&self.o, t).store::<S>(0, o);
                dot = ahead;
            }
        }
    }
}

impl Kernel for GatedDelta {
    const DOTS: Dots = Dots::NONE;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (rows, slots) = (b.count("T")?, b.positive("slots")?);
        let (key_heads, heads) = (b.positive("key heads")?, b.positive("heads")?);
        let (dk, dv) = (b.positive("dk")?, b.positive("dv")?);
        let (q_stride, k_stride) = (b.count("q stride")?, b.count("k stride")?);
        let (v_stride, gate_stride) = (b.count("v stride")?, b.count("gate stride")?);
        let (beta_stride, o_stride) = (b.count("beta stride")?, b.count("o stride")?);
        if !heads.is_multiple_of(key_heads) {
            return Err(format!("{heads} heads are no multiple of {key_heads} key heads"));
        }
        let (keys, values) = (product(&[key_heads, dk])?, product(&[heads, dv])?);
        let memory = product(&[heads, dk, dv])?;
        product(&[dk, WIDTH, size_of::<f32>()])?;
        Ok(Self {
            key_heads,
            heads,
            dk,
            dv,
            q: b.input("q", rows, keys, q_stride)?,
            k: b.input("k", rows, keys, k_stride)?,
            v: b.input("v", rows, values, v_stride)?,
            gate: b.input("gate", rows, heads, gate_stride)?,
            beta: b.input("beta", rows, heads, beta_stride)?,
            sequences: Sequences::bind(b, rows, slots)?,
            state: b.output("state", slots, memory, memory)?,
            o: b.output("o", rows, values, o_stride)?,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        Scratch { private: self.dk * WIDTH * size_of::<f32>(), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let slab = Slab { ptr: worker.private.cast(), dk: self.dk };
        let mut t = 0;
        while t < self.sequences.rows {
            // SAFETY: rows and items are inside what was bound; the working memory is a slab.
            unsafe {
                let segment = self.sequences.segment(t);
                t = segment.rows.end;
                for item in worker.share(self.heads * self.slabs()) {
                    self.segment::<S>(&segment, item, slab);
                }
            }
        }
    }
}
