//! Latent attention: all heads read one row for each place.
//!
//! A work item is up to 64 queries of one sequence: heads of one row, or all heads of a few rows. It
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
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::{Scratch, Worker};

/// What a query costs beside its context, in places.
const QUERY_COST: usize = 32;

/// `latent_attention_{kv}_{out}`, `sparse_latent_attention_{kv}_{out}`.
pub(crate) struct LatentAttention<T, O, L> {
    inputs: Inputs<T>,
    places: L,
    out: Rows<O>,
}

impl<T: Weight, O: Element, L: Places> Kernel for LatentAttention<T, O, L> {
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
        product(&[c.max(r).max(WIDTH), 64 * CHUNK * size_of::<f32>()])?;
        let q_latent = b.input("q_latent", t, product(&[heads, c])?, latent_stride)?;
        let q_rope = b.input("q_rope", t, product(&[heads, r])?, rope_stride)?;
        let latent = Paged::bind(b, "latent", c, block_tokens)?;
        let rope = Paged::bind(b, "rope", r, block_tokens)?;
        let tables = Tables::bind(b, t, s, w)?;
        let inputs = Inputs { tables, heads, c, r, scale, q_latent, q_rope, latent, rope };
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

    /// How heads and rows are cut for `threads` threads: groups of heads, rows of an item.
    #[inline(always)]
    fn cut(&self, threads: usize) -> (usize, usize) {
        let Inputs { tables, heads, .. } = &self.inputs;
        let vectors = heads.div_ceil(LANES);
        let total = tables.sequences * tables.rows;
        let groups = vectors.div_ceil(WIDTH / LANES).max(threads.div_ceil(total).min(vectors));
        if groups > 1 || !L::ALIKE {
            return (groups, 1);
        }
        (1, (WIDTH / heads).min(total.div_ceil(threads)).clamp(1, tables.rows))
    }

    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn items<S: Simd, P: Product<X: Element>>(&self, worker: &Worker<'_>) {
        let Inputs { tables, heads, .. } = &self.inputs;
        let (groups, rows_at_once) = self.cut(worker.count);
        let (rows, vectors) = (tables.rows, heads.div_ceil(LANES));
        let items = || {
            (0..tables.sequences)
                .flat_map(move |s| (0..rows).step_by(rows_at_once).map(move |first| (s, first)))
                .flat_map(move |(sequence, first)| {
                    (0..groups).map(move |group| {
                        let head = group * vectors / groups * LANES;
                        let end = (group + 1) * vectors / groups * LANES;
                        Item {
                            sequence,
                            row: sequence * rows + first,
                            rows: rows_at_once.min(rows - first),
                            head,
                            heads: end.min(*heads) - head,
                        }
                    })
                })
        };
        // SAFETY: rows and heads stay inside what was bound; working memory is as large as
        // `scratch` says.
        unsafe {
            let cost = |item: &Item| {
                let rows = item.row..item.row + item.rows;
                let places = |r| self.places.most(tables.context(r)) + QUERY_COST;
                rows.map(places).sum::<usize>() * item.heads
            };
            let total: usize = items().map(|item| cost(&item)).sum();
            let mut done = 0;
            for item in items() {
                let cost = cost(&item);
                // The item's middle decides which thread's share it falls into.
                if (done + cost / 2) * worker.count / total == worker.index {
                    self.item::<S, P>(worker, item);
                }
                done += cost;
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
                S::enter(Step::<T, P> { inputs, space, item, places: &chunk[..count], start });
            }
            self.store::<S>(space.sums, space.totals, item);
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
