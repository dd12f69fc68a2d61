//! What a manifest says about a model.

use serde::{Deserialize, Serialize};
use tensor::DType;

/// Facts about a checkpoint, for people and for the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Last component of the checkpoint's path.
    pub name: String,
    /// `model_type` of the configuration.
    pub model_type: String,
    /// `architectures[0]` of the configuration.
    pub architecture: String,
    /// Width of the logits.
    pub vocab_size: u64,
    /// Longest context in tokens; with YaRN the stretched one.
    pub max_context: u64,
    /// Ids that end a text: those of `generation_config.json`, else those of `config.json`. May be
    /// empty.
    pub eos_token_ids: Vec<u32>,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Tokens that a layer with a sliding window sees, itself included, where there are such layers.
    pub sliding_window: Option<u64>,
    /// Stored numbers that the model uses, codes once and their scales not; a tied head counts
    /// once.
    pub parameters: u64,
    /// Element type that most parameters are stored in, quantised ones aside.
    pub dtype: DType,
}
