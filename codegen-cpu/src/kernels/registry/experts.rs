//! Mixture of experts: routing, grouping, grouped products, combination.

use super::{Table, choose};
use crate::kernels::experts::{Biased, CombineExperts, ExpertBias, ExpertGroups, Route, Unbiased};
use half::bf16;

pub(super) const KERNELS: Table = &[
    ("route", choose::<Route<Unbiased>>),
    ("route_bias", choose::<Route<Biased>>),
    ("expert_groups", choose::<ExpertGroups>),
    ("expert_bias_f32", choose::<ExpertBias>),
    ("combine_experts_f32", choose::<CombineExperts<f32>>),
    ("combine_experts_bf16", choose::<CombineExperts<bf16>>),
];
