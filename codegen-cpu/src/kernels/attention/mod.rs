//! Causal attention over paged keys and values.
//!
//! A work item is a few consecutive rows of a sequence with one KV head and all query heads that
//! share it. It goes through the context in chunks that begin at multiples of a fixed number of
//! tokens and keeps a running softmax, so a row's result depends on its own position alone. Tokens
//! past a row's position never enter its arithmetic, whatever lies in the cache there.

mod tile;

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::exp::exp;
use super::kv::{BLOCK_TOKENS, Kv};
use super::simd::{LANES, Simd};
use super::worker::{Scratch, Worker};
use crate::device::MOST_THREADS;
use tile::{CHUNK_BLOCKS, CHUNK_TOKENS, KvElement, Scores, Values, most_queries};

/// What a row costs beside its context, in tokens.
const ROW_COST_TOKENS: usize = 32;

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
    out: Rows<O>,
}

impl<T: KvElement, O: Element> Kernel for Attention<T, O> {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (t, sequences, width) = (b.positive("T")?, b.positive("S")?, b.positive("W")?);
        let (heads, kv_heads, d) = (b.positive("heads")?, b.positive("kv heads")?, b.count("d")?);
        let kv = Kv::bind::<T>(kv_heads, d, b.count("block tokens")?)?;
        let scale = b.factor("scale")?;
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
            out: b.output("out", t, n, out_stride)?,
        })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let queries = self.tile_rows::<S>() * self.group;
        let floats = queries * (2 * self.stride() + CHUNK_TOKENS + 2);
        Scratch { private: (floats * size_of::<f32>()).next_multiple_of(64), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
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
                let tokens: usize = (row..row + rows).map(|r| self.context(r)).sum();
                (tokens + rows * ROW_COST_TOKENS) * self.kv.heads
            };
            let total: usize = items().map(|(_, row, rows)| cost(row, rows)).sum();
            let mut done = 0;
            for (sequence, row, rows) in items() {
                let cost = cost(row, rows) / self.kv.heads;
                for head in 0..self.kv.heads {
                    // The item's middle decides which thread's share it falls into.
                    let middle = done + cost / 2;
                    done += cost;
                    if middle * worker.count / total == worker.index {
                        self.item::<S>(worker, sequence, row, rows, head);
                    }
                }
            }
        }
    }
}

/// Keys and values of the blocks of a chunk for one head.
#[derive(Clone, Copy)]
struct Chunk<T> {
    /// Blocks that hold tokens.
    count: usize,
    keys: [*const T; CHUNK_BLOCKS],
    values: [*const T; CHUNK_BLOCKS],
}

impl<T: KvElement, O: Element> Attention<T, O> {
    /// Elements between queries in scratch memory.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.kv.d.next_multiple_of(LANES)
    }

    /// Rows of a work item: as many as fill the registers together with the heads of a group.
    #[inline(always)]
    fn tile_rows<S: Simd>(&self) -> usize {
        (most_queries::<S>() / self.group).clamp(1, self.rows.max(1))
    }

    /// Tokens that `row` sees.
    ///
    /// # Safety
    /// `row` was bound.
    #[inline(always)]
    unsafe fn context(&self, row: usize) -> usize {
        // SAFETY: as the caller's.
        let position = unsafe { *self.positions.row(0).add(row) };
        (position.max(0) as usize + 1).min(self.width * BLOCK_TOKENS)
    }

    /// Where the keys and values of the chunk at token `start` lie, up to token `end`.
    ///
    /// # Safety
    /// Sequence and head were bound.
    #[inline(always)]
    unsafe fn chunk(&self, sequence: usize, head: usize, start: usize, end: usize) -> Chunk<T> {
        // SAFETY: entries of the table are limited to the blocks that were bound.
        unsafe {
            let (table, state) = (self.table.row(sequence), self.state.row(0).cast_const());
            let tokens = end.saturating_sub(start).min(CHUNK_TOKENS);
            let count = tokens.div_ceil(BLOCK_TOKENS);
            let mut chunk =
                Chunk { count, keys: [state; CHUNK_BLOCKS], values: [state; CHUNK_BLOCKS] };
            for b in 0..count {
                let entry = *table.add(start / BLOCK_TOKENS + b);
                let block = usize::try_from(entry).unwrap_or(usize::MAX).min(self.blocks - 1);
                chunk.keys[b] = state.add(self.kv.keys(block, head));
                chunk.values[b] = state.add(self.kv.values(block, head));
            }
            chunk
        }
    }

    /// # Safety
    /// As [`Kernel::run`]; sequence, rows and head were bound.
    #[inline(always)]
    unsafe fn item<S: Simd>(
        &self,
        worker: &Worker<'_>,
        sequence: usize,
        row: usize,
        rows: usize,
        head: usize,
    ) {
        let (d, stride, queries) = (self.kv.d, self.stride(), rows * self.group);
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let q: *mut f32 = worker.private.cast();
            let sums = q.add(queries * stride);
            let scores = sums.add(queries * stride);
            let maxima = scores.add(queries * CHUNK_TOKENS);
            let totals = maxima.add(queries);
            for i in 0..queries {
                let (r, h) = (row + i / self.group, head * self.group + i % self.group);
                let from = self.q.row(r).add(h * d);
                for j in (0..d).step_by(LANES) {
                    let x = S::mul(f32::load_part::<S>(from.add(j), d - j), S::splat(self.scale));
                    S::store(q.add(i * stride + j), x);
                    S::store(sums.add(i * stride + j), S::splat(0.0));
                }
                *maxima.add(i) = f32::NEG_INFINITY;
                *totals.add(i) = 0.0;
            }

            let longest = (row..row + rows).map(|r| self.context(r)).max().unwrap_or(0);
            let mut next = self.chunk(sequence, head, 0, longest);
            for start in (0..longest).step_by(CHUNK_TOKENS) {
                let Chunk { count, keys, values } = next;
                next = self.chunk(sequence, head, start + CHUNK_TOKENS, longest);
                let ahead = if next.count > 0 { next.keys } else { values };

                for (first, tile) in tiles::<S>(queries) {
                    Scores {
                        blocks: &keys[..count],
                        ahead: if first == 0 { &values[..count] } else { &keys[..count] },
                        q: q.add(first * stride),
                        stride,
                        groups: d / self.kv.group,
                        scores: scores.add(first * CHUNK_TOKENS),
                    }
                    .compute::<S>(tile);
                }

                let tokens = |r: usize| self.context(r).saturating_sub(start).min(CHUNK_TOKENS);
                let mut shared = CHUNK_TOKENS;
                for i in 0..queries {
                    let n = tokens(row + i / self.group);
                    shared = shared.min(n);
                    if n > 0 {
                        let scores = scores.add(i * CHUNK_TOKENS);
                        let factor = soften::<S>(scores, n, maxima.add(i), totals.add(i));
                        for j in (0..d).step_by(LANES) {
                            let sum = sums.add(i * stride + j);
                            S::store(sum, S::mul(S::load(sum), S::splat(factor)));
                        }
                    }
                }

                let accumulate = |first: usize, count: usize, tokens: (usize, usize)| {
                    Values {
                        blocks: &values,
                        ahead: if first == 0 { &ahead } else { &values },
                        tokens,
                        d,
                        weights: scores.add(first * CHUNK_TOKENS).cast_const(),
                        sums: sums.add(first * stride),
                        stride,
                    }
                    .accumulate::<S>(count);
                };
                for (first, tile) in tiles::<S>(queries) {
                    accumulate(first, tile, (0, shared));
                }
                for r in 0..rows {
                    let n = tokens(row + r);
                    if n > shared {
                        for (first, tile) in tiles::<S>(self.group) {
                            accumulate(r * self.group + first, tile, (shared, n));
                        }
                    }
                }
            }

            for i in 0..queries {
                let (r, h) = (row + i / self.group, head * self.group + i % self.group);
                let out = self.out.row(r).add(h * d);
                let factor = S::splat(1.0 / *totals.add(i));
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

/// One step of the running softmax: turns `n` scores into weights under the new maximum, updates
/// maximum and total, and returns the factor that what was summed before must be multiplied with.
///
/// # Safety
/// As [`Simd`]; `scores` is valid for [`CHUNK_TOKENS`] elements, `n` is not 0.
#[inline(always)]
unsafe fn soften<S: Simd>(scores: *mut f32, n: usize, maximum: *mut f32, total: *mut f32) -> f32 {
    // SAFETY: as the caller's.
    unsafe {
        let padded = n.next_multiple_of(LANES);
        for i in n..padded {
            *scores.add(i) = f32::NEG_INFINITY;
        }
        let mut most = S::load(scores);
        for i in (LANES..padded).step_by(LANES) {
            most = S::max(most, S::load(scores.add(i)));
        }
        let before = *maximum;
        let now = S::largest(most).max(before);
        let mut sum = S::splat(0.0);
        for i in (0..padded).step_by(LANES) {
            let weight = exp::<S>(S::sub(S::load(scores.add(i)), S::splat(now)));
            S::store(scores.add(i), weight);
            sum = S::add(sum, weight);
        }
        let factor = S::lanes(exp::<S>(S::splat(before - now)))[0];
        *maximum = now;
        *total = *total * factor + S::sum(sum);
        factor
    }
}
