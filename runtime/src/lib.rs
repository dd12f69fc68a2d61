//! The engine: scheduler, KV blocks, sampler and the replay loop. One thread, no async; it sees
//! plans and a device, never the IR.

mod request;

pub use request::{
    Finish, LogprobOptions, Request, RequestId, Sampling, SamplingError, TokenEvent, TokenLogprob,
    TokenSink,
};
