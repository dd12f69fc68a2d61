//! What [`super::Map`] and [`super::Zip`] compute.

use super::{Binary, Unary};
use crate::kernels::bind::Binder;
use crate::kernels::exp::{sigmoid, silu};
use crate::kernels::simd::Simd;

/// `x`; only its type changes.
pub(crate) struct Identity;
/// `x * sigmoid(x)`.
pub(crate) struct Silu;
/// `1 / (1 + e^-x)`.
pub(crate) struct Sigmoid;
/// `x + value`.
pub(crate) struct AddScalar(f32);
/// `a + b`.
pub(crate) struct Add;
/// `a * b`.
pub(crate) struct Mul;
/// `silu(a) * b`.
pub(crate) struct SiluMul;
/// `(u + 1) * g * sigmoid(alpha * g)` with `g = min(a, limit)`, `u = clamp(b, -limit, limit)`.
pub(crate) struct SwigluClamped {
    alpha: f32,
    limit: f32,
}

impl SwigluClamped {
    /// With these factors.
    pub(crate) fn new(alpha: f32, limit: f32) -> Self {
        Self { alpha, limit }
    }
}

impl Unary for Identity {
    fn bind(_: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, x: S::V) -> S::V {
        x
    }
}

impl Unary for Silu {
    fn bind(_: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, x: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { silu::<S>(x) }
    }
}

impl Unary for Sigmoid {
    fn bind(_: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, x: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { sigmoid::<S>(x) }
    }
}

impl Unary for AddScalar {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self(b.factor("value")?))
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, x: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::add(x, S::splat(self.0)) }
    }
}

impl Binary for Add {
    fn bind(_: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::add(a, b) }
    }
}

impl Binary for Mul {
    fn bind(_: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::mul(a, b) }
    }
}

impl Binary for SiluMul {
    fn bind(_: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self)
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::mul(silu::<S>(a), b) }
    }
}

impl Binary for SwigluClamped {
    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Ok(Self { alpha: b.factor("alpha")?, limit: b.factor("limit")? })
    }
    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, a: S::V, b: S::V) -> S::V {
        // SAFETY: the caller's promise. The second operand of `min` and `max` is the result where
        // one is NaN, so that NaN stays.
        unsafe {
            let gate = S::min(S::splat(self.limit), a);
            let up = S::max(S::splat(-self.limit), S::min(S::splat(self.limit), b));
            let swish = S::mul(gate, sigmoid::<S>(S::mul(S::splat(self.alpha), gate)));
            S::mul(S::add(up, S::splat(1.0)), swish)
        }
    }
}
