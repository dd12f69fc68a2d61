//! Elements as numbers and back.

use crate::CompileError;
use half::{bf16, f16};
use ir::DType;

/// Values of the codes 0 to 7 of an E2M1 element; 8 to 15 are their negatives.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Appends the elements of `raw` in another type, rounded to nearest even; integers saturate.
pub(super) fn cast(
    from: DType,
    to: DType,
    raw: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), CompileError> {
    let failed = |_| CompileError::Conversion { from, to };
    if from == to {
        out.extend_from_slice(raw);
    } else if to.is_int() {
        let whole: Vec<i64> = match from {
            DType::I32 => raw.chunks_exact(4).map(|b| i64::from(int32(b))).collect(),
            DType::I64 => raw.chunks_exact(8).map(int64).collect(),
            // A float that is no i64 saturates here and again below.
            _ => {
                let numbers = numbers(from, raw).map_err(failed)?;
                numbers.iter().map(|v| v.round_ties_even() as i64).collect()
            }
        };
        match to {
            DType::I8 => out.extend(whole.iter().map(|&v| v.clamp(-128, 127) as u8)),
            DType::U8 => out.extend(whole.iter().map(|&v| v.clamp(0, 255) as u8)),
            DType::I32 => {
                let narrow = |v: i64| v.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
                out.extend(whole.iter().flat_map(|&v| narrow(v).to_le_bytes()));
            }
            DType::I64 => out.extend(whole.iter().flat_map(|v| v.to_le_bytes())),
            _ => return Err(CompileError::Conversion { from, to }),
        }
    } else {
        store(to, &numbers(from, raw).map_err(failed)?, out).map_err(failed)?;
    }
    Ok(())
}

fn int32(b: &[u8]) -> i32 {
    i32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

fn int64(b: &[u8]) -> i64 {
    i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
}

/// Elements as f32.
pub(super) fn numbers(dtype: DType, raw: &[u8]) -> Result<Vec<f32>, CompileError> {
    let halves = |value: fn(u16) -> f32| {
        raw.chunks_exact(2).map(move |b| value(u16::from_le_bytes([b[0], b[1]])))
    };
    let nibbles = || raw.iter().flat_map(|&b| [b & 15, b >> 4]);
    Ok(match dtype {
        DType::F32 => raw.chunks_exact(4).map(float32).collect(),
        DType::BF16 => halves(|bits| bf16::from_bits(bits).to_f32()).collect(),
        DType::F16 => halves(|bits| f16::from_bits(bits).to_f32()).collect(),
        DType::I8 => raw.iter().map(|&b| f32::from(b as i8)).collect(),
        DType::U8 => raw.iter().map(|&b| f32::from(b)).collect(),
        DType::I4 => nibbles().map(|n| f32::from((n << 4) as i8 >> 4)).collect(),
        DType::I32 => raw.chunks_exact(4).map(|b| int32(b) as f32).collect(),
        DType::I64 => raw.chunks_exact(8).map(|b| int64(b) as f32).collect(),
        DType::F8E4M3 => {
            let table: [f32; 256] = std::array::from_fn(|code| e4m3(code as u8));
            raw.iter().map(|&b| table[usize::from(b)]).collect()
        }
        DType::MxFp4 => {
            let value = |n: u8| {
                let v = E2M1[usize::from(n & 7)];
                if n > 7 { -v } else { v }
            };
            nibbles().map(value).collect()
        }
    })
}

fn float32(b: &[u8]) -> f32 {
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// The value of an OCP FP8 E4M3 code: bias 7, subnormals below exponent 1, all ones is NaN.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (8.0 + mantissa) * f32::powi(2.0, exponent - 10),
    };
    if code > 127 { -magnitude } else { magnitude }
}

/// Scales as f32: f32 themselves, or u8 as E8M0 exponents (all ones is NaN).
pub(super) fn scales(dtype: DType, raw: &[u8]) -> Result<Vec<f32>, CompileError> {
    if dtype != DType::U8 {
        return numbers(dtype, raw);
    }
    let power = |&e: &u8| match e {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        e => f32::from_bits(u32::from(e) << 23),
    };
    Ok(raw.iter().map(power).collect())
}

/// Appends `numbers` rounded to nearest even.
pub(super) fn store(dtype: DType, numbers: &[f32], out: &mut Vec<u8>) -> Result<(), CompileError> {
    match dtype {
        DType::F32 => out.extend(numbers.iter().flat_map(|v| v.to_le_bytes())),
        DType::BF16 => {
            out.extend(numbers.iter().flat_map(|&v| bf16::from_f32(v).to_bits().to_le_bytes()));
        }
        DType::F16 => {
            out.extend(numbers.iter().flat_map(|&v| f16::from_f32(v).to_bits().to_le_bytes()));
        }
        _ => return Err(CompileError::Conversion { from: DType::F32, to: dtype }),
    }
    Ok(())
}

/// Multiplies rows of `cols` by one scale for each `group` of a row.
pub(super) fn scale(numbers: &mut [f32], scales: &[f32], cols: usize, group: usize) {
    let groups = cols.div_ceil(group);
    for (row, scales) in numbers.chunks_exact_mut(cols).zip(scales.chunks_exact(groups)) {
        for (part, scale) in row.chunks_mut(group).zip(scales) {
            part.iter_mut().for_each(|v| *v *= scale);
        }
    }
}

/// The largest code of `bits` bits; the smallest that is used is its negative.
pub(super) fn largest_code(bits: u64) -> f32 {
    ((1u64 << (bits - 1)) - 1) as f32
}

/// The scale of a group: the largest magnitude becomes the largest code.
pub(super) fn scale_of(group: &[f32], largest: f32) -> f32 {
    group.iter().fold(0.0f32, |m, v| m.max(v.abs())) / largest
}

/// What rounding to codes loses.
#[derive(Debug, Default)]
pub(super) struct Loss {
    error: f64,
    values: f64,
}

impl Loss {
    pub(super) fn relative(&self) -> f64 {
        if self.values > 0.0 { (self.error / self.values).sqrt() } else { 0.0 }
    }
}

/// Appends the codes of `numbers`, one scale for each `group`, as `i8` or `i4`.
pub(super) fn codes(
    dtype: DType,
    numbers: &[f32],
    group: usize,
    loss: &mut Loss,
    out: &mut Vec<u8>,
) {
    // Adding and taking away rounds to a whole number, ties to even, for magnitudes below 2^22.
    const ROUND: f32 = 12_582_912.0;
    let largest = largest_code(dtype.bits());
    let mut whole = Vec::with_capacity(numbers.len());
    for group in numbers.chunks_exact(group) {
        let scale = scale_of(group, largest);
        let (mut error, mut sum) = (0.0, 0.0);
        for &x in group {
            let quotient = if scale > 0.0 { x / scale } else { 0.0 };
            // A subnormal scale is coarse, so that a quotient may be larger than the codes.
            let code = ((quotient + ROUND) - ROUND).clamp(-largest, largest);
            let lost = f64::from(x - code * scale);
            error += lost * lost;
            sum += f64::from(x) * f64::from(x);
            whole.push(code as i8 as u8);
        }
        loss.error += error;
        loss.values += sum;
    }
    if dtype == DType::I4 {
        out.extend(whole.chunks_exact(2).map(|p| p[0] & 15 | p[1] << 4));
    } else {
        out.append(&mut whole);
    }
}

/// Appends elements `start .. start + count` of `raw`; of 4-bit ones an even number.
pub(super) fn copy_elements(dtype: DType, raw: &[u8], start: u64, count: u64, out: &mut Vec<u8>) {
    let bits = dtype.bits();
    let (from, bytes) = ((start * bits / 8) as usize, dtype.bytes_for(count) as usize);
    if (start * bits).is_multiple_of(8) {
        out.extend_from_slice(&raw[from..from + bytes]);
    } else {
        let shifted = |i: usize| raw[from + i] >> 4 | raw[from + i + 1] << 4;
        out.extend((0..bytes).map(shifted));
    }
}

/// Matrices that are transposed a few rows at a time.
pub(super) struct Tile {
    pub(super) dtype: DType,
    pub(super) from_cols: u64,
    pub(super) to_cols: u64,
}

impl Tile {
    /// Moves columns `cols` of rows `rows`, which are all that `raw` holds, to places in rows of
    /// `to_cols` elements; `out` begins with the row for the first of `cols`.
    pub(super) fn transpose(
        &self,
        raw: &[u8],
        cols: std::ops::Range<u64>,
        rows: std::ops::Range<u64>,
        out: &mut [u8],
    ) {
        let (from_cols, to_cols) = (self.from_cols as usize, self.to_cols as usize);
        let (first, count) = (cols.start as usize, (cols.end - cols.start) as usize);
        let (at, height) = (rows.start as usize, (rows.end - rows.start) as usize);
        if self.dtype.bits() == 4 {
            for c in 0..count {
                for r in 0..height {
                    let (from, to) = (r * from_cols + first + c, c * to_cols + at + r);
                    let nibble = raw[from / 2] >> (from % 2 * 4) & 15;
                    out[to / 2] |= nibble << (to % 2 * 4);
                }
            }
            return;
        }
        let size = self.dtype.bytes_for(1) as usize;
        for c in 0..count {
            for r in 0..height {
                let (from, to) = (r * from_cols + first + c, c * to_cols + at + r);
                out[to * size..][..size].copy_from_slice(&raw[from * size..][..size]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_round_to_nearest_even() {
        let mut out = Vec::new();
        let bits = [0x3f80_8000u32, 0x3f81_8000];
        let raw: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        cast(DType::F32, DType::BF16, &raw, &mut out).unwrap();
        assert_eq!(out, [0x80, 0x3f, 0x82, 0x3f]);
    }

    #[test]
    fn integers_saturate() {
        let raw: Vec<u8> = [i64::MAX, -5, 300].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = Vec::new();
        cast(DType::I64, DType::I8, &raw, &mut out).unwrap();
        assert_eq!(out, [127, 251, 127]);
        out.clear();
        cast(DType::I64, DType::I32, &raw[..16], &mut out).unwrap();
        assert_eq!(out, [i32::MAX.to_le_bytes(), (-5i32).to_le_bytes()].concat());
        let error = cast(DType::BF16, DType::I4, &[0, 0], &mut out).unwrap_err().to_string();
        assert!(error.contains("bf16 cannot be converted to i4"), "{error}");
    }

    /// Codes and values of the OCP 8-bit floating point specification, table 3.
    #[test]
    fn fp8_codes_have_their_values() {
        let raw = [0x00, 0x01, 0x07, 0x08, 0x38, 0x7e, 0xfe, 0x80];
        let found = numbers(DType::F8E4M3, &raw).unwrap();
        let expected = [0.0, 2f32.powi(-9), 7.0 / 512.0, 2f32.powi(-6), 1.0, 448.0, -448.0, 0.0];
        assert_eq!(found, expected);
        assert!(numbers(DType::F8E4M3, &[0x7f]).unwrap()[0].is_nan());
    }

    #[test]
    fn four_bits_have_their_values() {
        assert_eq!(numbers(DType::I4, &[0x70, 0xf8]).unwrap(), [0.0, 7.0, -8.0, -1.0]);
        assert_eq!(numbers(DType::MxFp4, &[0x71, 0xf9]).unwrap(), [0.5, 6.0, -0.5, -6.0]);
        let powers = scales(DType::U8, &[0, 1, 127, 254]).unwrap();
        assert_eq!(powers, [2f32.powi(-127), 2f32.powi(-126), 1.0, 2f32.powi(127)]);
    }

    #[test]
    fn codes_round_to_even_and_zeros_have_none() {
        let mut loss = Loss::default();
        let mut out = Vec::new();
        // Scale 1 and ties.
        codes(DType::I8, &[127.0, 0.5, 1.5, -2.5], 4, &mut loss, &mut out);
        assert_eq!(out, [127, 0, 2, 254]);
        assert!((loss.relative() - (0.75f64 / (127.0 * 127.0 + 8.75)).sqrt()).abs() < 1e-12);
        out.clear();
        codes(DType::I4, &[0.0, 0.0, -7.0, 7.0], 2, &mut Loss::default(), &mut out);
        assert_eq!(out, [0x00, 0x79]);
        // The scale of this group is the smallest subnormal, a third too small.
        out.clear();
        let tiny = f32::from_bits(190);
        codes(DType::I8, &[tiny, -tiny], 2, &mut Loss::default(), &mut out);
        assert_eq!(out, [127, 129]);
    }
}
