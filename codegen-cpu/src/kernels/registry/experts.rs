//! Mixture of experts: routing, grouping, grouped products, combination.

use super::Table;

pub(super) const KERNELS: Table = &[];
