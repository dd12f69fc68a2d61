//! Matrix products `x [T,K] * weight [N,K]` with weights in [`tensor::layout::Panels`].
//!
//! Threads share the panels. A thread reads each of its panels once; when there are more rows than
//! one tile holds, it goes block by block along `K`, and every tile uses a block while it is in a
//! cache. Sums between blocks wait in memory as `f32`, which loses nothing.

#[cfg(target_arch = "x86_64")]
mod amx;
mod compact;
#[cfg(target_arch = "x86_64")]
pub(crate) mod squares;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiled;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::{ROW_BYTES, Steps, Sums, Tiles, dot_pairs};
pub(crate) use compact::{Coded, Compact, CompactPanel, CompactWeight, OCTET_PAIRS};
#[cfg(target_arch = "x86_64")]
use compact::{compact_weight, first_octets};
#[cfg(target_arch = "x86_64")]
pub(crate) use tiled::{
    FEW_ROWS_BYTES, FewPanels, FewRows, ManyRows, Meet, TileInputs, TileWeight, Tiled, TiledCompact,
};

use super::bind::{Binder, Kernel, Rows, product};
use super::element::Element;
use super::epilogue::{End, PanelSums, Plan, ResultRows, Sizes};
use super::simd::{Dots, LANES, Simd};
use super::worker::{Scratch, Worker, share};
use half::bf16;
pub(crate) use tile::{
    Ahead, FAR_WORDS, NEAR_WORDS, PairDot, Plain, Product, STEP_GROUPS, TILE_ROWS, TURN, WIDTH,
    Widening, block_words, even_blocks, most_words, one_pass,
};
use tile::{Block, widen};

/// Bytes of a block that was widened.
const WIDENED_BYTES: usize = NEAR_WORDS * WIDTH * size_of::<u32>();
/// From so many tiles on, widening a block of bf16 once costs wide vectors less than doing so in each tile. Narrow ones
/// widen beside products, and a block holds half as much in `f32`: with it a prompt of 512 took 1.06 times as long on a Zen 3.
const TILES_TO_WIDEN: usize = 6;
/// Up to so many rows each thread prepares the inputs for itself, which saves a barrier.
const ROWS_TO_STAGE_ALONE: usize = 8;

/// Element types of weights, which are also those of the inputs.
pub(crate) trait Weight: Element {
    /// Elements along `K` that lie together.
    const GROUP: usize;
    /// The dot products there are of it.
    const DOTS: Dots = if Self::GROUP == 2 { Dots::PAIRS } else { Dots::NONE };
}

impl Weight for f32 {
    const GROUP: usize = 1;
}

impl Weight for bf16 {
    const GROUP: usize = 2;
}

/// `matmul_*`.
pub(crate) struct Matmul<W> {
    rows: usize,
    k: usize,
    panels: usize,
    x: Rows<W>,
    weight: Rows<W>,
    end: End,
}

impl<W: Weight> Kernel for Matmul<W> {
    const DOTS: Dots = W::DOTS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Self::bind_with(b, |_, _, len| len)
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let staged = self.rows * self.staged_stride() * size_of::<f32>();
        let alone = if self.rows <= ROWS_TO_STAGE_ALONE { staged } else { 0 };
        let sums = self.rows * WIDTH * size_of::<f32>();
        Scratch { private: WIDENED_BYTES + sums + alone, shared: staged - alone }
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        let panel_bytes = self.k.div_ceil(W::GROUP) * WIDTH * size_of::<u32>();
        let first = share(self.panels, index, count).start;
        // SAFETY: the weight was bound.
        let weight = unsafe { self.weight.row(0) }.cast::<u8>();
        Some(weight.wrapping_add(first * panel_bytes).cast_const())
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's; the pointer casts name the types that `W` stands for.
        unsafe {
            if W::GROUP == 1 {
                let x: *const f32 = self.x.row(0).cast();
                self.panels::<S, Plain>(worker, x, self.x.stride(), false);
            } else if S::PAIR_DOT && self.k.is_multiple_of(2) {
                let x: *const bf16 = self.x.row(0).cast();
                self.panels::<S, PairDot>(worker, x, self.x.stride(), false);
            } else if S::PAIR_DOT {
                let x = self.stage::<S, bf16>(worker);
                self.panels::<S, PairDot>(worker, x, self.staged_stride(), false);
            } else {
                let x = self.stage::<S, f32>(worker);
                if S::WIDE && self.rows.div_ceil(S::MAX_ROWS) >= TILES_TO_WIDEN {
                    self.panels::<S, Plain>(worker, x, self.staged_stride(), true);
                } else {
                    self.panels::<S, Widening>(worker, x, self.staged_stride(), false);
                }
            }
            self.end.finish::<S>(worker);
        }
    }
}

impl<W: Weight> Matmul<W> {
    /// As [`Kernel::bind`], with a weight of at least as many elements as `stored` says for outputs and inputs
    /// that take so many in panels.
    fn bind_with(
        b: &mut Binder<'_>,
        stored: impl FnOnce(usize, usize, usize) -> usize,
    ) -> Result<Self, String> {
        let (rows, n, k) = (b.count("T")?, b.positive("N")?, b.positive("K")?);
        let (x_stride, out_stride) = (b.count("x stride")?, b.count("out stride")?);
        let plan = Plan::bind(b)?;
        let panels = n.div_ceil(WIDTH);
        let padded = k.checked_next_multiple_of(W::GROUP).ok_or("`K` is too large")?;
        let len = stored(n, k, product(&[panels, WIDTH, padded])?);
        // What `scratch` will ask for.
        product(&[rows, padded + WIDTH, size_of::<f32>()])?;
        let x = b.input("x", rows, k, x_stride)?;
        let weight = b.whole("weight", len)?;
        let sizes = Sizes { rows, n, experts: 1, out_stride, integers: false };
        let end = plan.end(b, &sizes)?;
        Ok(Self { rows, k, panels, x, weight, end })
    }

    /// The product of buffers that were bound: `rows` of `k` inputs, and weights for `n` outputs.
    pub(crate) fn of(
        rows: usize,
        (n, k): (usize, usize),
        x: Rows<W>,
        weight: Rows<W>,
        end: End,
    ) -> Self {
        Self { rows, k, panels: n.div_ceil(WIDTH), x, weight, end }
    }

    /// Elements between staged rows: no multiple of a page, so that rows do not share cache sets.
    #[inline(always)]
    fn staged_stride(&self) -> usize {
        self.k.next_multiple_of(LANES) + LANES
    }

    /// Copies the inputs as `X`, each row followed by a zero. Returns the first.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn stage<S: Simd, X: Element>(&self, worker: &Worker<'_>) -> *const X {
        let alone = self.rows <= ROWS_TO_STAGE_ALONE;
        let stride = self.staged_stride();
        // SAFETY: scratch memory is as large as `scratch` says.
        unsafe {
            let to: *mut X = if alone {
                worker.private.add(WIDENED_BYTES + self.rows * WIDTH * size_of::<f32>()).cast()
            } else {
                worker.shared.cast()
            };
            for r in if alone { 0..self.rows } else { worker.share(self.rows) } {
                let (x, to) = (self.x.row(r), to.add(r * stride));
                for i in (0..self.k).step_by(LANES) {
                    X::store::<S>(to.add(i), W::load_part::<S>(x.add(i), self.k - i));
                }
                *to.add(self.k) = X::ZERO;
            }
            if !alone {
                worker.barrier.wait();
            }
            to
        }
    }

    /// Multiplies and stores this thread's panels. `widened` says that blocks are made of pairs
    /// and turned into `f32` first.
    ///
    /// # Safety
    /// As [`Kernel::run`]; each row of `x` is valid for `K` elements, rounded up to a group.
    #[inline(always)]
    unsafe fn panels<S: Simd, P: Product>(
        &self,
        worker: &Worker<'_>,
        x: *const P::X,
        stride: usize,
        widened: bool,
    ) {
        let (groups, tiles) = (self.k.div_ceil(W::GROUP), self.rows.div_ceil(S::MAX_ROWS));
        // Whether a panel is read once, from its first word to its last.
        let once = tiles == 1 && one_pass::<S>(self.rows);
        let block_groups = if once {
            groups
        } else if widened {
            NEAR_WORDS / 2
        } else {
            block_words::<S>(groups, tiles)
        };
        // SAFETY: panels, rows and groups stay inside what was bound; scratch is large enough.
        unsafe {
            let block: *mut f32 = worker.private.cast();
            let sums: *mut f32 = worker.private.add(WIDENED_BYTES).cast();
            let share = worker.share(self.panels);
            for panel in share.clone() {
                let weights = self.weight.row(0).cast::<u32>().add(panel * groups * WIDTH);
                for first in (0..groups).step_by(block_groups) {
                    let count = block_groups.min(groups - first);
                    let mut weights = weights.add(first * WIDTH).cast_const();
                    let next = match once {
                        true => weights.wrapping_add(16 * WIDTH),
                        _ if panel + 1 == share.end && first + count == groups => {
                            worker.upcoming.cast()
                        }
                        _ => weights.wrapping_add(count * WIDTH),
                    };
                    let mut steps = count;
                    if widened {
                        widen::<S>(weights, block, count);
                        (weights, steps) = (block.cast_const().cast(), 2 * count);
                    }
                    let x = x.add(first * W::GROUP);
                    for tile in 0..tiles {
                        let (row, rows) = tile_rows(self.rows, tiles, tile);
                        // Sums that are not kept for another block stay in the nearest cache.
                        let results = ResultRows::From(row, rows);
                        let ends = first + count == groups;
                        if ends && tiles > 1 {
                            self.end.ask::<S>(panel, results);
                        }
                        let is_only = groups <= block_groups;
                        let sums = sums.add(if is_only { 0 } else { row * WIDTH });
                        let ahead = if tiles == 1 {
                            Ahead::part(next, count, 0, 1)
                        } else {
                            Ahead::part(next, count, tile, tiles)
                        };
                        Block::<P> {
                            weights,
                            x: x.add(row * stride),
                            stride,
                            groups: steps,
                            sums,
                            fresh: first == 0,
                            ahead,
                        }
                        .multiply::<S>(rows);
                        if ends {
                            let factors = None;
                            self.end.store::<S>(PanelSums { panel, sums, rows: results, factors });
                        }
                    }
                }
            }
        }
    }
}

/// First row and number of rows of a tile, the rows spread evenly.
#[inline(always)]
pub(crate) fn tile_rows(rows: usize, tiles: usize, tile: usize) -> (usize, usize) {
    let (base, longer) = (rows / tiles, rows % tiles);
    (tile * base + tile.min(longer), base + usize::from(tile < longer))
}
