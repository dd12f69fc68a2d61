//! The driver: specialise per batch size, schedule, place buffers, pack weights, emit plans.

mod target;

pub use target::{Arg, KernelCall, Lowered, LowerError, Operand, Target};
