//! Qwen3-Next: most layers keep a recurrent memory, some attend; experts and a shared one.

use super::{
    Attention, Config, DeltaAttention, FullAttention, Layer, SharedExpert,
    qwen3_moe::take_feed_forwards,
    shared::{
        HeadDim, MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS, Names, Sizes, finish,
        no_window, take_head_dim, take_kv_heads, take_layer_types, take_sparse_layers,
    },
};
use crate::{
    error::ModelError,
    fields::Fields,
    rope::{self, Channels},
};
use serde_json::json;

const LINEAR: &str = "linear_attention";
const FULL: &str = "full_attention";
/// Taps of the convolution in one kernel: more is no short convolution.
const MAX_TAPS: u64 = 64;
/// Where a file names no `partial_rotary_factor`.
const ROTATED: f64 = 0.25;
/// The published code adds this to the squared length of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

pub(crate) fn qwen3_next(mut fields: Fields, names: Names) -> Result<Config, ModelError> {
    no_window(&mut fields)?;
    let bias = fields.flag("attention_bias", false)?;
    let sizes = Sizes::take(&mut fields)?;
    let head_dim = take_head_dim(&mut fields, &sizes, HeadDim::Fixed(256))?;
    let full = Attention::Full(FullAttention {
        heads: sizes.heads,
        kv_heads: take_kv_heads(&mut fields, sizes.heads, None)?,
        head_dim,
        qkv_bias: bias,
        o_bias: bias,
        qk_norm: true,
        gate: true,
        sinks: None,
    });
    let delta = Attention::Delta(take_delta(&mut fields)?);
    let attends = take_pattern(&mut fields, sizes.layers)?;
    let sparse = take_sparse_layers(&mut fields, sizes.layers)?;
    let shared = SharedExpert {
        part: "mlp.shared_expert",
        width: fields.count("shared_expert_intermediate_size", MAX_INTERMEDIATE)?,
        gate: true,
    };
    let (dense, experts) = take_feed_forwards(&mut fields, true, Some(shared))?;
    let layer = |(attends, sparse): (&bool, &bool)| Layer {
        attention: if *attends { full.clone() } else { delta.clone() },
        feed_forward: if *sparse { experts.clone() } else { dense.clone() },
    };
    let layers = attends.iter().zip(&sparse).map(layer).collect();
    let rope = rope::take(&mut fields, Channels { head_dim, factor: Some(ROTATED) })?;
    let config = finish(fields, names, &sizes, &rope, layers)?;
    Ok(Config { norms_from_one: true, draft_prefixes: vec!["mtp.".to_owned()], ..config })
}

fn take_delta(fields: &mut Fields) -> Result<DeltaAttention, ModelError> {
    let key_heads = fields.count("linear_num_key_heads", MAX_HEADS)?;
    let value_heads = fields.count("linear_num_value_heads", MAX_HEADS)?;
    if !value_heads.is_multiple_of(key_heads) {
        let supported = format!("multiples of `linear_num_key_heads`, {key_heads}");
        return Err(fields.unsupported("linear_num_value_heads", &json!(value_heads), &supported));
    }
    let taps = fields.count("linear_conv_kernel_dim", MAX_TAPS)?;
    if taps < 2 {
        let supported = format!("whole numbers from 2 to {MAX_TAPS}");
        return Err(fields.unsupported("linear_conv_kernel_dim", &json!(taps), &supported));
    }
    Ok(DeltaAttention {
        key_heads,
        value_heads,
        key_dim: fields.count("linear_key_head_dim", MAX_HEAD_DIM)?,
        value_dim: fields.count("linear_value_head_dim", MAX_HEAD_DIM)?,
        taps,
        length_eps: LENGTH_EPS,
    })
}

/// Which layers attend: `layer_types` where given, else every `full_attention_interval`-th.
fn take_pattern(fields: &mut Fields, layers: u64) -> Result<Vec<bool>, ModelError> {
    let interval = fields.opt_count("full_attention_interval", MAX_LAYERS)?.unwrap_or(4);
    match take_layer_types(fields, layers, &[LINEAR, FULL])? {
        Some(types) => Ok(types.iter().map(|t| t == FULL).collect()),
        None => Ok((1..=layers).map(|i| i.is_multiple_of(interval)).collect()),
    }
}
