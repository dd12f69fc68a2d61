//! Which inputs meet which weights, and by which inner product on which machine.

use super::codes::{Bf16, Code, F32, Fp8, I4, I8, IntCode, MxFp4, TileCode};
use super::fold::{E8m0, F32Scale, Fold, Scaled, Whole};
use super::inner::{Floats, Halves, Inner, Ints, Nibbles, Pairs};
use super::inputs::Fp8Input;
use super::source::{Feed, Given, Source};
use super::store::{AsIs, InCompact, Store};
use crate::kernels::simd::{Dots, Simd};
use half::bf16;
use std::marker::PhantomData;

/// Scales that come with the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XScales {
    /// None.
    None,
    /// One for each row, the last factor of a result.
    Last,
    /// One for each row, or for each row and group, a factor of every group.
    Each,
}

/// What is done with an inner product once it is chosen.
pub(crate) trait Chosen<I> {
    /// # Safety
    /// As [`Simd`].
    unsafe fn go<S: Simd, P: Inner>(self)
    where
        I: Feed<P::X>;
}

/// Types of a product.
pub(crate) trait Method: Send + Sync + 'static {
    /// What inputs are made of.
    type Source: Source;
    /// Elements of the weight in 32 bits.
    const PER_WORD: usize;
    /// How panels are stored.
    type Store: Store;
    /// What becomes of the sums of groups.
    type Fold: Fold;
    /// Whether inputs are bytes, and weights are or become such.
    const BYTES: bool = false;
    /// Whether inputs are pairs of bf16, and weights are or become such.
    const PAIRS: bool = false;
    /// What AMX tiles take for such weights; of others it says nothing.
    type Tile: TileCode;
    /// Whether finished sums are integers.
    const INTEGERS: bool = false;
    /// Scales of the inputs.
    const X_SCALES: XScales = XScales::None;
    /// The most elements of a group.
    const LONGEST: usize = usize::MAX;
    /// The dot products of the inner products there are to choose from.
    const DOTS: Dots = Dots::PAIRS;

    /// Calls `then` with the inner product for `S`.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn choose<S: Simd>(then: impl Chosen<Self::Source>);
}

/// Floats of one type, no scales.
pub(crate) struct Float<W>(PhantomData<W>);
/// i8 inputs, integer weights: exact sums of groups.
pub(crate) struct Integer<C, I = Given<i8>>(PhantomData<(C, I)>);
/// i8 inputs and weights, the exact sum.
pub(crate) struct Exact<I = Given<i8>>(PhantomData<I>);
/// fp8 inputs and weights.
pub(crate) struct Fp8Fp8<I = Given<Fp8Input>>(PhantomData<I>);
/// Float inputs, codes with scales.
pub(crate) struct Coded<C, X>(PhantomData<(C, X)>);

impl Method for Float<f32> {
    type Source = Given<f32>;
    const PER_WORD: usize = F32::PER_WORD;
    type Tile = Bf16;
    type Store = AsIs;
    type Fold = Whole;
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<Given<f32>>) {
        // SAFETY: as the caller's.
        unsafe { then.go::<S, Floats<F32>>() }
    }
}

impl Method for Float<bf16> {
    type Source = Given<bf16>;
    const PER_WORD: usize = Bf16::PER_WORD;
    type Tile = Bf16;
    type Store = AsIs;
    type Fold = Whole;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<Given<bf16>>) {
        // SAFETY: as the caller's.
        unsafe {
            if S::PAIR_DOT { then.go::<S, Pairs<Bf16>>() } else { then.go::<S, Floats<Bf16>>() }
        }
    }
}

/// [`Float`] of bf16 in [`tensor::Compact`].
pub(crate) struct Compacted;

impl Method for Compacted {
    type Source = Given<bf16>;
    const PER_WORD: usize = Bf16::PER_WORD;
    type Tile = Bf16;
    type Store = InCompact;
    type Fold = Whole;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<Given<bf16>>) {
        // SAFETY: as the caller's.
        unsafe { Float::<bf16>::choose::<S>(then) }
    }
}

/// So long a sum of products of bytes still fits 32 bits.
const LONGEST_EXACT: usize = (1 << 17) - 1;

impl<C: IntCode, I: Feed<i8> + Feed<i16>> Method for Integer<C, I> {
    type Source = I;
    const PER_WORD: usize = 4 * C::FOURS;
    type Tile = Bf16;
    type Store = AsIs;
    type Fold = Scaled<F32Scale, false>;
    const BYTES: bool = true;
    const X_SCALES: XScales = XScales::Last;
    const LONGEST: usize = LONGEST_EXACT;
    const DOTS: Dots = Dots::BYTES;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<I>) {
        // SAFETY: as the caller's.
        unsafe {
            if const { S::BYTE_DOT } {
                then.go::<S, Ints<C>>()
            } else if const { C::FOURS > 1 } {
                then.go::<S, Nibbles>()
            } else {
                then.go::<S, Halves>()
            }
        }
    }
}

impl<I: Feed<i8> + Feed<i16>> Method for Exact<I> {
    type Source = I;
    const PER_WORD: usize = I8::PER_WORD;
    type Tile = Bf16;
    type Store = AsIs;
    type Fold = Whole;
    const BYTES: bool = true;
    const INTEGERS: bool = true;
    const LONGEST: usize = LONGEST_EXACT;
    const DOTS: Dots = Dots::BYTES;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<I>) {
        // SAFETY: as the caller's.
        unsafe {
            if const { S::BYTE_DOT } { then.go::<S, Ints<I8>>() } else { then.go::<S, Halves>() }
        }
    }
}

impl<I: Feed<f32> + Feed<bf16>> Method for Fp8Fp8<I> {
    type Source = I;
    const PER_WORD: usize = Fp8::PER_WORD;
    type Tile = Fp8;
    type Store = AsIs;
    type Fold = Scaled<F32Scale, true>;
    const PAIRS: bool = true;
    const X_SCALES: XScales = XScales::Each;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<I>) {
        // SAFETY: as the caller's.
        unsafe {
            if S::PAIR_DOT { then.go::<S, Pairs<Fp8>>() } else { then.go::<S, Floats<Fp8>>() }
        }
    }
}

/// The scales that go with codes.
pub(crate) trait Coding: Code {
    type Scale: super::fold::Scale;
}
impl Coding for Fp8 {
    type Scale = F32Scale;
}
impl Coding for I8 {
    type Scale = F32Scale;
}
impl Coding for I4 {
    type Scale = F32Scale;
}
impl Coding for MxFp4 {
    type Scale = E8m0;
}

impl<C: Coding> Method for Coded<C, f32> {
    type Source = Given<f32>;
    const PER_WORD: usize = C::PER_WORD;
    type Tile = Bf16;
    type Store = AsIs;
    type Fold = Scaled<C::Scale, false>;
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<Given<f32>>) {
        // SAFETY: as the caller's.
        unsafe { then.go::<S, Floats<C>>() }
    }
}

impl<C: Coding + TileCode> Method for Coded<C, bf16> {
    type Source = Given<bf16>;
    const PER_WORD: usize = C::PER_WORD;
    type Tile = C;
    type Store = AsIs;
    type Fold = Scaled<C::Scale, false>;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<Given<bf16>>) {
        // SAFETY: as the caller's.
        unsafe { if S::PAIR_DOT { then.go::<S, Pairs<C>>() } else { then.go::<S, Floats<C>>() } }
    }
}

/// [`Coded`] bytes with bf16 inputs: no lookup makes pairs of them.
pub(crate) struct CodedBytes;

impl Method for CodedBytes {
    type Source = Given<bf16>;
    const PER_WORD: usize = I8::PER_WORD;
    type Tile = Bf16;
    type Store = AsIs;
    type Fold = Scaled<F32Scale, false>;
    const DOTS: Dots = Dots::NONE;

    #[inline(always)]
    unsafe fn choose<S: Simd>(then: impl Chosen<Given<bf16>>) {
        // SAFETY: as the caller's.
        unsafe { then.go::<S, Floats<I8>>() }
    }
}
