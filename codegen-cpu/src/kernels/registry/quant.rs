//! Quantisation and products of quantised matrices.

use super::Table;

pub(super) const KERNELS: Table = &[];
