//! Latent attention with AMX, whatever the number of queries. A tile of places meets the packed queries as rows of inputs meet
//! a panel of weights, and a tile of weights, query by query, a strip of values.

use super::tile::{CHUNK, WIDTH};
use crate::kernels::matmul::{Ahead, ROW_BYTES, STEP_GROUPS, Steps, Sums, TILE_ROWS, Tiles};
use crate::kernels::simd::{LANES, Simd};
use half::bf16;
use std::ops::Range;

/// Elements of a step along a key, and places of one along the values.
pub(super) const STEP: usize = 2 * STEP_GROUPS;
/// Elements of a step of a panel of queries, or of a strip of values.
pub(super) const PANEL_STEP: usize = STEP * WIDTH;

/// Working memory beside that of vectors.
#[derive(Clone, Copy)]
pub(super) struct Space {
    /// Weights `[WIDTH][CHUNK]`.
    pub(super) weights: *mut bf16,
    /// The last step of each strip, if it is not whole.
    pub(super) last: *mut bf16,
    /// Sums of a tile of queries `[16][WIDTH]`.
    pub(super) sums: *mut f32,
}

impl Space {
    pub(super) const WEIGHTS: usize = WIDTH * CHUNK;
    pub(super) const SUMS: usize = TILE_ROWS * WIDTH;

    /// Elements of the last steps of so many strips.
    pub(super) const fn last(strips: usize) -> usize {
        strips * PANEL_STEP
    }
}

/// Scores `[CHUNK][WIDTH]` of `places` places, of which keys are rows `stride` elements apart, with queries
/// `[groups][WIDTH][2]`: `steps` steps of both.
///
/// # Safety
/// The machine has AMX, or a model of it; the pointers are valid for as many, and this thread has no tiles.
pub(super) unsafe fn scores(
    (keys, stride): (*const bf16, usize),
    queries: *const bf16,
    steps: usize,
    places: usize,
    scores: *mut f32,
) {
    // SAFETY: as the caller's; a chunk has whole tiles of places.
    unsafe {
        let tiles = Tiles::new(TILE_ROWS);
        for place in (0..places).step_by(TILE_ROWS) {
            let sums = Sums::row(scores.add(place * WIDTH).cast());
            let steps = Steps {
                weights: queries.cast(),
                count: steps,
                x: keys.add(place * stride).cast(),
                stride: stride * size_of::<bf16>(),
                x_step: ROW_BYTES,
                ahead: Ahead::NOTHING,
            };
            sums.zero(&tiles);
            steps.pairs(&tiles, sums);
            sums.store();
        }
    }
}

/// Weights `[CHUNK / 2][WIDTH][2]` of `places` places query by query, with zeros up to a whole step.
///
/// # Safety
/// Both are valid for a chunk.
pub(super) unsafe fn turn(weights: *const bf16, places: usize, queries: usize, to: *mut bf16) {
    let (from, to): (*const u32, *mut u32) = (weights.cast(), to.cast());
    let groups = places.div_ceil(2);
    // SAFETY: as the caller's; pairs lie at multiples of their size.
    unsafe {
        for group in 0..groups {
            for query in 0..queries {
                *to.add(query * (CHUNK / 2) + group) = *from.add(group * WIDTH + query);
            }
        }
        for query in 0..queries {
            let rest = groups.next_multiple_of(STEP_GROUPS) - groups;
            to.add(query * (CHUNK / 2) + groups).write_bytes(0, rest);
        }
    }
}

/// Strips of [`WIDTH`] columns of values, and what is summed of them.
pub(super) struct Mix {
    /// Weights, as [`turn`] leaves them.
    pub(super) space: Space,
    /// Values `[strips][CHUNK / 2][WIDTH][2]`.
    pub(super) values: *const bf16,
    pub(super) strips: usize,
    /// Places; of those after the last whole step, values lie in [`Space::last`].
    pub(super) places: usize,
    /// Queries of a strip of sums.
    pub(super) queries: usize,
    /// Sums `[strips][queries][WIDTH]`.
    pub(super) sums: *mut f32,
    /// What the sums are multiplied with before, one factor for each query.
    pub(super) factors: *const f32,
}

impl Mix {
    /// Adds to the sums of some queries.
    ///
    /// # Safety
    /// As [`Simd`] and [`scores`].
    #[inline(always)]
    pub(super) unsafe fn accumulate<S: Simd>(&self, some: Range<usize>) {
        let &Self { space, values, strips, places, queries, sums, factors } = self;
        let (whole, rest) = (places / STEP, places % STEP);
        // SAFETY: as the caller's.
        unsafe {
            for query in some.clone().step_by(TILE_ROWS) {
                let rows = TILE_ROWS.min(some.end - query);
                let tiles = Tiles::new(rows);
                let x = space.weights.add(query * CHUNK);
                for strip in 0..strips {
                    let products = Sums::row(space.sums.cast());
                    let steps = Steps {
                        weights: values.add(strip * WIDTH * CHUNK).cast(),
                        count: whole,
                        x: x.cast_const().cast(),
                        stride: CHUNK * size_of::<bf16>(),
                        x_step: ROW_BYTES,
                        ahead: Ahead::NOTHING,
                    };
                    products.zero(&tiles);
                    if whole > 0 {
                        steps.pairs(&tiles, products);
                    }
                    if rest > 0 {
                        let weights = space.last.add(strip * PANEL_STEP).cast_const().cast();
                        let x = x.add(whole * STEP).cast_const().cast();
                        Steps { weights, count: 1, x, ..steps }.pairs(&tiles, products);
                    }
                    products.store();
                    for row in 0..rows {
                        let factor = S::splat(*factors.add(query + row));
                        let sums = sums.add((strip * queries + query + row) * WIDTH);
                        for i in (0..WIDTH).step_by(LANES) {
                            let more = S::load(space.sums.add(row * WIDTH + i));
                            let sum = S::mul_add(S::load(sums.add(i)), factor, more);
                            S::store(sums.add(i), sum);
                        }
                    }
                }
            }
        }
    }
}
