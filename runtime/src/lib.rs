//! The engine: scheduler, memory of sequences, sampler and the replay loop. One thread, no async; it sees
//! plans and a device, never the IR.

#![forbid(unsafe_code)]

mod ahead;
mod bind;
mod blocks;
mod capacity;
mod choice;
mod constraint;
mod costs;
mod engine;
mod error;
#[cfg(test)]
mod fairness;
mod handle;
mod inputs;
mod kv;
mod limits;
mod memory;
mod park;
mod prefix;
mod replay;
mod request;
mod run;
mod sampler;
mod schedule;
mod sequence;
mod slower;
mod stats;
mod step;
pub mod testing;
mod throughput;

pub use constraint::{Allowed, Constraint};
pub use engine::{Engine, EngineOptions, StartupReport, StepOutcome};
pub use error::{EngineError, FlushError, RequestError, SubmitError};
pub use handle::{EngineHandle, Flushed, Pause};
pub use request::{
    Finish, LogprobOptions, Request, RequestId, Sampling, SamplingError, TokenEvent, TokenLogprob,
    TokenSink,
};
pub use stats::{BucketStats, Fallbacks, PrefixCaching, Stats, StepTimes};
