//! Rows that meet a block of pairs while the block after it is unpacked.
//!
//! Unpacking is shifts, additions and logic, which have other units of the processor than products.

use super::super::{NEAR_WORDS, Product, WIDENED_BYTES, WIDTH, block_words, tile_rows};
use super::octets::{Unpack, ask, unpack_vector};
use super::weight::{AHEAD_BYTES, patch};
use super::{
    Compact, OCTET_PAIRS, OCTET_WORDS, PAIRS_BYTES, VECTOR_WORDS, VECTORS, compact_weight,
};
use crate::kernels::bind::Kernel;
use crate::kernels::epilogue::{PanelSums, ResultRows};
use crate::kernels::simd::{Dots, LANES, LINE_BYTES, Simd, Vectorised};
use crate::kernels::worker::Worker;

/// Pairs of a block that a few tiles meet: it, the one unpacked meanwhile, what that is unpacked from and the inputs fit
/// the nearest cache together.
const BLOCK_PAIRS: usize = NEAR_WORDS / 2;
/// The most tiles that are few.
const FEW_TILES: usize = 8;

impl Compact {
    /// Multiplies and stores this thread's panels for two or more tiles of rows.
    ///
    /// # Safety
    /// As [`Kernel::run`]; each row of `x` is valid for `K` elements,
    /// rounded up to a pair.
    #[inline(always)]
    pub(super) unsafe fn along<S: Simd, P: Product>(
        &self,
        worker: &Worker<'_>,
        x: *const P::X,
        stride: usize,
    ) {
        let product = &self.0;
        let (groups, tiles) = (product.k.div_ceil(2), product.rows.div_ceil(S::MAX_ROWS));
        let block_groups = match tiles {
            0..=FEW_TILES => BLOCK_PAIRS,
            _ => block_words::<S>(groups, tiles),
        };
        let share = worker.share(product.panels);
        if share.is_empty() {
            return;
        }
        // SAFETY: panels, rows and groups stay inside what was bound; scratch is large enough.
        unsafe {
            let weight = compact_weight(product);
            let sums: *mut f32 = worker.private.add(WIDENED_BYTES).cast();
            let pairs = worker.private.add(product.scratch::<S>().private);
            let (mut block, mut other): (*mut u32, *mut u32) =
                (pairs.cast(), pairs.add(PAIRS_BYTES).cast());
            let mut coded = weight.panel(share.start);
            let mut count = block_groups.min(groups);
            // A launch before asked for what is in front of these, and those of the next block for what follows. Blocks
            // of many tiles are so long that asking for them at once holds up what is unpacked first.
            let unasked = coded.octets_of((0, count), block);
            let vectors = if tiles > FEW_TILES { 0 } else { unasked.octets * VECTORS };
            for vector in 0..vectors {
                let from = unasked.from.wrapping_add(vector * VECTOR_WORDS);
                ask::<S>(from.wrapping_byte_add(AHEAD_BYTES));
            }
            let mut escape = coded.unpack_pairs::<S>((0, count), block, 0);
            for panel in share.clone() {
                let following = weight.after::<S>(panel, share.end);
                // What is asked for when all octets of this panel were.
                let next =
                    if panel + 1 < share.end { following.octets } else { worker.upcoming.cast() };
                for first in (0..groups).step_by(block_groups) {
                    let weights = match coded.plain {
                        true => coded.octets.wrapping_add(first * WIDTH),
                        false => block,
                    };
                    let after = first + count;
                    let (upcoming, at) =
                        if after < groups { (&coded, after) } else { (&following, 0) };
                    if at == 0 {
                        escape = 0;
                    }
                    let next_count = block_groups.min(groups - at);
                    let unpack = upcoming.octets_of((at, next_count), other);
                    let ahead = match at {
                        0 => AHEAD_BYTES,
                        _ => upcoming.ahead(unpack.from, groups, next.cast()),
                    };
                    for tile in 0..tiles {
                        let (row, rows) = tile_rows(product.rows, tiles, tile);
                        let turns = Turns::new((unpack.octets, count), (tile, tiles));
                        let results = ResultRows::From(row, rows);
                        if after == groups {
                            product.end.ask::<S>(panel, results);
                        }
                        let is_only = groups <= block_groups;
                        let sums = sums.add(if is_only { 0 } else { row * WIDTH });
                        let meeting = Meeting::<P> {
                            weights,
                            x: x.add(first * 2 + row * stride),
                            stride,
                            groups: count,
                            sums,
                            fresh: first == 0,
                            unpack,
                            ahead,
                            turns,
                        };
                        meeting.multiply::<S>(rows);
                        if after == groups {
                            let factors = None;
                            let sums = PanelSums { panel, sums, rows: results, factors };
                            product.end.store::<S>(sums);
                        }
                    }
                    escape = patch(upcoming.escapes, escape, (at, next_count), other);
                    (block, other) = (other, block);
                    count = next_count;
                }
                coded = following;
            }
        }
    }
}

/// A block of pairs, the inputs that meet it and what is unpacked meanwhile.
pub(super) struct Meeting<P: Product> {
    /// Pairs `[groups][64]`.
    pub(super) weights: *const u32,
    /// The first input of the first row.
    pub(super) x: *const P::X,
    /// Inputs between rows.
    pub(super) stride: usize,
    pub(super) groups: usize,
    /// Sums `[rows][64]`.
    pub(super) sums: *mut f32,
    /// Whether the sums begin at zero rather than at what is there.
    pub(super) fresh: bool,
    /// Octets to unpack.
    pub(super) unpack: Unpack,
    /// Bytes from what is unpacked to what is asked for meanwhile.
    pub(super) ahead: usize,
    /// What of them is unpacked here.
    pub(super) turns: Turns,
}

/// The vectors of octets that a tile unpacks, octet after octet: `each` at a time, whenever it has met `every` octets,
/// so that what is stored leaves for the second-level cache, line by line, while products go on.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    first: usize,
    end: usize,
    each: usize,
    every: usize,
}

impl Turns {
    /// The part of tile `tile` of `tiles` that meet a block of `pairs` while `octets` are unpacked.
    #[inline(always)]
    fn new((octets, pairs): (usize, usize), (tile, tiles): (usize, usize)) -> Self {
        let (first, count) = tile_rows(octets * VECTORS, tiles, tile);
        // Of many tiles each has little to unpack: a turn for every cache line of inputs.
        let every = if tiles > FEW_TILES { 4 } else { 1 };
        let turns = pairs.div_ceil(OCTET_PAIRS * every).max(1);
        Self { first, end: first + count, each: count.div_ceil(turns), every }
    }
}

impl<P: Product> Meeting<P> {
    /// Adds the products of `rows` rows, at most 6.
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(&self, rows: usize) {
        // SAFETY: as the caller's.
        by_count!(rows, [1 2 3 4 5 6], R => unsafe { S::enter(Tile::<P, R>(self)) })
    }
}

/// `R` rows by a panel.
struct Tile<'a, P: Product, const R: usize>(&'a Meeting<P>);

impl<P: Product, const R: usize> Vectorised for Tile<'_, P, R> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let &Meeting { weights, x, stride, groups, sums, fresh, unpack, ahead, turns } = self.0;
        let Unpack { from, to, lowest, .. } = unpack;
        let Turns { first: mut at, end, each, every } = turns;
        // SAFETY: as for `Meeting::multiply`; a prefetch may name any address.
        unsafe {
            let mut acc = [[S::splat(0.0); VECTORS]; R];
            if !fresh {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (v, a) in row.iter_mut().enumerate() {
                        *a = S::load(sums.add(r * WIDTH + v * LANES));
                    }
                }
            }
            let (mut w, mut x) = (weights, x);
            let line_groups = const { LINE_BYTES / (P::GROUP * size_of::<P::X>()) };
            for first in (0..groups).step_by(OCTET_PAIRS) {
                if first % line_groups == 0 {
                    for r in 0..R {
                        S::prefetch(x.wrapping_add((R + r) * stride).cast());
                    }
                }
                if (first / OCTET_PAIRS).is_multiple_of(every) {
                    for _ in 0..each.min(end - at) {
                        let (octet, vector) = (at / VECTORS, at % VECTORS);
                        let from = from.wrapping_add(octet * OCTET_WORDS + vector * VECTOR_WORDS);
                        let to = to.wrapping_add(octet * OCTET_PAIRS * WIDTH + vector * LANES);
                        unpack_vector::<S>(from, to, lowest);
                        ask::<S>(from.wrapping_byte_add(ahead));
                        at += 1;
                    }
                }
                if groups - first >= OCTET_PAIRS {
                    for _ in 0..OCTET_PAIRS {
                        P::step::<S, R, VECTORS>(w, x, stride, &mut acc);
                        w = w.wrapping_add(WIDTH);
                        x = x.wrapping_add(P::GROUP);
                    }
                } else {
                    for _ in first..groups {
                        P::step::<S, R, VECTORS>(w, x, stride, &mut acc);
                        w = w.wrapping_add(WIDTH);
                        x = x.wrapping_add(P::GROUP);
                    }
                }
            }
            for (r, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    S::store(sums.add(r * WIDTH + v * LANES), *a);
                }
            }
        }
    }
}
