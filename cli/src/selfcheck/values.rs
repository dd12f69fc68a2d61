//! Tensors as bytes on a device and back, and how far two of them may be apart.

use half::{bf16, f16};
use ir::{DType, Layout, TensorType, interp::Tensor};
use tensor::Compact;

/// Magnitudes of the codes 0 to 7 of an OCP E2M1 element.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The bytes of `tensor`, of type `ty`, as a device reads them.
pub(super) fn encode(tensor: &Tensor, ty: &TensorType) -> Vec<u8> {
    let dense = dense(tensor.data(), tensor.dtype());
    if ty.layout == Layout::Nd {
        return dense;
    }
    let [.., rows, cols] = tensor.dims() else { return dense };
    let (rows, cols) = (*rows as u64, *cols as u64);
    let mut bytes = compiler::arrange(&dense, rows, cols, tensor.dtype(), ty.layout);
    if ty.layout == Layout::Compact {
        // The buffer has room for the most that the weight may take, and kernels look for the table at its end.
        let matrices = tensor.dims().iter().rev().skip(2).product::<usize>() as u64;
        let layout = Compact::stack(matrices, rows, cols);
        let table = bytes.len() - layout.table_bytes() as usize;
        let room = layout.most_bytes() as usize - bytes.len();
        bytes.splice(table..table, std::iter::repeat_n(0, room));
    }
    bytes
}

fn dense(data: &[f64], dtype: DType) -> Vec<u8> {
    let bytes = |one: &dyn Fn(f64) -> Vec<u8>| data.iter().flat_map(|&x| one(x)).collect();
    let nibbles = |code: &dyn Fn(f64) -> u8| {
        let pair = |p: &[f64]| (code(p[0]) & 15) | p.get(1).map_or(0, |&x| code(x) << 4);
        data.chunks(2).map(pair).collect()
    };
    match dtype {
        DType::F32 => bytes(&|x| (x as f32).to_le_bytes().into()),
        DType::BF16 => bytes(&|x| bf16::from_f64(x).to_le_bytes().into()),
        DType::F16 => bytes(&|x| f16::from_f64(x).to_le_bytes().into()),
        DType::I8 => bytes(&|x| (x as i8).to_le_bytes().into()),
        DType::U8 => bytes(&|x| vec![x as u8]),
        DType::I32 => bytes(&|x| (x as i32).to_le_bytes().into()),
        DType::I64 => bytes(&|x| (x as i64).to_le_bytes().into()),
        DType::F8E4M3 => bytes(&|x| vec![e4m3_code(x)]),
        DType::I4 => nibbles(&|x| x as i8 as u8),
        DType::MxFp4 => nibbles(&|x| {
            let magnitude = E2M1.iter().position(|&m| m == x.abs()).unwrap_or(0) as u8;
            magnitude | (u8::from(x.is_sign_negative()) << 3)
        }),
    }
}

/// The `count` elements that `bytes` hold, row-major.
pub(super) fn decode(bytes: &[u8], dtype: DType, count: usize) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|b| one(*b)).collect()
    }
    let nibble = |i: usize| bytes[i / 2] >> (i % 2 * 4) & 15;
    let mut values = match dtype {
        DType::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        DType::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        DType::I8 => each(bytes, |[b]| f64::from(b as i8)),
        DType::U8 => each(bytes, |[b]| f64::from(b)),
        DType::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DType::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        DType::F8E4M3 => each(bytes, |[b]| e4m3(b)),
        DType::I4 => (0..count).map(|i| f64::from((nibble(i) << 4) as i8 >> 4)).collect(),
        DType::MxFp4 => {
            let value = |code: u8| E2M1[usize::from(code & 7)] * if code > 7 { -1.0 } else { 1.0 };
            (0..count).map(|i| value(nibble(i))).collect()
        }
    };
    values.truncate(count);
    values
}

/// The value of an OCP FP8 E4M3 code.
fn e4m3(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => fraction / 8.0 * 2f64.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
    };
    if code > 127 { -magnitude } else { magnitude }
}

/// The code of a value that has one.
fn e4m3_code(x: f64) -> u8 {
    (0..=255).find(|&code| e4m3(code) == x).unwrap_or(0)
}

/// How two tensors differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Difference {
    /// The largest difference of floats, over the largest magnitude that is expected; of integers,
    /// the share of elements that differ.
    pub(super) worst: f64,
    /// What it may be.
    pub(super) bound: f64,
}

impl Difference {
    pub(super) fn holds(&self) -> bool {
        // A NaN does not.
        self.worst <= self.bound
    }

    /// The one that is further from its bound.
    pub(super) fn or(self, other: Self) -> Self {
        let excess = |d: &Self| if d.worst.is_nan() { f64::INFINITY } else { d.worst / d.bound };
        if self.bound == 0.0 || excess(&other) > excess(&self) { other } else { self }
    }
}

/// Compares what a device computed with what is expected.
///
/// Floats are summed in other orders and types, so a difference is judged against the largest value:
/// 2e-4 of it in f32, two roundings in narrower types; with `rounded`, f32 is as a narrower type. Of
/// integers, near ties (the largest of equals,
/// a code between two steps) may fall either way for one element in fifty.
pub(super) fn compare(found: &[f64], expected: &[f64], dtype: DType, rounded: bool) -> Difference {
    if dtype.is_float() && dtype != DType::F8E4M3 {
        let size = expected.iter().fold(0.0f64, |m, x| m.max(x.abs())).max(1e-6);
        let apart = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() };
        let worst = found.iter().zip(expected).map(apart);
        let worst =
            worst.fold(0.0, |m: f64, d| if d.is_nan() || m.is_nan() { f64::NAN } else { m.max(d) });
        let bound = match dtype {
            DType::F32 if !rounded => 2e-4,
            DType::F16 => 2f64.powi(-10),
            _ => 2f64.powi(-7),
        };
        return Difference { worst: worst / size, bound };
    }
    let differ = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    Difference { worst: differ as f64 / expected.len().max(1) as f64, bound: 0.02 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_values_are_one_another() {
        let values: Vec<f64> = vec![0.0, 1.0, -2.0, 6.0, -3.0, 0.5, 4.0];
        for &dtype in DType::ALL {
            let tensor = Tensor::new(dtype, vec![7], values.clone());
            let bytes = dense(tensor.data(), dtype);
            assert_eq!(bytes.len() as u64, dtype.bytes_for(7), "{dtype}");
            assert_eq!(decode(&bytes, dtype, 7), tensor.data(), "{dtype}");
        }
        for code in 0..=255u8 {
            assert!(code & 127 == 127 || code == 128 || e4m3_code(e4m3(code)) == code);
        }
    }

    #[test]
    fn a_difference_is_judged_by_type() {
        let holds = |a: &[f64], b: &[f64], dtype| compare(a, b, dtype, false).holds();
        assert!(holds(&[100.01, 1.0], &[100.0, 1.01], DType::F32));
        assert!(!holds(&[100.03, 1.0], &[100.0, 1.0], DType::F32));
        assert!(holds(&[100.7], &[100.0], DType::BF16) && !holds(&[100.8], &[100.0], DType::BF16));
        assert!(!holds(&[f64::NAN], &[100.0], DType::F32));
        assert!(!holds(&[f64::NAN, 1.0], &[100.0, 1.0], DType::F32));
        assert!(!holds(&[1.0, 2.0], &[1.0, 3.0], DType::I32));
        assert!(compare(&[100.5], &[100.0], DType::F32, true).holds());
        let same = compare(&[1.0], &[1.0], DType::F32, false);
        let worse = same.or(compare(&[1.0], &[2.0], DType::I8, false));
        assert!(!worse.holds());
    }
}
