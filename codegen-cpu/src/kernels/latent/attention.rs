//! Latent attention: all heads read one row for each place.
//!
//! A work item is heads of one row, or all heads of a few rows of a sequence when they are few. It
//! goes through the places in chunks that begin at multiples of a fixed number, reads each row of
//! the memory once for all its queries, and keeps a running softmax. A query's result depends on
//! its own places alone: those of later rows never enter its arithmetic.

use super::chunk::{Begin, Inputs, Item, Step};
use super::places::Places;
use super::tile::{CHUNK, WIDTH};
use super::{Paged, Tables};
use crate::device::MOST_THREADS;
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::matmul::{PairDot, Plain, Product, Weight};
use crate::kernels::simd::{Dots, LANES, Simd};
use crate::kernels::worker::{Scratch, Worker};
use std::ops::Range;

/// What a query costs beside its context, in places.
const QUERY_COST: usize = 32;

/// `latent_attention_{kv}_{out}`, `sparse_latent_attention_{kv}_{out}`.
pub(crate) struct LatentAttention<T, O, L> {
    inputs: Inputs<T>,
    places: L,
    out: Rows<O>,
}

impl<T: Weight, O: Element, L: Places> Kernel for LatentAttention<T, O, L> {
    const DOTS: Dots = T::DOTS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (t, s, w) = (b.positive("T")?, b.positive("S")?, b.positive("W")?);
        let (heads, c, r) = (b.positive("heads")?, b.positive("C")?, b.positive("R")?);
        let block_tokens = b.count("block tokens")?;
        let scale = b.factor("scale")?;
        let (latent_stride, rope_stride) = (b.count("q_latent stride")?, b.count("q_rope stride")?);
        let out_stride = b.count("out stride")?;
        if !c.is_multiple_of(T::GROUP) || !r.is_multiple_of(T::GROUP) {
            return Err(format!(
                "rows of {c} and {r} elements, expected multiples of {}",
                T::GROUP
            ));
        }
        // What shares are counted in, and working memory.
        product(&[t, w, BLOCK_TOKENS + QUERY_COST, heads, MOST_THREADS])?;
        product(&[c.max(r).max(WIDTH), heads.max(WIDTH), 64 * size_of::<f32>()])?;
        let q_latent = b.input("q_latent", t, product(&[heads, c])?, latent_stride)?;
        let q_rope = b.input("q_rope", t, product(&[heads, r])?, rope_stride)?;
        let latent = Paged::bind(b, "latent", c, block_tokens)?;
        let rope = Paged::bind(b, "rope", r, block_tokens)?;
        let tables = Tables::bind(b, t, s, w)?;
        let inputs = Inputs {
            tables,
            heads,
            c,
            r,
            scale,
            #[cfg(target_arch = "x86_64")]
            tiles: b.has_tiles(),
            q_latent,
            q_rope,
            latent,
            rope,
        };
        let places = L::bind(b, t)?;
        Ok(Self { inputs, places, out: b.output("out", t, heads * c, out_stride)? })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let nowhere = std::ptr::null_mut();
        let private = match Self::in_pairs::<S>() {
            true => self.inputs.space::<PairDot>(nowhere).1,
            false => self.inputs.space::<Plain>(nowhere).1,
        };
        Scratch { private, shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe {
            match Self::in_pairs::<S>() {
                true => self.items::<S, PairDot>(worker),
                false => self.items::<S, Plain>(worker),
            }
        }
    }
}

impl<T: Weight, O: Element, L: Places> LatentAttention<T, O, L> {
    /// Whether products are of pairs of bf16 rather than of `f32`.
    #[inline(always)]
    const fn in_pairs<S: Simd>() -> bool {
        T::GROUP == 2 && S::PAIR_DOT
    }

    /// Rows of an item: as many as have no more than [`WIDTH`] heads, if there are enough rows.
    #[inline(always)]
    fn rows_at_once(&self, threads: usize) -> usize {
        let Inputs { tables, heads, .. } = &self.inputs;
        let rows = (WIDTH / heads).min((tables.sequences * tables.rows).div_ceil(threads));
        if L::ALIKE { rows.clamp(1, tables.rows) } else { 1 }
    }

    /// Threads share the vectors of heads of all rows, each a run of them, so that none reads a
    /// row's memory twice.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn items<S: Simd, P: Product<X: Element>>(&self, worker: &Worker<'_>) {
        let Inputs { tables, heads, .. } = &self.inputs;
        let (rows, rows_at_once) = (tables.rows, self.rows_at_once(worker.count));
        let vectors = if rows_at_once > 1 { 1 } else { heads.div_ceil(LANES) };
        let groups = || {
            (0..tables.sequences).flat_map(move |sequence| {
                (0..rows).step_by(rows_at_once).map(move |first| Item {
                    sequence,
                    row: sequence * rows + first,
                    rows: rows_at_once.min(rows - first),
                    head: 0,
                    heads: *heads,
                })
            })
        };
        // SAFETY: rows and heads stay inside what was bound; working memory is as large as
        // `scratch` says.
        unsafe {
            // The cost of a vector of heads.
            let cost = |item: &Item| {
                let rows = item.row..item.row + item.rows;
                let places = |r| self.places.most(tables.context(r)) + QUERY_COST;
                rows.map(places).sum::<usize>()
            };
            let total: usize = groups().map(|item| cost(&item) * vectors).sum();
            let mut done = 0;
            for item in groups() {
                let cost = cost(&item);
                let mine = run_of(worker.index, worker.count, done, cost, vectors, total);
                if !mine.is_empty() {
                    let end = if mine.end == vectors { *heads } else { mine.end * LANES };
                    let head = mine.start * LANES;
                    self.item::<S, P>(worker, Item { head, heads: end - head, ..item });
                }
                done += cost * vectors;
            }
        }
    }

    /// # Safety
    /// As for [`Begin`].
    #[inline(always)]
    unsafe fn item<S: Simd, P: Product<X: Element>>(&self, worker: &Worker<'_>, item: Item) {
        let inputs = &self.inputs;
        let space = &inputs.space::<P>(worker.private).0;
        // SAFETY: as the caller's; places are below the context of a row.
        unsafe {
            S::enter(Begin::<T, P> { inputs, space, item });
            let contexts = (item.row..item.row + item.rows).map(|r| inputs.tables.context(r));
            let mut places = self.places.of(item.row, contexts.max().unwrap_or(0));
            for start in (0..).step_by(CHUNK) {
                let (mut chunk, mut count) = ([0; CHUNK], 0);
                for (to, place) in chunk.iter_mut().zip(&mut places) {
                    *to = place;
                    count += 1;
                }
                if count == 0 {
                    break;
                }
                S::enter(Step::<T, P> {
                    inputs,
                    space: *space,
                    item,
                    places: &chunk[..count],
                    start,
                });
            }
            for (panel, item) in item.panels() {
                let space = inputs.panel(space, panel);
                self.store::<S>(space.sums, space.totals, item);
            }
        }
    }

    /// Divides by the totals; a row without places is zeros.
    ///
    /// # Safety
    /// As for [`Begin`].
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, sums: *const f32, totals: *const f32, item: Item) {
        let c = self.inputs.c;
        for query in 0..item.queries() {
            // SAFETY: as the caller's.
            unsafe {
                let (row, head) = (item.row + query / item.heads, item.head + query % item.heads);
                let out = self.out.row(row).add(head * c);
                let total = *totals.add(query);
                let factor = S::splat(if total == 0.0 { 0.0 } else { 1.0 / total });
                for i in (0..c).step_by(LANES) {
                    let at = (i / WIDTH * item.queries() + query) * WIDTH + i % WIDTH;
                    let x = S::mul(S::load(sums.add(at)), factor);
                    O::store_part::<S>(out.add(i), x, c - i);
                }
            }
        }
    }
}

/// Which of `count` pieces of work, each of `cost` and the first after `done` out of `total`, are
/// those of a thread: the middle of a piece decides.
#[inline(always)]
fn run_of(
    thread: usize,
    threads: usize,
    done: usize,
    cost: usize,
    count: usize,
    total: usize,
) -> Range<usize> {
    let owner = |piece: usize| (done + cost * piece + cost / 2) * threads / total;
    let first = (0..count).take_while(|&piece| owner(piece) < thread).count();
    let end = (0..count).take_while(|&piece| owner(piece) <= thread).count();
    first..end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads take all vectors of heads of all rows, and each thread meets a row at most once, so
    /// that it reads the row's memory once.
    #[test]
    fn each_thread_reads_a_row_once() {
        for threads in 1..=9 {
            for costs in [vec![40], vec![33; 8], vec![5000, 1, 700], (33..80).collect()] {
                let vectors = 8;
                let total = costs.iter().sum::<usize>() * vectors;
                let mut loads = vec![0; threads];
                let mut done = 0;
                for cost in costs {
                    let mut next = 0;
                    for (thread, load) in loads.iter_mut().enumerate() {
                        let run = run_of(thread, threads, done, cost, vectors, total);
                        assert!(run.is_empty() || run.start == next, "a run after another");
                        next = next.max(run.end);
                        *load += run.len() * cost;
                        assert!(run.len() * cost <= total / threads + 2 * cost, "a fair share");
                    }
                    assert_eq!(next, vectors, "all vectors");
                    done += cost * vectors;
                }
                assert_eq!(loads.iter().sum::<usize>(), total);
            }
        }
    }
}
