//! Vectors of 16 `f32` lanes, one implementation per instruction set. Kernels are written once
//! against [`Simd`] and compiled for each implementation.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Avx512, Avx512Bf16};
pub(crate) use portable::Portable;

use half::bf16;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A body that [`Simd::enter`] compiles with an instruction set enabled.
pub(crate) trait Vectorised {
    /// What it returns.
    type Output;

    /// The body; must be `#[inline(always)]` so that it is compiled inside [`Simd::enter`].
    ///
    /// # Safety
    /// The machine has the instructions of `S`; further conditions are the body's own.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// An instruction set.
///
/// # Safety
/// Every function needs a machine that has the instructions. Pointers are valid for 16 elements
/// of their type, or for `n` where `n` is a parameter; they need no alignment.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// 16 lanes of `f32`.
    type V: Copy;
    /// The most rows of a matrix tile whose accumulators stay in registers.
    const MAX_ROWS: usize;
    /// Whether a tile is a whole panel wide (four vectors) rather than one vector.
    const WIDE: bool;
    /// Whether [`Simd::pair_dot`] is one instruction.
    const PAIR_DOT: bool;

    /// Runs `body` compiled for this instruction set, as a function of its own.
    unsafe fn enter<F: Vectorised>(body: F) -> F::Output;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// Rounds to nearest even; NaN stays NaN.
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);
    /// The first of each of 16 pairs of bf16.
    unsafe fn load_even(p: *const u32) -> Self::V;
    /// The second of each of 16 pairs of bf16.
    unsafe fn load_odd(p: *const u32) -> Self::V;
    /// `acc` plus the product of each of 16 pairs of bf16 at `w` with the pair `x`.
    unsafe fn pair_dot(acc: Self::V, w: *const u32, x: u32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, in one rounding where the machine can.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `2^n` where `v = 1.5 * 2^23 + n` and `n` is an integer in `-126..=127`.
    unsafe fn power_of_two(v: Self::V) -> Self::V;
    /// `v` where `x >= limit`, else zero (also where `x` is NaN).
    unsafe fn zero_below(v: Self::V, x: Self::V, limit: f32) -> Self::V;
    /// Asks for the cache line at `p`; any address may be given.
    unsafe fn prefetch(p: *const u8);

    /// Lanes as an array.
    #[inline(always)]
    unsafe fn lanes(v: Self::V) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array has 16 elements; the instructions are the caller's promise.
        unsafe { Self::store(lanes.as_mut_ptr(), v) };
        lanes
    }

    /// Sum of the lanes, in halves.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: as the caller's.
        let mut a = unsafe { Self::lanes(v) };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] += a[i + half];
            }
            half /= 2;
        }
        a[0]
    }

    /// Largest lane.
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        // SAFETY: as the caller's.
        let a = unsafe { Self::lanes(v) };
        a.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
}
