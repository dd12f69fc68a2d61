//! What the benchmarks share: random checkpoints in the shape of released models, devices, and the
//! limits of the machine.

pub mod checkpoint;
pub mod config;
pub mod device;
pub mod forms;
pub mod probe;
pub mod released;
pub mod timing;
pub mod work;
