//! A work item of attention: a few rows of a sequence with some KV heads, chunk by chunk of their context.

use super::ahead::{Ahead, Lead, List, Pace, Run};
use super::numbers::{self, Factors};
use super::seen::{Cut, Seen, Tile, blocks_seen};
use super::soften::Softmax;
use super::tile::{CHUNK_BLOCKS, CHUNK_TOKENS, KvElement, Scores, Values, pairs};
use super::turns::Turns;
use super::whole::WholeWeights;
use super::{Attention, MOST_ROWS};
#[cfg(target_arch = "x86_64")]
use super::{amx, bytes, tile};
use crate::device::asks_near;
use crate::kernels::element::Element;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::simd::{LANES, LINE_BYTES, Simd};
use crate::kernels::worker::Worker;
use half::bf16;
use std::cell::Cell;
use std::ops::Range;

/// So many bytes of keys and values stay in a near cache from one item of a sequence to the next.
const KEPT_BYTES: usize = 1 << 20;

/// How many cache lines ahead of what is read keys and values are asked for, where not a whole chunk: so near that the
/// processor's own prefetching, which follows what is read, goes on beside.
const LEAD_LINES: usize = 256;

/// Cache lines that are asked for with each vector of scores or weights.
const PACE_LINES: usize = 2;

/// Consecutive rows of a sequence with consecutive KV heads.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) sequence: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) head: usize,
    pub(super) heads: usize,
}

/// Where the vectors of queries lie, of `stride` elements each: those of `tile` queries as rows of AMX tiles, the first
/// of each query and then the next ones; where a tile is a single query, simply one after the other.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) stride: usize,
    pub(super) tile: usize,
}

impl Layout {
    /// Where the vectors of `query` begin, in floats or in what else has a size of four bytes. The vector at element `i` of
    /// it lies `i * tile` behind.
    #[inline(always)]
    pub(super) fn first(self, query: usize) -> usize {
        match self.tile {
            ..2 => query * self.stride,
            tile => {
                let row = query % tile;
                (query - row) * self.stride + row * LANES
            }
        }
    }
}

/// Working memory. What is kept from chunk to chunk has a place for each query of an item, those of a KV head
/// after those of the one before.
#[derive(Clone, Copy)]
pub(super) struct Room {
    layout: Layout,
    /// Queries.
    pub(super) q: *mut f32,
    pub(super) q_factors: *mut Factors,
    /// Weighted values so far.
    pub(super) sums: *mut f32,
    /// A vector for each query, whose lanes add up to its weights so far.
    totals: *mut f32,
    maxima: *mut f32,
    /// Of one chunk.
    pub(super) scores: *mut f32,
    pub(super) rounded: *mut bf16,
    pub(super) largest: *mut f32,
    pub(super) factors: *mut Factors,
    /// Sums of products of codes, `stride` apart.
    whole: *mut u32,
    /// For AMX tiles: values of the blocks of a chunk that some rows do not see; or of codes, as [`bytes::floats`] says.
    #[cfg(target_arch = "x86_64")]
    pub(super) kept: *mut bf16,
}

impl Room {
    /// Floats that it takes for `queries` queries; sums of codes if there are any.
    const fn floats(queries: usize, stride: usize, codes: bool) -> usize {
        let factors = 2 * size_of::<Factors>() / size_of::<f32>();
        let whole = if codes { stride } else { 0 };
        let chunk = CHUNK_TOKENS + CHUNK_TOKENS / 2;
        queries * (2 * stride + whole + chunk + 2 * LANES + factors + 1)
    }

    /// # Safety
    /// `at` is valid for `kept` floats and as many behind them as [`Room::floats`] says.
    #[inline(always)]
    unsafe fn new(at: *mut f32, queries: usize, layout: Layout, codes: bool, kept: usize) -> Self {
        let stride = layout.stride;
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            let of_values = at.cast();
            let at = at.add(kept);
            let sums = at.add(queries * stride);
            let scores = sums.add(queries * stride);
            let rounded: *mut bf16 = scores.add(queries * CHUNK_TOKENS).cast();
            let whole: *mut u32 = rounded.add(queries * CHUNK_TOKENS).cast();
            let totals: *mut f32 = whole.add(if codes { queries * stride } else { 0 }).cast();
            let largest = totals.add(queries * LANES);
            let factors: *mut Factors = largest.add(queries * LANES).cast();
            let q_factors = factors.add(queries);
            let maxima = q_factors.add(queries).cast();
            Self {
                layout,
                q: at,
                q_factors,
                sums,
                totals,
                maxima,
                scores,
                rounded,
                largest,
                factors,
                whole,
                #[cfg(target_arch = "x86_64")]
                kept: of_values,
            }
        }
    }

    /// That of the queries from `query` on, with which a tile begins.
    #[inline(always)]
    pub(super) fn from(self, query: usize) -> Self {
        let stride = self.layout.stride;
        Self {
            q: self.q.wrapping_add(query * stride),
            q_factors: self.q_factors.wrapping_add(query),
            sums: self.sums.wrapping_add(query * stride),
            totals: self.totals.wrapping_add(query * LANES),
            maxima: self.maxima.wrapping_add(query),
            scores: self.scores.wrapping_add(query * CHUNK_TOKENS),
            rounded: self.rounded.wrapping_add(query * CHUNK_TOKENS),
            largest: self.largest.wrapping_add(query * LANES),
            factors: self.factors.wrapping_add(query),
            whole: self.whole.wrapping_add(query * stride),
            ..self
        }
    }
}

/// Keys and values of the blocks of a chunk for one head.
#[derive(Clone, Copy)]
pub(super) struct Chunk<T> {
    /// First and past-the-last block that hold tokens.
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) keys: [*const T; CHUNK_BLOCKS],
    pub(super) values: [*const T; CHUNK_BLOCKS],
}

impl<T> Chunk<T> {
    /// Takes its runs of `lines` cache lines into a list, in the order in which they lie where `as_they_lie`, else in
    /// that in which they are read.
    #[inline(always)]
    fn list(&self, lines: usize, as_they_lie: bool, to: &mut List<'_>) {
        let blocks = self.end - self.first;
        if to.skips(2 * blocks * lines) {
            return;
        }
        let (outer, inner) = if as_they_lie { (blocks, 2) } else { (2, blocks) };
        for i in 0..outer {
            for j in 0..inner {
                let (b, of_values) = if as_they_lie { (i, j) } else { (j, i) };
                let from = if of_values == 0 { &self.keys } else { &self.values };
                to.add(Run { from: from[self.first + b].cast(), lines });
            }
        }
    }
}

impl<T: KvElement, O: Element> Attention<T, O> {
    /// Floats of working memory that an item of `heads` KV heads takes.
    pub(super) fn item_floats<S: Simd>(&self, heads: usize) -> usize {
        let queries = self.places(heads * self.item_rows(1) * self.group);
        self.kept() + Room::floats(queries, self.stride(), T::CODES)
    }

    /// The places of `queries` queries in working memory.
    #[inline(always)]
    fn places(&self, queries: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.tiles {
            return amx::places(queries);
        }
        queries
    }

    /// Where the vectors of `queries` queries of a head lie in working memory.
    #[inline(always)]
    fn layout(&self, queries: usize) -> Layout {
        #[cfg(target_arch = "x86_64")]
        if T::BF16 && self.tiles {
            return Layout { stride: self.stride(), tile: amx::of_tile(queries) };
        }
        let _ = queries;
        Layout { stride: self.stride(), tile: 1 }
    }

    /// Where the whole numbers of query `i` of `queries` of a head begin, in floats, and what [`numbers::query`] wants to
    /// know of how they lie.
    #[inline(always)]
    fn numbers_at(&self, i: usize, queries: usize, layout: Layout) -> (usize, (usize, usize)) {
        #[cfg(target_arch = "x86_64")]
        if self.takes_bytes(queries) {
            let tile = amx::of_tile(queries);
            return (Layout { tile, ..layout }.first(i), bytes::apart(tile));
        }
        let _ = queries;
        (layout.first(i), (layout.stride, LINE_BYTES))
    }

    /// Floats of working memory for values as AMX tiles take them.
    #[inline(always)]
    fn kept(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if T::CODES && self.tiles {
            return bytes::floats(self.kv.d);
        }
        if self.tiles { CHUNK_TOKENS * self.kv.d / 2 } else { 0 }
    }

    /// Elements between queries in working memory.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.kv.d.next_multiple_of(LANES)
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

    /// The blocks of the chunk at token `start` between the first and the last of which an item's rows see tokens.
    ///
    /// # Safety
    /// The item's rows were bound.
    #[inline(always)]
    unsafe fn seen(&self, item: Item, start: usize) -> Range<usize> {
        let rows = item.row..item.row + item.rows;
        // SAFETY: as the caller's.
        blocks_seen(rows.map(|row| unsafe { self.part(row, start) }))
    }

    /// Where the keys and values of an item's first head lie, of the blocks `seen` of the chunk at token `start`.
    ///
    /// # Safety
    /// Sequence, rows and heads were bound; the table has the chunk if any row sees of it.
    #[inline(always)]
    unsafe fn chunk(&self, item: Item, start: usize, seen: Range<usize>) -> Chunk<T> {
        // SAFETY: entries of the table are limited to the blocks that were bound.
        unsafe {
            let Item { sequence, head, .. } = item;
            let (table, state) = (self.table.row(sequence), self.state.row(0).cast_const());
            let Range { start: first, end } = seen;
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

    /// Lists what to ask for while `chunk` of an item is read, before the item's `next` chunk and the first one of what
    /// comes `after`; returns how many runs that is.
    ///
    /// # Safety
    /// As [`Attention::chunk`], of the item `after` too.
    #[inline(always)]
    unsafe fn list(
        &self,
        item: Item,
        [chunk, next]: [&Chunk<T>; 2],
        after: Option<Item>,
        lead: &mut Lead,
        to: &mut [Run; 6 * CHUNK_BLOCKS],
    ) -> usize {
        let lines = self.lines(item);
        // A cache that has room for a whole chunk takes the short runs of a single head best in that order.
        let as_they_lie = item.heads == 1 && !asks_near();
        // No more than a chunk, so that only a last one is followed by what comes after the item.
        let whole = 2 * CHUNK_BLOCKS * lines;
        let ahead = if as_they_lie { whole } else { LEAD_LINES.min(whole) };
        let mut list = lead.begin(ahead, 2 * (chunk.end - chunk.first) * lines, to);
        chunk.list(lines, as_they_lie, &mut list);
        next.list(lines, as_they_lie, &mut list);
        if let Some(after) = after
            && list.wants_more()
        {
            // SAFETY: the caller's promise.
            let chunk = unsafe {
                let begin = self.begin(after);
                self.chunk(after, begin, self.seen(after, begin))
            };
            chunk.list(self.lines(after), as_they_lie, &mut list);
        }
        lead.end(list)
    }

    /// Cache lines of the keys, or the values, of an item's heads in a block.
    #[inline(always)]
    fn lines(&self, item: Item) -> usize {
        (item.heads * self.kv.tile_len() * size_of::<T>()).div_ceil(LINE_BYTES)
    }

    /// Asks for those of the queries `some` that an item has, head by head and row by row.
    ///
    /// # Safety
    /// As [`Kernel::run`](super::Kernel::run); the item's rows and heads were bound.
    #[inline(always)]
    unsafe fn ask<S: Simd>(&self, item: Item, some: Range<usize>) {
        let (bytes, group) = (self.kv.d * size_of::<f32>(), item.rows * self.group);
        for i in some.start..some.end.min(item.heads * group) {
            let (head, i) = (item.head + i / group, i % group);
            let (r, h) = (item.row + i / self.group, head * self.group + i % self.group);
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
    /// As [`Kernel::run`](super::Kernel::run); sequences, rows and heads were bound.
    #[inline(always)]
    pub(super) unsafe fn item<S: Simd>(
        &self,
        worker: &Worker<'_>,
        item: Item,
        after: Option<Item>,
        lead: &mut Lead,
    ) {
        let Item { sequence, row, rows, head, heads } = item;
        let queries = rows * self.group;
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let (places, layout) = (self.places(heads * queries), self.layout(queries));
            let room = Room::new(worker.private.cast(), places, layout, T::CODES, self.kept());
            let of_head = |k: usize| room.from(k * queries);
            for k in 0..heads {
                self.enter::<S>(row, head + k, queries, of_head(k));
            }

            let spans = (row..row + rows).map(|r| self.span(r));
            let longest = spans.clone().map(|span| span.end).max().unwrap_or(0);
            let of_all = spans
                .fold(0..usize::MAX, |all, span| all.start.max(span.start)..all.end.min(span.end));
            // Whether all rows see all of a chunk. Then it does not matter which query is whose.
            let whole = |start: usize| of_all.start <= start && start + CHUNK_TOKENS <= of_all.end;
            let chunk_at = |start: usize| {
                let seen = if whole(start) { 0..CHUNK_BLOCKS } else { self.seen(item, start) };
                self.chunk(item, start, seen)
            };
            let begin = self.begin(item);
            let mut next = chunk_at(begin);
            // The first item of a sequence, or with tiles of a head, reads them from memory.
            let bytes = (longest - begin.min(longest)) / BLOCK_TOKENS * self.kv.block_len();
            let bytes = if self.tiles { bytes / self.kv.heads * heads } else { bytes };
            let asks = row == sequence * self.rows || bytes * size_of::<T>() > KEPT_BYTES;
            let mut runs = [Run::NONE; 6 * CHUNK_BLOCKS];
            let (as_one, by_rows) = (Cut::new::<S, T>(queries), Cut::new::<S, T>(self.group));
            let mut parts = [(0, 0); MOST_ROWS];
            let ahead = Cell::new(Ahead::NONE);
            for start in (begin..longest).step_by(CHUNK_TOKENS) {
                let chunk = next;
                next = chunk_at(start + CHUNK_TOKENS);
                if chunk.first == chunk.end {
                    continue;
                }
                if asks {
                    let count = self.list(item, [&chunk, &next], after, lead, &mut runs);
                    ahead.set(Ahead::new(&runs[..count]));
                } else {
                    *lead = Lead::default();
                }
                let seen = if whole(start) {
                    Seen { parts: &[(0, CHUNK_TOKENS)], cut: as_one }
                } else {
                    let parts = &mut parts[..rows];
                    for (part, row) in parts.iter_mut().zip(row..) {
                        *part = self.part(row, start);
                    }
                    Seen { parts, cut: by_rows }
                };
                let after = after.filter(|_| start == begin);
                self.meet::<S>(&chunk, heads, seen, asks.then_some(&ahead), after, room);
            }
            for k in 0..heads {
                self.leave::<S>(row, head + k, queries, of_head(k));
            }
        }
    }

    /// Puts the `queries` queries from row `row` on that share a KV head into working memory, and begins their
    /// sums.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is theirs.
    #[inline(always)]
    unsafe fn enter<S: Simd>(&self, row: usize, head: usize, queries: usize, room: Room) {
        let (d, pairs) = (self.kv.d, const { pairs::<S, T>() });
        let Room { layout: layout @ Layout { tile, .. }, q, sums, .. } = room;
        // SAFETY: as the caller's.
        unsafe {
            for i in 0..queries {
                let (r, h) = (row + i / self.group, head * self.group + i % self.group);
                let (from, first) = (self.q.row(r).add(h * d), layout.first(i));
                if T::CODES {
                    let (first, apart) = self.numbers_at(i, queries, layout);
                    let to = q.add(first).cast();
                    *room.q_factors.add(i) = numbers::query::<S>(from, d, self.scale, to, apart);
                }
                for j in (0..d).step_by(LANES) {
                    let x = f32::load_part::<S>(from.add(j), d - j);
                    if pairs {
                        // Two of them lie where one of the sums does.
                        let two = j % (2 * LANES);
                        let to: *mut bf16 = q.add(first + (j - two) / 2 * tile).cast();
                        S::store_bf16(to.add(two), x);
                    } else if !T::CODES {
                        S::store(q.add(first + j), S::mul(x, S::splat(self.scale)));
                    }
                    S::store(sums.add(first + j * tile), S::splat(0.0));
                }
                let (most, weight) = self.sinks.softmax(h);
                *room.maxima.add(i) = most;
                S::store(room.totals.add(i * LANES), S::splat(0.0));
                *room.totals.add(i * LANES) = weight;
            }
        }
    }

    /// Takes a chunk of an item's KV heads, of whose tokens each row sees its part, into the sums of their queries;
    /// asks for the queries of what comes `after`.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's.
    #[inline(always)]
    unsafe fn meet<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        heads: usize,
        seen: Seen<'_>,
        ahead: Option<&Cell<Ahead>>,
        after: Option<Item>,
        room: Room,
    ) {
        let &Chunk { first: block, end, ref keys, ref values } = chunk;
        let Seen { parts, cut: Cut { group, .. } } = seen;
        let (d, stride, queries) = (self.kv.d, self.stride(), parts.len() * group);
        let pairs = const { pairs::<S, T>() };
        let turns = Turns { heads, step: self.kv.tile_len() };
        #[cfg(target_arch = "x86_64")]
        let takes_bytes = T::CODES && self.takes_bytes(queries);
        #[cfg(not(target_arch = "x86_64"))]
        let takes_bytes = false;
        let pace = Pace { ahead: ahead.filter(|_| heads > 1), lines: PACE_LINES };
        #[cfg(target_arch = "x86_64")]
        let of_all = ahead;
        let ahead = |first: usize| ahead.filter(|_| first == 0);
        let all = (block * BLOCK_TOKENS, end * BLOCK_TOKENS);
        // SAFETY: as the caller's.
        unsafe {
            if heads > 1 {
                for i in 0..heads * queries {
                    S::store(room.largest.add(i * LANES), S::splat(f32::NEG_INFINITY));
                }
            }
            for Tile { first, count, parts } in seen.tiles() {
                if let Some(after) = after {
                    self.ask::<S>(after, first..first + count * heads);
                }
                let seen = blocks_seen(parts.iter().copied());
                if T::BF16 && self.tiles || takes_bytes || seen.is_empty() {
                    continue;
                }
                let scores = Scores {
                    blocks: &keys[seen.clone()],
                    ahead: ahead(first),
                    q: room.q.add(first * stride),
                    factors: room.q_factors.add(first).cast_const(),
                    stride,
                    groups: d / self.kv.group,
                    scores: room.scores.add(first * CHUNK_TOKENS + seen.start * BLOCK_TOKENS),
                    largest: room.largest.add(first * LANES),
                    turns,
                };
                T::scores::<S>(&scores, count);
            }
            #[cfg(target_arch = "x86_64")]
            if const { tile::pairs::<S, T>() } && self.tiles {
                self.tile_scores::<S>(chunk, (queries, heads), of_all, room);
            }
            #[cfg(target_arch = "x86_64")]
            if const { T::CODES && S::WIDE } && takes_bytes {
                self.byte_scores::<S>(chunk, queries, of_all, room);
            }

            for k in 0..heads {
                let Room { scores, rounded, largest, maxima, totals, sums, .. } =
                    room.from(k * queries);
                let floats = !pairs || !d.is_multiple_of(2 * LANES);
                let scale = if pairs { self.scale } else { 1.0 };
                let softmax = Softmax {
                    scores,
                    rounded,
                    floats,
                    scale,
                    largest,
                    maxima,
                    totals,
                    sums,
                    layout: room.layout,
                    pace,
                };
                if T::CODES {
                    let scales = k * self.kv.tile_len() + self.kv.scales();
                    for values in &values[block..end] {
                        S::prefetch(values.wrapping_add(scales).cast());
                    }
                }
                softmax.chunk::<S, T>(group, parts, all);
            }
            if T::CODES {
                let scales = values.map(|block| block.wrapping_add(self.kv.scales()).cast());
                let step = self.kv.tile_len() / size_of::<f32>();
                #[cfg(target_arch = "x86_64")]
                let seen = match takes_bytes {
                    true => {
                        let cut = Cut::together(group, parts.len(), bytes::STEP_BLOCKS);
                        Seen { parts, cut }
                    }
                    false => seen,
                };
                match pace.ahead {
                    None => {
                        S::enter(WholeWeights::<false> { scales, step, heads, seen, pace, room })
                    }
                    Some(_) => {
                        S::enter(WholeWeights::<true> { scales, step, heads, seen, pace, room })
                    }
                }
            }

            #[cfg(target_arch = "x86_64")]
            if const { T::CODES && S::WIDE } && takes_bytes {
                return self.byte_values::<S>(chunk, queries, of_all, room);
            }
            #[cfg(target_arch = "x86_64")]
            if const { tile::pairs::<S, T>() } && self.tiles {
                return self.tile_values::<S>(chunk, (group, heads), parts, of_all, room);
            }
            let accumulate = |first: usize, count: usize, tokens: (usize, usize)| {
                if tokens.0 >= tokens.1 {
                    return;
                }
                let values = Values {
                    blocks: values,
                    ahead: ahead(first),
                    tokens,
                    all: tokens,
                    d,
                    weights: room.scores.add(first * CHUNK_TOKENS).cast_const(),
                    rounded: room.rounded.add(first * CHUNK_TOKENS).cast_const(),
                    factors: room.factors.add(first).cast_const(),
                    whole: room.whole.add(first * stride),
                    sums: room.sums.add(first * stride),
                    stride,
                    turns,
                };
                T::accumulate::<S>(&values, count);
            };
            for Tile { first, count, parts } in seen.tiles() {
                if T::CODES {
                    // What a row does not see meets zeros.
                    let Range { start, end } = blocks_seen(parts.iter().copied());
                    accumulate(first, count, (start * BLOCK_TOKENS, end * BLOCK_TOKENS));
                    continue;
                }
                // Whole pairs of the tokens that all rows see; each row's tokens in order.
                let shared = parts.iter().fold((0, CHUNK_TOKENS), |shared, part| {
                    (shared.0.max(part.0), shared.1.min(part.1))
                });
                let shared = (shared.0.next_multiple_of(2), shared.1 / 2 * 2);
                let any_shared = shared.0 < shared.1;
                // Where a tile has a part of a row's queries, it has that of no other row.
                let of_row = group.min(count);
                for (r, &(from, to)) in parts.iter().enumerate() {
                    let to = if any_shared { shared.0 } else { to };
                    accumulate(first + r * of_row, of_row, (from, to));
                }
                if any_shared {
                    accumulate(first, count, shared);
                    for (r, &(_, to)) in parts.iter().enumerate() {
                        accumulate(first + r * of_row, of_row, (shared.1, to));
                    }
                }
            }
        }
    }

    /// Stores the results of the queries of a KV head.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is theirs.
    #[inline(always)]
    unsafe fn leave<S: Simd>(&self, row: usize, head: usize, queries: usize, room: Room) {
        let (d, Layout { tile, .. }) = (self.kv.d, room.layout);
        // SAFETY: as the caller's.
        unsafe {
            for i in 0..queries {
                let (r, h) = (row + i / self.group, head * self.group + i % self.group);
                let sums = room.sums.add(room.layout.first(i));
                let out = self.out.row(r).add(h * d);
                let factor = S::splat(1.0 / S::sum(S::load(room.totals.add(i * LANES))));
                for j in (0..d).step_by(LANES) {
                    let x = S::mul(S::load(sums.add(j * tile)), factor);
                    O::store_part::<S>(out.add(j), x, d - j);
                }
            }
        }
    }
}
