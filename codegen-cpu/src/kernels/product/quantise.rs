//! Inputs that a product quantises for itself: the codes and scales of the kernels that do so apart.

use super::fold::InputScales;
use super::inner::Inner;
use super::inputs::{Fp8Input, Stage, place, stage_row};
use super::method::XScales;
use super::source::{Feed, Size, Source};
use crate::kernels::bind::{Binder, Rows, product};
use crate::kernels::element::Element;
use crate::kernels::quantize::{Fp8Scales, quantize_row, quantize_static, store_fp8};
use crate::kernels::simd::{LANES, Simd};

/// Rows of floats, of which some lie one after the other.
struct Floats<T> {
    x: Rows<T>,
    runs: usize,
    k: usize,
}

impl<T> Floats<T> {
    fn bind(b: &mut Binder<'_>, Size { rows, k, runs, stride }: Size) -> Result<Self, String> {
        let x = b.input("x", rows / runs, product(&[runs, k])?, stride)?;
        Ok(Self { x, runs, k })
    }

    /// The first element of a row.
    ///
    /// # Safety
    /// The row exists.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> *const T {
        // SAFETY: inside what was bound.
        unsafe { self.x.row(row / self.runs).add(row % self.runs * self.k) }
    }
}

/// Up to so many rows are quantised by each thread for itself, which saves a barrier.
const ALONE: usize = 1;

/// As `quantize_rows_{T}`: integers by a scale of each row.
pub(crate) struct ByRow<T>(Floats<T>);

impl<T: Element> Source for ByRow<T> {
    type Plan = ();
    const ALONE: usize = ALONE;

    fn plan(_: &mut Binder<'_>, _: usize, _: XScales) -> Result<((), usize), String> {
        Ok(((), 1))
    }

    fn bind(b: &mut Binder<'_>, (): (), size: Size, _: usize) -> Result<Self, String> {
        Ok(Self(Floats::bind(b, size)?))
    }

    fn scales(&self) -> Option<InputScales> {
        None
    }
}

impl<X, T: Element> Feed<X> for ByRow<T>
where
    i8: Stage<X>,
{
    #[inline(always)]
    unsafe fn stage<S: Simd, P: Inner<X = X>>(
        &self,
        row: usize,
        k: usize,
        to: *mut X,
        scales: *mut f32,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let codes = codes_of::<P>(to, k);
            *scales = quantize_row::<S, T>(self.0.row(row), k, codes);
            from_codes::<P>(codes, k, to);
        }
    }
}

/// As `quantize_static_{T}`: integers by one scale and offset.
pub(crate) struct ByScale<T> {
    x: Floats<T>,
    scale: Rows<f32>,
    offset: Rows<f32>,
}

impl<T: Element> Source for ByScale<T> {
    type Plan = ();
    const ALONE: usize = ALONE;

    fn plan(_: &mut Binder<'_>, _: usize, _: XScales) -> Result<((), usize), String> {
        Ok(((), 0))
    }

    fn bind(b: &mut Binder<'_>, (): (), size: Size, _: usize) -> Result<Self, String> {
        let x = Floats::bind(b, size)?;
        Ok(Self { x, scale: b.input("scale", 1, 1, 1)?, offset: b.input("offset", 1, 1, 1)? })
    }

    fn scales(&self) -> Option<InputScales> {
        Some(InputScales::NONE)
    }
}

impl<X, T: Element> Feed<X> for ByScale<T>
where
    i8: Stage<X>,
{
    #[inline(always)]
    unsafe fn stage<S: Simd, P: Inner<X = X>>(
        &self,
        row: usize,
        k: usize,
        to: *mut X,
        _: *mut f32,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let by = (*self.scale.row(0), *self.offset.row(0));
            let codes = codes_of::<P>(to, k);
            quantize_static::<S, T>(self.x.row(row), k, by, codes);
            from_codes::<P>(codes, k, to);
        }
    }
}

/// Where the codes of `k` inputs at `to` lie before they become inputs: in the same place where they
/// are inputs, else at the end of the row, where [`stage_row`] reads each before it stores an input
/// there, since inputs are longer and the first codes become the first inputs.
///
/// # Safety
/// `to` is valid for `k` inputs, rounded up to a group.
#[inline(always)]
unsafe fn codes_of<P: Inner>(to: *mut P::X, k: usize) -> *mut i8
where
    i8: Stage<P::X>,
{
    let room = k.next_multiple_of(P::GROUP) * size_of::<P::X>();
    // SAFETY: an input has a byte or more.
    unsafe { to.cast::<i8>().add(if <i8 as Stage<P::X>>::SAME { 0 } else { room - k }) }
}

/// Makes the inputs of [`codes_of`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn from_codes<P: Inner>(codes: *mut i8, k: usize, to: *mut P::X)
where
    i8: Stage<P::X>,
{
    // SAFETY: as the caller's.
    unsafe {
        if <i8 as Stage<P::X>>::SAME { clear::<P>(to, k) } else { stage_row::<P, i8>(codes, k, to) }
    }
}

/// As `quantize_fp8_{T}`: E4M3 by a scale of each group of a row.
pub(crate) struct InFp8<T> {
    x: Floats<T>,
    scales: Fp8Scales,
}

impl<T: Element> Source for InFp8<T> {
    type Plan = Fp8Scales;
    const ALONE: usize = ALONE;

    fn plan(b: &mut Binder<'_>, k: usize, _: XScales) -> Result<(Fp8Scales, usize), String> {
        let scales = Fp8Scales::bind(b)?;
        Ok((scales, k.div_ceil(scales.group)))
    }

    fn bind(b: &mut Binder<'_>, scales: Fp8Scales, size: Size, _: usize) -> Result<Self, String> {
        Ok(Self { x: Floats::bind(b, size)?, scales })
    }

    fn scales(&self) -> Option<InputScales> {
        None
    }
}

impl<X, T: Element> Feed<X> for InFp8<T>
where
    Fp8Input: Stage<X>,
{
    #[inline(always)]
    unsafe fn stage<S: Simd, P: Inner<X = X>>(
        &self,
        row: usize,
        k: usize,
        to: *mut X,
        scales: *mut f32,
    ) {
        let group = self.scales.group;
        // SAFETY: as the caller's; places are below `k`, rounded up to a group.
        unsafe {
            clear::<P>(to, k);
            let x = self.x.row(row);
            for (g, first) in (0..k).step_by(group).enumerate() {
                let n = group.min(k - first);
                let scale = self.scales.of::<S, T>(x.add(first), n);
                *scales.add(g) = scale;
                for i in (first..first + n).step_by(LANES) {
                    let (mut codes, left) = ([0; LANES], first + n - i);
                    let v = S::div(T::load_part::<S>(x.add(i), left), S::splat(scale));
                    store_fp8::<S>(codes.as_mut_ptr(), v, left);
                    for (at, code) in (i..first + n).zip(codes) {
                        *to.add(place::<P>(at)) = Fp8Input::new(code).stage();
                    }
                }
            }
        }
    }
}

/// Zeros where the last groups of `k` inputs are not filled.
///
/// # Safety
/// `to` is valid for `k` inputs, rounded up to a group.
#[inline(always)]
unsafe fn clear<P: Inner>(to: *mut P::X, k: usize) {
    // Of four that are crossed any place may stay free.
    let first = if P::CROSSED { k / 4 * 4 } else { k };
    for i in first..k.next_multiple_of(P::GROUP) {
        // SAFETY: as the caller's.
        unsafe { *to.add(i) = P::X::default() }
    }
}
