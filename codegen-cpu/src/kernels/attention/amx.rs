//! Attention over bf16 with AMX tiles: scores of up to 16 queries with the keys of a block, and their sums of its
//! values.
//!
//! A score adds 32 elements of a key at a time, a sum of values the 16 tokens of a block, in order, whatever the
//! number of queries and of blocks at once: a query has the same bits in every item. Products with keys and values
//! that a query does not see are left out of its scores and have weights of zero.

use super::Attention;
use super::ahead::{Ahead, Taken};
use super::item::{Chunk, Room};
use super::tile::{CHUNK_BLOCKS, CHUNK_TOKENS, KEY_STEP, KvElement};
use crate::device::has_amx;
use crate::kernels::element::Element;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::matmul::{ROW_BYTES, Tiles, dot_pairs};
use crate::kernels::simd::{LANES, LINE_BYTES, Simd};
use half::bf16;
use std::arch::asm;
use std::cell::Cell;
use std::ptr::null;

/// Queries of a tile.
const TILE_QUERIES: usize = 16;
/// Blocks that a tile of several rows meets at once.
const BLOCKS: usize = 4;
/// Pairs of tokens of a block.
const PAIRS: usize = BLOCK_TOKENS / 2;
/// Bytes between the scores, and the rounded weights, of queries.
const SCORES_BYTES: usize = CHUNK_TOKENS * size_of::<f32>();
const WEIGHTS_BYTES: usize = CHUNK_TOKENS * size_of::<bf16>();
/// All tokens of a block.
const ALL: u16 = u16::MAX;

/// How many tiles `queries` queries are, and the queries of each: as many in all of them, so that the last one may have
/// some that nobody asked for.
const fn cut(queries: usize) -> (usize, usize) {
    let tiles = queries.div_ceil(TILE_QUERIES);
    (tiles, queries.div_ceil(tiles))
}

/// Queries that working memory has a place for where an item has `queries`.
pub(super) const fn places(queries: usize) -> usize {
    let (tiles, each) = cut(queries);
    tiles * each
}

/// Tiles for `queries` queries: 0 to 3 are sums, 4 and 5 a step of queries and of keys, 6 and 7 weights and values of a
/// block.
///
/// # Safety
/// As [`Tiles::with`].
unsafe fn configure(queries: usize) -> Tiles {
    let shape = |tile| match tile {
        5 => (KEY_STEP / 2, ROW_BYTES),
        6 => (queries, PAIRS * size_of::<u32>()),
        7 => (PAIRS, ROW_BYTES),
        _ => (queries, ROW_BYTES),
    };
    // SAFETY: the caller's promise.
    unsafe { Tiles::with(queries, shape) }
}

/// The tokens of `block` that are among `part` of a chunk, a bit each.
fn seen(part: (usize, usize), block: usize) -> u16 {
    let inside = |token: usize| token.saturating_sub(block * BLOCK_TOKENS).min(BLOCK_TOKENS);
    let below = |token: usize| (1u32 << inside(token)) - 1;
    (below(part.1) & !below(part.0)) as u16
}

/// Asks for the next eight cache lines at `{ahead}` if that is not null.
macro_rules! ask {
    () => {
        "test {ahead}, {ahead}
        jz 4f
        prefetcht1 [{ahead}]
        prefetcht1 [{ahead} + 64]
        prefetcht1 [{ahead} + 128]
        prefetcht1 [{ahead} + 192]
        prefetcht1 [{ahead} + 256]
        prefetcht1 [{ahead} + 320]
        prefetcht1 [{ahead} + 384]
        prefetcht1 [{ahead} + 448]
        add {ahead}, 512
        4:"
    };
}

/// The queries of a tile, `stride` elements of working memory apart, of heads of `d` elements.
struct Queries {
    tiles: Tiles,
    d: usize,
    stride: usize,
}

impl Queries {
    /// Scores with the keys of one block, while `d / 2` lines `ahead` are asked for if that is not null.
    ///
    /// # Safety
    /// Keys, queries and scores are valid for the tile.
    #[inline(always)]
    unsafe fn block_scores(
        &self,
        keys: *const bf16,
        q: *const bf16,
        scores: *mut f32,
        ahead: *const u8,
    ) {
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if !has_amx() {
                return self.model_scores(keys, q, scores);
            }
            asm!(
                "tilezero tmm0",
                "2:",
                "tileloadd tmm4, [{q} + {q_stride}*1]",
                ask!(),
                "tileloadd tmm5, [{keys} + {line}*1]",
                ask!(),
                "tdpbf16ps tmm0, tmm4, tmm5",
                "add {q}, {line}",
                "add {keys}, {step_bytes}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{scores} + {scores_bytes}*1], tmm0",
                q = inout(reg) q => _,
                q_stride = in(reg) self.stride * size_of::<f32>(),
                keys = inout(reg) keys => _,
                line = in(reg) LINE_BYTES,
                step_bytes = const KEY_STEP * BLOCK_TOKENS * size_of::<bf16>(),
                steps = inout(reg) self.d / KEY_STEP => _,
                scores = in(reg) scores,
                scores_bytes = in(reg) SCORES_BYTES,
                ahead = inout(reg) ahead => _,
                out("tmm0") _, out("tmm4") _, out("tmm5") _,
                options(nostack),
            );
        }
    }

    /// Scores with the keys of several blocks.
    ///
    /// # Safety
    /// Keys, queries and scores are valid for the tile.
    #[inline(always)]
    unsafe fn scores(&self, keys: [*const bf16; BLOCKS], q: *const bf16, scores: *mut f32) {
        // SAFETY: as the caller's.
        unsafe {
            if !has_amx() {
                for (b, keys) in keys.into_iter().enumerate() {
                    self.model_scores(keys, q, scores.add(b * BLOCK_TOKENS));
                }
                return;
            }
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{q} + {q_stride}*1]",
                "tileloadd tmm5, [{a} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm5, [{b} + {line}*1]",
                "tdpbf16ps tmm1, tmm4, tmm5",
                "tileloadd tmm5, [{c} + {line}*1]",
                "tdpbf16ps tmm2, tmm4, tmm5",
                "tileloadd tmm5, [{d} + {line}*1]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {q}, {line}",
                "add {a}, {step_bytes}",
                "add {b}, {step_bytes}",
                "add {c}, {step_bytes}",
                "add {d}, {step_bytes}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{scores} + {scores_bytes}*1], tmm0",
                "tilestored [{scores} + {scores_bytes}*1 + 64], tmm1",
                "tilestored [{scores} + {scores_bytes}*1 + 128], tmm2",
                "tilestored [{scores} + {scores_bytes}*1 + 192], tmm3",
                q = inout(reg) q => _,
                q_stride = in(reg) self.stride * size_of::<f32>(),
                a = inout(reg) keys[0] => _,
                b = inout(reg) keys[1] => _,
                c = inout(reg) keys[2] => _,
                d = inout(reg) keys[3] => _,
                line = in(reg) LINE_BYTES,
                step_bytes = const KEY_STEP * BLOCK_TOKENS * size_of::<bf16>(),
                steps = inout(reg) self.d / KEY_STEP => _,
                scores = in(reg) scores,
                scores_bytes = in(reg) SCORES_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _,
                options(nostack),
            );
        }
    }

    /// [`Queries::block_scores`] in plain Rust.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn model_scores(&self, keys: *const bf16, q: *const bf16, scores: *mut f32) {
        for (query, token) in pairs_of(self.tiles.rows, BLOCK_TOKENS) {
            // SAFETY: inside what the caller vouches for; any alignment.
            unsafe {
                let q = q.add(2 * query * self.stride).cast::<[bf16; 2]>();
                let keys = keys.cast::<[bf16; 2]>().add(token);
                let mut score = 0.0;
                for step in 0..self.d / KEY_STEP {
                    let pairs = (step * KEY_STEP / 2..(step + 1) * KEY_STEP / 2)
                        .map(|g| (q.add(g).read_unaligned(), keys.add(g * BLOCK_TOKENS).read()));
                    score = dot_pairs(score, pairs);
                }
                scores.add(query * CHUNK_TOKENS + token).write(score);
            }
        }
    }

    /// Adds the weighted values of `blocks`, which follow one another, while as many cache lines as they are of `ahead`
    /// are asked for.
    ///
    /// # Safety
    /// Values, weights and sums are valid for the tile; there are at most [`CHUNK_BLOCKS`].
    #[inline(always)]
    unsafe fn add_values(
        &self,
        blocks: &[*const bf16],
        weights: *const bf16,
        sums: *mut f32,
        mut ahead: Option<&mut Taken<'_>>,
    ) {
        /// Columns of 16 elements from element `first` on, `$tile` of sums at `$offset` bytes each.
        macro_rules! columns {
            ($first:expr, $($tile:literal $offset:literal),*) => {{
                let mut asked = [null::<u8>(); CHUNK_BLOCKS];
                if let Some(ahead) = &mut ahead {
                    let lines = [$($tile),*].len() * PAIRS;
                    asked[..blocks.len()].fill_with(|| ahead.next_or(lines, null()).0);
                }
                asm!(
                    $(concat!("tileloadd tmm", $tile, ", [{sums} + {stride}*1 + ", $offset, "]"),)*
                    "2:",
                    "mov {values}, [{blocks}]",
                    "add {values}, {first}",
                    "mov {ahead}, [{asked}]",
                    "tileloadd tmm6, [{weights} + {weights_bytes}*1]",
                    $(
                        concat!("tileloadd tmm7, [{values} + {stride}*1 + ", $offset, "]"),
                        ask!(),
                        concat!("tdpbf16ps tmm", $tile, ", tmm6, tmm7"),
                    )*
                    "add {blocks}, 8",
                    "add {asked}, 8",
                    "add {weights}, 32",
                    "dec {count}",
                    "jnz 2b",
                    $(concat!("tilestored [{sums} + {stride}*1 + ", $offset, "], tmm", $tile),)*
                    sums = in(reg) sums.add($first),
                    // Of values too: pairs of tokens are as many words.
                    stride = in(reg) self.stride * size_of::<f32>(),
                    blocks = inout(reg) blocks.as_ptr() => _,
                    first = in(reg) $first * size_of::<u32>(),
                    values = out(reg) _,
                    weights = inout(reg) weights => _,
                    weights_bytes = in(reg) WEIGHTS_BYTES,
                    count = inout(reg) blocks.len() => _,
                    asked = inout(reg) asked.as_ptr() => _,
                    ahead = out(reg) _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm6") _, out("tmm7") _,
                    options(nostack),
                )
            }};
        }
        if blocks.is_empty() {
            return;
        }
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if !has_amx() {
                for (b, &values) in blocks.iter().enumerate() {
                    let pair = |pair: usize, i: usize| {
                        values.add(2 * (pair * self.d + i)).cast::<[bf16; 2]>().read()
                    };
                    for query in 0..self.tiles.rows {
                        let weights = weights.add(query * CHUNK_TOKENS + b * BLOCK_TOKENS);
                        self.model_values(weights, sums.add(query * self.stride), pair);
                    }
                }
                return;
            }
            let mut i = 0;
            while i + 4 * LANES <= self.d {
                columns!(i, 0 0, 1 64, 2 128, 3 192);
                i += 4 * LANES;
            }
            while i < self.d {
                columns!(i, 0 0);
                i += LANES;
            }
        }
    }

    /// Adds the weighted values of a block to the sums of one query, in plain Rust; `value` has those of a pair of tokens.
    ///
    /// # Safety
    /// Weights and sums are valid.
    #[inline(never)]
    unsafe fn model_values(
        &self,
        weights: *const bf16,
        sums: *mut f32,
        value: impl Fn(usize, usize) -> [bf16; 2],
    ) {
        let weights: *const [bf16; 2] = weights.cast();
        for i in 0..self.d {
            // SAFETY: the caller's promise.
            unsafe {
                let pairs = (0..PAIRS).map(|pair| (weights.add(pair).read(), value(pair, i)));
                let sum = sums.add(i);
                sum.write(dot_pairs(sum.read(), pairs));
            }
        }
    }
}

/// All pairs of two counts.
fn pairs_of(a: usize, b: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..a).flat_map(move |i| (0..b).map(move |j| (i, j)))
}

/// Copies the values of a block, `[8, d]` pairs of tokens, those of tokens that are not in `kept` as zeros. Returns
/// whether any of those in `looked_at` is no finite number.
///
/// # Safety
/// Both are valid for a block.
#[inline(always)]
unsafe fn keep(values: *const u32, d: usize, kept: u16, looked_at: u16, to: *mut u32) -> bool {
    /// Exponents of what is not finite.
    const EXPONENT: u32 = 0x7f80;
    let mut any = false;
    for pair in 0..PAIRS {
        let halves = |tokens: u16| {
            let bit = |i: usize| u32::from(tokens >> (2 * pair + i) & 1);
            (bit(0) * 0xffff) | (bit(1) * 0xffff_0000)
        };
        let (kept, looked_at) = (halves(kept), halves(looked_at));
        for i in pair * d..(pair + 1) * d {
            // SAFETY: the caller's promise.
            unsafe {
                let word = *values.add(i) & kept;
                *to.add(i) = word;
                let word = word & looked_at;
                any |= word & EXPONENT == EXPONENT || word >> 16 & EXPONENT == EXPONENT;
            }
        }
    }
    any
}

impl<T: KvElement, O: Element> Attention<T, O> {
    /// Scores of an item's queries with a chunk, as [`KvElement::scores`] has them.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's of `rows` rows and `heads` heads.
    #[inline(always)]
    pub(super) unsafe fn tile_scores<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        (rows, heads): (usize, usize),
        ahead: Option<&Cell<Ahead>>,
        room: Room,
    ) {
        let &Chunk { first, end, ref keys, .. } = chunk;
        let (d, stride, of_head) = (self.kv.d, self.stride(), rows * self.group);
        let (tiles, each) = cut(of_head);
        let key_lines = d / 2;
        // SAFETY: as the caller's; keys of blocks that hold no tokens are those of some block.
        unsafe {
            let queries = Queries { tiles: configure(each), d, stride };
            let mut ahead = Taken::new(ahead);
            if rows == 1 {
                // Block by block, in the order in which keys lie.
                for (b, k) in (first..end).flat_map(|b| (0..heads).map(move |k| (b, k))) {
                    let keys = keys[b].add(k * self.kv.tile_len()).cast();
                    let mut from = ahead.next_or(key_lines, null()).0;
                    for tile in 0..tiles {
                        let Room { q, scores, .. } = room.from(k * of_head + tile * each, stride);
                        let scores = scores.add(b * BLOCK_TOKENS);
                        queries.block_scores(keys, q.cast(), scores, from);
                        from = null();
                    }
                }
            } else {
                for (tile, b) in pairs_of(tiles, CHUNK_BLOCKS / BLOCKS) {
                    let b = b * BLOCKS;
                    if b >= end || b + BLOCKS <= first {
                        continue;
                    }
                    if tile == 0 {
                        for _ in 0..(end.min(b + BLOCKS) - first.max(b)) * key_lines / 4 {
                            ahead.ask::<S>(4);
                        }
                    }
                    let keys = std::array::from_fn(|i| keys[b + i].cast());
                    let Room { q, scores, .. } = room.from(tile * each, stride);
                    queries.scores(keys, q.cast(), scores.add(b * BLOCK_TOKENS));
                }
            }
            ahead.put_back();
            for i in 0..heads * of_head {
                let mut largest = S::splat(f32::NEG_INFINITY);
                for b in first..end {
                    let at = i * CHUNK_TOKENS + b * BLOCK_TOKENS;
                    largest = S::max(largest, S::load(room.scores.add(at)));
                }
                S::store(room.largest.add(i * LANES), largest);
            }
        }
    }

    /// Adds the weighted values of a chunk, of whose tokens each row sees its part.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's of `heads` heads and has the rounded weights of what is seen.
    #[inline(always)]
    pub(super) unsafe fn tile_values<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        heads: usize,
        parts: &[(usize, usize)],
        ahead: Option<&Cell<Ahead>>,
        room: Room,
    ) {
        let &Chunk { first, end, values: ref blocks, .. } = chunk;
        let (d, stride, of_head) = (self.kv.d, self.stride(), parts.len() * self.group);
        let (tiles, each) = cut(of_head);
        // SAFETY: as the caller's.
        unsafe {
            for i in 0..heads * of_head {
                let (from, to) = parts[i % of_head / self.group];
                let weights = room.rounded.add(i * CHUNK_TOKENS);
                let (begin, end) = (first * BLOCK_TOKENS, end * BLOCK_TOKENS);
                let (from, to) = if from < to { (from, to) } else { (end, end) };
                weights.add(begin).write_bytes(0, from - begin);
                weights.add(to).write_bytes(0, end - to);
            }
            // What somebody sees and what all see of a block. The rest may be anything, and is no number of ours.
            let masks = |b: usize| {
                let of = |&part: &(usize, usize)| seen(part, b);
                let masks = parts.iter().map(of);
                masks.fold((0, ALL), |(any, all), mask| (any | mask, all & mask))
            };
            let kept = |b: usize| room.kept.add(b * BLOCK_TOKENS * d);
            let queries = Queries { tiles: configure(each), d, stride };
            let mut ahead = Taken::new(ahead);
            if heads > 1 {
                // Block by block, in the order in which values lie.
                for (b, k) in (first..end).flat_map(|b| (0..heads).map(move |k| (b, k))) {
                    let mut values: *const bf16 = blocks[b].add(k * self.kv.tile_len()).cast();
                    let (any, _) = masks(b);
                    if any != ALL {
                        keep(values.cast(), d, any, 0, kept(b).cast());
                        values = kept(b);
                    }
                    let mut ahead = Some(&mut ahead);
                    for tile in 0..tiles {
                        let Room { rounded, sums, .. } =
                            room.from(k * of_head + tile * each, stride);
                        let weights = rounded.add(b * BLOCK_TOKENS);
                        queries.add_values(&[values], weights, sums, ahead.take());
                    }
                }
                return ahead.put_back();
            }
            let mut values: [*const bf16; CHUNK_BLOCKS] = [null(); CHUNK_BLOCKS];
            let mut apart = [false; CHUNK_BLOCKS];
            for b in first..end {
                let (any, all) = masks(b);
                values[b] = blocks[b].cast();
                if all != ALL {
                    apart[b] = keep(values[b].cast(), d, any, any & !all, kept(b).cast());
                    values[b] = kept(b);
                }
            }
            for tile in 0..tiles {
                let Room { rounded, sums, .. } = room.from(tile * each, stride);
                let mut b = first;
                while b < end {
                    let weights = rounded.add(b * BLOCK_TOKENS);
                    let count = apart[b..end].iter().take_while(|&&apart| !apart).count();
                    let ahead = (tile == 0).then_some(&mut ahead);
                    queries.add_values(&values[b..b + count], weights, sums, ahead);
                    b += count;
                    if b == end {
                        break;
                    }
                    // A weight of zero makes no zero of what is no number: each query takes what it sees.
                    for query in 0..each.min(of_head - tile * each) {
                        let seen = seen(parts[(tile * each + query) / self.group], b);
                        let value = |pair: usize, i: usize| {
                            let at = values[b].add(2 * (pair * d + i));
                            [0, 1].map(|t| match seen >> (2 * pair + t) & 1 {
                                0 => bf16::ZERO,
                                _ => *at.add(t),
                            })
                        };
                        let weights = rounded.add(query * CHUNK_TOKENS + b * BLOCK_TOKENS);
                        queries.model_values(weights, sums.add(query * stride), value);
                    }
                    b += 1;
                }
            }
            ahead.put_back();
        }
    }
}
