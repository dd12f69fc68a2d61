//! From a Hugging Face checkpoint to an [`ir::Module`] and the bytes of its weights.
//!
//! [`Checkpoint::open`] reads `config.json` and the headers of the safetensors files and refuses
//! what it does not understand, before any long work. [`build`] writes the model as primitive ops;
//! fusing them is for the passes. [`SafetensorsSource`] reads weight bytes on demand.

#![forbid(unsafe_code)]

mod build;
mod check;
mod checkpoint;
mod config;
pub mod draft;
mod error;
mod expected;
mod family;
mod fields;
mod files;
mod header;
mod info;
mod quant;
mod rope;
mod source;

pub use build::{BuildOptions, Precision, build, build_capturing};
pub use checkpoint::{Checkpoint, Ignored};
pub use config::{
    Attention, Config, DeltaAttention, ExpertForm, Experts, FeedForward, FullAttention, Gated,
    Indexer, LatentAttention, Layer, Linear, SharedExpert, Sinks,
};
pub use error::{ModelError, TensorProblem};
pub use family::supported_architectures;
pub use info::ModelInfo;
pub use quant::Published;
pub use source::SafetensorsSource;
