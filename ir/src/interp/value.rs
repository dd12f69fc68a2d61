//! Tensors of the interpreter, and rounding to each element type.

use tensor::DType;

/// A dense tensor. Every element is a value of the element type, held as `f64`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    data: Vec<f64>,
}

impl Tensor {
    /// A tensor of `data`, row-major, each element rounded to `dtype`.
    ///
    /// # Panics
    /// When `data` has not as many elements as `dims` say, or `dtype` is `i4` or `mxfp4`.
    pub fn new(dtype: DType, dims: Vec<usize>, data: Vec<f64>) -> Self {
        assert_eq!(dims.iter().product::<usize>(), data.len(), "one element per place in {dims:?}");
        let data = data.into_iter().map(|x| round(x, dtype)).collect();
        Self { dtype, dims, data }
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

/// `x` rounded to `f32` and then to the nearest value of `dtype`, ties to even. Integers and `fp8`
/// saturate.
///
/// # Panics
/// For `i4` and `mxfp4`.
fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => half::f16::from_f32(x as f32).to_f64(),
        DType::BF16 => half::bf16::from_f32(x as f32).to_f64(),
        DType::F8E4M3 => round_e4m3(f64::from(x as f32)),
        DType::I8 => to_int(x, f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::U8 => to_int(x, 0.0, f64::from(u8::MAX)),
        DType::I32 => to_int(x, f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I64 => to_int(x, i64::MIN as f64, i64::MAX as f64),
        DType::I4 | DType::MxFp4 => panic!("{dtype} has no values in the interpreter"),
    }
}

fn to_int(x: f64, min: f64, max: f64) -> f64 {
    if x.is_nan() { 0.0 } else { x.round_ties_even().clamp(min, max) }
}

/// Three mantissa bits, exponents -6 to 8, subnormals below, 448 the largest.
fn round_e4m3(x: f64) -> f64 {
    const LARGEST: f64 = 448.0;
    const MANTISSA_BITS: i32 = 3;
    const SMALLEST_EXPONENT: i32 = -6;
    if x.is_nan() || x == 0.0 {
        return x;
    }
    // `f32` values are normal `f64`s, so the exponent field is the binary logarithm rounded down.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let step = f64::powi(2.0, exponent.max(SMALLEST_EXPONENT) - MANTISSA_BITS);
    ((x / step).round_ties_even() * step).clamp(-LARGEST, LARGEST)
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
}
