//! The CPU: the default target and device.

pub mod device;
pub mod kernels;
pub mod probe;
pub mod target;

pub use device::{CpuDevice, CpuOptions, InstructionSet};
pub use kernels::external;
