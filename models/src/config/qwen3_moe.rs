//! Qwen3-MoE: the attention of Qwen3, and experts that a softmax chooses.

use super::{
    Attention, Config, ExpertForm, Experts, FeedForward, FullAttention, Gated, Layer, SharedExpert,
    shared::{
        HeadDim, MAX_EXPERTS, MAX_INTERMEDIATE, Names, Sizes, finish, no_window, take_head_dim,
        take_kv_heads, take_layer_types, take_route, take_sparse_layers,
    },
};
use crate::{
    error::ModelError,
    fields::Fields,
    rope::{self, Channels},
};
use ir::{RouteScore, RouteSpec};
use serde_json::json;

pub(crate) fn qwen3_moe(mut fields: Fields, names: Names) -> Result<Config, ModelError> {
    no_window(&mut fields)?;
    // Some releases spell out what the family always does.
    fields.only("use_qk_norm", &json!(true))?;
    fields.only("qkv_bias", &json!(false))?;
    fields.only("shared_expert_intermediate_size", &json!(0))?;
    let bias = fields.flag("attention_bias", false)?;
    let sizes = Sizes::take(&mut fields)?;
    let kv_heads = take_kv_heads(&mut fields, sizes.heads, None)?;
    let head_dim = take_head_dim(&mut fields, &sizes, HeadDim::Divided)?;
    take_layer_types(&mut fields, sizes.layers, &["full_attention"])?;
    let attention = Attention::Full(FullAttention {
        heads: sizes.heads,
        kv_heads,
        head_dim,
        qkv_bias: bias,
        o_bias: bias,
        qk_norm: true,
        gate: false,
        sinks: None,
    });
    let sparse = take_sparse_layers(&mut fields, sizes.layers)?;
    let (dense, experts) = take_feed_forwards(&mut fields, false, None)?;
    let layer = |&sparse: &bool| Layer {
        attention: attention.clone(),
        feed_forward: if sparse { experts.clone() } else { dense.clone() },
    };
    let layers = sparse.iter().map(layer).collect();
    let rope = rope::take(&mut fields, Channels::all(head_dim))?;
    finish(fields, names, &sizes, &rope, layers)
}

/// Takes the two kinds of feed-forward blocks, dense and with experts. `renormalize` is what a file
/// without `norm_topk_prob` means.
pub(super) fn take_feed_forwards(
    fields: &mut Fields,
    renormalize: bool,
    shared: Option<SharedExpert>,
) -> Result<(FeedForward, FeedForward), ModelError> {
    let width = fields.count("intermediate_size", MAX_INTERMEDIATE)?;
    let count = fields.count("num_experts", MAX_EXPERTS)?;
    let route = RouteSpec {
        score: RouteScore::Softmax,
        k: 1,
        renormalize: fields.flag("norm_topk_prob", renormalize)?,
        groups: 1,
        top_groups: 1,
        scale: 1.0,
    };
    let experts = Experts {
        count,
        width: fields.count("moe_intermediate_size", MAX_INTERMEDIATE)?,
        route: take_route(fields, "num_experts_per_tok", count, route)?,
        score_bias: false,
        router: "mlp.gate",
        router_bias: false,
        form: ExpertForm::Separate,
        shared,
    };
    Ok((FeedForward::Dense(Gated { width, bias: false }), FeedForward::Experts(experts)))
}
