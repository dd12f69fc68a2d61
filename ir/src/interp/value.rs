//! Tensors of the interpreter, and rounding to each element type.

use std::sync::Arc;
use tensor::DType;

/// A dense tensor. Every element is a value of the element type, held as `f64`. Clones share the
/// elements until one of them is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    data: Arc<Vec<f64>>,
}

impl Tensor {
    /// A tensor of `data`, row-major, each element rounded to `dtype`.
    ///
    /// # Panics
    /// When `data` has not as many elements as `dims` say.
    pub fn new(dtype: DType, dims: Vec<usize>, data: Vec<f64>) -> Self {
        assert_eq!(dims.iter().product::<usize>(), data.len(), "one element per place in {dims:?}");
        let data = data.into_iter().map(|x| round(x, dtype)).collect::<Vec<_>>();
        Self { dtype, dims, data: Arc::new(data) }
    }

    /// The same elements under `dims`, which must hold as many, and in `dtype`.
    pub(super) fn reshaped(&self, dtype: DType, dims: &[usize]) -> Self {
        if dtype == self.dtype {
            return Self { dtype, dims: dims.to_vec(), data: Arc::clone(&self.data) };
        }
        Self::new(dtype, dims.to_vec(), self.data.to_vec())
    }

    /// Writes `row`, rounded, over the elements from `at` on.
    pub(super) fn write(&mut self, at: usize, row: &[f64]) {
        let dtype = self.dtype;
        for (to, &x) in Arc::make_mut(&mut self.data)[at..at + row.len()].iter_mut().zip(row) {
            *to = round(x, dtype);
        }
    }

    /// `x` as the nearest value of the element type.
    pub(super) fn rounded(&self, x: f64) -> f64 {
        round(x, self.dtype)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Elements, row-major.
    pub fn data(&self) -> &[f64] {
        &self.data
    }

    /// Length of the last axis; 1 for a scalar.
    pub(super) fn columns(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Runs along the last axis.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[f64]> {
        // An empty axis has no rows to visit; chunks need a length all the same.
        self.data.chunks_exact(self.columns().max(1))
    }

    /// Elements as indices below `limit`.
    pub(super) fn indices(&self, limit: usize, what: &str) -> Result<Vec<usize>, String> {
        let index = |&x: &f64| match x {
            x if x >= 0.0 && x < limit as f64 => Ok(x as usize),
            x => Err(format!("{what} {x} is not below {limit}")),
        };
        self.data.iter().map(index).collect()
    }
}

/// `x` rounded to `f32` and then to the nearest value of `dtype`, ties to even. Integers, `fp8` and
/// `mxfp4` saturate.
fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => half::f16::from_f32(x as f32).to_f64(),
        DType::BF16 => half::bf16::from_f32(x as f32).to_f64(),
        DType::F8E4M3 => E4M3.round(f64::from(x as f32)),
        DType::MxFp4 if x.is_nan() => 0.0,
        DType::MxFp4 => E2M1.round(f64::from(x as f32)),
        DType::I4 => to_int(x, -8.0, 7.0),
        DType::I8 => to_int(x, f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::U8 => to_int(x, 0.0, f64::from(u8::MAX)),
        DType::I32 => to_int(x, f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 => to_int(x, i64::MIN as f64, i64::MAX as f64),
    }
}

fn to_int(x: f64, min: f64, max: f64) -> f64 {
    if x.is_nan() { 0.0 } else { x.round_ties_even().clamp(min, max) }
}

/// A float of few bits without infinities.
struct SmallFloat {
    mantissa_bits: i32,
    /// Of normal values; below them the spacing stays.
    smallest_exponent: i32,
    largest: f64,
}

const E4M3: SmallFloat = SmallFloat { mantissa_bits: 3, smallest_exponent: -6, largest: 448.0 };
const E2M1: SmallFloat = SmallFloat { mantissa_bits: 1, smallest_exponent: 0, largest: 6.0 };

impl SmallFloat {
    /// The nearest value to the `f32` value `x`, ties to even codes, saturating.
    fn round(&self, x: f64) -> f64 {
        if x.is_nan() || x == 0.0 {
            return x;
        }
        // `f32` values are normal `f64`s, so the exponent field is the binary logarithm rounded down.
        let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let step = f64::powi(2.0, exponent.max(self.smallest_exponent) - self.mantissa_bits);
        ((x / step).round_ties_even() * step).clamp(-self.largest, self.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_rounds_to_its_own_values() {
        assert_eq!(round(1.0 / 3.0, DType::F32), f64::from(1.0f32 / 3.0));
        assert_eq!(round(1.0 + 1.0 / 256.0, DType::BF16), 1.0, "a tie goes to the even neighbour");
        assert_eq!(round(1.0 + 3.0 / 256.0, DType::BF16), 1.0 + 4.0 / 256.0);
        assert_eq!(round(65536.0, DType::F16), f64::INFINITY);
        assert_eq!(round(-2.5, DType::I8), -2.0);
        assert_eq!(round(300.0, DType::I8), 127.0);
        assert_eq!(round(-1.0, DType::U8), 0.0);
    }

    /// Every one of the 254 finite codes is its own rounding, and midpoints go to even codes.
    #[test]
    fn fp8_rounds_between_its_codes() {
        let decode = |code: u32| {
            let (e, m) = ((code >> 3) as i32, f64::from(code & 7));
            match e {
                0 => m / 8.0 * f64::powi(2.0, -6),
                _ => (1.0 + m / 8.0) * f64::powi(2.0, e - 7),
            }
        };
        for code in 0..126u32 {
            let (low, high) = (decode(code), decode(code + 1));
            let even = if code % 2 == 0 { low } else { high };
            assert_eq!(round(low, DType::F8E4M3), low);
            assert_eq!(round(-high, DType::F8E4M3), -high);
            assert_eq!(round((low + high) / 2.0, DType::F8E4M3), even);
        }
        assert_eq!(round(1e6, DType::F8E4M3), 448.0);
    }

    #[test]
    fn four_bits_round_to_their_sixteen_values() {
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, pair) in values.windows(2).enumerate() {
            let even = if code % 2 == 0 { pair[0] } else { pair[1] };
            assert_eq!(round(pair[0], DType::MxFp4), pair[0]);
            assert_eq!(round(-pair[1], DType::MxFp4), -pair[1]);
            assert_eq!(round((pair[0] + pair[1]) / 2.0, DType::MxFp4), even);
        }
        assert_eq!([100.0, 5.1, -7.0].map(|x| round(x, DType::MxFp4)), [6.0, 6.0, -6.0]);
        assert_eq!([-9.0, 7.6, 2.5].map(|x| round(x, DType::I4)), [-8.0, 7.0, 2.0]);
    }
}
