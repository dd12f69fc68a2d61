//! Numbers to codes and scales. Quotients are divisions, rounded to `f32`, then to a code.

mod codes;
mod fp8;
mod rows;

pub(crate) use codes::store_fp8;
pub(crate) use fp8::{Fp8Scales, QuantizeFp8};
pub(crate) use rows::{QuantizeRows, QuantizeStatic, quantize_row, quantize_static};

use super::element::Element;
use super::simd::{LANES, Simd};

/// The largest magnitude of `n` elements; not finite where one of them is not.
///
/// # Safety
/// As [`Simd`]; `x` is valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn magnitude<S: Simd, T: Element>(x: *const T, n: usize) -> f32 {
    // SAFETY: every access is below `n`.
    unsafe {
        let zero = S::splat(0.0);
        let (mut most, mut strange) = (zero, zero);
        for i in (0..n).step_by(LANES) {
            let v = T::load_part::<S>(x.add(i), n - i);
            most = S::max(S::max(v, S::sub(zero, v)), most);
            // Zero, or NaN where the number is not finite.
            strange = S::add(strange, S::sub(v, v));
        }
        S::largest(most) + S::sum(strange)
    }
}
