//! The lightning indexer: which places a row attends to.
//!
//! Scores become integers of the same order, and the largest are found by counting digits, so the
//! choice is exact whatever the order of work.

use super::pack::{self, Parts};
use super::tile::{CHUNK, Scores, WIDTH};
use super::{Paged, Tables};
use crate::device::MOST_THREADS;
use crate::kernels::bind::{Binder, Kernel, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::kv::BLOCK_TOKENS;
use crate::kernels::matmul::Plain;
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};
use crate::kernels::worker::{Scratch, Worker};
use std::ops::Range;

/// Up to so many rows the threads share the context of each rather than the rows.
const FEW_ROWS: usize = 8;

/// `select_keys_{kv}`.
pub(crate) struct SelectKeys<T> {
    scorer: Scorer<T>,
    keys: usize,
    out: Rows<i32>,
}

/// What scores are made of.
struct Scorer<T> {
    tables: Tables,
    heads: usize,
    d: usize,
    scale: f32,
    q: Rows<f32>,
    weights: Rows<f32>,
    memory: Paged<T>,
}

/// A thread's working memory: packed queries and weights of up to [`WIDTH`] heads after another,
/// the keys of a chunk, its scores.
struct Space {
    queries: *mut f32,
    weights: *mut f32,
    keys: *mut f32,
    scores: *mut f32,
    /// Codes of the places of a row, when rows are not shared.
    codes: *mut u32,
}

impl<T: Element> Kernel for SelectKeys<T> {
    const DOTS: Dots = Dots::NONE;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let (t, s, w) = (b.positive("T")?, b.positive("S")?, b.positive("W")?);
        let (heads, d) = (b.positive("heads")?, b.positive("D")?);
        let (block_tokens, keys) = (b.count("block tokens")?, b.positive("keys")?);
        let scale = b.factor("scale")?;
        let (q_stride, weights_stride) = (b.count("q stride")?, b.count("weights stride")?);
        let out_stride = b.count("out stride")?;
        if product(&[w, BLOCK_TOKENS]).is_ok_and(|places| i32::try_from(places).is_err()) {
            return Err(format!("`W` is {w}, too large for the index of a place"));
        }
        // What shares are counted in, and working memory.
        product(&[t, w, 2 * BLOCK_TOKENS, MOST_THREADS, size_of::<u32>()])?;
        product(&[d.max(WIDTH), heads.max(WIDTH), 8 * CHUNK * size_of::<f32>()])?;
        let q = b.input("q", t, product(&[heads, d])?, q_stride)?;
        let weights = b.input("weights", t, heads, weights_stride)?;
        let memory = Paged::bind(b, "state", d, block_tokens)?;
        let tables = Tables::bind(b, t, s, w)?;
        let scorer = Scorer { tables, heads, d, scale, q, weights, memory };
        Ok(Self { scorer, keys, out: b.output("out", t, keys, out_stride)? })
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let private = self.space(std::ptr::null_mut()).1;
        let shared = if self.is_shared() { self.rows() * self.scorer.tables.places() } else { 0 };
        Scratch { private, shared: (shared * size_of::<u32>()).next_multiple_of(64) }
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: rows, places and working memory are inside what was bound.
        unsafe {
            let (scorer, space) = (&self.scorer, &self.space(worker.private).0);
            if !self.is_shared() {
                for row in self.share(worker) {
                    self.score::<S>(space, row, 0..scorer.tables.context(row), space.codes);
                    self.choose(row, space.codes);
                }
                return;
            }
            let codes: *mut u32 = worker.shared.cast();
            let codes = |row: usize| codes.add(row * scorer.tables.places());
            for row in 0..self.rows() {
                let context = scorer.tables.context(row);
                let blocks = worker.share(context.div_ceil(CHUNK));
                let places = blocks.start * CHUNK..(blocks.end * CHUNK).min(context);
                self.score::<S>(space, row, places, codes(row));
            }
            worker.barrier.wait();
            for row in worker.share(self.rows()) {
                self.choose(row, codes(row));
            }
        }
    }
}

impl<T: Element> SelectKeys<T> {
    #[inline(always)]
    fn rows(&self) -> usize {
        self.scorer.tables.sequences * self.scorer.tables.rows
    }

    /// Whether threads share each row's places.
    #[inline(always)]
    fn is_shared(&self) -> bool {
        self.rows() <= FEW_ROWS
    }

    /// Where the parts of the working memory at `start` lie, and how many bytes they take.
    #[inline(always)]
    fn space(&self, start: *mut u8) -> (Space, usize) {
        let (mut parts, scorer) = (Parts::new(start), &self.scorer);
        let heads = scorer.heads.next_multiple_of(WIDTH);
        let space = Space {
            queries: parts.take(heads * scorer.d),
            weights: parts.take(heads),
            keys: parts.take(CHUNK * scorer.stride()),
            scores: parts.take(CHUNK * WIDTH),
            codes: parts.take(if self.is_shared() { 0 } else { scorer.tables.places() }),
        };
        (space, parts.bytes())
    }

    /// This thread's rows, about as many places as every other's.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn share(&self, worker: &Worker<'_>) -> impl Iterator<Item = usize> {
        // SAFETY: rows were bound.
        let cost = |row| unsafe { self.scorer.tables.context(row) + BLOCK_TOKENS };
        let total: usize = (0..self.rows()).map(cost).sum();
        let (index, count) = (worker.index, worker.count);
        let mut done = 0;
        (0..self.rows()).filter(move |&row| {
            let middle = done + cost(row) / 2;
            done += cost(row);
            middle * count / total == index
        })
    }

    /// Codes of some places of a row, unless it takes all places anyway.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `codes` is valid for the row's places.
    #[inline(always)]
    unsafe fn score<S: Simd>(
        &self,
        space: &Space,
        row: usize,
        places: Range<usize>,
        codes: *mut u32,
    ) {
        let scorer = &self.scorer;
        // SAFETY: as the caller's.
        unsafe {
            if !places.is_empty() && scorer.tables.context(row) > self.keys {
                S::enter(ScoreRow { scorer, space, row, places, codes });
            }
        }
    }

    /// Writes the places with the largest codes.
    ///
    /// # Safety
    /// As [`Kernel::run`]; there are codes if the row has more places than it takes.
    #[inline(always)]
    unsafe fn choose(&self, row: usize, codes: *const u32) {
        // SAFETY: as the caller's.
        unsafe {
            let out = std::slice::from_raw_parts_mut(self.out.row(row), self.keys);
            let context = self.scorer.tables.context(row);
            if context > self.keys {
                largest(std::slice::from_raw_parts(codes, context), out);
                return;
            }
            for (place, out) in out.iter_mut().enumerate() {
                *out = if place < context { place as i32 } else { -1 };
            }
        }
    }
}

impl<T> Scorer<T> {
    /// Elements between the keys of a chunk: no multiple of a page.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.d.next_multiple_of(LANES) + LANES
    }
}

/// Scores of some places of a row, as codes.
struct ScoreRow<'a, T> {
    scorer: &'a Scorer<T>,
    space: &'a Space,
    row: usize,
    places: Range<usize>,
    codes: *mut u32,
}

impl<T: Element> Vectorised for ScoreRow<'_, T> {
    type Output = ();
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { scorer, space, row, places, codes } = self;
        let &Scorer { heads, d, scale, ref tables, .. } = scorer;
        let padded = heads.next_multiple_of(LANES);
        // SAFETY: as for `SelectKeys::score`.
        unsafe {
            let queries = |head: usize| space.queries.add(head / WIDTH * WIDTH * d);
            for head in 0..padded {
                let lane = head % WIDTH;
                if head < heads {
                    let q = scorer.q.row(row).add(head * d);
                    pack::query::<S, Plain>(q, d, scale, queries(head), 0, lane);
                    *space.weights.add(head) = *scorer.weights.row(row).add(head);
                } else {
                    pack::no_query::<Plain>(queries(head), d, lane);
                    *space.weights.add(head) = 0.0;
                }
            }
            for start in places.clone().step_by(CHUNK) {
                let count = CHUNK.min(places.end - start);
                for i in 0..count {
                    let slot = tables.slot(row / tables.rows, start + i, scorer.memory.blocks);
                    let to = space.keys.add(i * scorer.stride());
                    pack::row::<S, T, f32>(scorer.memory.row(slot), to, d);
                }
                let mut sums = [0.0; CHUNK];
                for head in (0..padded).step_by(WIDTH) {
                    let vectors = (padded - head).min(WIDTH) / LANES;
                    Scores::<Plain> {
                        keys: space.keys,
                        stride: scorer.stride(),
                        queries: queries(head),
                        groups: d,
                        scores: space.scores,
                    }
                    .compute::<S>(count, vectors);
                    for (i, sum) in sums.iter_mut().enumerate().take(count) {
                        let mut parts = S::splat(0.0);
                        for v in 0..vectors {
                            let score = S::load(space.scores.add(i * WIDTH + v * LANES));
                            let weight = S::load(space.weights.add(head + v * LANES));
                            parts = S::mul_add(S::max(score, S::splat(0.0)), weight, parts);
                        }
                        *sum += S::sum(parts);
                    }
                }
                for (i, &sum) in sums.iter().enumerate().take(count) {
                    *codes.add(start + i) = code(sum);
                }
            }
        }
    }
}

/// An integer that is larger for a larger number; 0 for NaN.
#[inline(always)]
fn code(x: f32) -> u32 {
    // Makes zeros equal.
    let bits = (x + 0.0).to_bits();
    match x.is_nan() {
        true => 0,
        false if bits >> 31 == 1 => !bits,
        false => bits | 1 << 31,
    }
}

/// Indices of the largest of `codes`, of equal ones the first, as many as fit and in order.
fn largest(codes: &[u32], out: &mut [i32]) {
    // The smallest code that is taken, digit by digit, and how many are taken among equals.
    let (mut least, mut known, mut left) = (0u32, 0u32, out.len());
    for shift in [24, 16, 8, 0] {
        let mut counts = [0usize; 256];
        for code in codes.iter().filter(|&code| code & known == least) {
            counts[(code >> shift & 0xff) as usize] += 1;
        }
        let mut digit = 255;
        while counts[digit] < left && digit > 0 {
            left -= counts[digit];
            digit -= 1;
        }
        least |= (digit as u32) << shift;
        known |= 0xff << shift;
    }
    let mut places = out.iter_mut();
    for (place, &code) in codes.iter().enumerate() {
        let is_equal = code == least && left > 0;
        if code > least || is_equal {
            left -= usize::from(is_equal);
            let Some(to) = places.next() else { return };
            *to = place as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_order_of_numbers() {
        let ordered = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(ordered.windows(2).all(|w| code(w[0]) < code(w[1])));
        assert_eq!(code(-0.0), code(0.0));
        assert!(code(f32::NAN) < code(f32::NEG_INFINITY));
    }

    #[test]
    fn the_largest_are_found_in_order() {
        let codes = [7, 900, 900, 3, 70_000, 900, 1 << 31];
        let take = |n: usize| {
            let mut out = vec![-1; n];
            largest(&codes, &mut out);
            out
        };
        assert_eq!(take(1), [6]);
        assert_eq!(take(3), [1, 4, 6]);
        assert_eq!(take(4), [1, 2, 4, 6]);
        assert_eq!(take(6), [0, 1, 2, 4, 5, 6]);
        assert_eq!(take(7), [0, 1, 2, 3, 4, 5, 6]);
    }
}
