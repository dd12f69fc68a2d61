//! Quantisation and products of quantised matrices.

use super::{Table, choose};
use crate::kernels::quantize::{QuantizeFp8, QuantizeRows, QuantizeStatic};
use half::bf16;

pub(super) const KERNELS: Table = &[
    ("quantize_rows_f32", choose::<QuantizeRows<f32>>),
    ("quantize_rows_bf16", choose::<QuantizeRows<bf16>>),
    ("quantize_static_f32", choose::<QuantizeStatic<f32>>),
    ("quantize_static_bf16", choose::<QuantizeStatic<bf16>>),
    ("quantize_fp8_f32", choose::<QuantizeFp8<f32>>),
    ("quantize_fp8_bf16", choose::<QuantizeFp8<bf16>>),
];
