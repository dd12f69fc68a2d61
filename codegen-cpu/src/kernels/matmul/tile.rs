//! The innermost loops: a few rows of inputs times one block of one panel.
//!
//! Every accumulator takes its products one after another in the order of `K`, whatever the number
//! of rows, so a row's sums are the same bits in every tile.

use crate::kernels::product::{Bf16, Floats, Inner, Pairs};
use crate::kernels::simd::{Dots, LANES, LINE_BYTES, Simd, Vectorised};
use half::bf16;
use tensor::layout::Panels;

/// Outputs of a panel.
pub(crate) const WIDTH: usize = Panels::WIDTH as usize;
/// Vectors of a panel.
const VECTORS: usize = WIDTH / LANES;
/// Bytes of a group of a panel, and how many cache lines that are.
pub(super) const GROUP_BYTES: usize = WIDTH * size_of::<u32>();
const GROUP_LINES: usize = GROUP_BYTES / LINE_BYTES;

/// One step along `K`: a group of weights, 32 bits for each output, times a group of inputs.
pub(crate) trait Product: Send + Sync + 'static {
    /// Element of the inputs.
    type X: Copy;
    /// The same sums of pairs of bf16 weights in registers.
    type Words: Inner<X = Self::X>;
    /// Inputs of a group.
    const GROUP: usize;
    /// The dot products there are in it.
    const DOTS: Dots = <Self::Words as Inner>::DOTS;

    /// Adds the products of the vector of weights at each of `w` and `R` rows of inputs.
    ///
    /// # Safety
    /// As [`Simd`]; each of `w` holds a vector and each row of `x` a group.
    unsafe fn columns<S: Simd, const R: usize, const V: usize>(
        w: [*const u32; V],
        x: *const Self::X,
        stride: usize,
        sums: &mut [[S::V; V]; R],
    );

    /// [`Product::columns`] of `V` vectors of weights that lie together.
    ///
    /// # Safety
    /// As there; `w` holds `V` vectors.
    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const V: usize>(
        w: *const u32,
        x: *const Self::X,
        stride: usize,
        sums: &mut [[S::V; V]; R],
    ) {
        let mut vectors = [w; V];
        for (v, vector) in vectors.iter_mut().enumerate() {
            *vector = w.wrapping_add(v * LANES);
        }
        // SAFETY: as the caller's.
        unsafe { Self::columns::<S, R, V>(vectors, x, stride, sums) }
    }
}

/// `f32` weights.
pub(crate) struct Plain;
/// Pairs of bf16 weights, `f32` inputs.
pub(crate) struct Widening;
/// Pairs of bf16 weights, pairs of bf16 inputs.
pub(crate) struct PairDot;

impl Product for Plain {
    type X = f32;
    type Words = Floats<Bf16>;
    const GROUP: usize = 1;

    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize, const V: usize>(
        w: [*const u32; V],
        x: *const f32,
        stride: usize,
        sums: &mut [[S::V; V]; R],
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let mut weights = [S::splat(0.0); V];
            for (weight, w) in weights.iter_mut().zip(w) {
                *weight = S::load(w.cast());
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x = S::splat(*x.add(r * stride));
                for (sum, weight) in row.iter_mut().zip(weights) {
                    *sum = S::mul_add(weight, x, *sum);
                }
            }
        }
    }
}

impl Product for Widening {
    type X = f32;
    type Words = Floats<Bf16>;
    const GROUP: usize = 2;

    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize, const V: usize>(
        w: [*const u32; V],
        x: *const f32,
        stride: usize,
        sums: &mut [[S::V; V]; R],
    ) {
        // SAFETY: as the caller's.
        unsafe {
            // One half of the pairs at a time: both at once do not fit the registers.
            let mut even = [S::splat(0.0); V];
            for (weight, w) in even.iter_mut().zip(w) {
                *weight = S::load_even(w);
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x0 = S::splat(*x.add(r * stride));
                for (sum, weight) in row.iter_mut().zip(even) {
                    *sum = S::mul_add(weight, x0, *sum);
                }
            }
            let mut odd = [S::splat(0.0); V];
            for (weight, w) in odd.iter_mut().zip(w) {
                *weight = S::load_odd(S::again(w));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x1 = S::splat(*x.add(r * stride + 1));
                for (sum, weight) in row.iter_mut().zip(odd) {
                    *sum = S::mul_add(weight, x1, *sum);
                }
            }
        }
    }
}

impl Product for PairDot {
    type X = bf16;
    type Words = Pairs<Bf16>;
    const GROUP: usize = 2;

    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize, const V: usize>(
        w: [*const u32; V],
        x: *const bf16,
        stride: usize,
        sums: &mut [[S::V; V]; R],
    ) {
        // SAFETY: as the caller's; rows of bf16 need no 4-byte alignment.
        unsafe {
            for (r, row) in sums.iter_mut().enumerate() {
                let pair = x.add(r * stride).cast::<u32>().read_unaligned();
                for (sum, w) in row.iter_mut().zip(w) {
                    *sum = S::pair_dot(*sum, w, pair);
                }
            }
        }
    }
}

/// Memory that will be needed soon, asked for a few lines at each group so that reading it overlaps
/// with arithmetic.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) from: *const u8,
    /// Cache lines at each step.
    pub(crate) lines: usize,
    /// Cache lines besides, at the start of each turn of some steps ([`Ahead::of_pass`]).
    pub(crate) more: usize,
}

impl Ahead {
    /// Nothing to ask for.
    pub(crate) const NOTHING: Self = Self { from: std::ptr::null(), lines: 0, more: 0 };

    /// The part that tile `tile` of `tiles` asks for, out of `groups` groups at `from`, when each
    /// tile goes through as many groups.
    #[inline(always)]
    pub(crate) fn part(from: *const u32, groups: usize, tile: usize, tiles: usize) -> Self {
        Self::spread(from.cast(), groups, GROUP_LINES, tile, tiles)
    }

    /// What is left after `steps` steps.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn after(self, steps: usize) -> Self {
        Self { from: self.from.wrapping_add(steps * self.lines * LINE_BYTES), ..self }
    }

    /// The part that pass `pass` of `passes` asks for, out of `steps * step_lines` cache lines at
    /// `from`, when each pass has as many steps; nothing when that is null.
    #[inline(always)]
    pub(crate) fn spread(
        from: *const u8,
        steps: usize,
        step_lines: usize,
        pass: usize,
        passes: usize,
    ) -> Self {
        let (least, more) = (step_lines / passes, step_lines % passes);
        let first = pass * least + pass.min(more);
        let lines = if from.is_null() { 0 } else { least + usize::from(pass < more) };
        Self { from: from.wrapping_add(first * steps * LINE_BYTES), lines, more: 0 }
    }

    /// The part of these that pass `pass` of `passes` asks for, each of `steps` steps, of which `turn` are a turn: as many
    /// in each and, as evenly as that goes, at every step. Requests that come all in one pass come faster than memory
    /// answers.
    #[inline(always)]
    pub(crate) fn of_pass(self, steps: usize, turn: usize, (pass, passes): (usize, usize)) -> Self {
        let before = |pass: usize| pass * self.lines * turn / passes;
        let lines = before(pass + 1) - before(pass);
        Self {
            from: self.from.wrapping_add(before(pass) * steps.div_ceil(turn) * LINE_BYTES),
            lines: lines / turn,
            more: lines % turn,
        }
    }

    /// The same lines, those of steps too, at each turn of `turn` steps.
    #[inline(always)]
    pub(crate) fn by_turn(self, turn: usize) -> Self {
        Self { lines: 0, more: self.lines * turn + self.more, ..self }
    }

    /// Asks for the lines of a step.
    ///
    /// # Safety
    /// As [`Simd`]; any address may be named.
    #[inline(always)]
    pub(crate) unsafe fn step<S: Simd>(&mut self) {
        // SAFETY: as the caller's.
        unsafe { self.ask::<S>(self.lines) }
    }

    /// Asks for the lines of a turn besides those of its steps.
    ///
    /// # Safety
    /// As [`Ahead::step`].
    #[inline(always)]
    pub(crate) unsafe fn turn<S: Simd>(&mut self) {
        // SAFETY: as the caller's.
        unsafe { self.ask::<S>(self.more) }
    }

    #[inline(always)]
    unsafe fn ask<S: Simd>(&mut self, lines: usize) {
        for _ in 0..lines {
            // SAFETY: as the caller's.
            unsafe { S::prefetch_far(self.from) };
            self.from = self.from.wrapping_add(LINE_BYTES);
        }
    }
}

/// Whether a tile of so many rows takes all outputs of a panel at once; narrow vectors have registers for the sums of one.
#[inline(always)]
pub(crate) fn one_pass<S: Simd>(rows: usize) -> bool {
    S::WIDE || rows == 1
}

/// Words along `K`, for each output of a panel, that all of `tiles` go through before the words after
/// them, when a panel has `words`: [`most_words`], or fewer so that blocks are as long as each other.
pub(crate) fn block_words<S: Simd>(words: usize, tiles: usize) -> usize {
    even_blocks(words, most_words::<S>(tiles), TURN)
}

/// The most words of a block. A tile stores its sums and loads them again at every end of a block,
/// so a block that many tiles share is long and stays in the second-level cache (128 KiB), from where
/// it comes as fast as it is used. Few tiles of wide vectors, or one of narrow ones, wait for a long block
/// longer than that takes.
pub(crate) fn most_words<S: Simd>(tiles: usize) -> usize {
    let few = if S::WIDE { 3 } else { 1 };
    if tiles <= few { NEAR_WORDS } else { FAR_WORDS }
}

/// Words of each block but the last, a multiple of `unit`, when `words` are cut into as few blocks of at most
/// `most` as there can be. A block asks for as many words of the next one as it has itself: of the block
/// after a short one the rest would have to be waited for.
pub(crate) fn even_blocks(words: usize, most: usize, unit: usize) -> usize {
    let most = (most / unit).max(1) * unit;
    words.div_ceil(words.div_ceil(most).max(1)).next_multiple_of(unit).max(unit)
}

/// Rows of a tile of AMX, and the words along `K` that it takes at once.
pub(crate) const TILE_ROWS: usize = 16;
pub(crate) const STEP_GROUPS: usize = 16;
/// Words that are multiplied without a branch between them.
pub(crate) const TURN: usize = 4;
/// Words for each output of a panel that stay in the second-level cache.
pub(crate) const FAR_WORDS: usize = 512;
/// Words for each output of a panel that fit the first-level cache: 16 KiB.
pub(crate) const NEAR_WORDS: usize = 64;

/// A block of a panel and the inputs that meet it.
pub(super) struct Block<P: Product> {
    /// The first group of weights.
    pub(super) weights: *const u32,
    /// The first input of the first row.
    pub(super) x: *const P::X,
    /// Inputs between rows.
    pub(super) stride: usize,
    /// Groups along `K`.
    pub(super) groups: usize,
    /// Sums `[rows][64]`.
    pub(super) sums: *mut f32,
    /// Whether the sums begin at zero rather than at what is there.
    pub(super) fresh: bool,
    /// Memory to ask for meanwhile.
    pub(super) ahead: Ahead,
}

impl<P: Product> Block<P> {
    /// Groups of inputs of a cache line.
    const LINE_GROUPS: usize = LINE_BYTES / (P::GROUP * size_of::<P::X>());

    /// Adds the products of `rows` rows, at most [`Simd::MAX_ROWS`].
    ///
    /// # Safety
    /// As [`Simd`]; the pointers are valid for the sizes that the fields name.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd>(&self, rows: usize) {
        // SAFETY: as the caller's.
        by_count!(rows, [1 2 3 4 5 6], R => unsafe { self.rows::<S, R>() })
    }

    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self) {
        // SAFETY: as the caller's.
        unsafe {
            if one_pass::<S>(R) {
                S::enter(Tile::<P, R, VECTORS>(self, 0));
            } else if R == 2 {
                self.passes::<S, R, 2>();
            } else {
                self.passes::<S, R, 1>();
            }
        }
    }

    /// `V` vectors of the panel after another.
    #[inline(always)]
    unsafe fn passes<S: Simd, const R: usize, const V: usize>(&self) {
        for pass in 0..VECTORS / V {
            let ahead = self.ahead.of_pass(self.groups, Self::LINE_GROUPS, (pass, VECTORS / V));
            // SAFETY: as the caller's.
            unsafe { S::enter(Tile::<P, R, V>(&Self { ahead, ..*self }, pass * V * LANES)) }
        }
    }
}

/// `R` rows by `V` vectors of a block, from an output of the panel on.
struct Tile<'a, P: Product, const R: usize, const V: usize>(&'a Block<P>, usize);

impl<P: Product, const R: usize, const V: usize> Vectorised for Tile<'_, P, R, V> {
    type Output = ();
    const DOTS: Dots = P::DOTS;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile(&Block { weights, x, stride, groups, sums, fresh, ahead }, first) = self;
        // SAFETY: as for `Block::multiply`; a prefetch may name any address.
        unsafe {
            let mut acc = [[S::splat(0.0); V]; R];
            if !fresh {
                for (r, row) in acc.iter_mut().enumerate() {
                    for (v, a) in row.iter_mut().enumerate() {
                        *a = S::load(sums.add(r * WIDTH + first + v * LANES));
                    }
                }
            }
            let mut w = weights.add(first);
            let (mut x, mut ahead) = (x, ahead);
            let line_groups = Block::<P>::LINE_GROUPS;
            for line in (0..groups).step_by(line_groups) {
                // Inputs of the next tile: their rows are too short a run for the machine to guess.
                for r in 0..R {
                    S::prefetch(x.wrapping_add((R + r) * stride).cast());
                }
                if const { V < VECTORS } {
                    ahead.turn::<S>();
                }
                for _ in 0..line_groups.min(groups - line) {
                    ahead.step::<S>();
                    P::step::<S, R, V>(w, x, stride, &mut acc);
                    w = w.wrapping_add(WIDTH);
                    x = x.wrapping_add(P::GROUP);
                }
            }
            for (r, row) in acc.iter().enumerate() {
                for (v, a) in row.iter().enumerate() {
                    S::store(sums.add(r * WIDTH + first + v * LANES), *a);
                }
            }
        }
    }
}

/// `groups` groups of bf16 pairs at `from` as twice as many groups of `f32` at `to`.
///
/// # Safety
/// As [`Simd`]; both are valid for as many groups of a panel.
#[inline(always)]
pub(super) unsafe fn widen<S: Simd>(from: *const u32, to: *mut f32, groups: usize) {
    for g in 0..groups {
        for v in 0..VECTORS {
            // SAFETY: as the caller's.
            unsafe {
                let pairs = from.add(g * WIDTH + v * LANES);
                S::store(to.add(2 * g * WIDTH + v * LANES), S::load_even(pairs));
                S::store(to.add((2 * g + 1) * WIDTH + v * LANES), S::load_odd(pairs));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_ask_for_each_line_once() {
        let base = std::ptr::without_provenance::<u8>(LINE_BYTES);
        for (lines, turn, passes) in
            [(1, 8, 4), (4, 8, 4), (3, 4, 2), (2, 8, 3), (5, 4, 4), (0, 4, 4)]
        {
            let (turns, all) = (7, Ahead { from: base, lines, more: 0 });
            let mut next = base;
            for pass in 0..passes {
                let part = all.of_pass(turns * turn, turn, (pass, passes));
                assert_eq!(part.from, next, "pass {pass} of {passes}");
                let of_turn = part.by_turn(turn);
                assert_eq!(of_turn.lines, 0);
                assert_eq!(of_turn.more, part.lines * turn + part.more);
                assert!(of_turn.more.abs_diff(lines * turn / passes) <= 1, "evenly");
                next = next.wrapping_add(turns * of_turn.more * LINE_BYTES);
            }
            assert_eq!(next, base.wrapping_add(turns * turn * lines * LINE_BYTES));
        }
    }
}
