//! Mixture of experts: routing, grouping, grouped products, combination.

use super::{Table, kernel};
use crate::kernels::experts::{Biased, CombineExperts, ExpertBias, ExpertGroups, Route, Unbiased};
use half::bf16;

pub(super) const KERNELS: Table = &[
    kernel::<Route<Unbiased>>("route"),
    kernel::<Route<Biased>>("route_bias"),
    kernel::<ExpertGroups>("expert_groups"),
    kernel::<ExpertBias>("expert_bias_f32"),
    kernel::<CombineExperts<f32>>("combine_experts_f32"),
    kernel::<CombineExperts<bf16>>("combine_experts_bf16"),
];
