//! Why an engine cannot start, a request cannot be taken, or a step failed.

use crate::SamplingError;
use artifact::{ArtifactError, Phase};
use hal::DeviceError;

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The artifact cannot be read.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The device cannot provide memory or capture a plan.
    #[error("{doing}: {source}")]
    Device {
        /// What was being done, such as `binding plan decode-bs8-ctx2048`.
        doing: String,
        /// What the device said.
        source: DeviceError,
    },
    /// A plan that the engine cannot drive.
    #[error("plan `{plan}`: {why}; the artifact is damaged, run `precast compile` again")]
    Plan {
        /// Name of the plan.
        plan: String,
        /// What is wrong with it.
        why: String,
    },
    /// No plan for some part of the work.
    #[error("the artifact has no {0} plan; run `precast compile` again")]
    NoPlan(Phase),
    /// An option or a manifest entry out of range.
    #[error("`{field}` is {found}, but must be {must_be}")]
    Range {
        /// The option or the manifest's field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        must_be: &'static str,
    },
    /// [`crate::EngineOptions::max_total_tokens`] out of range.
    #[error(
        "`--max-total-tokens` is {asked}, but must be at least {least}, what a prompt and an answer need, and at most {most}, what the artifact has; for more, compile with a larger `--kv-blocks`"
    )]
    TotalTokens {
        /// What was asked for.
        asked: u32,
        /// Tokens of the fewest blocks that hold a prompt and its answer.
        least: u32,
        /// Tokens of the artifact's KV blocks.
        most: u32,
    },
    /// The engine thread cannot be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// A request that no state of the engine could serve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// Nothing to continue.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A token id that the model does not have.
    #[error(
        "token {token} at position {position} of the prompt is not below the vocabulary size {vocab_size}"
    )]
    PromptToken {
        /// Position in the prompt.
        position: usize,
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: u32,
    },
    /// A bias for a token id that the model does not have.
    #[error(
        "`logit_bias` names token {token}, which is not below the vocabulary size {vocab_size}"
    )]
    BiasToken {
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: u32,
    },
    /// Longer than the context or than all KV memory.
    #[error(
        "prompt of {tokens} tokens does not fit the context of {context} tokens (prompt and answer together); shorten the prompt or compile with a larger `--max-context` or `--kv-blocks`"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// The most tokens of prompt and answer.
        context: usize,
    },
    /// A sampling parameter out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests as are allowed wait already; trying again later may help.
    #[error(
        "the queue is full: {limit} requests wait already (`--max-queued-requests`); try again later"
    )]
    QueueFull {
        /// The most requests that may wait.
        limit: u32,
    },
    /// The engine has stopped or is about to; [`crate::EngineHandle::failure`] says whether it failed.
    #[error("the engine has stopped")]
    Stopped,
    /// The request can never be served.
    #[error(transparent)]
    Invalid(#[from] RequestError),
}

/// Why the cache was not flushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// Requests are running or waiting.
    #[error("{requests} requests are running or waiting; flush when the engine is idle")]
    Busy {
        /// How many.
        requests: u64,
    },
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}
