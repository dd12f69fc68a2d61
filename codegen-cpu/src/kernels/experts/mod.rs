//! Mixture of experts, apart from the products: which experts, in which order, and their sum.

mod combine;
mod groups;
mod route;

pub(crate) use combine::{CombineExperts, ExpertBias};
pub(crate) use groups::ExpertGroups;
pub(crate) use route::{Biased, Route, Unbiased};

/// The expert that `id` names; an id outside `0..experts` counts as the nearest one.
#[inline(always)]
pub(super) fn expert(id: i32, experts: usize) -> usize {
    usize::try_from(id).unwrap_or(0).min(experts - 1)
}
