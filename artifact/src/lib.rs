//! The artifact: plans as data, the manifest, the container on disk and the compatibility check.
//!
//! This crate is the narrow waist: the compile side ends here and the serve side begins here.

mod cache;
mod check;
mod checksum;
mod codec;
mod error;
mod manifest;
mod operator;
mod pipeline;
mod plan;
mod read;
mod seal;
mod text;
mod write;

pub use cache::cache_folder;
pub use check::{PlanError, check_plan};
pub use checksum::{Checksum, Hasher, checksum};
pub use codec::{FORMAT_VERSION, plan_bytes};
pub use error::ArtifactError;
pub use manifest::{
    Bucket, BuildTarget, ChoiceEntry, ExtensionEntry, FileEntry, Kv, Manifest, Memory, Model,
    PlanEntry, Pool, Provenance, Recorded, RecordedToken, SequenceMemory, StateEntry, WeightEntry,
    WindowMemory,
};
pub use operator::{Element, Operator, Param, TensorParam};
pub use pipeline::{
    FunctionEntry, PassEntry, PassTarget, Pipeline, QuantizedProducts, StepCosts, StoredType,
    WeightLayout,
};
pub use plan::{BufferRef, Chain, Issue, Phase, Placement, Plan, Port, Scalar, Space, Step};
pub use read::Artifact;
pub use seal::seal_manifest;
pub use write::{FileStream, Writer};
