//! Why a model cannot be compiled.

use crate::{LowerError, memory::PlanMemory};
use artifact::{ArtifactError, PlanError};
use ir::DType;
use tensor::WeightError;

/// Why a model cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// A pass cannot run or broke the program.
    #[error(transparent)]
    Passes(#[from] passes::BrokenPass),
    /// The program cannot be specialised.
    #[error(transparent)]
    Specialise(#[from] passes::SpecialiseError),
    /// The target cannot compute an op.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A constant that is no expression the weight packer evaluates.
    #[error("constant %{value} cannot be packed: {why}")]
    ConstantFolding {
        /// The value.
        value: String,
        /// What stands in the way.
        why: String,
    },
    /// A conversion between element types that does not exist.
    #[error("weights of type {from} cannot be converted to {to}; choose another --dtype")]
    Conversion {
        /// Stored type.
        from: DType,
        /// Wanted type.
        to: DType,
    },
    /// A returned value that is not a dense result.
    #[error("@{func} returns %{value}, which is not a dense tensor of its own")]
    Output {
        /// The function.
        func: String,
        /// The value.
        value: String,
    },
    /// A state that no function declares.
    #[error("@{func} uses the state %{state}, which has no memory")]
    UnknownState {
        /// The function.
        func: String,
        /// The state.
        state: String,
    },
    /// A state that two functions declare differently.
    #[error("@{func} declares the state %{state} with another type than a function before it")]
    StateType {
        /// The later function.
        func: String,
        /// The state.
        state: String,
    },
    /// A function that every model has is missing.
    #[error("the model has no function @{0}")]
    NoFunction(&'static str),
    /// The placement failed its check: a fault of the compiler.
    #[error("plan {plan}: {source}; this is a fault of the compiler, please report it")]
    Placement {
        /// The plan.
        plan: String,
        /// What is wrong.
        source: PlanError,
    },
    /// More memory than there is.
    #[error(
        "{plan} needs {} bytes ({demand}) but the limit is {limit_bytes}; {}",
        demand.total(), demand.remedy(*limit_bytes)
    )]
    DoesNotFit {
        /// The plan that needs most.
        plan: String,
        /// What it needs memory for.
        demand: PlanMemory,
        /// What there is.
        limit_bytes: u64,
    },
    /// More streams or events than the device has.
    #[error(
        "the recorded plans hold {used} {what} and the device has {limit}; compile for fewer batch sizes \
         (--graph-bs), context tiers (--context-tiers) or chunk lengths (--prefill-chunks)"
    )]
    Queues {
        /// `streams` or `events`.
        what: &'static str,
        /// What all plans hold.
        used: u64,
        /// What there is.
        limit: u64,
    },
    /// Window memory of unknown size.
    #[error(
        "@{func} has the sliding-window memory %{state}, but the length of the window is not known"
    )]
    NoWindow {
        /// The function.
        func: String,
        /// The state.
        state: String,
    },
    /// A fraction of an unknown whole.
    #[error(
        "--mem-fraction needs to know the memory, which this system does not tell; add --memory"
    )]
    NoMemoryLimit,
    /// Reading the checkpoint failed.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// Writing the artifact failed.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The run that records reference tokens failed.
    #[error("recording reference tokens: {0}")]
    Record(String),
}
