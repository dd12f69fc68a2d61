//! The innermost loops: a few rows of inputs times a stretch of one panel, group by group.

use super::beside::{Beside, Nothing};
use super::fold::{Fold, Place};
use super::inner::Inner;
use super::inputs::Inputs;
#[cfg(target_arch = "x86_64")]
use super::matrix::Matrix;
use crate::kernels::matmul::{Ahead, WIDTH, one_pass};
use crate::kernels::simd::{Dots, LANES, LINE_BYTES, Simd, Vectorised, align_frame};

/// Vectors of a panel.
pub(super) const VECTORS: usize = WIDTH / LANES;

/// The most rows of a tile in one pass.
pub(super) const MOST_TILE_ROWS: usize = 6;

/// Some words of a panel and what they meet.
pub(super) struct Stretch<'a, P: Inner, F> {
    /// The first of them.
    pub(super) weights: *const u32,
    /// Which word of the panel that is.
    pub(super) first: usize,
    /// How many words, at least one.
    pub(super) count: usize,
    /// Words of the panel.
    pub(super) total: usize,
    /// Words of a group.
    pub(super) group: usize,
    pub(super) inputs: &'a Inputs<P::X>,
    /// The rows of inputs that are next, to ask for meanwhile.
    pub(super) next: &'a [u32],
    pub(super) fold: F,
    /// Memory to ask for meanwhile.
    pub(super) ahead: Ahead,
    /// Sums of a group that goes on after this stretch, `[rows][64]`.
    pub(super) partial: *mut f32,
    /// Sums `[rows][64]`.
    pub(super) sums: *mut f32,
}

impl<P: Inner, F: Fold> Stretch<'_, P, F> {
    /// Adds the products of the rows of inputs `rows`, at most [`Inner::most_rows`], or with AMX a tile of more.
    ///
    /// # Safety
    /// As [`Simd`]; pointers are valid for the sizes that the fields name, rows exist.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(&self, rows: &[u32]) {
        // SAFETY: as the caller's.
        unsafe {
            match rows.len() {
                1 => self.rows::<S, 1>(rows),
                2 => self.rows::<S, 2>(rows),
                3 => self.rows::<S, 3>(rows),
                4 if const { S::MAX_ROWS > 3 } => self.rows::<S, 4>(rows),
                5 if const { S::MAX_ROWS > 3 } => self.rows::<S, 5>(rows),
                6 if const { S::MAX_ROWS > 3 } => self.rows::<S, 6>(rows),
                #[cfg(target_arch = "x86_64")]
                _ if const { S::WIDE && P::BYTES } => S::enter(Matrix(self, rows)),
                _ => unreachable!("tiles have 1 to 6 rows"),
            }
        }
    }

    /// [`Stretch::multiply`] of [`MOST_TILE_ROWS`] rows or one less, in one pass, beside something else.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn multiply_beside<S: Simd>(&self, rows: &[u32], beside: impl Beside) {
        // SAFETY: as the caller's.
        unsafe {
            match rows.len() {
                5 => S::enter(Tile::<P, F, _, 5, VECTORS>(self, rows, 0, beside)),
                MOST_TILE_ROWS => {
                    S::enter(Tile::<P, F, _, MOST_TILE_ROWS, VECTORS>(self, rows, 0, beside))
                }
                _ => unreachable!("tiles have 5 or 6 rows"),
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, rows: &[u32]) {
        // SAFETY: as the caller's.
        unsafe {
            if one_pass::<S>(R) {
                S::enter(Tile::<P, F, _, R, VECTORS>(self, rows, 0, Nothing));
            } else if R == 2 {
                self.passes::<S, R, 2>(rows);
            } else {
                self.passes::<S, R, 1>(rows);
            }
        }
    }

    /// `V` vectors of the panel after another.
    #[inline(always)]
    unsafe fn passes<S: Simd, const R: usize, const V: usize>(&self, rows: &[u32]) {
        for pass in 0..VECTORS / V {
            let mut ahead = self.ahead.of_pass(self.count, P::TURN, (pass, VECTORS / V));
            if P::ASKS_BY_TURN {
                ahead = ahead.by_turn(P::TURN);
            }
            let stretch = Self { ahead, ..*self };
            // SAFETY: as the caller's.
            unsafe {
                S::enter(Tile::<P, F, _, R, V>(&stretch, rows, pass * V * LANES, Nothing));
            }
        }
    }
}

/// `R` rows by `V` vectors of a stretch, from an output of the panel on.
struct Tile<'a, P: Inner, F, B, const R: usize, const V: usize>(
    &'a Stretch<'a, P, F>,
    &'a [u32],
    usize,
    B,
);

impl<P: Inner, F: Fold, B: Beside, const R: usize, const V: usize> Vectorised
    for Tile<'_, P, F, B, R, V>
{
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { P::SPILLS } {
            align_frame();
        }
        let Tile(stretch, rows, lane, mut beside) = self;
        let &Stretch { weights, first, count, total, group, inputs, fold, .. } = stretch;
        let &Stretch { mut ahead, partial, sums, next, .. } = stretch;
        // SAFETY: as for `Stretch::multiply`; a prefetch may name any address.
        unsafe {
            let row: [usize; R] = std::array::from_fn(|r| rows[r] as usize);
            let x = row.map(|r| inputs.row(r));
            // Short runs far from each other, which the machine does not guess.
            let next: [_; R] =
                std::array::from_fn(|r| next.get(r).map_or(x[r], |&row| inputs.row(row as usize)));
            let line_words = const { LINE_BYTES / (P::GROUP * size_of::<P::X>()) };
            let (mut at, end, mut g) = (first, first + count, first / group);
            let mut w = weights.add(lane);
            while at < end {
                let stop = end.min((g + 1) * group);
                let mut acc = [[P::start::<S>(0); V]; R];
                if at == g * group {
                    for (row, acc) in row.iter().zip(&mut acc) {
                        *acc = [P::start::<S>(inputs.start::<P>(*row, g)); V];
                    }
                } else {
                    for (r, acc) in acc.iter_mut().enumerate() {
                        for (v, a) in acc.iter_mut().enumerate() {
                            *a = P::load::<S>(partial.add(r * WIDTH + lane + v * LANES));
                        }
                    }
                }
                while at < stop {
                    let turn = P::TURN.min(stop - at);
                    if at % line_words < P::TURN {
                        for next in next {
                            for line in 0..P::TURN.div_ceil(line_words) {
                                let word = at + line * line_words;
                                S::prefetch(next.wrapping_add(word * P::GROUP).cast());
                            }
                        }
                        beside.turn::<S>();
                    }
                    if const { V < VECTORS } {
                        ahead.turn::<S>();
                    }
                    // A constant, so that the compiler leaves requests out of the loop over words.
                    let mut nothing = Ahead::NOTHING;
                    let by_word = if const { P::ASKS_BY_TURN && V < VECTORS } {
                        &mut nothing
                    } else {
                        &mut ahead
                    };
                    let from = x.map(|x| x.add(at * P::GROUP));
                    if turn == P::TURN && by_word.lines == 0 {
                        P::turn::<S, R, V>(w, from, &mut acc);
                    } else {
                        words::<S, P, R, V>(w, turn, from, by_word, &mut acc);
                    }
                    w = w.wrapping_add(turn * WIDTH);
                    at += turn;
                }
                let done = stop == (g + 1) * group || stop == total;
                for (r, acc) in acc.iter().enumerate() {
                    for (v, &sum) in acc.iter().enumerate() {
                        let lane = lane + v * LANES;
                        if done {
                            let at = Place { group: g, row: row[r], lane };
                            fold.fold::<S, P>(sum, at, sums.add(r * WIDTH + lane));
                        } else {
                            P::store::<S>(partial.add(r * WIDTH + lane), sum);
                        }
                    }
                }
                g += 1;
            }
            beside.finish::<S>();
        }
    }
}

/// Adds the products of `count` words of a panel from `w` on, at most [`Inner::TURN`] where sums are settled, and the inputs
/// from `x` on.
///
/// # Safety
/// As [`Simd`]; weights and inputs are valid for as many words.
#[inline(always)]
pub(super) unsafe fn words<S: Simd, P: Inner, const R: usize, const V: usize>(
    w: *const u32,
    count: usize,
    x: [*const P::X; R],
    ahead: &mut Ahead,
    sums: &mut [[P::Sum<S>; V]; R],
) {
    for i in 0..count {
        // SAFETY: as the caller's.
        unsafe {
            ahead.step::<S>();
            let x = x.map(|x| x.add(i * P::GROUP));
            P::step_at::<S, R, V>(w.add(i * WIDTH), x, sums);
        }
    }
    // SAFETY: as the caller's.
    unsafe { P::settle::<S, R, V>(sums) }
}

/// `count` words of a panel at `from`, expanded to `P::EXPANSION` times as many at `to`.
pub(super) struct Expand<P> {
    pub(super) from: *const u32,
    pub(super) to: *mut u32,
    pub(super) count: usize,
    pub(super) of: std::marker::PhantomData<P>,
}

impl<P: Inner> Vectorised for Expand<P> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: both are valid for as many words of a panel, by the caller's promise.
        unsafe {
            for word in 0..self.count {
                for v in 0..VECTORS {
                    let w = S::load_bits(self.from.add(word * WIDTH + v * LANES));
                    for i in 0..P::EXPANSION {
                        let to = (word * P::EXPANSION + i) * WIDTH + v * LANES;
                        S::store_bits(self.to.add(to), P::expand::<S>(w, i));
                    }
                }
            }
        }
    }
}
