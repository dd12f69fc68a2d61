//! Latent attention, the indexer, sinks, and per-head products.

use super::Table;

pub(super) const KERNELS: Table = &[];
