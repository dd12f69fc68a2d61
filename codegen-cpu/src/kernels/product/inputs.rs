//! Inputs as the inner products want them.

use super::fold::InputScales;
use super::inner::Inner;
use crate::kernels::simd::fp8_as_bf16;
use half::bf16;

/// An element of `x` in memory that becomes an input.
pub(crate) trait Stage<X>: Copy + Send + Sync + 'static {
    /// Whether it is one already.
    const SAME: bool = false;

    /// The input.
    fn stage(self) -> X;
}

/// FP8 E4M3.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Fp8Input(u8);

impl Fp8Input {
    pub(super) fn new(code: u8) -> Self {
        Self(code)
    }

    #[inline(always)]
    fn bits(self) -> u16 {
        static BITS: [u16; 256] = {
            let mut bits = [0; 256];
            let mut code = 0;
            while code < 256 {
                let is_nan = code & 0x7f == 0x7f;
                bits[code] = if is_nan { 0x7fc0 } else { fp8_as_bf16(code as u8) };
                code += 1;
            }
            bits
        };
        BITS[usize::from(self.0)]
    }
}

impl Stage<f32> for f32 {
    const SAME: bool = true;

    #[inline(always)]
    fn stage(self) -> f32 {
        self
    }
}

impl Stage<bf16> for bf16 {
    const SAME: bool = true;

    #[inline(always)]
    fn stage(self) -> bf16 {
        self
    }
}

impl Stage<f32> for bf16 {
    #[inline(always)]
    fn stage(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Stage<i8> for i8 {
    const SAME: bool = true;

    #[inline(always)]
    fn stage(self) -> i8 {
        self
    }
}

impl Stage<i16> for i8 {
    #[inline(always)]
    fn stage(self) -> i16 {
        self.into()
    }
}

impl Stage<bf16> for Fp8Input {
    #[inline(always)]
    fn stage(self) -> bf16 {
        bf16::from_bits(self.bits())
    }
}

impl Stage<f32> for Fp8Input {
    #[inline(always)]
    fn stage(self) -> f32 {
        f32::from_bits(u32::from(self.bits()) << 16)
    }
}

/// Rows of inputs, ready for an inner product.
pub(super) struct Inputs<X> {
    pub(super) x: *const X,
    pub(super) stride: usize,
    /// Where sums of each row and group begin, for integers.
    pub(super) starts: *const i32,
    pub(super) groups: usize,
    pub(super) scales: InputScales,
}

impl<X> Inputs<X> {
    /// The first input of a row.
    ///
    /// # Safety
    /// The row exists.
    #[inline(always)]
    pub(super) unsafe fn row(&self, row: usize) -> *const X {
        // SAFETY: the caller's promise.
        unsafe { self.x.add(row * self.stride) }
    }

    /// Where the sums of a row and group begin.
    ///
    /// # Safety
    /// They exist.
    #[inline(always)]
    pub(super) unsafe fn start<P: Inner>(&self, row: usize, group: usize) -> i32 {
        // SAFETY: the caller's promise.
        if P::OFFSET == 0 { 0 } else { unsafe { *self.starts.add(row * self.groups + group) } }
    }
}

/// Stages one row of `k` elements at `x`, with zeros up to a whole group.
///
/// # Safety
/// `x` is valid for `k` elements, `to` for as many, rounded up to a group.
#[inline(always)]
pub(super) unsafe fn stage_row<P: Inner, X: Stage<P::X>>(x: *const X, k: usize, to: *mut P::X) {
    // SAFETY: as the caller's.
    unsafe {
        let whole = if P::CROSSED { k / 4 * 4 } else { k };
        if P::CROSSED {
            for i in (0..whole).step_by(4) {
                let four = x.add(i).cast::<[X; 4]>().read_unaligned();
                let crossed = [four[0], four[2], four[1], four[3]].map(Stage::stage);
                to.add(i).cast::<[P::X; 4]>().write_unaligned(crossed);
            }
        } else {
            for i in 0..k {
                *to.add(i) = (*x.add(i)).stage();
            }
        }
        for i in whole..k.next_multiple_of(P::GROUP) {
            let from = place::<P>(i);
            *to.add(i) = if from < k { (*x.add(from)).stage() } else { P::X::default() };
        }
    }
}

/// The place of element `i` among the inputs, and the element at that place: of each four that are
/// crossed, elements 1 and 2 change places.
#[inline(always)]
pub(super) fn place<P: Inner>(i: usize) -> usize {
    match i % 4 {
        1 if P::CROSSED => i + 1,
        2 if P::CROSSED => i - 1,
        _ => i,
    }
}

/// Where the sums of each group of a row of `k` integers begin, into `to`.
///
/// # Safety
/// `x` is valid for `k` elements, rounded up to a group of `P`, `to` for all groups.
#[inline(always)]
pub(super) unsafe fn start_row<P: Inner>(x: *const P::X, k: usize, group: usize, to: *mut i32) {
    // SAFETY: as the caller's.
    unsafe {
        // Crossed, the last may lie among the zeros.
        let k = k.next_multiple_of(P::GROUP);
        for (g, first) in (0..k).step_by(group).enumerate() {
            let mut sum = 0;
            for i in first..k.min(first + group) {
                sum += P::integer(*x.add(i));
            }
            *to.add(g) = -P::OFFSET * sum;
        }
    }
}
