//! Attention over codes of 8 bits with AMX tiles, for items of many queries. Sums of whole numbers are exact, so that they
//! have the bits that [`super::codes`] gives.
//!
//! A tile of queries, or of their weights, is multiplied in both of its planes: two tiles of inputs that meet those of two
//! blocks of keys, or of 16 elements of values twice.

use super::Attention;
use super::ahead::{Ahead, Taken};
use super::amx::{TILE_QUERIES, cut};
use super::item::{Chunk, Room};
use super::numbers::Sum;
use super::tile::{CHUNK_BLOCKS, CHUNK_TOKENS, CODE_STEP, KvElement};
use crate::device::has_amx;
use crate::kernels::element::Element;
use crate::kernels::kv::{BLOCK_TOKENS, CODE_GROUP};
use crate::kernels::matmul::{ROW_BYTES, Tiles};
use crate::kernels::simd::{LANES, LINE_BYTES, Simd};
use std::arch::asm;
use std::cell::Cell;

/// Blocks of a step of values.
pub(super) const STEP_BLOCKS: usize = CODE_STEP / BLOCK_TOKENS;
/// Groups of tokens of a block: rows of a tile of values.
const BLOCK_GROUPS: usize = BLOCK_TOKENS / CODE_GROUP;
/// Bytes of a tile of keys, or of values.
const TILE_BYTES: usize = 16 * ROW_BYTES;

/// Floats of working memory for a chunk of values of `d` elements in tiles, and for the sums of a tile of queries.
pub(super) const fn floats(d: usize) -> usize {
    CHUNK_TOKENS * d / size_of::<f32>() + sums_len(d)
}

/// Sums of both planes of a tile of queries.
const fn sums_len(d: usize) -> usize {
    2 * TILE_QUERIES * if d > CHUNK_TOKENS { d } else { CHUNK_TOKENS }
}

/// How far behind the first plane of a query the second one begins, and how far behind a step the next one, in bytes, in
/// tiles of `each` queries.
pub(super) const fn apart(each: usize) -> (usize, usize) {
    (each * ROW_BYTES, 2 * each * ROW_BYTES)
}

/// Both planes of a tile of whole numbers: where each begins, bytes between rows, and bytes between steps.
#[derive(Clone, Copy)]
struct Planes {
    planes: [*const u8; 2],
    stride: usize,
    step: usize,
}

/// Two neighbouring columns of tiles of codes: where each begins, and bytes between steps.
#[derive(Clone, Copy)]
struct Columns {
    codes: [*const u8; 2],
    step: usize,
}

/// Sums of both planes: where each begins, and numbers between rows.
#[derive(Clone, Copy)]
struct Sums {
    planes: [*mut i32; 2],
    stride: usize,
}

/// Writes the products of `steps` steps, two tiles of 16 numbers for each plane.
///
/// # Safety
/// Everything is valid for the rows of `tiles`, which are this thread's.
#[inline(always)]
unsafe fn multiply(tiles: &Tiles, x: Planes, columns: Columns, steps: usize, sums: Sums) {
    // SAFETY: the caller's promise.
    unsafe {
        if !has_amx() {
            return model(tiles.rows, x, columns, steps, sums);
        }
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{high} + {stride}*1]",
            "tileloadd tmm6, [{a} + {line}*1]",
            "tileloadd tmm7, [{b} + {line}*1]",
            "tileloadd tmm5, [{low} + {stride}*1]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tdpbsud tmm1, tmm4, tmm7",
            "tdpbsud tmm2, tmm5, tmm6",
            "tdpbsud tmm3, tmm5, tmm7",
            "add {high}, {x_step}",
            "add {low}, {x_step}",
            "add {a}, {step}",
            "add {b}, {step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to_high} + {to_stride}*1], tmm0",
            "tilestored [{to_high} + {to_stride}*1 + 64], tmm1",
            "tilestored [{to_low} + {to_stride}*1], tmm2",
            "tilestored [{to_low} + {to_stride}*1 + 64], tmm3",
            high = inout(reg) x.planes[0] => _,
            low = inout(reg) x.planes[1] => _,
            stride = in(reg) x.stride,
            x_step = in(reg) x.step,
            a = inout(reg) columns.codes[0] => _,
            b = inout(reg) columns.codes[1] => _,
            line = in(reg) LINE_BYTES,
            step = in(reg) columns.step,
            steps = inout(reg) steps => _,
            to_high = in(reg) sums.planes[0],
            to_low = in(reg) sums.planes[1],
            to_stride = in(reg) sums.stride * size_of::<i32>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// [`multiply`] in plain Rust.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn model(rows: usize, x: Planes, columns: Columns, steps: usize, sums: Sums) {
    for plane in 0..2 {
        for (row, column) in (0..rows).flat_map(|row| (0..2 * LANES).map(move |c| (row, c))) {
            let mut sum = 0i32;
            for (step, i) in (0..steps).flat_map(|s| (0..ROW_BYTES).map(move |i| (s, i))) {
                let at = i / CODE_GROUP * LINE_BYTES + column % LANES * CODE_GROUP + i % CODE_GROUP;
                // SAFETY: inside what the caller vouches for.
                let (number, code) = unsafe {
                    let x = x.planes[plane].add(row * x.stride + step * x.step + i);
                    (
                        x.cast::<i8>().read(),
                        *columns.codes[column / LANES].add(step * columns.step + at),
                    )
                };
                sum += i32::from(number) * i32::from(code);
            }
            // SAFETY: as above.
            unsafe { sums.planes[plane].add(row * sums.stride + column).write(sum) };
        }
    }
}

impl<T: KvElement, O: Element> Attention<T, O> {
    /// Whether tiles of bytes meet `queries` queries of a head.
    #[inline(always)]
    pub(super) fn takes_bytes(&self, queries: usize) -> bool {
        T::CODES && self.tiles && queries > TILE_QUERIES
    }

    /// Scores of an item's `queries` queries of a head with a chunk, as [`KvElement::scores`] has them.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's, whose queries lie in tiles as [`apart`] says.
    #[inline(always)]
    pub(super) unsafe fn byte_scores<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        queries: usize,
        ahead: Option<&Cell<Ahead>>,
        room: Room,
    ) {
        let &Chunk { first, end, ref keys, .. } = chunk;
        let (d, (tiles, each)) = (self.kv.d, cut(queries));
        let (plane, step) = apart(each);
        // SAFETY: as the caller's; keys of blocks that hold no tokens are those of some block.
        unsafe {
            let of = Tiles::new(each);
            let mut ahead = Taken::new(ahead);
            let sums = self.sums(room, CHUNK_TOKENS);
            for tile in 0..tiles {
                let room = room.from(tile * each);
                let high = room.q.cast_const().cast::<u8>();
                let x = Planes { planes: [high, high.add(plane)], stride: ROW_BYTES, step };
                for b in (first / 2 * 2..end).step_by(2) {
                    if tile == 0 {
                        self.ask_for_blocks::<S>(end.min(b + 2) - first.max(b), &mut ahead);
                    }
                    let codes = [keys[b].cast(), keys[b + 1].cast()];
                    let planes = sums.planes.map(|plane| plane.add(b * BLOCK_TOKENS));
                    let columns = Columns { codes, step: TILE_BYTES };
                    multiply(&of, x, columns, d / CODE_STEP, Sums { planes, ..sums });
                }
                for query in 0..each.min(queries.saturating_sub(tile * each)) {
                    let (factors, row) = (*room.q_factors.add(query), query * CHUNK_TOKENS);
                    let mut largest = S::splat(f32::NEG_INFINITY);
                    for (b, keys) in keys.iter().enumerate().take(end).skip(first) {
                        let at = b * BLOCK_TOKENS;
                        let sum = Sum::<S>::of_planes(sums.planes.map(|plane| plane.add(row + at)));
                        let scales = S::load(keys.add(self.kv.scales()).cast());
                        let by = S::mul(scales, S::splat(factors.scale));
                        let score = S::mul(sum.total(factors), by);
                        S::store(room.scores.add(row + at), score);
                        largest = S::max(largest, score);
                    }
                    S::store(room.largest.add(query * LANES), largest);
                }
            }
            ahead.put_back();
        }
    }

    /// Adds the weighted values of a chunk to the sums of an item's `queries` queries of a head.
    ///
    /// # Safety
    /// As for [`Attention::item`]; `room` is the item's and has whole numbers for the weights of all tokens of steps of
    /// which some are seen.
    #[inline(always)]
    pub(super) unsafe fn byte_values<S: Simd>(
        &self,
        chunk: &Chunk<T>,
        queries: usize,
        ahead: Option<&Cell<Ahead>>,
        room: Room,
    ) {
        let &Chunk { first, end, ref values, .. } = chunk;
        let (d, stride, (tiles, each)) = (self.kv.d, self.stride(), cut(queries));
        let (from, to) = (first / STEP_BLOCKS, end.div_ceil(STEP_BLOCKS));
        // SAFETY: as the caller's.
        unsafe {
            let of = Tiles::new(each);
            let mut ahead = Taken::new(ahead);
            let packed: *mut u8 = room.kept.cast();
            // Values of blocks that hold no tokens are those of some block, which meet zeros.
            for (b, values) in
                values.iter().enumerate().take(to * STEP_BLOCKS).skip(from * STEP_BLOCKS)
            {
                self.ask_for_blocks::<S>(1, &mut ahead);
                let to = packed.add(b / STEP_BLOCKS * CODE_STEP * d);
                for row in 0..BLOCK_GROUPS {
                    let values = values.cast::<u32>().add(row * d);
                    let to = to.add((b % STEP_BLOCKS * BLOCK_GROUPS + row) * ROW_BYTES);
                    for i in 0..d / LANES {
                        let words = S::load_bits(values.add(i * LANES));
                        S::store_bits(to.add(i * TILE_BYTES).cast(), words);
                    }
                }
            }
            ahead.put_back();
            let sums = self.sums(room, d);
            for tile in 0..tiles {
                let room = room.from(tile * each);
                let high = room.rounded.cast_const().cast::<u8>().add(from * CODE_STEP);
                let planes = [high, high.add(CHUNK_TOKENS)];
                let x = Planes { planes, stride: 2 * CHUNK_TOKENS, step: CODE_STEP };
                for i in (0..d).step_by(2 * LANES) {
                    let a = packed.add(from * CODE_STEP * d + i / LANES * TILE_BYTES).cast_const();
                    let columns = Columns { codes: [a, a.add(TILE_BYTES)], step: CODE_STEP * d };
                    let planes = sums.planes.map(|plane| plane.add(i));
                    multiply(&of, x, columns, to - from, Sums { planes, ..sums });
                }
                for query in 0..each.min(queries.saturating_sub(tile * each)) {
                    let factors = *room.factors.add(query);
                    let (row, by) = (query * d, S::splat(factors.scale));
                    for i in (0..d).step_by(LANES) {
                        let sum = Sum::<S>::of_planes(sums.planes.map(|plane| plane.add(row + i)));
                        let at = room.sums.add(query * stride + i);
                        S::store(at, S::mul_add(sum.total(factors), by, S::load(at)));
                    }
                }
            }
        }
    }

    /// Working memory for the sums of both planes of a tile of queries, in rows of `width` numbers.
    ///
    /// # Safety
    /// `room` is an item's.
    #[inline(always)]
    unsafe fn sums(&self, room: Room, width: usize) -> Sums {
        // SAFETY: the caller's promise.
        let high =
            unsafe { room.kept.cast::<i32>().add(CHUNK_TOKENS * self.kv.d / size_of::<i32>()) };
        let low = high.wrapping_add(TILE_QUERIES * width);
        Sums { planes: [high, low], stride: width }
    }

    /// Asks for as many lines as `blocks` blocks of keys, or of values, have.
    ///
    /// # Safety
    /// As [`Taken::ask`].
    #[inline(always)]
    unsafe fn ask_for_blocks<S: Simd>(&self, blocks: usize, ahead: &mut Taken<'_>) {
        for _ in 0..(blocks * self.kv.tile_len()).div_ceil(4 * LINE_BYTES) {
            // SAFETY: the caller's promise.
            unsafe { ahead.ask::<S>(4) };
        }
    }
}

const _: () = assert!(CODE_STEP == ROW_BYTES && CHUNK_BLOCKS.is_multiple_of(STEP_BLOCKS));
