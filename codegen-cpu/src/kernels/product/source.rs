//! Where the inputs of a product come from.

use super::fold::InputScales;
use super::inner::Inner;
use super::inputs::{Stage, stage_row};
use super::method::XScales;
use crate::kernels::bind::{Binder, Rows};
use crate::kernels::simd::Simd;

/// Sizes of the inputs.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Rows, of `k` elements each.
    pub(super) rows: usize,
    pub(super) k: usize,
    /// Rows that lie one after the other, before the next begins a stride further.
    pub(super) runs: usize,
    pub(super) stride: usize,
}

/// The operands that inputs are made of.
pub(crate) trait Source: Sized + Send + Sync + 'static {
    /// What its scalars say.
    type Plan: Copy;
    /// Up to so many rows each thread stages for itself, which saves a barrier.
    const ALONE: usize;

    /// Takes its scalars; gives how many scales a row has, too.
    ///
    /// # Errors
    /// What is wrong with them.
    fn plan(b: &mut Binder<'_>, k: usize, scales: XScales) -> Result<(Self::Plan, usize), String>;

    /// Takes its buffers; `each` is the number of scales.
    ///
    /// # Errors
    /// What is wrong with them.
    fn bind(b: &mut Binder<'_>, plan: Self::Plan, size: Size, each: usize) -> Result<Self, String>;

    /// The scales of all rows, unless [`Feed::stage`] makes them.
    fn scales(&self) -> Option<InputScales>;
}

/// Inputs of the type `X`.
pub(crate) trait Feed<X>: Source {
    /// Rows that are inputs as they lie in memory, and the elements between them.
    fn given(&self) -> Option<(*mut X, usize)> {
        None
    }

    /// Makes one row of `k` inputs at `to`, with zeros up to a whole group, and its scales at
    /// `scales`, if [`Source::scales`] has none.
    ///
    /// # Safety
    /// As [`Simd`]; the row exists, `to` is valid for `k` elements, rounded up to a group of `P`,
    /// `scales` for the scales of a row.
    unsafe fn stage<S: Simd, P: Inner<X = X>>(
        &self,
        row: usize,
        k: usize,
        to: *mut X,
        scales: *mut f32,
    );
}

/// Elements `T` as they are, with scales that come along.
pub(crate) struct Given<T> {
    x: Rows<T>,
    scales: Option<InputScales>,
}

impl<T: Copy + Send + Sync + 'static> Source for Given<T> {
    type Plan = ();
    const ALONE: usize = 8;

    fn plan(b: &mut Binder<'_>, _: usize, scales: XScales) -> Result<((), usize), String> {
        Ok(((), if scales == XScales::None { 0 } else { b.positive("x groups")? }))
    }

    fn bind(b: &mut Binder<'_>, (): (), size: Size, each: usize) -> Result<Self, String> {
        let Size { rows, k, stride, .. } = size;
        let x = b.input("x", rows, k, stride)?;
        let scales = match each {
            0 => None,
            // SAFETY: the address of the first row, which is not read here.
            _ => Some(unsafe { b.input("x scale", rows, each, each)?.row(0) }),
        };
        Ok(Self { x, scales: scales.map(|first| InputScales { first, each }) })
    }

    fn scales(&self) -> Option<InputScales> {
        Some(self.scales.unwrap_or(InputScales::NONE))
    }
}

impl<X, T: Stage<X>> Feed<X> for Given<T> {
    fn given(&self) -> Option<(*mut X, usize)> {
        // SAFETY: the address of the first row, which is not read here.
        T::SAME.then(|| (unsafe { self.x.row(0) }.cast(), self.x.stride()))
    }

    #[inline(always)]
    unsafe fn stage<S: Simd, P: Inner<X = X>>(
        &self,
        row: usize,
        k: usize,
        to: *mut X,
        _: *mut f32,
    ) {
        // SAFETY: as the caller's.
        unsafe { stage_row::<P, T>(self.x.row(row), k, to) }
    }
}
