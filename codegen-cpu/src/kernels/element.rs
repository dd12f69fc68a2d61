//! Element types that kernels read and write as `f32` lanes.

use super::simd::{LANES, Simd};
use half::bf16;

/// `f32` or `bf16`.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;

    /// 16 elements.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;

    /// 16 elements.
    ///
    /// # Safety
    /// As [`Simd`].
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);

    /// The first `n` elements, and zeros when `n < 16`.
    ///
    /// # Safety
    /// As [`Simd`]; `p` is valid for `min(n, 16)` elements.
    #[inline(always)]
    unsafe fn load_part<S: Simd>(p: *const Self, n: usize) -> S::V {
        // SAFETY: only the elements that the caller vouches for are read.
        unsafe {
            if n >= LANES {
                return Self::load::<S>(p);
            }
            let mut lanes = [Self::ZERO; LANES];
            p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n);
            Self::load::<S>(lanes.as_ptr())
        }
    }

    /// The first `min(n, 16)` lanes.
    ///
    /// # Safety
    /// As [`Simd`]; `p` is valid for `min(n, 16)` elements.
    #[inline(always)]
    unsafe fn store_part<S: Simd>(p: *mut Self, v: S::V, n: usize) {
        // SAFETY: only the elements that the caller vouches for are written.
        unsafe {
            if n >= LANES {
                return Self::store::<S>(p, v);
            }
            let mut lanes = [Self::ZERO; LANES];
            Self::store::<S>(lanes.as_mut_ptr(), v);
            p.copy_from_nonoverlapping(lanes.as_ptr(), n);
        }
    }
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V) {
        // SAFETY: as the caller's.
        unsafe { S::store(p, v) }
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: as the caller's.
        unsafe { S::load_bf16(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V) {
        // SAFETY: as the caller's.
        unsafe { S::store_bf16(p, v) }
    }
}
