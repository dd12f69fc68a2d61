//! A parsed `config.json` of a dense decoder.

use crate::{error::ModelError, family, fields::Fields, rope};
use ir::RopeSpec;
use serde_json::{Value, json};
use std::path::Path;

/// Keys that cannot change what the model computes.
const IGNORABLE: &[&str] = &[
    // Who wrote the file, and with what.
    "_name_or_path",
    "transformers_version",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    // How the model was or would be trained.
    "attention_dropout",
    "initializer_range",
    "neftune_noise_alpha",
    // How the library would run it.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_cache",
    "use_bfloat16",
    "torchscript",
    // Stored element types are read from the weights themselves.
    "dtype",
    "torch_dtype",
    // The tokenizer's business.
    "bos_token_id",
    "model_max_length",
    "pad_token_id",
    "tokenizer_class",
    // Classification heads.
    "id2label",
    "label2id",
    "problem_type",
];

// Above every published model by far, and low enough that no product of a few overflows.
const MAX_HIDDEN: u64 = 1 << 17;
const MAX_INTERMEDIATE: u64 = 1 << 20;
const MAX_LAYERS: u64 = 1 << 10;
const MAX_HEADS: u64 = 1 << 11;
const MAX_HEAD_DIM: u64 = 1 << 11;
const MAX_VOCAB: u64 = 1 << 22;

/// What a dense decoder computes: every number is checked and every flag is acted on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// `model_type` of the family.
    pub model_type: &'static str,
    /// `architectures[0]` of the family.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: u64,
    /// Channels of a head, even.
    pub head_dim: u64,
    /// Width between the two halves of the gated feed-forward block.
    pub intermediate: u64,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Longest context in tokens.
    pub max_context: u64,
    /// Added to the mean square under the root of every norm.
    pub rms_norm_eps: f32,
    /// Rotary embedding over all channels of a head, in half-split layout.
    pub rope: RopeSpec,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Whether q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has one.
    pub o_bias: bool,
    /// Whether the three feed-forward projections have one.
    pub mlp_bias: bool,
    /// Whether q and k are normalised per head before rotation.
    pub qk_norm: bool,
    /// Ids that end a text; those of `generation_config.json` go before these.
    pub eos_token_ids: Vec<u32>,
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

    /// [`Config::read`] of `text`; `path` is for errors.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, ModelError> {
        family::parse(Fields::parse(path, text)?)
    }
}

/// Size of a head where the file names none.
#[derive(Clone, Copy)]
pub(crate) enum HeadDim {
    /// Hidden size over heads.
    Divided,
    /// This many channels.
    Fixed(u64),
}

/// What a family fixes before its file is read.
pub(crate) struct Dense {
    pub(crate) names: (&'static str, &'static str),
    pub(crate) head_dim: HeadDim,
    /// Whether a file without `num_key_value_heads` means one per query head.
    pub(crate) kv_heads_optional: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) o_bias: bool,
    pub(crate) mlp_bias: bool,
    pub(crate) qk_norm: bool,
}

impl Dense {
    /// A decoder without biases and without norms on q and k.
    pub(crate) fn new(names: (&'static str, &'static str)) -> Self {
        Self {
            names,
            head_dim: HeadDim::Divided,
            kv_heads_optional: false,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
        }
    }

    /// Takes every key that all dense decoders share, and refuses what is left.
    pub(crate) fn parse(self, mut fields: Fields) -> Result<Config, ModelError> {
        refuse_variants(&mut fields)?;
        let hidden = fields.count("hidden_size", MAX_HIDDEN)?;
        let layers = fields.count("num_hidden_layers", MAX_LAYERS)?;
        let heads = fields.count("num_attention_heads", MAX_HEADS)?;
        let kv_heads = self.kv_heads(&mut fields, heads)?;
        let head_dim = self.head_dim(&mut fields, hidden, heads)?;
        full_layer_types(&mut fields, layers)?;
        let max_position = fields.count("max_position_embeddings", rope::MAX_CONTEXT)?;
        let (rope, max_context) = rope::take(&mut fields, head_dim, max_position)?;
        let vocab_size = fields.count("vocab_size", MAX_VOCAB)?;
        let config = Config {
            model_type: self.names.0,
            architecture: self.names.1,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: fields.count("intermediate_size", MAX_INTERMEDIATE)?,
            vocab_size,
            max_context,
            rms_norm_eps: fields.number("rms_norm_eps", (1e-12, 1.0))? as f32,
            rope,
            tied: fields.flag("tie_word_embeddings", false)?,
            qkv_bias: self.qkv_bias,
            o_bias: self.o_bias,
            mlp_bias: self.mlp_bias,
            qk_norm: self.qk_norm,
            eos_token_ids: take_eos(&mut fields, vocab_size)?.unwrap_or_default(),
        };
        fields.finish(IGNORABLE)?;
        Ok(config)
    }

    fn kv_heads(&self, fields: &mut Fields, heads: u64) -> Result<u64, ModelError> {
        let kv_heads = match fields.opt_count("num_key_value_heads", MAX_HEADS)? {
            Some(n) => n,
            None if self.kv_heads_optional => heads,
            None => return Err(fields.missing("num_key_value_heads")),
        };
        if !heads.is_multiple_of(kv_heads) {
            let supported = format!("divisors of `num_attention_heads`, {heads}");
            return Err(fields.unsupported("num_key_value_heads", &json!(kv_heads), &supported));
        }
        Ok(kv_heads)
    }

    fn head_dim(&self, fields: &mut Fields, hidden: u64, heads: u64) -> Result<u64, ModelError> {
        let head_dim = match (fields.opt_count("head_dim", MAX_HEAD_DIM)?, self.head_dim) {
            (Some(n), _) | (None, HeadDim::Fixed(n)) => n,
            (None, HeadDim::Divided) if hidden.is_multiple_of(heads) => hidden / heads,
            (None, HeadDim::Divided) => {
                let supported = format!("multiples of `num_attention_heads`, {heads}");
                return Err(fields.unsupported("hidden_size", &json!(hidden), &supported));
            }
        };
        if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
            let supported = format!("even numbers to {MAX_HEAD_DIM}");
            return Err(fields.unsupported("head_dim", &json!(head_dim), &supported));
        }
        Ok(head_dim)
    }
}

/// Refuses settings that would make another model of a dense decoder.
fn refuse_variants(fields: &mut Fields) -> Result<(), ModelError> {
    fields.only("hidden_act", &json!("silu"))?;
    fields.only("is_encoder_decoder", &json!(false))?;
    fields.only("add_cross_attention", &json!(false))?;
    match fields.take("quantization_config") {
        None => Ok(()),
        Some(v) => Err(fields.unsupported("quantization_config", &v, "unquantised weights")),
    }
}

/// Takes `layer_types`, which newer files carry: one name for each layer, all of them full
/// attention.
fn full_layer_types(fields: &mut Fields, layers: u64) -> Result<(), ModelError> {
    let Some(types) = fields.take("layer_types") else {
        return Ok(());
    };
    let full = types.as_array().is_some_and(|names| {
        names.len() as u64 == layers && names.iter().all(|n| n == "full_attention")
    });
    if full {
        return Ok(());
    }
    let supported = format!("a list of {layers} times \"full_attention\"");
    Err(fields.unsupported("layer_types", &types, &supported))
}

/// Takes `eos_token_id`, one id or a list.
pub(crate) fn take_eos(fields: &mut Fields, vocab: u64) -> Result<Option<Vec<u32>>, ModelError> {
    let Some(value) = fields.take("eos_token_id") else {
        return Ok(None);
    };
    let id = |v: &Value| v.as_u64().filter(|&id| id < vocab).and_then(|id| u32::try_from(id).ok());
    let ids = match &value {
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    };
    let supported = || format!("an id or a list of ids below {vocab}");
    ids.map(Some).ok_or_else(|| fields.unsupported("eos_token_id", &value, &supported()))
}
