//! What the benchmarks share: random checkpoints in the shape of released models.

pub mod checkpoint;
pub mod probe;
