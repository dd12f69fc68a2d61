//! Keys that all families share, each taken the same way everywhere.

use super::{Config, Layer};
use crate::{error::ModelError, fields::Fields, quant::Published, rope::Rope};
use ir::RouteSpec;
use serde_json::{Value, json};

/// Keys that cannot change what the model computes.
const IGNORABLE: &[&str] = &[
    // Who wrote the file, and with what.
    "_name_or_path",
    "transformers_version",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "auto_map",
    // How the model was or would be trained.
    "aux_loss_alpha",
    "seq_aux",
    "attention_dropout",
    "initializer_range",
    "neftune_noise_alpha",
    "router_aux_loss_coef",
    // How the library would run it.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "ep_size",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
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
pub(crate) const MAX_HIDDEN: u64 = 1 << 17;
pub(crate) const MAX_INTERMEDIATE: u64 = 1 << 20;
pub(crate) const MAX_LAYERS: u64 = 1 << 10;
pub(crate) const MAX_HEADS: u64 = 1 << 11;
pub(crate) const MAX_HEAD_DIM: u64 = 1 << 11;
pub(crate) const MAX_VOCAB: u64 = 1 << 22;
pub(crate) const MAX_EXPERTS: u64 = 1 << 12;
const EPSILON: (f64, f64) = (1e-12, 1.0);

/// `model_type` and `architectures[0]` of a family.
pub(crate) type Names = (&'static str, &'static str);

/// Sizes that stand before everything else.
pub(crate) struct Sizes {
    pub(crate) hidden: u64,
    pub(crate) layers: u64,
    pub(crate) heads: u64,
}

impl Sizes {
    /// Takes the sizes, after refusing settings that make another model of every family.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ModelError> {
        fields.only("hidden_act", &json!("silu"))?;
        fields.only("is_encoder_decoder", &json!(false))?;
        fields.only("add_cross_attention", &json!(false))?;
        Ok(Self {
            hidden: fields.count("hidden_size", MAX_HIDDEN)?,
            layers: fields.count("num_hidden_layers", MAX_LAYERS)?,
            heads: fields.count("num_attention_heads", MAX_HEADS)?,
        })
    }
}

/// Takes what is left of a file whose `layers` are read, and refuses unknown keys.
pub(crate) fn finish(
    mut fields: Fields,
    names: Names,
    sizes: &Sizes,
    rope: &Rope,
    layers: Vec<Layer>,
) -> Result<Config, ModelError> {
    let vocab_size = fields.count("vocab_size", MAX_VOCAB)?;
    let config = Config {
        model_type: names.0,
        architecture: names.1,
        hidden: sizes.hidden,
        vocab_size,
        max_context: rope.max_context,
        rms_norm_eps: fields.number("rms_norm_eps", EPSILON)? as f32,
        rope: rope.spec,
        norms_from_one: false,
        tied: fields.flag("tie_word_embeddings", false)?,
        eos_token_ids: take_eos(&mut fields, vocab_size)?.unwrap_or_default(),
        published: Published::take(&mut fields)?,
        layers,
        draft_prefixes: Vec::new(),
    };
    fields.finish(IGNORABLE)?;
    Ok(config)
}

/// Takes `num_key_value_heads`; `default` is for families that may leave it out.
pub(crate) fn take_kv_heads(
    fields: &mut Fields,
    heads: u64,
    default: Option<u64>,
) -> Result<u64, ModelError> {
    let given = fields.opt_count("num_key_value_heads", MAX_HEADS)?;
    let kv_heads = given.or(default).ok_or_else(|| fields.missing("num_key_value_heads"))?;
    if !heads.is_multiple_of(kv_heads) {
        let supported = format!("divisors of `num_attention_heads`, {heads}");
        return Err(fields.unsupported("num_key_value_heads", &json!(kv_heads), &supported));
    }
    Ok(kv_heads)
}

/// Size of a head where the file names none.
#[derive(Clone, Copy)]
pub(crate) enum HeadDim {
    /// Hidden size over heads.
    Divided,
    /// This many channels.
    Fixed(u64),
}

/// Takes `head_dim`.
pub(crate) fn take_head_dim(
    fields: &mut Fields,
    sizes: &Sizes,
    default: HeadDim,
) -> Result<u64, ModelError> {
    let &Sizes { hidden, heads, .. } = sizes;
    let head_dim = match (fields.opt_count("head_dim", MAX_HEAD_DIM)?, default) {
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

/// Takes `layer_types`, one name of `known` for each layer, where the file has it.
pub(crate) fn take_layer_types(
    fields: &mut Fields,
    layers: u64,
    known: &[&str],
) -> Result<Option<Vec<String>>, ModelError> {
    let Some(types) = fields.take("layer_types") else {
        return Ok(None);
    };
    let name = |v: &Value| v.as_str().filter(|n| known.contains(n)).map(str::to_owned);
    let names = types.as_array().filter(|names| names.len() as u64 == layers);
    let names = names.and_then(|names| names.iter().map(name).collect::<Option<Vec<_>>>());
    let names = names.ok_or_else(|| {
        let known: Vec<String> = known.iter().map(|n| format!("{n:?}")).collect();
        let supported = format!("a list of {layers} times {}", known.join(" or "));
        fields.unsupported("layer_types", &types, &supported)
    })?;
    Ok(Some(names))
}

/// Takes the keys that say which layers have experts: `decoder_sparse_step` and
/// `mlp_only_layers`. One entry for each layer, `true` for experts.
pub(crate) fn take_sparse_layers(
    fields: &mut Fields,
    layers: u64,
) -> Result<Vec<bool>, ModelError> {
    let step = fields.opt_count("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    let dense = match fields.take("mlp_only_layers") {
        None => Vec::new(),
        Some(list) => {
            let index = |v: &Value| v.as_u64().filter(|&i| i < layers);
            let indices = list.as_array().map(|l| l.iter().map(index).collect::<Option<Vec<_>>>());
            indices.flatten().ok_or_else(|| {
                let supported = format!("a list of layers below {layers}");
                fields.unsupported("mlp_only_layers", &list, &supported)
            })?
        }
    };
    Ok((0..layers).map(|i| (i + 1).is_multiple_of(step) && !dense.contains(&i)).collect())
}

/// Takes `key` experts for each token; `spec` says how they are chosen from `experts`.
pub(crate) fn take_route(
    fields: &mut Fields,
    key: &str,
    experts: u64,
    spec: RouteSpec,
) -> Result<RouteSpec, ModelError> {
    let k = fields.count(key, MAX_EXPERTS)?;
    let route = RouteSpec { k, ..spec };
    if !route.fits(experts) {
        let supported = format!("numbers that {experts} experts allow");
        return Err(fields.unsupported(key, &json!(k), &supported));
    }
    Ok(route)
}

/// Takes the sliding-window keys of the Qwen families. Their window applies only where
/// `use_sliding_window` is true, so the other two keys say nothing while it is not.
pub(crate) fn no_window(fields: &mut Fields) -> Result<(), ModelError> {
    fields.only("use_sliding_window", &json!(false))?;
    fields.take("sliding_window");
    fields.take("max_window_layers");
    Ok(())
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
