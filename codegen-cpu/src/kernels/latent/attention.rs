//! Latent attention: all heads read one row for each place.
//!
//! A work item is up to 64 queries of one sequence: heads of one row, or all heads of a few rows. It
//! goes through the places in chunks that begin at multiples of a fixed number, reads each row of
//! the memory once for all its queries, and keeps a running softmax. A query's result depends on
//! its own places alone: those of later rows never enter its arithmetic.

use super::pack::{self, Parts};
use super::places::Places;
use super::tile::{CHUNK, Mix, Scores, WIDTH};
use super::{Paged, Tables};
use crate::device::MOST_THREADS;
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::exp::exp;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::matmul::{PairDot, Plain, Product, Weight};
use crate::kernels::simd::{LANES, Simd};
use crate::kernels::worker::{Scratch, Worker};

/// What a query costs beside its context, in places.
const QUERY_COST: usize = 32;

/// `latent_attention_{kv}_{out}`, `sparse_latent_attention_{kv}_{out}`.
pub(crate) struct LatentAttention<T, O, L> {
    tables: Tables,
    heads: usize,
    /// Elements of a latent and of a rotated key.
    c: usize,
    r: usize,
    scale: f32,
    q_latent: Rows<f32>,
    q_rope: Rows<f32>,
    latent: Paged<T>,
    rope: Paged<T>,
    places: L,
    out: Rows<O>,
}

/// Some heads of some rows of a sequence.
#[derive(Clone, Copy)]
struct Item {
    sequence: usize,
    row: usize,
    rows: usize,
    head: usize,
    heads: usize,
}

/// Working memory of an item.
struct Space<X> {
    /// Packed queries.
    queries: *mut X,
    /// Rows of a chunk, latent then rotated key.
    keys: *mut X,
    /// Latents of a chunk in strips, and the last group of a row whose places end inside one.
    values: *mut X,
    tail: *mut X,
    weights: *mut X,
    scores: *mut f32,
    sums: *mut f32,
    maxima: *mut f32,
    totals: *mut f32,
    factors: *mut f32,
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
        let places = L::bind(b, t)?;
        let out = b.output("out", t, heads * c, out_stride)?;
        Ok(Self { tables, heads, c, r, scale, q_latent, q_rope, latent, rope, places, out })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let nowhere = std::ptr::null_mut();
        let private = match Self::in_pairs::<S>() {
            true => self.space::<PairDot>(nowhere).1,
            false => self.space::<Plain>(nowhere).1,
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

    /// Strips of columns of the values.
    #[inline(always)]
    fn strips(&self) -> usize {
        self.c.div_ceil(WIDTH)
    }

    /// Elements between rows of a chunk; a whole number of strips, so that none needs an end.
    #[inline(always)]
    fn stride(&self) -> usize {
        (self.c + self.r).max(self.strips() * WIDTH).next_multiple_of(LANES) + LANES
    }

    /// Where the parts of the working memory at `start` lie, and how many bytes they take.
    #[inline(always)]
    fn space<P: Product>(&self, start: *mut u8) -> (Space<P::X>, usize) {
        let mut parts = Parts::new(start);
        let columns = self.strips() * WIDTH;
        let space = Space {
            queries: parts.take((self.c + self.r) * WIDTH),
            keys: parts.take(CHUNK * self.stride()),
            values: parts.take(columns * CHUNK),
            tail: parts.take(columns * P::GROUP),
            weights: parts.take(CHUNK * WIDTH),
            scores: parts.take(CHUNK * WIDTH),
            sums: parts.take(columns * WIDTH),
            maxima: parts.take(WIDTH),
            totals: parts.take(WIDTH),
            factors: parts.take(WIDTH),
        };
        (space, parts.bytes())
    }

    /// How heads and rows are cut for `threads` threads: groups of heads, rows of an item.
    #[inline(always)]
    fn cut(&self, threads: usize) -> (usize, usize) {
        let vectors = self.heads.div_ceil(LANES);
        let total = self.tables.sequences * self.tables.rows;
        let groups = vectors.div_ceil(WIDTH / LANES).max(threads.div_ceil(total).min(vectors));
        if groups > 1 || !L::ALIKE {
            return (groups, 1);
        }
        let rows = (WIDTH / self.heads).min(total.div_ceil(threads));
        (1, rows.clamp(1, self.tables.rows))
    }

    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn items<S: Simd, P: Product<X: Element>>(&self, worker: &Worker<'_>) {
        let (groups, rows_at_once) = self.cut(worker.count);
        let vectors = self.heads.div_ceil(LANES);
        let items = || {
            let rows = self.tables.rows;
            (0..self.tables.sequences)
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
                            heads: end.min(self.heads) - head,
                        }
                    })
                })
        };
        // SAFETY: rows and heads stay inside what was bound.
        unsafe {
            let cost = |item: &Item| {
                let rows = item.row..item.row + item.rows;
                let places = |r| self.places.most(self.tables.context(r)) + QUERY_COST;
                rows.map(places).sum::<usize>() * item.heads
            };
            let total: usize = items().map(|item| cost(&item)).sum();
            let space = self.space::<P>(worker.private).0;
            let mut done = 0;
            for item in items() {
                let cost = cost(&item);
                // The item's middle decides which thread's share it falls into.
                if (done + cost / 2) * worker.count / total == worker.index {
                    self.item::<S, P>(&space, item);
                }
                done += cost;
            }
        }
    }

    /// # Safety
    /// As [`Kernel::run`]; sequence, rows and heads were bound.
    #[inline(always)]
    unsafe fn item<S: Simd, P: Product<X: Element>>(&self, space: &Space<P::X>, item: Item) {
        let queries = item.rows * item.heads;
        let vectors = queries.div_ceil(LANES);
        let columns = self.strips() * WIDTH;
        // SAFETY: working memory is as large as `scratch` says.
        unsafe {
            self.pack_queries::<S, P>(space, item);
            space.sums.write_bytes(0, queries * columns);
            for lane in 0..WIDTH {
                *space.maxima.add(lane) = f32::NEG_INFINITY;
                *space.totals.add(lane) = 0.0;
            }

            let contexts = (item.row..item.row + item.rows).map(|r| self.tables.context(r));
            let mut places = self.places.of(item.row, contexts.max().unwrap_or(0));
            let mut start = 0;
            loop {
                let count = self.load::<S, P>(space, item.sequence, &mut places);
                if count == 0 {
                    break;
                }
                Scores::<P> {
                    keys: space.keys,
                    stride: self.stride(),
                    queries: space.queries,
                    groups: (self.c + self.r) / P::GROUP,
                    scores: space.scores,
                }
                .compute::<S>(count, vectors);
                // Places of this chunk that a row sees.
                let seen = |r: usize| match item.rows {
                    1 => count,
                    _ => self.tables.context(item.row + r).saturating_sub(start).min(count),
                };
                for r in 0..item.rows {
                    for place in seen(r)..count.next_multiple_of(P::GROUP) {
                        let row = space.scores.add(place * WIDTH + r * item.heads);
                        std::slice::from_raw_parts_mut(row, item.heads).fill(f32::NEG_INFINITY);
                    }
                }
                for vector in 0..vectors {
                    soften::<S, P>(space, vector, count);
                }
                for r in 0..item.rows {
                    // Rows that see the whole chunk go together.
                    let (places, together) =
                        (seen(r), (r + 1..item.rows).all(|r| seen(r) == count));
                    let last = if places == count && together { item.rows } else { r + 1 };
                    self.mix::<S, P>(space, places, queries, r * item.heads..last * item.heads);
                    if last == item.rows {
                        break;
                    }
                }
                start += CHUNK;
            }
            self.store::<S>(space.sums, space.totals, item);
        }
    }

    /// # Safety
    /// As [`LatentAttention::item`].
    #[inline(always)]
    unsafe fn pack_queries<S: Simd, P: Product<X: Element>>(
        &self,
        space: &Space<P::X>,
        item: Item,
    ) {
        let (c, r, queries) = (self.c, self.r, item.rows * item.heads);
        for lane in 0..queries.next_multiple_of(LANES) {
            // SAFETY: as the caller's.
            unsafe {
                if lane >= queries {
                    pack::no_query::<P>(space.queries, (c + r) / P::GROUP, lane);
                    continue;
                }
                let (row, head) = (item.row + lane / item.heads, item.head + lane % item.heads);
                let (latent, rope) = (self.q_latent.row(row), self.q_rope.row(row));
                let to = space.queries;
                pack::query::<S, P>(latent.add(head * c), c, self.scale, to, 0, lane);
                pack::query::<S, P>(rope.add(head * r), r, self.scale, to, c, lane);
            }
        }
    }

    /// Reads the rows of the next chunk of places; returns how many there are.
    ///
    /// # Safety
    /// As [`LatentAttention::item`]; the table covers the places.
    #[inline(always)]
    unsafe fn load<S: Simd, P: Product<X: Element>>(
        &self,
        space: &Space<P::X>,
        sequence: usize,
        places: &mut impl Iterator<Item = usize>,
    ) -> usize {
        let (stride, mut count) = (self.stride(), 0);
        // SAFETY: as the caller's.
        unsafe {
            for place in places.take(CHUNK) {
                let slot = |blocks| self.tables.slot(sequence, place, blocks);
                let to = space.keys.add(count * stride);
                let (latent, rope) = (&self.latent, &self.rope);
                pack::row::<S, T, P::X>(latent.row(slot(latent.blocks)), to, self.c);
                pack::row::<S, T, P::X>(rope.row(slot(rope.blocks)), to.add(self.c), self.r);
                count += 1;
            }
            for strip in 0..self.strips() {
                let keys = space.keys.add(strip * WIDTH);
                let to = space.values.add(strip * WIDTH * CHUNK);
                for g in 0..count / P::GROUP {
                    let rows = keys.add(g * P::GROUP * stride);
                    let to = to.add(g * WIDTH * P::GROUP);
                    pack::group::<P, WIDTH>(rows, stride, P::GROUP, to);
                }
            }
        }
        count
    }

    /// Adds the weighted values of the first `places` places to the sums of some queries.
    ///
    /// # Safety
    /// As [`LatentAttention::item`].
    #[inline(always)]
    unsafe fn mix<S: Simd, P: Product<X: Element>>(
        &self,
        space: &Space<P::X>,
        places: usize,
        queries: usize,
        some: std::ops::Range<usize>,
    ) {
        if places == 0 {
            return;
        }
        let left = places % P::GROUP;
        for strip in 0..self.strips() {
            // SAFETY: as the caller's.
            unsafe {
                let tail = space.tail.add(strip * WIDTH * P::GROUP);
                if left > 0 {
                    let keys = space.keys.add((places - left) * self.stride() + strip * WIDTH);
                    pack::group::<P, WIDTH>(keys, self.stride(), left, tail);
                }
                Mix::<P> {
                    values: space.values.add(strip * WIDTH * CHUNK),
                    tail,
                    weights: space.weights,
                    places,
                    sums: space.sums.add(strip * WIDTH * queries),
                    factors: space.factors,
                }
                .accumulate::<S>(some.clone());
            }
        }
    }

    /// Divides by the totals; a row without places is zeros.
    ///
    /// # Safety
    /// As [`LatentAttention::item`].
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, sums: *const f32, totals: *const f32, item: Item) {
        let queries = item.rows * item.heads;
        for query in 0..queries {
            // SAFETY: as the caller's.
            unsafe {
                let (row, head) = (item.row + query / item.heads, item.head + query % item.heads);
                let out = self.out.row(row).add(head * self.c);
                let total = *totals.add(query);
                let factor = S::splat(if total == 0.0 { 0.0 } else { 1.0 / total });
                for i in (0..self.c).step_by(LANES) {
                    let at = (i / WIDTH * queries + query) * WIDTH + i % WIDTH;
                    let x = S::mul(S::load(sums.add(at)), factor);
                    O::store_part::<S>(out.add(i), x, self.c - i);
                }
            }
        }
    }
}

/// One step of the running softmax for a vector of queries: turns their scores of `count` places
/// into weights under the new maxima, and updates maxima, totals and the factors of what was summed
/// before.
///
/// # Safety
/// As [`LatentAttention::item`].
#[inline(always)]
unsafe fn soften<S: Simd, P: Product<X: Element>>(
    space: &Space<P::X>,
    vector: usize,
    count: usize,
) {
    let lane = vector * LANES;
    // SAFETY: as the caller's.
    unsafe {
        let scores = space.scores.add(lane);
        let before = S::load(space.maxima.add(lane));
        let mut now = before;
        for place in 0..count {
            now = S::max(now, S::load(scores.add(place * WIDTH)));
        }
        let factor = exp::<S>(S::sub(before, now));
        let mut total = S::mul(S::load(space.totals.add(lane)), factor);
        for group in 0..count.div_ceil(P::GROUP) {
            // Sums and total use the same, rounded weights.
            let mut weights = [[<P::X as Element>::ZERO; LANES]; 2];
            for (i, weights) in weights.iter_mut().enumerate().take(P::GROUP) {
                let score = S::load(scores.add((group * P::GROUP + i) * WIDTH));
                P::X::store::<S>(weights.as_mut_ptr(), exp::<S>(S::sub(score, now)));
                total = S::add(total, P::X::load::<S>(weights.as_ptr()));
            }
            let to = space.weights.add((group * WIDTH + lane) * P::GROUP);
            pack::group::<P, LANES>(weights.as_ptr().cast(), LANES, P::GROUP, to);
        }
        S::store(space.maxima.add(lane), now);
        S::store(space.totals.add(lane), total);
        S::store(space.factors.add(lane), factor);
    }
}
