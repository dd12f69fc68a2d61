//! What becomes of a sum over a group of `K`.

use super::inner::Inner;
use crate::kernels::simd::Simd;

/// Outputs of a panel.
const WIDTH: usize = tensor::layout::Panels::WIDTH as usize;

/// Scales of a weight in panels.
pub(crate) trait Scale: Copy + Send + Sync + 'static {
    /// Whether there are any.
    const SOME: bool = true;

    /// Words of a panel for each output, with `groups` groups.
    fn words(groups: usize) -> usize;

    /// The scales of group `group` and 16 outputs from `lane` on, in the panel at `panel`.
    ///
    /// # Safety
    /// As [`Simd`]; the panel has these.
    unsafe fn at<S: Simd>(panel: *const u32, group: usize, lane: usize) -> S::V;
}

/// No scales.
#[derive(Clone, Copy)]
pub(crate) struct Unscaled;
/// `f32`.
#[derive(Clone, Copy)]
pub(crate) struct F32Scale;
/// Bytes that are powers of two (E8M0), `2^(e - 127)`; 255, which is NaN, reads as infinity.
#[derive(Clone, Copy)]
pub(crate) struct E8m0;

impl Scale for Unscaled {
    const SOME: bool = false;

    fn words(_: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn at<S: Simd>(_: *const u32, _: usize, _: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::splat(1.0) }
    }
}

impl Scale for F32Scale {
    fn words(groups: usize) -> usize {
        groups
    }

    #[inline(always)]
    unsafe fn at<S: Simd>(panel: *const u32, group: usize, lane: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::load(panel.add(group * WIDTH + lane).cast()) }
    }
}

impl Scale for E8m0 {
    fn words(groups: usize) -> usize {
        groups.div_ceil(4)
    }

    #[inline(always)]
    unsafe fn at<S: Simd>(panel: *const u32, group: usize, lane: usize) -> S::V {
        // SAFETY: as the caller's.
        unsafe {
            let exponent = S::shl::<23>(Self::exponents::<S>(panel, group, lane));
            // The exponent 0 is the denormal 2^-127.
            S::from_bits(S::max_bits(exponent, S::splat_bits(1 << 22)))
        }
    }
}

impl E8m0 {
    /// The bytes of group `group` and 16 outputs from `lane` on, in the panel at `panel`.
    ///
    /// # Safety
    /// As [`Scale::at`].
    #[inline(always)]
    pub(super) unsafe fn exponents<S: Simd>(panel: *const u32, group: usize, lane: usize) -> S::I {
        // SAFETY: as the caller's.
        unsafe {
            let four = S::load_bits(panel.add(group / 4 * WIDTH + lane));
            let byte = S::shr_by(four, 8 * (group % 4) as u32);
            S::and_bits(byte, S::splat_bits(0xff))
        }
    }
}

/// Which group, row of inputs and output of the panel a vector of sums belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(super) group: usize,
    pub(super) row: usize,
    pub(super) lane: usize,
}

/// Scales of inputs, `each` for every row.
#[derive(Clone, Copy)]
pub(crate) struct InputScales {
    pub(super) first: *const f32,
    pub(super) each: usize,
}

impl InputScales {
    /// No scales.
    pub(super) const NONE: Self = Self { first: std::ptr::null(), each: 0 };
}

// SAFETY: what it points at is read only.
unsafe impl Send for InputScales {}
// SAFETY: as above.
unsafe impl Sync for InputScales {}

/// Takes the sums of a group.
pub(crate) trait Fold: Copy + Send + Sync + 'static {
    /// Scales of the weight.
    type Scale: Scale;

    /// For the panel whose scales begin at `panel`.
    fn new(panel: *const u32, inputs: InputScales) -> Self;

    /// Adds the sums of a group to those of the groups before it, at `sums`.
    ///
    /// # Safety
    /// As [`Simd`]; the place exists, `sums` is valid for 16 sums.
    unsafe fn fold<S: Simd, P: Inner>(self, sum: P::Sum<S>, at: Place, sums: *mut f32);
}

/// The sum itself, an integer if it is one; there is one group.
#[derive(Clone, Copy)]
pub(crate) struct Whole;

impl Fold for Whole {
    type Scale = Unscaled;

    fn new(_: *const u32, _: InputScales) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn fold<S: Simd, P: Inner>(self, sum: P::Sum<S>, _: Place, sums: *mut f32) {
        // SAFETY: as the caller's.
        unsafe { P::store::<S>(sums, sum) }
    }
}

/// Groups times their scales, those of the inputs too when `INPUTS`, one after another. Products
/// and sums are rounded apart, so that every instruction set has the same bits.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<W, const INPUTS: bool> {
    panel: *const u32,
    inputs: InputScales,
    of: std::marker::PhantomData<W>,
}

// SAFETY: what it points at is read only.
unsafe impl<W, const INPUTS: bool> Send for Scaled<W, INPUTS> {}
// SAFETY: as above.
unsafe impl<W, const INPUTS: bool> Sync for Scaled<W, INPUTS> {}

impl<W: Scale, const INPUTS: bool> Fold for Scaled<W, INPUTS> {
    type Scale = W;

    fn new(panel: *const u32, inputs: InputScales) -> Self {
        Self { panel, inputs, of: std::marker::PhantomData }
    }

    #[inline(always)]
    unsafe fn fold<S: Simd, P: Inner>(self, sum: P::Sum<S>, at: Place, sums: *mut f32) {
        // SAFETY: as the caller's.
        unsafe {
            let mut part = S::mul(P::value::<S>(sum), W::at::<S>(self.panel, at.group, at.lane));
            if INPUTS {
                let InputScales { first, each } = self.inputs;
                let group = if each == 1 { 0 } else { at.group };
                part = S::mul(part, S::splat(*first.add(at.row * each + group)));
            }
            if at.group > 0 {
                part = S::add(S::load(sums), part);
            }
            S::store(sums, part);
        }
    }
}
