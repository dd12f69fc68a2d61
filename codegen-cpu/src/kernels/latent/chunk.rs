//! What a work item of latent attention does with its queries and with each chunk of places. It
//! depends on neither the output nor the choice of places, so that it is compiled once for all.

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::pack::{self, Parts};
use super::tile::{CHUNK, Mix, Scores, WIDTH};
use super::{Paged, Tables};
use crate::kernels::bind::Rows;
use crate::kernels::element::Element;
use crate::kernels::exp::exp;
use crate::kernels::matmul::{Product, STEP_GROUPS, Weight};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};
use std::ops::Range;

/// Queries and memories of latent attention.
pub(super) struct Inputs<T> {
    pub(super) tables: Tables,
    pub(super) heads: usize,
    /// Elements of a latent and of a rotated key.
    pub(super) c: usize,
    pub(super) r: usize,
    pub(super) scale: f32,
    /// Whether AMX multiplies pairs, in an order of its own.
    #[cfg(target_arch = "x86_64")]
    pub(super) tiles: bool,
    pub(super) q_latent: Rows<f32>,
    pub(super) q_rope: Rows<f32>,
    pub(super) latent: Paged<T>,
    pub(super) rope: Paged<T>,
}

/// Some heads of a row, or all heads of some rows of a sequence and then at most [`WIDTH`] queries:
/// query `i` is head `head + i % heads` of row `row + i / heads`.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) sequence: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) head: usize,
    pub(super) heads: usize,
}

impl Item {
    #[inline(always)]
    pub(super) fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// Parts of at most [`WIDTH`] queries.
    #[inline(always)]
    pub(super) fn panels(self) -> impl Iterator<Item = (usize, Self)> {
        (0..self.queries().div_ceil(WIDTH)).map(move |panel| match self.rows {
            1 => {
                let first = panel * WIDTH;
                let heads = (self.heads - first).min(WIDTH);
                (panel, Self { head: self.head + first, heads, ..self })
            }
            _ => (panel, self),
        })
    }
}

/// Working memory of an item.
#[derive(Clone, Copy)]
pub(super) struct Space<X> {
    /// Rows of a chunk, latent then rotated key.
    keys: *mut X,
    /// Latents of a chunk in strips, and the last group of a row whose places end inside one.
    values: *mut X,
    tail: *mut X,
    weights: *mut X,
    scores: *mut f32,
    factors: *mut f32,
    /// Of each panel, one after another: packed queries.
    queries: *mut X,
    /// Sums `[strips][queries][WIDTH]`.
    pub(super) sums: *mut f32,
    maxima: *mut f32,
    pub(super) totals: *mut f32,
    #[cfg(target_arch = "x86_64")]
    tiles: amx::Space,
}

impl<T: Weight> Inputs<T> {
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

    /// Elements of a key with zeros up to a whole step of tiles.
    #[inline(always)]
    fn depth(&self) -> usize {
        (self.c + self.r).next_multiple_of(2 * STEP_GROUPS)
    }

    /// Where the parts of the working memory at `start` lie, and how many bytes they take.
    #[inline(always)]
    pub(super) fn space<P: Product>(&self, start: *mut u8) -> (Space<P::X>, usize) {
        let mut parts = Parts::new(start);
        let (columns, queries) = (self.strips() * WIDTH, self.heads.next_multiple_of(WIDTH));
        let space = Space {
            keys: parts.take(CHUNK * self.stride()),
            values: parts.take(columns * CHUNK),
            tail: parts.take(columns * P::GROUP),
            weights: parts.take(CHUNK * WIDTH),
            scores: parts.take(CHUNK * WIDTH),
            factors: parts.take(WIDTH),
            queries: parts.take(self.depth() * queries),
            sums: parts.take(columns * queries),
            maxima: parts.take(queries),
            totals: parts.take(queries),
            #[cfg(target_arch = "x86_64")]
            tiles: amx::Space {
                weights: parts.take(amx::Space::WEIGHTS),
                last: parts.take(amx::Space::last(self.strips())),
                sums: parts.take(amx::Space::SUMS),
            },
        };
        (space, parts.bytes())
    }

    /// The working memory of a panel.
    #[inline(always)]
    pub(super) fn panel<X>(&self, space: &Space<X>, panel: usize) -> Space<X> {
        let (first, columns) = (panel * WIDTH, self.strips() * WIDTH);
        Space {
            queries: space.queries.wrapping_add(self.depth() * first),
            sums: space.sums.wrapping_add(columns * first),
            maxima: space.maxima.wrapping_add(first),
            totals: space.totals.wrapping_add(first),
            ..*space
        }
    }
}

/// Packs the queries of an item and clears its sums.
///
/// Its conditions: sequence, rows and heads were bound, working memory is as large as
/// [`Inputs::space`] says.
pub(super) struct Begin<'a, T, P: Product> {
    pub(super) inputs: &'a Inputs<T>,
    pub(super) space: &'a Space<P::X>,
    pub(super) item: Item,
}

impl<T: Weight, P: Product<X: Element>> Vectorised for Begin<'_, T, P> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (panel, item) in self.item.panels() {
            // SAFETY: as for `Begin`.
            unsafe { self.panel::<S>(&self.inputs.panel(self.space, panel), item) };
        }
    }
}

impl<T: Weight, P: Product<X: Element>> Begin<'_, T, P> {
    /// # Safety
    /// As for [`Begin`].
    #[inline(always)]
    unsafe fn panel<S: Simd>(&self, space: &Space<P::X>, item: Item) {
        let (inputs, queries) = (self.inputs, item.queries());
        let (c, r) = (inputs.c, inputs.r);
        // SAFETY: as for `Begin`.
        unsafe {
            for lane in 0..queries {
                let (row, head) = (item.row + lane / item.heads, item.head + lane % item.heads);
                let (latent, rope) = (inputs.q_latent.row(row), inputs.q_rope.row(row));
                let (to, scale) = (space.queries, inputs.scale);
                pack::query::<S, P>(latent.add(head * c), c, scale, to, 0, lane);
                pack::query::<S, P>(rope.add(head * r), r, scale, to, c, lane);
            }
            for lane in queries..queries.next_multiple_of(LANES) {
                pack::no_query::<P>(space.queries, (c + r) / P::GROUP, lane);
            }
            let beyond = space.queries.add((c + r) * WIDTH);
            beyond.write_bytes(0, (inputs.depth() - c - r) * WIDTH);
            space.sums.write_bytes(0, queries * inputs.strips() * WIDTH);
            for lane in 0..WIDTH {
                *space.maxima.add(lane) = f32::NEG_INFINITY;
                *space.totals.add(lane) = 0.0;
            }
        }
    }
}

/// One step of the running softmax of all queries over up to [`CHUNK`] places.
///
/// Its conditions are those of [`Begin`], which came before; the table covers the places.
pub(super) struct Step<'a, T, P: Product> {
    pub(super) inputs: &'a Inputs<T>,
    pub(super) space: Space<P::X>,
    pub(super) item: Item,
    /// Places of the first row. With more rows these are all, from the number of `start` on.
    pub(super) places: &'a [usize],
    pub(super) start: usize,
}

impl<T: Weight, P: Product<X: Element>> Vectorised for Step<'_, T, P> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let whole = (self.space, self.item);
        // SAFETY: as for `Step`.
        unsafe {
            self.load::<S>();
            for (panel, item) in whole.1.panels() {
                (self.space, self.item) = (self.inputs.panel(&whole.0, panel), item);
                self.panel::<S>();
            }
        }
    }
}

impl<T: Weight, P: Product<X: Element>> Step<'_, T, P> {
    /// The step of one panel of queries.
    ///
    /// # Safety
    /// As for [`Step`]; the places were loaded.
    #[inline(always)]
    unsafe fn panel<S: Simd>(&self) {
        let Self { inputs, space, item, places, start } = self;
        let count = places.len();
        // SAFETY: as for `Step`.
        unsafe {
            self.scores::<S>();
            // How many of the places a row sees.
            let seen = |r: usize| match item.rows {
                1 => count,
                _ => inputs.tables.context(item.row + r).saturating_sub(*start).min(count),
            };
            for r in 0..item.rows {
                for place in seen(r)..count.next_multiple_of(P::GROUP) {
                    let row = space.scores.add(place * WIDTH + r * item.heads);
                    std::slice::from_raw_parts_mut(row, item.heads).fill(f32::NEG_INFINITY);
                }
            }
            for vector in 0..item.queries().div_ceil(LANES) {
                self.soften::<S>(vector * LANES);
            }
            #[cfg(target_arch = "x86_64")]
            if const { in_tiles::<S, P>() } && inputs.tiles {
                let weights = space.weights.cast_const().cast();
                amx::turn(weights, count, item.queries(), space.tiles.weights);
            }
            // The last rows that see all places go together.
            let apart = (0..item.rows).rev().find(|&r| seen(r) < count).map_or(0, |r| r + 1);
            for r in 0..apart {
                self.mix::<S>(seen(r), r * item.heads..(r + 1) * item.heads);
            }
            self.mix::<S>(count, apart * item.heads..item.queries());
        }
    }

    /// Scores of the places for all queries.
    ///
    /// # Safety
    /// As for [`Step::panel`].
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self) {
        let Self { inputs, space, item, places, .. } = self;
        let (stride, queries, scores) = (inputs.stride(), space.queries, space.scores);
        // SAFETY: as the caller's.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if const { in_tiles::<S, P>() } && inputs.tiles {
                let keys = (space.keys.cast_const().cast(), stride);
                let steps = inputs.depth() / amx::STEP;
                let queries = queries.cast_const().cast();
                return amx::scores(keys, queries, steps, places.len(), scores);
            }
            let groups = (inputs.c + inputs.r) / P::GROUP;
            Scores::<P> { keys: space.keys, stride, queries, groups, scores }
                .compute::<S>(places.len(), item.queries().div_ceil(LANES));
        }
    }

    /// Reads the rows of the places.
    ///
    /// # Safety
    /// As for [`Step`].
    #[inline(always)]
    unsafe fn load<S: Simd>(&self) {
        let Self { inputs, space, item, places, .. } = self;
        let (stride, Inputs { c, r, latent, rope, .. }) = (inputs.stride(), inputs);
        // SAFETY: as the caller's.
        unsafe {
            for (i, &place) in places.iter().enumerate() {
                let slot = |blocks| inputs.tables.slot(item.sequence, place, blocks);
                let to = space.keys.add(i * stride);
                pack::row::<S, T, P::X>(latent.row(slot(latent.blocks)), to, *c);
                pack::row::<S, T, P::X>(rope.row(slot(rope.blocks)), to.add(*c), *r);
                to.add(c + r).write_bytes(0, inputs.depth() - c - r);
            }
            for strip in 0..inputs.strips() {
                let keys = space.keys.add(strip * WIDTH);
                let to = space.values.add(strip * WIDTH * CHUNK);
                for g in 0..places.len() / P::GROUP {
                    let rows = keys.add(g * P::GROUP * stride);
                    let to = to.add(g * WIDTH * P::GROUP);
                    pack::group::<P, WIDTH>(rows, stride, P::GROUP, to);
                }
            }
        }
    }

    /// Turns the scores of a vector of queries, from `lane` on, into weights under the new maxima,
    /// and updates maxima, totals and the factors of what was summed before.
    ///
    /// # Safety
    /// As for [`Step`].
    #[inline(always)]
    unsafe fn soften<S: Simd>(&self, lane: usize) {
        let (space, count) = (&self.space, self.places.len());
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

    /// Adds the weighted values of the first `places` places to the sums of some queries.
    ///
    /// # Safety
    /// As for [`Step`].
    #[inline(always)]
    unsafe fn mix<S: Simd>(&self, places: usize, some: Range<usize>) {
        if places == 0 || some.is_empty() {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if const { in_tiles::<S, P>() } && self.inputs.tiles {
            // SAFETY: as the caller's.
            return unsafe { self.mix_tiles::<S>(places, some) };
        }
        let Self { inputs, space, item, .. } = self;
        let (left, stride) = (places % P::GROUP, inputs.stride());
        for strip in 0..inputs.strips() {
            // SAFETY: as the caller's.
            unsafe {
                let tail = space.tail.add(strip * WIDTH * P::GROUP);
                if left > 0 {
                    let keys = space.keys.add((places - left) * stride + strip * WIDTH);
                    pack::group::<P, WIDTH>(keys, stride, left, tail);
                }
                Mix::<P> {
                    values: space.values.add(strip * WIDTH * CHUNK),
                    tail,
                    weights: space.weights,
                    places,
                    sums: space.sums.add(strip * WIDTH * item.queries()),
                    factors: space.factors,
                }
                .accumulate::<S>(some.clone());
            }
        }
    }

    /// [`Step::mix`] by tiles. Values of places after these meet no weight: they may be no numbers.
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn mix_tiles<S: Simd>(&self, places: usize, some: Range<usize>) {
        let Self { inputs, space, item, .. } = self;
        let (strips, stride) = (inputs.strips(), inputs.stride());
        let (values, first) = (space.values, places / amx::STEP * amx::STEP);
        let unfinished = if places > first { strips } else { 0 };
        // SAFETY: as the caller's.
        unsafe {
            for strip in 0..unfinished {
                let to: *mut P::X = space.tiles.last.add(strip * amx::PANEL_STEP).cast();
                let pairs = (places - first) / 2 * 2 * WIDTH;
                let from = values.add((strip * CHUNK + first) * WIDTH);
                to.copy_from_nonoverlapping(from, pairs);
                to.add(pairs).write_bytes(0, amx::PANEL_STEP - pairs);
                if places % 2 == 1 {
                    let keys = space.keys.add((places - 1) * stride + strip * WIDTH);
                    pack::group::<P, WIDTH>(keys, stride, 1, to.add(pairs));
                }
            }
            let mix = amx::Mix {
                space: space.tiles,
                values: values.cast_const().cast(),
                strips,
                places,
                queries: item.queries(),
                sums: space.sums,
                factors: space.factors,
            };
            mix.accumulate::<S>(some);
        }
    }
}

/// Whether tiles may multiply what vectors of `S` would as `P`.
#[cfg(target_arch = "x86_64")]
const fn in_tiles<S: Simd, P: Product>() -> bool {
    P::GROUP == 2 && S::PAIR_DOT
}
