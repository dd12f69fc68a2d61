//! Quantisation and products of quantised matrices.

use super::{Table, kernel};
use crate::kernels::quantize::{QuantizeFp8, QuantizeRows, QuantizeStatic};
use half::bf16;

pub(super) const KERNELS: Table = &[
    kernel::<QuantizeRows<f32>>("quantize_rows_f32"),
    kernel::<QuantizeRows<bf16>>("quantize_rows_bf16"),
    kernel::<QuantizeStatic<f32>>("quantize_static_f32"),
    kernel::<QuantizeStatic<bf16>>("quantize_static_bf16"),
    kernel::<QuantizeFp8<f32>>("quantize_fp8_f32"),
    kernel::<QuantizeFp8<bf16>>("quantize_fp8_bf16"),
];
