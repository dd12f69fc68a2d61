//! Convolution and the gated delta rule.

use super::{Table, choose};
use crate::kernels::recurrent::{CausalConv, DeltaGate, GatedDelta};
use half::bf16;

pub(super) const KERNELS: Table = &[
    ("causal_conv_f32", choose::<CausalConv<f32>>),
    ("causal_conv_bf16", choose::<CausalConv<bf16>>),
    ("delta_gate", choose::<DeltaGate>),
    ("gated_delta", choose::<GatedDelta>),
];
