//! Causal attention over paged keys and values.
//!
//! A work item is a few consecutive rows of a sequence with one KV head and all query heads that
//! share it. It goes through the context in chunks that begin at multiples of a fixed number of
//! tokens and keeps a running softmax, so a row's result depends on its own position alone. Tokens
//! that a row does not see never enter its arithmetic, whatever lies in the cache there, and blocks
//! outside the windows of a single row are not read at all.
//!
//! Where keys and values are bf16 and the machine multiplies pairs of them, queries and the weights
//! of the softmax are rounded to bf16 too (sums stay `f32`). Values are then taken two tokens at a
//! time, always an even one and the next, so that cuts between rows do not show. What is left of a
//! head after two vectors at a time meets weights that are not rounded.
//!
//! Where keys and values are codes of 8 bits, queries and weights become whole numbers of 15 bits, by a scale
//! for each query and for each chunk of its weights, and their products with codes are summed exactly.

mod ahead;
mod codes;
mod numbers;
mod sinks;
mod soften;
mod tile;

pub(crate) use sinks::SinkAttention;

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::kv::{BLOCK_TOKENS, Kv};
use super::simd::{LANES, Simd, Vectorised};
use super::worker::{Scratch, Worker};
use crate::device::MOST_THREADS;
use ahead::Ahead;
use half::bf16;
use numbers::Factors;
use sinks::Sinks;
use soften::Softmax;
use std::cell::Cell;
use std::ops::Range;
use tile::{
    CHUNK_BLOCKS, CHUNK_TOKENS, KvElement, LINE_BYTES, MOST_QUERIES, Scores, Values, most_queries,
    pairs,
};

/// What a row costs beside its context, in tokens.
const ROW_COST_TOKENS: usize = 32;

/// So many bytes of keys and values stay in a near cache from one item of a sequence to the next.
const KEPT_BYTES: usize = 1 << 20;

/// Tiles of queries that meet a chunk of keys and values one after the other while it is in the cache.
const ITEM_TILES: usize = 4;

/// `attention_{kv}_{out}`. A position outside the table counts as the nearest one inside, an entry
/// of the table outside the state as the last block.
pub(crate) struct Attention<T, O> {
    sequences: usize,
    /// Rows of each sequence.
    rows: usize,
    /// Blocks in a row of the table.
    width: usize,
    /// Query heads of a KV head.
    group: usize,
    kv: Kv,
    scale: f32,
    blocks: usize,
    q: Rows<f32>,
    state: Rows<T>,
    table: Rows<i32>,
    positions: Rows<i32>,
    sinks: Sinks,
    out: Rows<O>,
}

/// Consecutive rows of a sequence with one KV head.
#[derive(Clone, Copy)]
struct Item {
    sequence: usize,
    row: usize,
    rows: usize,
    head: usize,
}

/// Keys and values of the blocks of a chunk for one head.
#[derive(Clone, Copy)]
struct Chunk<T> {
    /// First and past-the-last block that hold tokens.
    first: usize,
    end: usize,
    keys: [*const T; CHUNK_BLOCKS],
    values: [*const T; CHUNK_BLOCKS],
}

impl<T> Chunk<T> {
    /// Writes where the keys and then the values of its blocks begin; returns how many places these are.
    #[inline(always)]
    fn list(&self, to: &mut [*const u8]) -> usize {
        let blocks = self.first..self.end;
        let places = self.keys[blocks.clone()].iter().chain(&self.values[blocks.clone()]);
        for (to, place) in to.iter_mut().zip(places) {
            *to = place.cast();
        }
        2 * blocks.len()
    }
}

impl<T: KvElement, O: Element> Kernel for Attention<T, O> {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Self::bind_with(b, |_, _| Ok(Sinks::default()))
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let queries = self.tile_rows::<S>() * self.group;
        let chunk = CHUNK_TOKENS + CHUNK_TOKENS / 2;
        let factors = 2 * size_of::<Factors>() / size_of::<f32>();
        let floats = queries * (2 * self.stride() + chunk + 2 * LANES + 1 + factors);
        Scratch { private: (floats * size_of::<f32>()).next_multiple_of(64), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        struct Share<'a, T, O>(&'a Attention<T, O>, &'a Worker<'a>);
        impl<T: KvElement, O: Element> Vectorised for Share<'_, T, O> {
            type Output = ();
            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                // SAFETY: the caller's promise.
                unsafe { self.0.share::<S>(self.1) }
            }
        }
        // Compiled once for plain attention and attention with sinks.
        // SAFETY: as the caller's.
        unsafe { S::enter(Share(self, worker)) }
    }
}

impl<T: KvElement, O: Element> Attention<T, O> {
    /// Binds with what `sinks` takes after the positions and the strides, for a number of heads.
    fn bind_with(
        b: &mut Binder<'_>,
        sinks: impl FnOnce(&mut Binder<'_>, usize) -> Result<Sinks, String>,
    ) -> Result<Self, String> {
        let (t, sequences, width) = (b.positive("T")?, b.positive("S")?, b.positive("W")?);
        let (heads, kv_heads, d) = (b.positive("heads")?, b.positive("kv heads")?, b.count("d")?);
        let kv = Kv::bind::<T>(kv_heads, d, b.count("block tokens")?)?;
        let scale = b.factor("scale")?;
        if scale < 0.0 {
            return Err(format!("a scale of {scale}, expected one that is not negative"));
        }
        let (q_stride, out_stride) = (b.count("q stride")?, b.count("out stride")?);
        if t % sequences != 0 {
            return Err(format!("{t} rows for {sequences} sequences"));
        }
        if heads % kv_heads != 0 {
            return Err(format!("{heads} heads for {kv_heads} KV heads"));
        }
        // What shares are counted in: the cost of everything, times a thread's number.
        product(&[t, width, BLOCK_TOKENS, 1 + ROW_COST_TOKENS, kv_heads, MOST_THREADS])?;
        let n = product(&[heads, d, size_of::<f32>()])? / size_of::<f32>();
        let q = b.input("q", t, n, q_stride)?;
        let (blocks, state) = b.blocks::<T>("state", kv.block_len(), false)?;
        Ok(Self {
            sequences,
            rows: t / sequences,
            width,
            group: heads / kv_heads,
            kv,
            scale,
            blocks,
            q,
            state,
            table: b.input("table", sequences, width, width)?,
            positions: b.input("positions", 1, t, t)?,
            sinks: sinks(b, heads)?,
            out: b.output("out", t, n, out_stride)?,
        })
    }

    /// Does this thread's share.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn share<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: rows, heads and blocks stay inside what was bound.
        unsafe {
            let rows_at_once = self.tile_rows::<S>();
            let items = || {
                (0..self.sequences).flat_map(move |sequence| {
                    (0..self.rows).step_by(rows_at_once).map(move |first| {
                        let row = sequence * self.rows + first;
                        (sequence, row, rows_at_once.min(self.rows - first))
                    })
                })
            };
            let cost = |row: usize, rows: usize| {
                let tokens: usize = (row..row + rows).map(|r| self.span(r).len()).sum();
                (tokens + rows * ROW_COST_TOKENS) * self.kv.heads
            };
            let total: usize = items().map(|(_, row, rows)| cost(row, rows)).sum();
            let (mut done, mut waiting) = (0, None);
            for (sequence, row, rows) in items() {
                let cost = cost(row, rows) / self.kv.heads;
                for head in 0..self.kv.heads {
                    // The item's middle decides which thread's share it falls into.
                    let middle = done + cost / 2;
                    done += cost;
                    if middle * worker.count / total == worker.index {
                        let item = Item { sequence, row, rows, head };
                        if let Some(before) = waiting.replace(item) {
                            self.item::<S>(worker, before, Some(item));
                        }
                    }
                }
            }
            if let Some(last) = waiting {
                self.item::<S>(worker, last, None);
            }
        }
    }

    /// The first chunk of which rows of an item see tokens: its first token.
    ///
    /// # Safety
    /// The item's rows were bound.
    #[inline(always)]
    unsafe fn begin(&self, item: Item) -> usize {
        // SAFETY: as the caller's.
        let first = |row| unsafe { self.span(row) }.start;
        let earliest = (item.row..item.row + item.rows).map(first).min().unwrap_or(0);
        earliest / CHUNK_TOKENS * CHUNK_TOKENS
    }

    /// Elements between queries in scratch memory.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.kv.d.next_multiple_of(LANES)
    }

    /// Rows of a work item: as many as fill the tiles together with the heads of a group.
    #[inline(always)]
    fn tile_rows<S: Simd>(&self) -> usize {
        (ITEM_TILES * most_queries::<S>() / self.group).clamp(1, self.rows.max(1))
    }

    /// Tokens that `row` sees.
    ///
    /// # Safety
    /// `row` was bound.
    #[inline(always)]
    unsafe fn span(&self, row: usize) -> Range<usize> {
        // SAFETY: as the caller's.
        let position = unsafe { *self.positions.row(0).add(row) };
        let context = (position.max(0) as usize + 1).min(self.width * BLOCK_TOKENS);
        self.sinks.first_token(context)..context
    }

    /// Tokens of the chunk at token `start` that `row` sees, counted from there.
    ///
    /// # Safety
    /// `row` was bound.
    #[inline(always)]
    unsafe fn part(&self, row: usize, start: usize) -> (usize, usize) {
        // SAFETY: as the caller's.
        let span = unsafe { self.span(row) };
        let inside = |token: usize| token.saturating_sub(start).min(CHUNK_TOKENS);
        (inside(span.start), inside(span.end))
    }

    /// Where the keys and values lie that `rows` see of the chunk at token `start`.
    ///
    /// # Safety
    /// Sequence, rows and head were bound; the table has the chunk if any row sees of it.
    #[inline(always)]
    unsafe fn chunk(
        &self,
        sequence: usize,
        head: usize,
        start: usize,
        rows: Range<usize>,
    ) -> Chunk<T> {
        // SAFETY: entries of the table are limited to the blocks that were bound.
        unsafe {
            let (table, state) = (self.table.row(sequence), self.state.row(0).cast_const());
            let (mut first, mut end) = (CHUNK_BLOCKS, 0);
            for (from, to) in rows.map(|r| self.part(r, start)).filter(|(from, to)| from < to) {
                first = first.min(from / BLOCK_TOKENS);
                end = end.max(to.div_ceil(BLOCK_TOKENS));
            }
            let first = first.min(end);
            let mut chunk =
                Chunk { first, end, keys: [state; CHUNK_BLOCKS], values: [state; CHUNK_BLOCKS] };
            for b in first..end {
                let entry = *table.add(start / BLOCK_TOKENS + b);
                let block = usize::try_from(entry).unwrap_or(usize::MAX).min(self.blocks - 1);
                chunk.keys[b] = state.add(self.kv.keys(block, head));
                chunk.values[b] = state.add(self.kv.values(block, head));
            }
            chunk
        }
    }

    /// Asks for those of the queries `some` that an item has, row by row.
    ///
    /// # Safety
    /// As [`Kernel::run`]; the item's rows and head were bound.
    #[inline(always)]
    unsafe fn ask<S: Simd>(&self, item: Item, some: Range<usize>) {
        let bytes = self.kv.d * size_of::<f32>();
        for i in some.start..some.end.min(item.rows * self.group) {
            let (r, h) = (item.row + i / self.group, item.head * self.group + i % self.group);
            // SAFETY: the caller's promise; what is asked for may be anywhere.
            unsafe {
                let q: *const u8 = self.q.row(r).add(h * self.kv.d).cast();
                for at in (0..bytes).step_by(LINE_BYTES) {
                    S::prefetch_far(q.add(at));
                }
            }
        }
    }

    /// Computes an item; asks for the beginning of what this thread does `after` it.
    ///
    /// # Safety
    /// As [`Kernel::run`]; sequences, rows and heads were bound.
    #[inline(always)]
    unsafe fn item<S: Simd>(&self, worker: &Worker<'_>, item: Item, after: Option<Item>) {
        let Item { sequence, row, rows, head } = item;
        let (d, stride, queries) = (self.kv.d, self.stride(), rows * self.group);
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let q: *mut f32 = worker.private.cast();
            let sums = q.add(queries * stride);
            let scores = sums.add(queries * stride);
            let rounded: *mut bf16 = scores.add(queries * CHUNK_TOKENS).cast();
            let totals: *mut f32 = rounded.add(queries * CHUNK_TOKENS).cast();
            let largest = totals.add(queries * LANES);
            let maxima = largest.add(queries * LANES);
            let q_factors: *mut Factors = maxima.add(queries).cast();
            let factors = q_factors.add(queries);
            let (pairs, scale) = (const { pairs::<S, T>() }, self.scale);
            for i in 0..queries {
                let (r, h) = (row + i / self.group, head * self.group + i % self.group);
                let from = self.q.row(r).add(h * d);
                if T::CODES {
                    let to = q.add(i * stride).cast();
                    *q_factors.add(i) = numbers::query::<S>(from, d, scale, to, stride);
                }
                for j in (0..d).step_by(LANES) {
                    let x = f32::load_part::<S>(from.add(j), d - j);
                    if pairs {
                        S::store_bf16(q.add(i * stride).cast::<bf16>().add(j), x);
                    } else if !T::CODES {
                        S::store(q.add(i * stride + j), S::mul(x, S::splat(scale)));
                    }
                    S::store(sums.add(i * stride + j), S::splat(0.0));
                }
                let (most, weight) = self.sinks.softmax(h);
                *maxima.add(i) = most;
                S::store(totals.add(i * LANES), S::splat(0.0));
                *totals.add(i * LANES) = weight;
            }

            let softmax = Softmax {
                scores,
                rounded,
                floats: !pairs || !d.is_multiple_of(2 * LANES),
                scale: if pairs { scale } else { 1.0 },
                largest,
                maxima,
                totals,
                sums,
                stride,
            };
            let all = row..row + rows;
            let longest = all.clone().map(|r| self.span(r).end).max().unwrap_or(0);
            let begin = self.begin(item);
            let mut next = self.chunk(sequence, head, begin, all.clone());
            // The first item of a sequence reads them from memory.
            let bytes = (longest - begin.min(longest)) / BLOCK_TOKENS * self.kv.block_len();
            let asks = row == sequence * self.rows || bytes * size_of::<T>() > KEPT_BYTES;
            let tile_bytes = self.kv.tile_len() * size_of::<T>();
            let (mut runs, mut asked_after) = ([std::ptr::null(); 4 * CHUNK_BLOCKS], false);
            let ahead = Cell::new(Ahead::NONE);
            for start in (begin..longest).step_by(CHUNK_TOKENS) {
                let Chunk { first: block, end, keys, values } = next;
                next = self.chunk(sequence, head, start + CHUNK_TOKENS, all.clone());
                if block == end {
                    continue;
                }
                // A chunk ahead of what is computed; a short one leaves time for the one after it.
                if asks && !asked_after {
                    let mut count = next.list(&mut runs);
                    if next.end - next.first < end - block
                        && let Some(item) = after
                    {
                        asked_after = true;
                        let rows = item.row..item.row + item.rows;
                        let first = self.chunk(item.sequence, item.head, self.begin(item), rows);
                        count += first.list(&mut runs[count..]);
                    }
                    ahead.set(Ahead::new(&runs[..count], tile_bytes));
                }
                let ahead = |first: usize| (asks && first == 0).then_some(&ahead);

                for (first, tile) in tiles::<S>(queries) {
                    if start == begin
                        && let Some(after) = after
                    {
                        self.ask::<S>(after, first..first + tile);
                    }
                    let scores = Scores {
                        blocks: &keys[block..end],
                        ahead: ahead(first),
                        q: q.add(first * stride),
                        factors: q_factors.add(first).cast_const(),
                        stride,
                        groups: d / self.kv.group,
                        scores: scores.add(first * CHUNK_TOKENS + block * BLOCK_TOKENS),
                        largest: largest.add(first * LANES),
                    };
                    T::scores::<S>(&scores, tile);
                }

                let mut parts = [(0, 0); ITEM_TILES * MOST_QUERIES];
                let parts = &mut parts[..rows];
                for (part, row) in parts.iter_mut().zip(all.clone()) {
                    *part = self.part(row, start);
                }
                softmax.chunk::<S, T>(
                    self.group,
                    parts,
                    (block * BLOCK_TOKENS, end * BLOCK_TOKENS),
                );

                // Whole pairs of the tokens that all rows see.
                let shared = parts.iter().fold((0, CHUNK_TOKENS), |shared, part| {
                    (shared.0.max(part.0), shared.1.min(part.1))
                });
                let shared = (shared.0.next_multiple_of(2), shared.1 / 2 * 2);

                let accumulate = |first: usize, count: usize, tokens: (usize, usize)| {
                    let values = Values {
                        blocks: &values,
                        ahead: ahead(first),
                        tokens,
                        d,
                        weights: scores.add(first * CHUNK_TOKENS).cast_const(),
                        rounded: rounded.add(first * CHUNK_TOKENS).cast_const(),
                        factors: factors.add(first).cast_const(),
                        sums: sums.add(first * stride),
                        stride,
                    };
                    T::accumulate::<S>(&values, count);
                };
                if T::CODES {
                    let scales: [*const f32; CHUNK_BLOCKS] =
                        values.map(|block| block.add(self.kv.scales()).cast());
                    for i in 0..queries {
                        *factors.add(i) = numbers::weights::<S>(
                            scores.add(i * CHUNK_TOKENS),
                            &scales[block..end],
                            block,
                            parts[i / self.group],
                            rounded.add(i * CHUNK_TOKENS).cast(),
                        );
                    }
                    for (first, tile) in tiles::<S>(queries) {
                        accumulate(first, tile, (block * BLOCK_TOKENS, end * BLOCK_TOKENS));
                    }
                    continue;
                }
                let accumulate_row = |r: usize, tokens: (usize, usize)| {
                    if tokens.0 < tokens.1 {
                        for (first, tile) in tiles::<S>(self.group) {
                            accumulate(r * self.group + first, tile, tokens);
                        }
                    }
                };
                // Each row's tokens in order, those of all rows in one go.
                let any_shared = shared.0 < shared.1;
                for (r, &(from, to)) in parts.iter().enumerate() {
                    accumulate_row(r, (from, if any_shared { shared.0 } else { to }));
                }
                if any_shared {
                    for (first, tile) in tiles::<S>(queries) {
                        accumulate(first, tile, shared);
                    }
                    for (r, &(_, to)) in parts.iter().enumerate() {
                        accumulate_row(r, (shared.1, to));
                    }
                }
            }

            for i in 0..queries {
                let (r, h) = (row + i / self.group, head * self.group + i % self.group);
                let out = self.out.row(r).add(h * d);
                let factor = S::splat(1.0 / S::sum(S::load(totals.add(i * LANES))));
                for j in (0..d).step_by(LANES) {
                    let x = S::mul(S::load(sums.add(i * stride + j)), factor);
                    O::store_part::<S>(out.add(j), x, d - j);
                }
            }
        }
    }
}

/// First query and number of queries of each tile, spread evenly.
#[inline(always)]
fn tiles<S: Simd>(queries: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = queries.div_ceil(most_queries::<S>());
    (0..count).map(move |i| {
        let (from, to) = (i * queries / count, (i + 1) * queries / count);
        (from, to - from)
    })
}
