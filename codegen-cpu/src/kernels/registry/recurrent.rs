//! Convolution and the gated delta rule.

use super::{Table, kernel};
use crate::kernels::recurrent::{CausalConv, DeltaGate, GatedDelta};
use half::bf16;

pub(super) const KERNELS: Table = &[
    kernel::<CausalConv<f32>>("causal_conv_f32"),
    kernel::<CausalConv<bf16>>("causal_conv_bf16"),
    kernel::<DeltaGate>("delta_gate"),
    kernel::<GatedDelta>("gated_delta"),
];
