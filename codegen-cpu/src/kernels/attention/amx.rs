//! Attention over bf16 with AMX tiles: scores of one or two tiles of queries with the keys of blocks, and their sums of
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
pub(super) const TILE_QUERIES: usize = 16;
/// Pairs of tokens of a block.
const PAIRS: usize = BLOCK_TOKENS / 2;
/// Bytes between the scores, and the rounded weights, of queries.
const SCORES_BYTES: usize = CHUNK_TOKENS * size_of::<f32>();
const WEIGHTS_BYTES: usize = CHUNK_TOKENS * size_of::<bf16>();
/// All tokens of a block.
const ALL: u16 = u16::MAX;

/// How many tiles `queries` queries are, one or an even number, and the queries of each: as many in all of them, so that
/// the last ones may have some that nobody asked for.
pub(super) const fn cut(queries: usize) -> (usize, usize) {
    let tiles = match queries {
        0..=TILE_QUERIES => 1,
        _ => queries.div_ceil(TILE_QUERIES).next_multiple_of(2),
    };
    (tiles, queries.div_ceil(tiles))
}

/// Queries of a tile where a head has `queries`.
pub(super) const fn of_tile(queries: usize) -> usize {
    cut(queries).1
}

/// Queries that working memory has a place for where an item has `queries`.
pub(super) const fn places(queries: usize) -> usize {
    let (tiles, each) = cut(queries);
    tiles * each
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

/// Takes the sums at `$sums` into a tile.
macro_rules! load_sums {
    ($tile:literal, $sums:expr) => {
        asm!(
            concat!("tileloadd tmm", $tile, ", [{sums} + {line}*1]"),
            sums = in(reg) $sums,
            line = in(reg) LINE_BYTES,
            options(nostack, readonly, preserves_flags),
        )
    };
}

/// Puts the sums of a tile back.
macro_rules! store_sums {
    ($tile:literal, $sums:expr) => {
        asm!(
            concat!("tilestored [{sums} + {line}*1], tmm", $tile),
            sums = in(reg) $sums,
            line = in(reg) LINE_BYTES,
            options(nostack, preserves_flags),
        )
    };
}

/// Queries of heads of `d` elements in tiles of as many rows. A tile has a line of each of its queries, the next one the
/// next line; the next query tile lies behind all of them.
struct Queries {
    tiles: Tiles,
    d: usize,
}

impl Queries {
    /// For scores: tiles 0 to 3 are sums, 4 and 5 queries, 6 and 7 keys.
    ///
    /// # Safety
    /// As [`Tiles::new`].
    unsafe fn with_keys(rows: usize, d: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { tiles: unsafe { Tiles::new(rows) }, d }
    }

    /// For sums of values: tiles 0 to 3 are sums, 4 and 5 weights of the tokens of a block, 6 and 7 their values.
    ///
    /// # Safety
    /// As [`Tiles::with`].
    unsafe fn with_values(rows: usize, d: usize) -> Self {
        let shape = |tile| match tile {
            0..4 => (rows, ROW_BYTES),
            4..6 => (rows, PAIRS * size_of::<u32>()),
            _ => (PAIRS, ROW_BYTES),
        };
        // SAFETY: the caller's promise.
        Self { tiles: unsafe { Tiles::with(rows, shape) }, d }
    }

    /// Bytes from a tile of lines to the next.
    #[inline(always)]
    fn tile_bytes(&self) -> usize {
        self.tiles.rows * LINE_BYTES
    }

    /// Scores of one tile of queries with the keys of one block, while `d / 2` lines `ahead` are asked for if that is not
    /// null.
    ///
    /// # Safety
    /// Keys, queries and scores are valid for the tile, made [`Queries::with_keys`].
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
                "tileloadd tmm4, [{q} + {line}*1]",
                ask!(),
                "tileloadd tmm6, [{keys} + {line}*1]",
                ask!(),
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {q}, {tile_bytes}",
                "add {keys}, {step_bytes}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{scores} + {scores_bytes}*1], tmm0",
                q = inout(reg) q => _,
                tile_bytes = in(reg) self.tile_bytes(),
                keys = inout(reg) keys => _,
                line = in(reg) LINE_BYTES,
                step_bytes = const KEY_STEP * BLOCK_TOKENS * size_of::<bf16>(),
                steps = inout(reg) self.d / KEY_STEP => _,
                scores = in(reg) scores,
                scores_bytes = in(reg) SCORES_BYTES,
                ahead = inout(reg) ahead => _,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack),
            );
        }
    }

    /// Scores of two tiles of queries with the keys of two blocks, whose scores are neighbours.
    ///
    /// # Safety
    /// Keys, queries and scores are valid for the tiles, made [`Queries::with_keys`].
    #[inline(always)]
    unsafe fn scores(&self, keys: [*const bf16; 2], q: [*const bf16; 2], scores: [*mut f32; 2]) {
        // SAFETY: as the caller's.
        unsafe {
            if !has_amx() {
                for (tile, b) in pairs_of(2, 2) {
                    self.model_scores(keys[b], q[tile], scores[tile].add(b * BLOCK_TOKENS));
                }
                return;
            }
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{q} + {line}*1]",
                "tileloadd tmm6, [{a} + {line}*1]",
                "tileloadd tmm7, [{b} + {line}*1]",
                "tileloadd tmm5, [{r} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {q}, {tile_bytes}",
                "add {r}, {tile_bytes}",
                "add {a}, {step_bytes}",
                "add {b}, {step_bytes}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{to} + {scores_bytes}*1], tmm0",
                "tilestored [{to} + {scores_bytes}*1 + 64], tmm1",
                "tilestored [{and_to} + {scores_bytes}*1], tmm2",
                "tilestored [{and_to} + {scores_bytes}*1 + 64], tmm3",
                q = inout(reg) q[0] => _,
                r = inout(reg) q[1] => _,
                tile_bytes = in(reg) self.tile_bytes(),
                a = inout(reg) keys[0] => _,
                b = inout(reg) keys[1] => _,
                line = in(reg) LINE_BYTES,
                step_bytes = const KEY_STEP * BLOCK_TOKENS * size_of::<bf16>(),
                steps = inout(reg) self.d / KEY_STEP => _,
                to = in(reg) scores[0],
                and_to = in(reg) scores[1],
                scores_bytes = in(reg) SCORES_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
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
        let rows = self.tiles.rows;
        for (query, token) in pairs_of(rows, BLOCK_TOKENS) {
            // SAFETY: inside what the caller vouches for.
            unsafe {
                let q = q.add(query * KEY_STEP);
                let keys = keys.cast::<[bf16; 2]>().add(token);
                let mut score = 0.0;
                for step in 0..self.d / KEY_STEP {
                    let q: *const [bf16; 2] = q.add(step * rows * KEY_STEP).cast();
                    let keys = keys.add(step * KEY_STEP / 2 * BLOCK_TOKENS);
                    let pairs = (0..KEY_STEP / 2)
                        .map(|g| (q.add(g).read_unaligned(), keys.add(g * BLOCK_TOKENS).read()));
                    score = dot_pairs(score, pairs);
                }
                scores.add(query * CHUNK_TOKENS + token).write(score);
            }
        }
    }

    /// Adds the weighted values of `blocks`, which follow one another, to the sums of one tile of queries, while as many
    /// cache lines as they are of `ahead` are asked for.
    ///
    /// # Safety
    /// Values, weights and sums are valid for the tile, made [`Queries::with_values`]; there are at most
    /// [`CHUNK_BLOCKS`].
    #[inline(always)]
    unsafe fn add_block_values(
        &self,
        blocks: &[*const bf16],
        weights: *const bf16,
        sums: *mut f32,
        mut ahead: Option<&mut Taken<'_>>,
    ) {
        /// Columns of 16 elements from element `$first` on, `$tile` of sums at `$offset` bytes of values each.
        macro_rules! columns {
            ($first:expr, $($tile:literal $offset:literal),*) => {{
                let mut asked = [null::<u8>(); CHUNK_BLOCKS];
                if let Some(ahead) = &mut ahead {
                    let lines = [$($tile),*].len() * PAIRS;
                    asked[..blocks.len()].fill_with(|| ahead.next_or(lines, null()).0);
                }
                let of = |tile: usize| sums.add(($first + tile * LANES) * self.tiles.rows);
                $(load_sums!($tile, of($tile));)*
                asm!(
                    "2:",
                    "mov {values}, [{blocks}]",
                    "add {values}, {first}",
                    "mov {ahead}, [{asked}]",
                    "tileloadd tmm4, [{weights} + {weights_bytes}*1]",
                    $(
                        concat!("tileloadd tmm6, [{values} + {value_bytes}*1 + ", $offset, "]"),
                        ask!(),
                        concat!("tdpbf16ps tmm", $tile, ", tmm4, tmm6"),
                    )*
                    "add {blocks}, 8",
                    "add {asked}, 8",
                    "add {weights}, 32",
                    "dec {count}",
                    "jnz 2b",
                    value_bytes = in(reg) self.d * size_of::<u32>(),
                    blocks = inout(reg) blocks.as_ptr() => _,
                    first = in(reg) $first * size_of::<u32>(),
                    values = out(reg) _,
                    weights = inout(reg) weights => _,
                    weights_bytes = in(reg) WEIGHTS_BYTES,
                    count = inout(reg) blocks.len() => _,
                    asked = inout(reg) asked.as_ptr() => _,
                    ahead = out(reg) _,
                    options(nostack),
                );
                $(store_sums!($tile, of($tile));)*
            }};
        }
        // SAFETY: as the caller's; a prefetch may name any address.
        unsafe {
            if !has_amx() {
                return self.model_block_values(blocks, weights, sums);
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

    /// Adds the weighted values of `blocks`, which follow one another, to two vectors of the sums of two tiles of queries,
    /// from element `i` on.
    ///
    /// # Safety
    /// Values, weights and sums are valid for the tiles, made [`Queries::with_values`].
    #[inline(always)]
    unsafe fn add_values(
        &self,
        blocks: &[*const bf16],
        weights: [*const bf16; 2],
        sums: [*mut f32; 2],
        i: usize,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let [a, b] = sums.map(|sums| sums.add(i * self.tiles.rows));
            let [weights_a, weights_b] = weights;
            let next = LANES * self.tiles.rows;
            load_sums!(0, a);
            load_sums!(1, a.add(next));
            load_sums!(2, b);
            load_sums!(3, b.add(next));
            asm!(
                "2:",
                "mov {values}, [{blocks}]",
                "add {values}, {first}",
                "tileloadd tmm4, [{a} + {weights_bytes}*1]",
                "tileloadd tmm6, [{values} + {value_bytes}*1]",
                "tileloadd tmm7, [{values} + {value_bytes}*1 + 64]",
                "tileloadd tmm5, [{b} + {weights_bytes}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {blocks}, 8",
                "add {a}, 32",
                "add {b}, 32",
                "dec {count}",
                "jnz 2b",
                value_bytes = in(reg) self.d * size_of::<u32>(),
                blocks = inout(reg) blocks.as_ptr() => _,
                first = in(reg) i * size_of::<u32>(),
                values = out(reg) _,
                a = inout(reg) weights_a => _,
                b = inout(reg) weights_b => _,
                weights_bytes = in(reg) WEIGHTS_BYTES,
                count = inout(reg) blocks.len() => _,
                options(nostack),
            );
            store_sums!(0, a);
            store_sums!(1, a.add(next));
            store_sums!(2, b);
            store_sums!(3, b.add(next));
        }
    }

    /// Adds the weighted values of `blocks` to the sums of one tile of queries, in plain Rust.
    ///
    /// # Safety
    /// Values, weights and sums are valid for the tile.
    unsafe fn model_block_values(
        &self,
        blocks: &[*const bf16],
        weights: *const bf16,
        sums: *mut f32,
    ) {
        for (b, query) in pairs_of(blocks.len(), self.tiles.rows) {
            // SAFETY: the caller's promise.
            unsafe {
                let pair = |pair: usize, i: usize| {
                    blocks[b].add(2 * (pair * self.d + i)).cast::<[bf16; 2]>().read()
                };
                let weights = weights.add(query * CHUNK_TOKENS + b * BLOCK_TOKENS);
                self.model_values(weights, sums.add(query * LANES), pair);
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
                let sum = sums.add(i / LANES * LANES * self.tiles.rows + i % LANES);
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
    /// Scores of an item's `queries` queries of each head with a chunk, as [`KvElement::scores`] has them.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's of `heads` heads.
    #[inline(always)]
    pub(super) unsafe fn tile_scores<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        (queries, heads): (usize, usize),
        ahead: Option<&Cell<Ahead>>,
        room: Room,
    ) {
        let &Chunk { first, end, ref keys, .. } = chunk;
        let (tiles, each) = cut(queries);
        let key_lines = self.kv.d / 2;
        // SAFETY: as the caller's; keys of blocks that hold no tokens are those of some block.
        unsafe {
            let of = Queries::with_keys(each, self.kv.d);
            let mut ahead = Taken::new(ahead);
            if tiles == 1 {
                // Block by block, in the order in which keys lie.
                for (b, k) in (first..end).flat_map(|b| (0..heads).map(move |k| (b, k))) {
                    let keys = keys[b].add(k * self.kv.tile_len()).cast();
                    let Room { q, scores, .. } = room.from(k * queries);
                    let from = ahead.next_or(key_lines, null()).0;
                    of.block_scores(keys, q.cast(), scores.add(b * BLOCK_TOKENS), from);
                }
            } else {
                for b in (first / 2 * 2..end).step_by(2) {
                    for _ in 0..(end.min(b + 2) - first.max(b)) * key_lines / 4 {
                        ahead.ask::<S>(4);
                    }
                    let keys = [keys[b].cast(), keys[b + 1].cast()];
                    for tile in (0..tiles).step_by(2) {
                        let two = [0, 1].map(|i| room.from((tile + i) * each));
                        let scores = two.map(|room| room.scores.add(b * BLOCK_TOKENS));
                        of.scores(keys, two.map(|room| room.q.cast_const().cast()), scores);
                    }
                }
            }
            ahead.put_back();
            for i in 0..heads * queries {
                let mut largest = S::splat(f32::NEG_INFINITY);
                for b in first..end {
                    let at = i * CHUNK_TOKENS + b * BLOCK_TOKENS;
                    largest = S::max(largest, S::load(room.scores.add(at)));
                }
                S::store(room.largest.add(i * LANES), largest);
            }
        }
    }

    /// Adds the weighted values of a chunk, of whose tokens each row, of `group` queries of each head, sees its part.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's of `heads` heads and has the rounded weights of what is seen.
    #[inline(always)]
    pub(super) unsafe fn tile_values<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        (group, heads): (usize, usize),
        parts: &[(usize, usize)],
        ahead: Option<&Cell<Ahead>>,
        room: Room,
    ) {
        let &Chunk { first, end, values: ref blocks, .. } = chunk;
        let (d, queries) = (self.kv.d, parts.len() * group);
        let (tiles, each) = cut(queries);
        let all = (first * BLOCK_TOKENS, end * BLOCK_TOKENS);
        // What all rows see.
        let common =
            parts.iter().fold(all, |common, part| (common.0.max(part.0), common.1.min(part.1)));
        // What somebody sees and what all see of a block. The rest may be anything, and is no number of ours.
        let masks = |b: usize| {
            if common.0 <= b * BLOCK_TOKENS && (b + 1) * BLOCK_TOKENS <= common.1 {
                return (ALL, ALL);
            }
            let masks = parts.iter().map(|&part| seen(part, b));
            masks.fold((0, ALL), |(any, all), mask| (any | mask, all & mask))
        };
        // SAFETY: as the caller's.
        unsafe {
            if common != all {
                for i in 0..heads * queries {
                    let (from, to) = parts[i % queries / group];
                    let (from, to) = if from < to { (from, to) } else { (all.1, all.1) };
                    let weights = room.rounded.add(i * CHUNK_TOKENS);
                    weights.add(all.0).write_bytes(0, from - all.0);
                    weights.add(to).write_bytes(0, all.1 - to);
                }
            }
            let kept = |b: usize| room.kept.add(b * BLOCK_TOKENS * d);
            let of = Queries::with_values(each, d);
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
                    let Room { rounded, sums, .. } = room.from(k * queries);
                    let weights = rounded.add(b * BLOCK_TOKENS);
                    of.add_block_values(&[values], weights, sums, Some(&mut ahead));
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
            let mut b = first;
            while b < end {
                let count = apart[b..end].iter().take_while(|&&apart| !apart).count();
                let some = &values[b..b + count];
                let of_tile = |tile: usize| {
                    let Room { rounded, sums, .. } = room.from(tile * each);
                    (rounded.add(b * BLOCK_TOKENS).cast_const(), sums)
                };
                if some.is_empty() {
                    // A weight of zero makes no zero of what is no number: each query takes what it sees.
                    for query in 0..queries {
                        let seen = seen(parts[query / group], b);
                        let value = |pair: usize, i: usize| {
                            let at = values[b].add(2 * (pair * d + i));
                            [0, 1].map(|t| match seen >> (2 * pair + t) & 1 {
                                0 => bf16::ZERO,
                                _ => *at.add(t),
                            })
                        };
                        let (weights, sums) = of_tile(query / each);
                        let row = query % each;
                        let weights = weights.add(row * CHUNK_TOKENS);
                        of.model_values(weights, sums.add(row * LANES), value);
                    }
                    b += 1;
                    continue;
                }
                if tiles == 1 {
                    let (weights, sums) = of_tile(0);
                    of.add_block_values(some, weights, sums, Some(&mut ahead));
                } else if has_amx() {
                    for i in (0..d).step_by(2 * LANES) {
                        for _ in 0..count * PAIRS / 2 {
                            ahead.ask::<S>(4);
                        }
                        for tile in (0..tiles).step_by(2) {
                            let [(a, a_sums), (b, b_sums)] = [tile, tile + 1].map(of_tile);
                            of.add_values(some, [a, b], [a_sums, b_sums], i);
                        }
                    }
                } else {
                    for (weights, sums) in (0..tiles).map(of_tile) {
                        of.model_block_values(some, weights, sums);
                    }
                }
                b += count;
            }
            ahead.put_back();
        }
    }
}
