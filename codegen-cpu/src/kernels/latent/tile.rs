//! The innermost loops: places against queries, weights against values.
//!
//! Queries lie across the lanes of vectors, at most [`WIDTH`] of them, so that memory is used in
//! the order in which it is stored. Every sum takes its products one after another, whatever else
//! is computed beside it.

use crate::kernels::matmul::Product;
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};

/// The most queries at once, and columns of a strip of values.
pub(super) const WIDTH: usize = 64;
/// Places that are processed together.
pub(super) const CHUNK: usize = 64;
const VECTORS: usize = WIDTH / LANES;
/// Groups of a block of queries, 16 KiB, which stays in the first-level cache.
const BLOCK_GROUPS: usize = 64;

/// Rows of places and the queries that meet them.
pub(super) struct Scores<P: Product> {
    /// The first row.
    pub(super) keys: *const P::X,
    /// Elements between rows.
    pub(super) stride: usize,
    /// Queries `[groups][WIDTH][group]`.
    pub(super) queries: *const P::X,
    /// Groups of elements of a key.
    pub(super) groups: usize,
    /// Scores `[CHUNK][WIDTH]`.
    pub(super) scores: *mut f32,
}

impl<P: Product> Scores<P> {
    /// The scores of `places` places, rounded up to 8, for `vectors` vectors of queries.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name and [`CHUNK`] rows.
    #[inline(always)]
    pub(super) unsafe fn compute<S: Simd>(&self, places: usize, vectors: usize) {
        for first in (0..self.groups).step_by(BLOCK_GROUPS) {
            let groups = (first, BLOCK_GROUPS.min(self.groups - first));
            // SAFETY: as the caller's.
            unsafe {
                let mut done = 0;
                while S::WIDE && vectors - done >= 4 {
                    self.tiles::<S, 4, 4>(groups, places, done);
                    done += 4;
                }
                while S::WIDE && vectors - done >= 2 {
                    self.tiles::<S, 8, 2>(groups, places, done);
                    done += 2;
                }
                while done < vectors {
                    match S::WIDE {
                        true => self.tiles::<S, 8, 1>(groups, places, done),
                        false => self.tiles::<S, 4, 1>(groups, places, done),
                    }
                    done += 1;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn tiles<S: Simd, const R: usize, const V: usize>(
        &self,
        groups: (usize, usize),
        places: usize,
        vector: usize,
    ) {
        for place in (0..places).step_by(R) {
            // SAFETY: as the caller's; `R` divides `CHUNK`.
            unsafe { S::enter(ScoreTile::<P, R, V> { of: self, groups, place, vector }) };
        }
    }
}

/// `R` places by `V` vectors of queries, for some groups.
struct ScoreTile<'a, P: Product, const R: usize, const V: usize> {
    of: &'a Scores<P>,
    /// The first, and how many.
    groups: (usize, usize),
    place: usize,
    vector: usize,
}

impl<P: Product, const R: usize, const V: usize> Vectorised for ScoreTile<'_, P, R, V> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let &Scores { keys, stride, queries, scores, .. } = self.of;
        let (first, count) = self.groups;
        // SAFETY: as for `Scores::compute`.
        unsafe {
            let scores = scores.add(self.place * WIDTH + self.vector * LANES);
            let mut acc = [[S::splat(0.0); V]; R];
            if first > 0 {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (v, a) in row.iter_mut().enumerate() {
                        *a = S::load(scores.add(r * WIDTH + v * LANES));
                    }
                }
            }
            let mut w = queries.cast::<u32>().add(first * WIDTH + self.vector * LANES);
            let mut x = keys.add(self.place * stride + first * P::GROUP);
            for _ in 0..count {
                P::step::<S, R, V>(w, x, stride, &mut acc);
                w = w.wrapping_add(WIDTH);
                x = x.wrapping_add(P::GROUP);
            }
            for (r, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    S::store(scores.add(r * WIDTH + v * LANES), *a);
                }
            }
        }
    }
}

/// A strip of [`WIDTH`] columns of values and the weights they are summed with.
pub(super) struct Mix<P: Product> {
    /// Values `[CHUNK / group][WIDTH][group]`.
    pub(super) values: *const P::X,
    /// The last group when it is not full: the values of the places that there are, then zeros.
    pub(super) tail: *const P::X,
    /// Weights `[CHUNK / group][WIDTH][group]`, zeros after the last place.
    pub(super) weights: *const P::X,
    /// Places.
    pub(super) places: usize,
    /// Sums `[queries][WIDTH]`.
    pub(super) sums: *mut f32,
    /// What the sums are multiplied with before, one factor for each query.
    pub(super) factors: *const f32,
}

impl<P: Product> Mix<P> {
    /// Adds to the sums of some queries.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name.
    #[inline(always)]
    pub(super) unsafe fn accumulate<S: Simd>(&self, queries: std::ops::Range<usize>) {
        let mut query = queries.start;
        // SAFETY: as the caller's.
        unsafe {
            while queries.end - query >= 4 {
                if S::WIDE {
                    S::enter(MixTile::<P, 4, VECTORS> { of: self, query, vector: 0 });
                } else {
                    for vector in 0..VECTORS {
                        S::enter(MixTile::<P, 4, 1> { of: self, query, vector });
                    }
                }
                query += 4;
            }
            while query < queries.end {
                S::enter(MixTile::<P, 1, VECTORS> { of: self, query, vector: 0 });
                query += 1;
            }
        }
    }
}

/// `R` queries by `V` vectors of columns.
struct MixTile<'a, P: Product, const R: usize, const V: usize> {
    of: &'a Mix<P>,
    query: usize,
    vector: usize,
}

impl<P: Product, const R: usize, const V: usize> Vectorised for MixTile<'_, P, R, V> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let &Mix { values, tail, weights, places, sums, factors } = self.of;
        // SAFETY: as for `Mix::accumulate`.
        unsafe {
            let column = self.vector * LANES;
            let sums = sums.add(self.query * WIDTH + column);
            let mut acc = [[S::splat(0.0); V]; R];
            for (r, row) in acc.iter_mut().enumerate() {
                let factor = S::splat(*factors.add(self.query + r));
                for (v, a) in row.iter_mut().enumerate() {
                    *a = S::mul(S::load(sums.add(r * WIDTH + v * LANES)), factor);
                }
            }
            let mut w = values.cast::<u32>().add(column);
            let mut x = weights.add(self.query * P::GROUP);
            for _ in 0..places / P::GROUP {
                P::step::<S, R, V>(w, x, P::GROUP, &mut acc);
                w = w.wrapping_add(WIDTH);
                x = x.wrapping_add(WIDTH * P::GROUP);
            }
            if !places.is_multiple_of(P::GROUP) {
                P::step::<S, R, V>(tail.cast::<u32>().add(column), x, P::GROUP, &mut acc);
            }
            for (r, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    S::store(sums.add(r * WIDTH + v * LANES), *a);
                }
            }
        }
    }
}
