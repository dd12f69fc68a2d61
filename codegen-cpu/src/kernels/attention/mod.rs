//! Causal attention over paged keys and values.
//!
//! A work item is a few consecutive rows of a sequence with some KV heads and all query heads that
//! share them. It goes through the context in chunks that begin at multiples of a fixed number of
//! tokens and keeps a running softmax, so a row's result depends on its own position alone. Tokens
//! that a row does not see never enter its arithmetic, whatever lies in the cache there, and blocks
//! outside the windows of a single row are not read at all.
//!
//! Of many sequences with a row each, an item has several KV heads, which take turns block by block: in a block their
//! keys lie one after the other, and so do their values, and memory is read faster in long runs.
//!
//! Where keys and values are bf16 and the machine multiplies pairs of them, queries and the weights
//! of the softmax are rounded to bf16 too (sums stay `f32`), before they are summed up: what one token has alone is its
//! value. Values are then taken two tokens at a time, always an even one and the next, so that cuts between rows do not
//! show; with AMX tiles, for heads of whole steps of 32 elements, the tokens of a block at a time.
//!
//! Where keys and values are codes of 8 bits, queries and weights become whole numbers of 15 bits, by a scale
//! for each query and for each chunk of its weights, and their products with codes are summed exactly, those of many
//! queries with AMX tiles.

mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bytes;
mod codes;
mod item;
mod numbers;
mod seen;
mod sinks;
mod soften;
mod tile;
mod turns;
mod whole;

pub(crate) use sinks::SinkAttention;

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::kv::{BLOCK_TOKENS, Kv};
use super::simd::{Dots, Simd, Vectorised};
use super::worker::{Scratch, Worker};
use crate::device::MOST_THREADS;
use ahead::Lead;
use item::Item;
use sinks::Sinks;
use std::ops::Range;
use tile::{CHUNK_BLOCKS, CODE_STEP, KEY_STEP, KvElement};

/// What a row costs beside its context, in tokens: of a prompt, such that threads wait least for each other.
const ROW_COST_TOKENS: usize = 48;

/// The most queries of a work item and KV head, which meet a chunk of keys and values tile by tile while it is in a
/// cache.
const ITEM_QUERIES: usize = 96;

/// Where each thread would have fewer items than [`THREAD_ITEMS`], they have fewer queries, down to this many.
const FEWEST_QUERIES: usize = 28;

/// With so many items each, threads have nearly the same work.
const THREAD_ITEMS: usize = 16;

/// Queries of an item that AMX tiles take.
const AMX_QUERIES: usize = 64;

/// The most rows of an item: each has a query or more.
const MOST_ROWS: usize = if AMX_QUERIES > ITEM_QUERIES { AMX_QUERIES } else { ITEM_QUERIES };

/// The most bytes of a chunk of the keys and values of several KV heads: this one and the next should stay in a cache.
const ITEM_BYTES: usize = 1 << 19;

/// Sequences of each thread from which on several heads are taken together: nobody asks for a thread's first chunk,
/// which is longer then.
const LEAST_SEQUENCES: usize = 4;

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
    /// Whether AMX tiles take the queries, over codes where there are many.
    tiles: bool,
    blocks: usize,
    q: Rows<f32>,
    state: Rows<T>,
    table: Rows<i32>,
    positions: Rows<i32>,
    sinks: Sinks,
    out: Rows<O>,
}

impl<T: KvElement, O: Element> Kernel for Attention<T, O> {
    const DOTS: Dots = T::DOTS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Self::bind_with(b, |_, _| Ok(Sinks::default()))
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let floats = self.item_floats::<S>(self.item_heads::<S>());
        Scratch { private: (floats * size_of::<f32>()).next_multiple_of(64), shared: 0 }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        struct Share<'a, T, O>(&'a Attention<T, O>, &'a Worker<'a>);
        impl<T: KvElement, O: Element> Vectorised for Share<'_, T, O> {
            type Output = ();
            const DOTS: Dots = T::DOTS;
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
            tiles: b.has_tiles()
                && (T::BF16 && d.is_multiple_of(KEY_STEP)
                    || T::CODES && d.is_multiple_of(CODE_STEP)),
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
            let rows_at_once = self.item_rows(worker.count);
            let parts = self.rows.div_ceil(rows_at_once);
            // Rows of part `i` of a sequence.
            let part = |sequence: usize, i: usize| {
                let first = i * rows_at_once;
                (sequence * self.rows + first, rows_at_once.min(self.rows - first))
            };
            let cost = |row: usize, rows: usize| {
                let tokens: usize = (row..row + rows).map(|r| self.span(r).len()).sum();
                (tokens + rows * ROW_COST_TOKENS) * self.kv.heads
            };
            let of_sequence = |s: usize| (0..parts).map(move |i| part(s, i));
            let all = (0..self.sequences).flat_map(of_sequence);
            let total: usize = all.map(|(row, rows)| cost(row, rows)).sum();
            let most_heads = match self.sequences < LEAST_SEQUENCES * worker.count {
                true => 1,
                false => self.item_heads::<S>(),
            };
            let (mut done, mut waiting, mut lead) = (0, None::<Item>, Lead::default());
            for sequence in 0..self.sequences {
                for i in 0..parts * self.kv.heads {
                    // Tiles meet all rows of a head in turn, whose keys and values stay in a cache.
                    let (head, i) = match self.tiles {
                        true => (i / parts, i % parts),
                        false => (i % self.kv.heads, i / self.kv.heads),
                    };
                    let (row, rows) = part(sequence, i);
                    let cost = cost(row, rows) / self.kv.heads;
                    // The middle of its work decides which thread's share an item falls into.
                    let middle = done + cost / 2;
                    done += cost;
                    if middle * worker.count / total != worker.index {
                        continue;
                    }
                    match &mut waiting {
                        Some(item) if item.row == row && head > 0 && item.heads < most_heads => {
                            item.heads += 1;
                        }
                        _ => {
                            let item = Item { sequence, row, rows, head, heads: 1 };
                            if let Some(before) = waiting.replace(item) {
                                self.item::<S>(worker, before, Some(item), &mut lead);
                            }
                        }
                    }
                }
            }
            if let Some(last) = waiting {
                self.item::<S>(worker, last, None, &mut lead);
            }
        }
    }

    /// Rows of a work item.
    #[inline(always)]
    fn item_rows(&self, threads: usize) -> usize {
        let all = self.sequences * self.rows * self.group * self.kv.heads;
        let queries = match self.tiles {
            true => AMX_QUERIES,
            false => (all / (THREAD_ITEMS * threads)).clamp(FEWEST_QUERIES, ITEM_QUERIES),
        };
        (queries / self.group).clamp(1, self.rows.max(1))
    }

    /// The most KV heads of a work item.
    #[inline(always)]
    fn item_heads<S: Simd>(&self) -> usize {
        // Sums do not stay in registers from one block to the next, which costs more the more queries there are.
        let most_queries = if T::CODES { 3 } else { 4 };
        if !S::WIDE || self.rows > 1 || self.group > most_queries {
            return 1;
        }
        let chunk_bytes = 2 * CHUNK_BLOCKS * self.kv.tile_len() * size_of::<T>();
        (ITEM_BYTES / chunk_bytes).clamp(1, self.kv.heads)
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
}
