//! Some columns of a memory, in working memory that stays in the first cache.

use crate::kernels::element::Element;
use crate::kernels::simd::{LANES, Simd};

/// Columns of a slab.
pub(super) const WIDTH: usize = 2 * LANES;

/// A vector for each half of the columns.
pub(super) type Pair<S> = [<S as Simd>::V; 2];

/// Columns of a matrix in memory: rows of `n` elements, at most [`WIDTH`], a stride apart.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) ptr: *mut f32,
    pub(super) stride: usize,
    pub(super) n: usize,
}

impl Columns {
    /// # Safety
    /// As [`Simd`]; the row is valid for `n` elements.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(&self, row: usize) -> Pair<S> {
        // SAFETY: no more than `n` elements are read, none in an empty half.
        unsafe {
            let at = self.ptr.add(row * self.stride);
            let first = f32::load_part::<S>(at, self.n);
            let second = match self.n > LANES {
                true => f32::load_part::<S>(at.add(LANES), self.n - LANES),
                false => S::splat(0.0),
            };
            [first, second]
        }
    }

    /// # Safety
    /// As [`Columns::load`].
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, row: usize, v: Pair<S>) {
        // SAFETY: no more than `n` elements are written, none in an empty half.
        unsafe {
            let at = self.ptr.add(row * self.stride);
            f32::store_part::<S>(at, v[0], self.n);
            if self.n > LANES {
                f32::store_part::<S>(at.add(LANES), v[1], self.n - LANES);
            }
        }
    }
}

/// `[dk, WIDTH]`, dense.
#[derive(Clone, Copy)]
pub(super) struct Slab {
    pub(super) ptr: *mut f32,
    pub(super) dk: usize,
}

impl Slab {
    /// All of it as columns.
    #[inline(always)]
    pub(super) fn columns(self) -> Columns {
        Columns { ptr: self.ptr, stride: WIDTH, n: WIDTH }
    }

    /// Zeros.
    ///
    /// # Safety
    /// The slab is valid and no one else uses it.
    #[inline(always)]
    pub(super) unsafe fn clear(self) {
        // SAFETY: the caller's promise.
        unsafe { self.ptr.write_bytes(0, self.dk * WIDTH) }
    }

    /// Takes `from` in and returns `k` times it. `ahead` is read next.
    ///
    /// # Safety
    /// As [`Simd`]; slab and columns have `dk` rows, `k` has as many elements.
    #[inline(always)]
    pub(super) unsafe fn take<S: Simd>(
        self,
        from: Columns,
        k: *const f32,
        ahead: *const f32,
    ) -> Pair<S> {
        // SAFETY: the caller's promise; any address may be prefetched.
        unsafe {
            let mut dot = [S::splat(0.0); 2];
            for i in 0..self.dk {
                let next = ahead.wrapping_add(i * from.stride);
                S::prefetch(next.cast());
                S::prefetch(next.wrapping_add(LANES).cast());
                let (s, k) = (from.load::<S>(i), S::splat(*k.add(i)));
                self.columns().store::<S>(i, s);
                dot = [S::mul_add(k, s[0], dot[0]), S::mul_add(k, s[1], dot[1])];
            }
            dot
        }
    }

    /// One token: `S = decay * S + k u^T` into `to`, which may be the slab. Returns `q S` and
    /// `next S`.
    ///
    /// # Safety
    /// As [`Slab::take`].
    #[inline(always)]
    pub(super) unsafe fn advance<S: Simd>(
        self,
        to: Columns,
        decay: S::V,
        u: Pair<S>,
        [q, k, next]: [*const f32; 3],
    ) -> (Pair<S>, Pair<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            let zero = S::splat(0.0);
            let (mut o, mut dot) = ([zero; 2], [zero; 2]);
            for i in 0..self.dk {
                let (k, q) = (S::splat(*k.add(i)), S::splat(*q.add(i)));
                let next = S::splat(*next.add(i));
                let s = self.columns().load::<S>(i);
                let s = [
                    S::mul_add(k, u[0], S::mul(decay, s[0])),
                    S::mul_add(k, u[1], S::mul(decay, s[1])),
                ];
                to.store::<S>(i, s);
                o = [S::mul_add(q, s[0], o[0]), S::mul_add(q, s[1], o[1])];
                dot = [S::mul_add(next, s[0], dot[0]), S::mul_add(next, s[1], dot[1])];
            }
            (o, dot)
        }
    }
}
