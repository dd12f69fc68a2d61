//! The driver: specialise per batch size, schedule, place buffers, pack weights, emit plans.

mod best_sizes;
mod buckets;
mod chain;
mod driver;
mod emit;
mod error;
mod memory;
mod pack;
mod pipeline;
mod place;
mod pools;
mod recipe;
mod roofline;
mod single;
mod states;
mod streams;
mod target;

pub use best_sizes::{Load, SizeList};
pub use buckets::{Buckets, choose};
pub use driver::{Checkpoint, Options, Prepared, Recorder, SizeCost, prepare};
pub use error::CompileError;
pub use memory::{KvBudget, PlanMemory};
pub use pack::arrange;
pub use roofline::{Context, Experts, Rates, StepWork};
pub use single::{Single, single};
pub use streams::QueueUse;
pub use target::{
    Arg, KernelCall, KernelFile, LowerError, Lowered, Operand, QueueBudget, Streams, Target,
};
