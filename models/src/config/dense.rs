//! Dense decoders: Qwen2, Qwen3, Llama.

use super::{
    Attention, Config, FeedForward, FullAttention, Gated, Layer,
    shared::{
        HeadDim, MAX_INTERMEDIATE, Names, Sizes, finish, no_window, take_head_dim, take_kv_heads,
        take_layer_types,
    },
};
use crate::{
    error::ModelError,
    fields::Fields,
    rope::{self, Channels},
};
use serde_json::json;

/// What a family fixes before its file is read.
struct Dense {
    head_dim: HeadDim,
    /// Whether a file without `num_key_value_heads` means one per query head.
    kv_heads_optional: bool,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
}

/// A decoder without biases and without norms on q and k.
const PLAIN: Dense = Dense {
    head_dim: HeadDim::Divided,
    kv_heads_optional: false,
    qkv_bias: false,
    o_bias: false,
    mlp_bias: false,
    qk_norm: false,
};

impl Dense {
    fn parse(self, mut fields: Fields, names: Names) -> Result<Config, ModelError> {
        let sizes = Sizes::take(&mut fields)?;
        let default = self.kv_heads_optional.then_some(sizes.heads);
        let kv_heads = take_kv_heads(&mut fields, sizes.heads, default)?;
        let head_dim = take_head_dim(&mut fields, &sizes, self.head_dim)?;
        take_layer_types(&mut fields, sizes.layers, &["full_attention"])?;
        let width = fields.count("intermediate_size", MAX_INTERMEDIATE)?;
        let layer = Layer {
            attention: Attention::Full(FullAttention {
                heads: sizes.heads,
                kv_heads,
                head_dim,
                qkv_bias: self.qkv_bias,
                o_bias: self.o_bias,
                qk_norm: self.qk_norm,
                gate: false,
                sinks: None,
            }),
            feed_forward: FeedForward::Dense(Gated { width, bias: self.mlp_bias }),
        };
        let layers = vec![layer; sizes.layers as usize];
        let rope = rope::take(&mut fields, Channels::all(head_dim))?;
        finish(fields, names, &sizes, &rope, layers)
    }
}

pub(crate) fn qwen2(mut fields: Fields, names: Names) -> Result<Config, ModelError> {
    no_window(&mut fields)?;
    fields.only("use_mrope", &json!(false))?;
    Dense { qkv_bias: true, ..PLAIN }.parse(fields, names)
}

pub(crate) fn qwen3(mut fields: Fields, names: Names) -> Result<Config, ModelError> {
    no_window(&mut fields)?;
    let bias = fields.flag("attention_bias", false)?;
    let head_dim = HeadDim::Fixed(128);
    Dense { qkv_bias: bias, o_bias: bias, qk_norm: true, head_dim, ..PLAIN }.parse(fields, names)
}

pub(crate) fn llama(mut fields: Fields, names: Names) -> Result<Config, ModelError> {
    let bias = fields.flag("attention_bias", false)?;
    let mlp_bias = fields.flag("mlp_bias", false)?;
    fields.only("pretraining_tp", &json!(1))?;
    fields.only("is_llama_config", &json!(true))?;
    Dense { qkv_bias: bias, o_bias: bias, mlp_bias, kv_heads_optional: true, ..PLAIN }
        .parse(fields, names)
}
