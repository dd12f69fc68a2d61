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
        // Without their signs, floats are in the order of their bits; what is not finite is above all that is.
        let mut most = S::splat_bits(0);
        for i in (0..n).step_by(LANES) {
            let v = T::load_part::<S>(x.add(i), n - i);
            most = S::max_bits(most, S::to_bits(S::abs(v)));
        }
        let most = S::from_bits(most);
        // Zeros, and NaN where a number is not finite.
        let strange = S::sub(most, most);
        S::largest(most) + S::sum(strange)
    }
}
