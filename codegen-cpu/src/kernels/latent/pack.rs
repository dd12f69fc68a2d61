//! From rows to the arrangements that the tiles read.

use super::tile::WIDTH;
use crate::kernels::element::Element;
use crate::kernels::matmul::Product;
use crate::kernels::simd::{LANES, Simd};

/// Parts of a thread's working memory, each on a cache line of its own.
pub(super) struct Parts {
    next: *mut u8,
    bytes: usize,
}

impl Parts {
    /// Memory from `start` on, which is 64-byte aligned.
    pub(super) fn new(start: *mut u8) -> Self {
        Self { next: start, bytes: 0 }
    }

    /// The next `n` elements.
    #[inline(always)]
    pub(super) fn take<X>(&mut self, n: usize) -> *mut X {
        let part = self.next;
        let bytes = (n * size_of::<X>()).next_multiple_of(64);
        self.next = part.wrapping_add(bytes);
        self.bytes += bytes;
        part.cast()
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Elements `from[0..n]` times `scale` as those from `first` on of query `lane`, in `to
/// [groups][WIDTH][group]`.
///
/// # Safety
/// As [`Simd`]; both are valid for as many elements, whole groups.
#[inline(always)]
pub(super) unsafe fn query<S: Simd, P: Product<X: Element>>(
    from: *const f32,
    n: usize,
    scale: f32,
    to: *mut P::X,
    first: usize,
    lane: usize,
) {
    for i in (0..n).step_by(LANES) {
        // SAFETY: as the caller's.
        unsafe {
            let mut lanes = [<P::X as Element>::ZERO; LANES];
            let x = S::mul(f32::load_part::<S>(from.add(i), n - i), S::splat(scale));
            P::X::store::<S>(lanes.as_mut_ptr(), x);
            for j in (0..(n - i).min(LANES)).step_by(P::GROUP) {
                let group = (first + i + j) / P::GROUP;
                let to = to.add((group * WIDTH + lane) * P::GROUP);
                lanes.as_ptr().add(j).copy_to_nonoverlapping(to, P::GROUP);
            }
        }
    }
}

/// Zeros as query `lane`.
///
/// # Safety
/// `to` is valid for `groups` groups.
#[inline(always)]
pub(super) unsafe fn no_query<P: Product<X: Element>>(to: *mut P::X, groups: usize, lane: usize) {
    for group in 0..groups {
        for i in 0..P::GROUP {
            // SAFETY: as the caller's.
            unsafe { *to.add((group * WIDTH + lane) * P::GROUP + i) = <P::X as Element>::ZERO };
        }
    }
}

/// A row of `n` elements as the type that products take.
///
/// # Safety
/// As [`Simd`]; both are valid for `n` elements.
#[inline(always)]
pub(super) unsafe fn row<S: Simd, T: Element, X: Element>(from: *const T, to: *mut X, n: usize) {
    // SAFETY: as the caller's; types of one size are one type.
    unsafe {
        if size_of::<T>() == size_of::<X>() {
            from.cast::<X>().copy_to_nonoverlapping(to, n);
            return;
        }
        for i in (0..n).step_by(LANES) {
            X::store_part::<S>(to.add(i), T::load_part::<S>(from.add(i), n - i), n - i);
        }
    }
}

/// A group of `N` elements of one row after another, side by side: `to [N][group]`. Rows past
/// `count` count as zeros.
///
/// # Safety
/// Each of `count` rows, `stride` apart, is valid for `N` elements, `to` for `N` groups.
#[inline(always)]
pub(super) unsafe fn group<P: Product<X: Element>, const N: usize>(
    rows: *const P::X,
    stride: usize,
    count: usize,
    to: *mut P::X,
) {
    for c in 0..N {
        for i in 0..P::GROUP {
            // SAFETY: as the caller's.
            unsafe {
                let zero = <P::X as Element>::ZERO;
                *to.add(c * P::GROUP + i) =
                    if i < count { *rows.add(i * stride + c) } else { zero };
            }
        }
    }
}
