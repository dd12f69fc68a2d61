//! What a word of weights and the inputs that it meets add to a sum.
//!
//! Every sum takes its products one after another in one order along `K`, whatever the number of
//! rows, and a weight that was expanded first gives the same bits as one that was not.

use super::codes::{Bf16, Code, F32, I4, I8, IntCode, PairCode};
use crate::kernels::matmul::{TURN, WIDTH};
use crate::kernels::simd::{Dots, LANES, Simd};
use half::bf16;
use std::marker::PhantomData;

/// An inner product of codes and activations.
pub(crate) trait Inner: Send + Sync + 'static {
    /// An input.
    type X: Copy + Default + Send + Sync + 'static;
    /// 16 sums.
    type Sum<S: Simd>: Copy;
    /// The same product with weights that [`Inner::expand`] has made.
    type Expanded: Inner<X = Self::X>;
    /// Inputs that a word meets.
    const GROUP: usize;
    /// Parts of a word that are multiplied one after another: all of them at once do not fit the registers.
    const PARTS: usize;
    /// Whether parts of words leave some sums no register, so that their place on the stack matters.
    const SPILLS: bool = Self::PARTS > 1;
    /// Words that a word is expanded to, 0 where weights are used as they are.
    const EXPANSION: usize;
    /// Words that are multiplied without a branch between them.
    const TURN: usize = TURN;
    /// Whether passes ask for memory before a turn alone, not before a word, where a turn is to be one stretch of
    /// instructions.
    const ASKS_BY_TURN: bool = false;
    /// Tiles of rows from which on weights are expanded first.
    const EXPANDED_FROM: usize = 2;
    /// Whether inputs come as elements 0, 2, 1, 3 of each four.
    const CROSSED: bool = false;
    /// Whether a word is four unsigned bytes that meet four signed ones, whose sums are exact: what AMX tiles multiply.
    const BYTES: bool = false;
    /// The dot products there are in it.
    const DOTS: Dots = Dots::NONE;
    /// What weights have too much, by which sums begin too low; 0 for floats.
    const OFFSET: i32 = 0;

    /// The most rows of a tile.
    #[inline(always)]
    fn most_rows<S: Simd>() -> usize {
        S::MAX_ROWS
    }

    /// Sums that begin at `start` (0 for floats).
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn start<S: Simd>(start: i32) -> Self::Sum<S>;
    /// # Safety
    /// As [`Simd`].
    unsafe fn load<S: Simd>(p: *const f32) -> Self::Sum<S>;
    /// # Safety
    /// As [`Simd`].
    unsafe fn store<S: Simd>(p: *mut f32, sum: Self::Sum<S>);
    /// Sums as `f32`.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn value<S: Simd>(sum: Self::Sum<S>) -> S::V;

    /// Adds the products of part `i` of the words `w` with the groups of inputs at `x`.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn part<S: Simd, const R: usize, const V: usize>(
        w: [S::I; V],
        i: usize,
        x: [*const Self::X; R],
        sums: &mut [[Self::Sum<S>; V]; R],
    );

    /// Adds the products of the words `w` with the groups of inputs at `x`.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn step<S: Simd, const R: usize, const V: usize>(
        w: [S::I; V],
        x: [*const Self::X; R],
        sums: &mut [[Self::Sum<S>; V]; R],
    ) {
        for i in 0..Self::PARTS {
            // SAFETY: as the caller's.
            unsafe { Self::part::<S, R, V>(w, i, x, sums) }
        }
    }

    /// [`Inner::step`] of `V` vectors of words from `w` on.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn step_at<S: Simd, const R: usize, const V: usize>(
        mut w: *const u32,
        x: [*const Self::X; R],
        sums: &mut [[Self::Sum<S>; V]; R],
    ) {
        for i in 0..Self::PARTS {
            // SAFETY: as the caller's.
            unsafe {
                let mut words = [S::load_bits(w); V];
                for (v, words) in words.iter_mut().enumerate().skip(1) {
                    *words = S::load_bits(w.add(v * LANES));
                }
                Self::part::<S, R, V>(words, i, x, sums);
                w = S::again(w);
            }
        }
    }

    /// [`Inner::TURN`] steps from the words of a panel at `w` and the inputs at `x` on.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn turn<S: Simd, const R: usize, const V: usize>(
        w: *const u32,
        x: [*const Self::X; R],
        sums: &mut [[Self::Sum<S>; V]; R],
    ) {
        for i in 0..Self::TURN {
            // SAFETY: as the caller's.
            unsafe {
                let x = x.map(|x| x.add(i * Self::GROUP));
                Self::step_at::<S, R, V>(w.add(i * WIDTH), x, sums);
            }
        }
        // SAFETY: as the caller's.
        unsafe { Self::settle::<S, R, V>(sums) }
    }

    /// Ends up to [`Inner::TURN`] steps.
    ///
    /// # Safety
    /// As [`Simd`].
    #[inline(always)]
    unsafe fn settle<S: Simd, const R: usize, const V: usize>(_: &mut [[Self::Sum<S>; V]; R]) {}

    /// An input as an integer, where they are.
    fn integer(_: Self::X) -> i32 {
        0
    }

    /// Part `i` of the words `w` for [`Inner::Expanded`].
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn expand<S: Simd>(w: S::I, i: usize) -> S::I;
}

/// Codes as `f32`.
pub(crate) struct Floats<C>(PhantomData<C>);
/// Codes as pairs of bf16.
pub(crate) struct Pairs<C>(PhantomData<C>);
/// Codes as bytes with inputs that are bytes; sums are integers.
pub(crate) struct Ints<C>(PhantomData<C>);
/// The same products and sums, of [`I8`] as integers of 16 bits by two.
pub(crate) struct Halves;
/// The same products and sums, of integers of 4 bits by bytes, in 16 bits during a turn.
pub(crate) struct Nibbles;

/// The sums of floats.
macro_rules! float_sums {
    () => {
        type Sum<S: Simd> = S::V;

        #[inline(always)]
        unsafe fn start<S: Simd>(_: i32) -> S::V {
            // SAFETY: as the caller's.
            unsafe { S::splat(0.0) }
        }
        #[inline(always)]
        unsafe fn load<S: Simd>(p: *const f32) -> S::V {
            // SAFETY: as the caller's.
            unsafe { S::load(p) }
        }
        #[inline(always)]
        unsafe fn store<S: Simd>(p: *mut f32, sum: S::V) {
            // SAFETY: as the caller's.
            unsafe { S::store(p, sum) }
        }
        #[inline(always)]
        unsafe fn value<S: Simd>(sum: S::V) -> S::V {
            sum
        }
    };
}

/// The sums of integers.
macro_rules! integer_sums {
    () => {
        type Sum<S: Simd> = S::I;

        #[inline(always)]
        unsafe fn start<S: Simd>(start: i32) -> S::I {
            // SAFETY: as the caller's.
            unsafe { S::splat_bits(start as u32) }
        }
        #[inline(always)]
        unsafe fn load<S: Simd>(p: *const f32) -> S::I {
            // SAFETY: as the caller's.
            unsafe { S::load_bits(p.cast()) }
        }
        #[inline(always)]
        unsafe fn store<S: Simd>(p: *mut f32, sum: S::I) {
            // SAFETY: as the caller's.
            unsafe { S::store_bits(p.cast(), sum) }
        }
        #[inline(always)]
        unsafe fn value<S: Simd>(sum: S::I) -> S::V {
            // SAFETY: as the caller's.
            unsafe { S::to_float(sum) }
        }
    };
}

impl<C: Code> Inner for Floats<C> {
    type X = f32;
    type Expanded = Floats<F32>;
    const GROUP: usize = C::PER_WORD;
    const PARTS: usize = C::PER_WORD;
    const SPILLS: bool = C::PER_WORD > 2;
    const EXPANSION: usize = if C::PER_WORD == 1 { 0 } else { C::PER_WORD };

    float_sums!();

    #[inline(always)]
    unsafe fn part<S: Simd, const R: usize, const V: usize>(
        w: [S::I; V],
        i: usize,
        x: [*const f32; R],
        sums: &mut [[S::V; V]; R],
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let mut weights = [S::splat(0.0); V];
            for (weight, w) in weights.iter_mut().zip(w) {
                *weight = C::float::<S>(w, i);
            }
            for (row, x) in sums.iter_mut().zip(x) {
                let x = S::splat(*x.add(i));
                for (sum, weight) in row.iter_mut().zip(weights) {
                    *sum = S::mul_add(weight, x, *sum);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { S::to_bits(C::float::<S>(w, i)) }
    }
}

impl<C: PairCode> Inner for Pairs<C> {
    type X = bf16;
    type Expanded = Pairs<Bf16>;
    const GROUP: usize = C::PER_WORD;
    const PARTS: usize = C::PER_WORD / 2;
    const EXPANSION: usize = if C::PER_WORD == 2 { 0 } else { C::PER_WORD / 2 };
    const CROSSED: bool = C::CROSSED;
    const DOTS: Dots = Dots::PAIRS;

    float_sums!();

    #[inline(always)]
    unsafe fn part<S: Simd, const R: usize, const V: usize>(
        mut w: [S::I; V],
        i: usize,
        x: [*const bf16; R],
        sums: &mut [[S::V; V]; R],
    ) {
        // SAFETY: as the caller's; rows of bf16 need no 4-byte alignment.
        unsafe {
            for w in &mut w {
                *w = C::pair::<S>(*w, i);
            }
            for (row, x) in sums.iter_mut().zip(x) {
                let pair = x.add(2 * i).cast::<u32>().read_unaligned();
                for (sum, w) in row.iter_mut().zip(w) {
                    *sum = S::pair_dot_bits(*sum, w, pair);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { C::pair::<S>(w, i) }
    }
}

impl<C: IntCode> Inner for Ints<C> {
    type X = i8;
    type Expanded = Ints<C::Wide>;
    const GROUP: usize = 4 * C::FOURS;
    const PARTS: usize = C::FOURS;
    const EXPANSION: usize = if C::FOURS == 1 { 0 } else { C::FOURS };
    // Taking nibbles apart runs beside multiplying; expanding stores them.
    const EXPANDED_FROM: usize = 3;
    const BYTES: bool = C::FOURS == 1;
    const DOTS: Dots = Dots::BYTES;
    const OFFSET: i32 = C::OFFSET;

    #[inline(always)]
    fn integer(x: i8) -> i32 {
        i32::from(x)
    }

    integer_sums!();

    #[inline(always)]
    unsafe fn part<S: Simd, const R: usize, const V: usize>(
        mut w: [S::I; V],
        i: usize,
        x: [*const i8; R],
        sums: &mut [[S::I; V]; R],
    ) {
        // SAFETY: as the caller's; rows of bytes need no 4-byte alignment.
        unsafe {
            for w in &mut w {
                *w = C::bytes::<S>(*w, i);
            }
            for (row, x) in sums.iter_mut().zip(x) {
                let four = S::splat_bits(x.add(4 * i).cast::<u32>().read_unaligned());
                for (sum, w) in row.iter_mut().zip(w) {
                    *sum = S::byte_dot(*sum, w, four);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: S::I, i: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe { C::bytes::<S>(w, i) }
    }
}

impl Inner for Halves {
    type X = i16;
    type Expanded = Self;
    const GROUP: usize = I8::PER_WORD;
    const PARTS: usize = 2;
    const EXPANSION: usize = 0;
    // Pointers and requests between turns of half as many words took 7% of the time.
    const TURN: usize = 4 * TURN;
    const CROSSED: bool = true;
    const OFFSET: i32 = I8::OFFSET;

    // Taking bytes apart needs registers beside the sums.
    #[inline(always)]
    fn most_rows<S: Simd>() -> usize {
        S::MAX_ROWS.min(5)
    }

    #[inline(always)]
    fn integer(x: i16) -> i32 {
        i32::from(x)
    }

    integer_sums!();

    #[inline(always)]
    unsafe fn part<S: Simd, const R: usize, const V: usize>(
        mut w: [S::I; V],
        i: usize,
        x: [*const i16; R],
        sums: &mut [[S::I; V]; R],
    ) {
        // SAFETY: as the caller's; rows of halves need no 4-byte alignment.
        unsafe {
            for w in &mut w {
                // Bytes 0 and 2, then 1 and 3.
                *w = match i {
                    0 => S::and_bits(*w, S::splat_bits(0x00ff_00ff)),
                    _ => S::odd_bytes(*w),
                };
            }
            for (row, x) in sums.iter_mut().zip(x) {
                let pair = S::splat_bits(x.add(2 * i).cast::<u32>().read_unaligned());
                for (sum, w) in row.iter_mut().zip(w) {
                    *sum = S::half_dot(*sum, w, pair);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: S::I, _: usize) -> S::I {
        w
    }
}

/// Sums of a turn, each 32 bits of them in two halves, beside those of all turns before.
#[derive(Clone, Copy)]
pub(crate) struct NibbleSums<I> {
    turn: I,
    before: I,
}

/// The largest magnitude of a sum in 16 bits: the products of a turn's words, two at a time for each half of a lane.
const LARGEST_TURN: i32 = Nibbles::TURN as i32 * 2 * (2 * 15 * 128);
const _: () = assert!(LARGEST_TURN <= i16::MAX as i32);

impl Inner for Nibbles {
    type X = i8;
    type Sum<S: Simd> = NibbleSums<S::I>;
    type Expanded = Self;
    const GROUP: usize = I4::PER_WORD;
    const PARTS: usize = I4::FOURS;
    const EXPANSION: usize = 0;
    const ASKS_BY_TURN: bool = true;
    const OFFSET: i32 = I4::OFFSET;

    // Taking bytes apart needs registers beside the sums.
    #[inline(always)]
    fn most_rows<S: Simd>() -> usize {
        S::MAX_ROWS.min(5)
    }

    #[inline(always)]
    fn integer(x: i8) -> i32 {
        i32::from(x)
    }

    #[inline(always)]
    unsafe fn start<S: Simd>(start: i32) -> NibbleSums<S::I> {
        // SAFETY: as the caller's.
        unsafe { NibbleSums { turn: S::splat_bits(0), before: S::splat_bits(start as u32) } }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> NibbleSums<S::I> {
        // SAFETY: as the caller's.
        unsafe { NibbleSums { turn: S::splat_bits(0), before: S::load_bits(p.cast()) } }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f32, sum: NibbleSums<S::I>) {
        // SAFETY: as the caller's.
        unsafe { S::store_bits(p.cast(), sum.before) }
    }

    #[inline(always)]
    unsafe fn value<S: Simd>(sum: NibbleSums<S::I>) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::to_float(sum.before) }
    }

    #[inline(always)]
    unsafe fn part<S: Simd, const R: usize, const V: usize>(
        mut w: [S::I; V],
        i: usize,
        x: [*const i8; R],
        sums: &mut [[NibbleSums<S::I>; V]; R],
    ) {
        // SAFETY: as the caller's; rows of bytes need no 4-byte alignment.
        unsafe {
            for w in &mut w {
                *w = I4::bytes::<S>(*w, i);
            }
            for (row, x) in sums.iter_mut().zip(x) {
                let four = S::splat_bits(x.add(4 * i).cast::<u32>().read_unaligned());
                for (sum, w) in row.iter_mut().zip(w) {
                    sum.turn = S::byte_dot_in_halves(sum.turn, w, four);
                }
            }
        }
    }

    // Written out: the compiler leaves a loop, with which groups of 128 took 1.4 times as long on a Zen 3.
    #[inline(always)]
    unsafe fn turn<S: Simd, const R: usize, const V: usize>(
        w: *const u32,
        x: [*const i8; R],
        sums: &mut [[NibbleSums<S::I>; V]; R],
    ) {
        const { assert!(Self::TURN == 4) };
        // SAFETY: as the caller's.
        unsafe {
            let x = |i: usize| x.map(|x| x.add(i * Self::GROUP));
            Self::step_at::<S, R, V>(w, x(0), sums);
            Self::step_at::<S, R, V>(w.add(WIDTH), x(1), sums);
            Self::step_at::<S, R, V>(w.add(2 * WIDTH), x(2), sums);
            Self::step_at::<S, R, V>(w.add(3 * WIDTH), x(3), sums);
            Self::settle::<S, R, V>(sums);
        }
    }

    #[inline(always)]
    unsafe fn settle<S: Simd, const R: usize, const V: usize>(
        sums: &mut [[NibbleSums<S::I>; V]; R],
    ) {
        // SAFETY: as the caller's.
        unsafe {
            for sum in sums.as_flattened_mut() {
                sum.before = S::half_dot(sum.before, sum.turn, S::splat_bits(0x0001_0001));
                sum.turn = S::splat_bits(0);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: S::I, _: usize) -> S::I {
        w
    }
}
