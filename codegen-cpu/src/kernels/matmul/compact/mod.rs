//! Products of bf16 with weights in [`tensor::Compact`].
//!
//! A panel becomes pairs of bf16 in registers where its rows are few, else block by block in the nearest cache
//! before they meet it, so a weight is read from memory in three quarters of its bytes, and sums are those of
//! plain panels, bit for bit.

mod along;
mod coded;
mod octets;
mod weight;

pub(crate) use coded::Coded;
pub(crate) use weight::{CompactWeight, Panel as CompactPanel};

use super::tile::{Block, widen};
use super::{
    Ahead, FAR_WORDS, Matmul, NEAR_WORDS, PairDot, Plain, Product, TILES_TO_WIDEN, WIDENED_BYTES,
    WIDTH, Widening, block_words, one_pass, tile_rows,
};
use crate::kernels::bind::{Binder, Kernel};
use crate::kernels::epilogue::{PanelSums, ResultRows};
use crate::kernels::simd::{Dots, LANES, Simd};
use crate::kernels::worker::{Scratch, Worker, share};
use half::bf16;
use octets::Unpack;
use weight::{Panel, patch};

/// The most rows of an expert that are worth unpacking a panel in registers for where those are few. Of [`Compact`] it is one.
const NARROW_ROWS: usize = 4;
/// Bytes of a block of pairs.
const PAIRS_BYTES: usize = FAR_WORDS * WIDTH * size_of::<u32>();
/// Pairs of an octet, its words for each output and the cache lines of them.
pub(crate) const OCTET_PAIRS: usize = tensor::Compact::OCTET as usize / 2;
const OCTET_WORDS: usize = tensor::Compact::OCTET_WORDS as usize * WIDTH;
const PAIR_LINES: usize = tensor::Compact::OCTET_WORDS as usize * 4 / OCTET_PAIRS;
/// Vectors of a panel, and words of an octet of each.
const VECTORS: usize = WIDTH / LANES;
const VECTOR_WORDS: usize = OCTET_WORDS / VECTORS;
/// Words of an octet of half a panel.
#[cfg(target_arch = "x86_64")]
const HALF_WORDS: usize = OCTET_WORDS / 2;
const _: () = assert!(LANES == tensor::Compact::OUTPUTS as usize);
/// Cache lines of a plain pair of all outputs of a panel.
const GROUP_LINES: usize = WIDTH * size_of::<u32>() / 64;

/// [`Matmul`] with compact weights.
pub(crate) struct Compact(pub(super) Matmul<bf16>);

impl Kernel for Compact {
    const DOTS: Dots = Dots::PAIRS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        let stored = |n: usize, k: usize, _| {
            tensor::Compact::new(n as u64, k as u64).least_bytes() as usize / size_of::<bf16>()
        };
        Matmul::bind_with(b, stored).map(Self)
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        let scratch = self.0.scratch::<S>();
        Scratch { private: scratch.private + 2 * PAIRS_BYTES, ..scratch }
    }

    fn first_weights(&self, index: usize, count: usize) -> Option<*const u8> {
        Some(first_octets(&self.0, index, count))
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        let product = &self.0;
        // SAFETY: as the caller's.
        unsafe {
            if S::PAIR_DOT && product.k.is_multiple_of(2) {
                let x: *const bf16 = product.x.row(0);
                self.panels::<S, PairDot>(worker, x, product.x.stride(), false);
            } else if S::PAIR_DOT {
                let x = product.stage::<S, bf16>(worker);
                self.panels::<S, PairDot>(worker, x, product.staged_stride(), false);
            } else {
                let x = product.stage::<S, f32>(worker);
                if S::WIDE && product.rows.div_ceil(S::MAX_ROWS) >= TILES_TO_WIDEN {
                    self.panels::<S, Plain>(worker, x, product.staged_stride(), true);
                } else {
                    self.panels::<S, Widening>(worker, x, product.staged_stride(), false);
                }
            }
            product.end.finish::<S>(worker);
        }
    }
}

/// The compact weight of a product.
pub(super) fn compact_weight(product: &Matmul<bf16>) -> CompactWeight {
    CompactWeight::bound(&product.weight, product.panels, product.k)
}

/// The compact weights that thread `index` of `count` reads first.
pub(super) fn first_octets(product: &Matmul<bf16>, index: usize, count: usize) -> *const u8 {
    let first = share(product.panels, index, count).start.min(product.panels - 1);
    // SAFETY: the weight was bound, and the panel exists.
    let panel = unsafe { compact_weight(product).panel(first) };
    panel.octets.cast()
}

impl Compact {
    /// Multiplies and stores this thread's panels, as [`Matmul::panels`] does.
    ///
    /// # Safety
    /// As [`Kernel::run`]; each row of `x` is valid for `K` elements, rounded up to a pair.
    #[inline(always)]
    unsafe fn panels<S: Simd, P: Product>(
        &self,
        worker: &Worker<'_>,
        x: *const P::X,
        stride: usize,
        widened: bool,
    ) {
        let product = &self.0;
        let (groups, tiles) = (product.k.div_ceil(2), product.rows.div_ceil(S::MAX_ROWS));
        if S::WIDE && tiles > 1 && !widened {
            // SAFETY: as the caller's.
            return unsafe { self.along::<S, P>(worker, x, stride) };
        }
        // A step of three rows of Qwen3-0.6B took 83 ms in registers of AVX2, by blocks 48.
        let in_registers = tiles <= 1 && one_pass::<S>(product.rows);
        let block_groups = match tiles {
            _ if widened => NEAR_WORDS / 2,
            _ if in_registers => groups,
            0..=8 => NEAR_WORDS,
            _ => block_words::<S>(groups, tiles),
        };
        // SAFETY: panels, rows and groups stay inside what was bound; scratch is large enough.
        unsafe {
            let weight = compact_weight(product);
            let wide: *mut f32 = worker.private.cast();
            let sums: *mut f32 = worker.private.add(WIDENED_BYTES).cast();
            let pairs: *mut u32 = worker.private.add(product.scratch::<S>().private).cast();
            let share = worker.share(product.panels);
            let mut following = weight.panel(share.start.min(product.panels - 1));
            for panel in share.clone() {
                let coded = following;
                following = weight.after::<S>(panel, share.end);
                let Panel { octets, plain, escapes, lowest } = coded;
                let mut escape = 0;
                for first in (0..groups).step_by(block_groups) {
                    let count = block_groups.min(groups - first);
                    let (mut weights, mut steps) = (octets.wrapping_add(first * WIDTH), count);
                    let (mut next, mut lines) = (weights.wrapping_add(count * WIDTH), GROUP_LINES);
                    let from = octets.wrapping_add(first / OCTET_PAIRS * OCTET_WORDS);
                    if !plain {
                        let octets = count.div_ceil(OCTET_PAIRS);
                        weights = pairs;
                        (next, lines) = (from.wrapping_add(octets * OCTET_WORDS), PAIR_LINES);
                        if !in_registers {
                            S::enter(Unpack { from, to: pairs, octets, lowest });
                            escape = patch(escapes, escape, (first, count), pairs);
                        }
                    }
                    if widened {
                        widen::<S>(weights, wide, count);
                        (weights, steps) = (wide.cast_const().cast(), 2 * count);
                        lines = lines.div_ceil(2);
                    }
                    let x_block = x.add(first * 2);
                    for tile in 0..tiles {
                        let (row, rows) = tile_rows(product.rows, tiles, tile);
                        let is_only = groups <= block_groups;
                        let sums = sums.add(if is_only { 0 } else { row * WIDTH });
                        let (x, fresh) = (x_block.add(row * stride), first == 0);
                        let ahead = Ahead::spread(next.cast(), steps, lines, tile, tiles);
                        if in_registers && !plain {
                            let x = std::array::from_fn(|row| x.wrapping_add(row * stride));
                            let after = if panel + 1 < share.end {
                                following.octets
                            } else {
                                worker.upcoming.cast()
                            };
                            let coded =
                                Coded::<P::Words> { panel: &coded, pairs: count, after, x, sums };
                            coded.multiply::<S>(rows);
                        } else {
                            let groups = steps;
                            let block =
                                Block::<P> { weights, x, stride, groups, sums, fresh, ahead };
                            block.multiply::<S>(rows);
                        }
                        if first + count == groups {
                            let rows = ResultRows::From(row, rows);
                            let sums = PanelSums { panel, sums, rows, factors: None };
                            product.end.store::<S>(sums);
                        }
                    }
                }
            }
        }
    }
}
