//! Ascend NPUs: what ops are lowered to, the kernels of ours, and the device that records and replays
//! plans through the runtime library of the vendor.

mod build;
pub mod chip;
pub mod device;
pub mod kernels;
pub mod target;
