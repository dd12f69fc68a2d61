//! gpt-oss: attention sinks, a window in every other layer, experts in MXFP4.

use super::{
    Attention, Config, ExpertForm, Experts, FeedForward, FullAttention, Layer, Sinks,
    shared::{
        HeadDim, MAX_EXPERTS, MAX_INTERMEDIATE, Names, Sizes, finish, take_head_dim, take_kv_heads,
        take_layer_types, take_route,
    },
};
use crate::{
    error::ModelError,
    fields::Fields,
    quant::{MXFP4_BLOCK, Published},
    rope::{self, Channels, MAX_CONTEXT},
};
use ir::{RouteScore, RouteSpec};
use serde_json::json;

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";
/// Factor in the sigmoid of the activation, which no file spells out.
const ALPHA: f32 = 1.702;
const LIMIT: f64 = 7.0;

pub(crate) fn gpt_oss(mut fields: Fields, names: Names) -> Result<Config, ModelError> {
    // The same as `original_max_position_embeddings`, for other code.
    fields.take("initial_context_length");
    let bias = fields.flag("attention_bias", true)?;
    let sizes = Sizes::take(&mut fields)?;
    blocks(&fields, "hidden_size", sizes.hidden)?;
    let head_dim = take_head_dim(&mut fields, &sizes, HeadDim::Fixed(64))?;
    let kv_heads = take_kv_heads(&mut fields, sizes.heads, None)?;
    let attention = |window| {
        Attention::Full(FullAttention {
            heads: sizes.heads,
            kv_heads,
            head_dim,
            qkv_bias: bias,
            o_bias: bias,
            qk_norm: false,
            gate: false,
            sinks: Some(Sinks { window }),
        })
    };
    let slides = take_pattern(&mut fields, sizes.layers)?;
    let window = fields.count("sliding_window", MAX_CONTEXT)?;
    let experts = FeedForward::Experts(take_experts(&mut fields)?);
    let layer = |&slides: &bool| Layer {
        attention: attention(slides.then_some(window)),
        feed_forward: experts.clone(),
    };
    let layers = slides.iter().map(layer).collect();
    if Published::peek_method(&fields).as_deref() != Some("mxfp4") {
        let found = json!(Published::peek_method(&fields));
        let supported = "\"mxfp4\", as the weights were published";
        return Err(fields.unsupported("quantization_config.quant_method", &found, supported));
    }
    let rope = rope::take(&mut fields, Channels::all(head_dim))?;
    finish(fields, names, &sizes, &rope, layers)
}

/// Which layers have a window: `layer_types` where given, else every other one, the first too.
fn take_pattern(fields: &mut Fields, layers: u64) -> Result<Vec<bool>, ModelError> {
    match take_layer_types(fields, layers, &[SLIDING, FULL])? {
        Some(types) => Ok(types.iter().map(|t| t == SLIDING).collect()),
        None => Ok((0..layers).map(|i| i.is_multiple_of(2)).collect()),
    }
}

/// Refuses widths that are no whole MXFP4 blocks.
fn blocks(fields: &Fields, key: &str, width: u64) -> Result<(), ModelError> {
    if width.is_multiple_of(MXFP4_BLOCK) {
        return Ok(());
    }
    Err(fields.unsupported(key, &json!(width), &format!("multiples of {MXFP4_BLOCK}")))
}

fn take_experts(fields: &mut Fields) -> Result<Experts, ModelError> {
    let count = fields.count("num_local_experts", MAX_EXPERTS)?;
    let width = fields.count("intermediate_size", MAX_INTERMEDIATE)?;
    blocks(fields, "intermediate_size", width)?;
    let route = RouteSpec {
        score: RouteScore::Softmax,
        k: 1,
        // A softmax over the chosen logits is that over all, divided by its sum over the chosen.
        renormalize: true,
        groups: 1,
        top_groups: 1,
        scale: 1.0,
    };
    let route = take_route(fields, "num_experts_per_tok", count, route)?;
    fields.only("experts_per_token", &json!(route.k))?;
    let limit = fields.opt_number("swiglu_limit", (1e-3, 1e6))?.unwrap_or(LIMIT) as f32;
    Ok(Experts {
        count,
        width,
        route,
        // In bf16 near ties of a router's logits flip, and with them all that follows.
        score_bias: false,
        router: "mlp.router",
        router_bias: true,
        form: ExpertForm::Stacked { alpha: ALPHA, limit },
        shared: None,
    })
}
