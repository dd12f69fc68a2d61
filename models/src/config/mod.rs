//! A parsed `config.json`: what the model computes, part by part, without the name of a family.

pub(crate) mod deepseek;
pub(crate) mod dense;
pub(crate) mod gpt_oss;
pub(crate) mod qwen3_moe;
pub(crate) mod qwen3_next;
pub(crate) mod shared;

use crate::{error::ModelError, family, fields::Fields, quant::Published};
use ir::{RopeSpec, RouteSpec};
use std::path::Path;

/// What a decoder computes: every number is checked and every flag is acted on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// `model_type` of the family.
    pub model_type: &'static str,
    /// `architectures[0]` of the family.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Longest context in tokens.
    pub max_context: u64,
    /// Added to the mean square under the root of every norm of the residual stream.
    pub rms_norm_eps: f32,
    /// Rotary embedding of every layer that has positions; `dim` channels of a head are rotated.
    pub rope: RopeSpec,
    /// Whether norms are stored as what is added to 1: their weight is `1 + w`.
    pub norms_from_one: bool,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Ids that end a text; those of `generation_config.json` go before these.
    pub eos_token_ids: Vec<u32>,
    /// How the publisher quantised the weights, as far as `config.json` says.
    pub published: Published,
    /// Decoder layers in order.
    pub layers: Vec<Layer>,
    /// Prefixes of tensors of layers that only draft tokens.
    pub draft_prefixes: Vec<String>,
}

/// A decoder layer: `a = x + Attention(N(x))`, then `a + FeedForward(N(a))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// What mixes tokens.
    pub attention: Attention,
    /// What transforms each.
    pub feed_forward: FeedForward,
}

/// What mixes tokens in a layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Attention {
    /// Softmax attention over keys and values of heads.
    Full(FullAttention),
    /// Softmax attention over one compressed vector for each token.
    Latent(LatentAttention),
    /// A recurrent memory that the gated delta rule updates.
    Delta(DeltaAttention),
}

/// Softmax attention with grouped heads, scores scaled by `head_dim^-0.5`, rotary embedding in
/// half-split layout.
#[derive(Clone, Debug, PartialEq)]
pub struct FullAttention {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: u64,
    /// Channels of a head, even.
    pub head_dim: u64,
    /// Whether q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection has one.
    pub o_bias: bool,
    /// Whether q and k are normalised per head before rotation.
    pub qk_norm: bool,
    /// Whether results are multiplied by the sigmoid of a gate, whose rows follow those of the
    /// query in each head of `q_proj`.
    pub gate: bool,
    /// Attention sinks, where there are any.
    pub sinks: Option<Sinks>,
}

impl FullAttention {
    /// Tokens that a token sees, itself included, where not all.
    pub fn window(&self) -> Option<u64> {
        self.sinks.as_ref().and_then(|sinks| sinks.window)
    }
}

/// A learned logit for each query head that takes probability and adds no value (arXiv 2309.17453).
#[derive(Clone, Debug, PartialEq)]
pub struct Sinks {
    /// Tokens that a token sees, itself included, where not all.
    pub window: Option<u64>,
}

/// Multi-head latent attention (arXiv 2405.04434, section 2.1).
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: u64,
    /// Channels of the compressed query.
    pub query_rank: u64,
    /// Channels of the compressed keys and values, which the cache holds.
    pub latent: u64,
    /// Channels of a query and key head without position.
    pub nope_dim: u64,
    /// Rotated channels of a query head, interleaved, and of the key that all heads share.
    pub rope_dim: u64,
    /// Channels of a value head.
    pub value_dim: u64,
    /// Factor on scores.
    pub scale: f32,
    /// Added to the mean square under the root of the norms of both compressed vectors.
    pub norm_eps: f32,
    /// What chooses the keys that a token attends to, where not all.
    pub indexer: Option<Indexer>,
}

/// The lightning indexer (DeepSeek-V3.2).
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    /// Heads of its queries.
    pub heads: u64,
    /// Channels of a head and of the key; the first `rope_dim` are rotated, in half-split layout.
    pub dim: u64,
    /// Keys that a token attends to.
    pub keys: u64,
    /// Added to the variance under the root of the norm of keys.
    pub norm_eps: f32,
}

/// Gated DeltaNet (arXiv 2412.06464) behind a short causal convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaAttention {
    /// Query and key heads.
    pub key_heads: u64,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: u64,
    /// Channels of a query and key head.
    pub key_dim: u64,
    /// Channels of a value head.
    pub value_dim: u64,
    /// Tokens that the convolution sees, at least 2.
    pub taps: u64,
    /// Added to the sum of squares under the root when queries and keys get length 1.
    pub length_eps: f32,
}

impl DeltaAttention {
    /// Channels of all queries, or of all keys.
    pub fn keys(&self) -> u64 {
        self.key_heads * self.key_dim
    }

    /// Channels of all values.
    pub fn values(&self) -> u64 {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> u64 {
        2 * self.keys() + self.values()
    }
}

/// What transforms each token in a layer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FeedForward {
    /// One gated block.
    Dense(Gated),
    /// Some of many gated blocks, chosen for each token.
    Experts(Experts),
}

/// A gated block: `(silu(x gate^T) * (x up^T)) down^T`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// Channels between the two halves.
    pub width: u64,
    /// Whether the three projections have a bias.
    pub bias: bool,
}

/// Gated blocks of which a router chooses some for each token, and their weighted sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: u64,
    /// Channels between the two halves of each.
    pub width: u64,
    /// How the router chooses.
    pub route: RouteSpec,
    /// Whether a stored bias is added to the scores that the choice is made by.
    pub score_bias: bool,
    /// Where in the layer the router is stored: `mlp.gate`.
    pub router: &'static str,
    /// Whether logits of the router have a bias.
    pub router_bias: bool,
    /// How the experts are stored, and what they compute.
    pub form: ExpertForm,
    /// The expert that every token has besides.
    pub shared: Option<SharedExpert>,
}

/// How experts are stored, and what they compute.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpertForm {
    /// One by one: a gated block without biases each.
    Separate,
    /// All in one MXFP4 tensor for gate and up, in alternating rows, and one for down; biases; the
    /// activation of [`ir::Op::SwigluClamped`].
    Stacked {
        /// Factor in the sigmoid.
        alpha: f32,
        /// Largest gate, and largest magnitude of up.
        limit: f32,
    },
}

/// A gated block for every token beside the experts.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// Where in the layer it is stored: `mlp.shared_expert`.
    pub part: &'static str,
    /// Channels between the two halves.
    pub width: u64,
    /// Whether it is multiplied by the sigmoid of one logit, stored under `{part}_gate`.
    pub gate: bool,
}

/// A projection as a checkpoint stores it: `weight [outputs,inputs]` and perhaps `bias [outputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Rows of the weight.
    pub outputs: u64,
    /// Columns of the weight.
    pub inputs: u64,
    /// Whether a bias is added.
    pub bias: bool,
}

impl Config {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// [`ModelError`] when the file cannot be read, names an unknown model, lacks a key, or holds a
    /// key or value that is not supported.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        family::parse(Fields::read(path)?)
    }

    /// Tokens that layers with a sliding window see, where there are such layers.
    pub fn sliding_window(&self) -> Option<u64> {
        self.layers.iter().find_map(|layer| match &layer.attention {
            Attention::Full(a) => a.window(),
            _ => None,
        })
    }

    /// [`Config::read`] of `text`; `path` is for errors.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, ModelError> {
        family::parse(Fields::parse(path, text)?)
    }
}
