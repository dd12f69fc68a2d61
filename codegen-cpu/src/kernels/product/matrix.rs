//! More rows than have their sums in vectors, by AMX, a tile of up to 16 at a time: sums of bytes are exact, and so those of
//! [`super::tile`]. More than one such tile goes by [`super::squares`] where there is one group.

use super::fold::{Fold, Place};
use super::inner::Inner;
use super::tile::{Stretch, VECTORS, words};
use crate::kernels::matmul::{Ahead, ROW_BYTES, STEP_GROUPS, Steps, Sums, TILE_ROWS, Tiles, WIDTH};
use crate::kernels::simd::{Dots, LANES, Simd, Vectorised};
use std::mem::MaybeUninit;

/// Steps of rows that are copied at once.
const COPIED_STEPS: usize = 8;
/// Bytes of a row of these.
const COPIED_BYTES: usize = COPIED_STEPS * ROW_BYTES;

/// Rows of inputs that do not lie a stride apart, put together.
#[repr(align(64))]
struct Copied(MaybeUninit<[[u8; COPIED_BYTES]; TILE_ROWS]>);

/// Up to 16 rows of a stretch, as [`Stretch::multiply`].
pub(super) struct Matrix<'a, P: Inner, F>(pub(super) &'a Stretch<'a, P, F>, pub(super) &'a [u32]);

impl<P: Inner, F: Fold> Vectorised for Matrix<'_, P, F> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self(stretch, rows) = self;
        let &Stretch { weights, first, count, total, group, inputs, fold, .. } = stretch;
        let &Stretch { mut ahead, partial, sums, .. } = stretch;
        let apart = rows.windows(2).any(|pair| pair[1] != pair[0] + 1);
        let mut copied = Copied(MaybeUninit::uninit());
        // SAFETY: as for `Stretch::multiply`; a group of inputs is a word, four bytes.
        unsafe {
            let tiles = Tiles::new(rows.len());
            let at_row = |row: u32, word: usize| -> *const u8 {
                inputs.row(row as usize).add(word * P::GROUP).cast()
            };
            let sum_at = |r: usize, v: usize| partial.add(r * WIDTH + v * LANES);
            let (mut at, end, mut g) = (first, first + count, first / group);
            while at < end {
                let stop = end.min((g + 1) * group);
                if at == g * group {
                    for (r, &row) in rows.iter().enumerate() {
                        let start = P::start::<S>(inputs.start::<P>(row as usize, g));
                        (0..VECTORS).for_each(|v| P::store::<S>(sum_at(r, v), start));
                    }
                }
                while stop - at >= STEP_GROUPS {
                    let whole = (stop - at) / STEP_GROUPS;
                    let mut steps = Steps {
                        weights: weights.add((at - first) * WIDTH).cast(),
                        count: whole,
                        x: at_row(rows[0], at),
                        stride: inputs.stride * size_of::<P::X>(),
                        x_step: ROW_BYTES,
                        ahead,
                    };
                    if apart {
                        let to: *mut u8 = copied.0.as_mut_ptr().cast();
                        let count = whole.min(COPIED_STEPS);
                        for (r, &row) in rows.iter().enumerate() {
                            let to = to.add(r * COPIED_BYTES);
                            to.copy_from_nonoverlapping(at_row(row, at), count * ROW_BYTES);
                        }
                        steps = Steps { count, x: to, stride: COPIED_BYTES, ..steps };
                    }
                    let in_tiles = Sums::row(partial.cast());
                    in_tiles.load();
                    steps.bytes(&tiles, in_tiles);
                    in_tiles.store();
                    at += steps.count * STEP_GROUPS;
                    ahead = ahead.after(steps.count);
                }
                // Fewer words than a step has.
                if at < stop {
                    let w = weights.add((at - first) * WIDTH);
                    for (r, &row) in rows.iter().enumerate() {
                        let x = at_row(row, at).cast();
                        let mut acc = [[P::load::<S>(sum_at(r, 0)); VECTORS]];
                        for (v, sums) in acc[0].iter_mut().enumerate().skip(1) {
                            *sums = P::load::<S>(sum_at(r, v));
                        }
                        let mut none = Ahead::NOTHING;
                        words::<S, P, 1, VECTORS>(w, stop - at, [x], &mut none, &mut acc);
                        let [acc] = acc;
                        (0..VECTORS).for_each(|v| P::store::<S>(sum_at(r, v), acc[v]));
                    }
                    at = stop;
                }
                if stop == (g + 1) * group || stop == total {
                    for (r, &row) in rows.iter().enumerate() {
                        for v in 0..VECTORS {
                            let sum = P::load::<S>(sum_at(r, v));
                            let at = Place { group: g, row: row as usize, lane: v * LANES };
                            fold.fold::<S, P>(sum, at, sums.add(r * WIDTH + v * LANES));
                        }
                    }
                }
                g += 1;
            }
        }
    }
}
