//! What the benchmarks share: random checkpoints in the shape of released models, devices, and the
//! limits of the machine.

pub mod checkpoint;
pub mod config;
pub mod device;
pub mod forms;
pub mod released;
pub mod timing;
pub mod work;

pub use codegen_cpu::probe;
