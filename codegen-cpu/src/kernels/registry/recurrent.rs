//! Convolution and the gated delta rule.

use super::Table;

pub(super) const KERNELS: Table = &[];
