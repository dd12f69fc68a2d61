//! DeepSeek-V3 and V3.2: latent attention, an indexer in V3.2, experts that sigmoid scores choose.

use super::{
    Attention, Config, ExpertForm, Experts, FeedForward, Gated, Indexer, LatentAttention, Layer,
    SharedExpert,
    shared::{
        MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, Names,
        Sizes, finish, take_route,
    },
};
use crate::{
    error::ModelError,
    fields::Fields,
    rope::{self, Channels, MAX_CONTEXT, Rope},
};
use ir::{RouteScore, RouteSpec};
use serde_json::json;

/// The published code gives its inner norms this whatever `rms_norm_eps` says.
const INNER_EPS: f32 = 1e-6;

pub(crate) fn deepseek_v3(fields: Fields, names: Names) -> Result<Config, ModelError> {
    deepseek(fields, names, false)
}

pub(crate) fn deepseek_v32(fields: Fields, names: Names) -> Result<Config, ModelError> {
    deepseek(fields, names, true)
}

fn deepseek(mut fields: Fields, names: Names, indexer: bool) -> Result<Config, ModelError> {
    fields.only("attention_bias", &json!(false))?;
    fields.only("rope_interleave", &json!(true))?;
    fields.only("pretraining_tp", &json!(1))?;
    fields.only("moe_layer_freq", &json!(1))?;
    let sizes = Sizes::take(&mut fields)?;
    let rotated = take_even(&mut fields, "qk_rope_head_dim")?;
    fields.only("head_dim", &json!(rotated))?;
    fields.only("num_key_value_heads", &json!(sizes.heads))?;
    let rope = rope::take(&mut fields, Channels::all(rotated))?;
    let attention = take_attention(&mut fields, &sizes, rotated, &rope, indexer)?;

    let dense = Gated { width: fields.count("intermediate_size", MAX_INTERMEDIATE)?, bias: false };
    let dense = FeedForward::Dense(dense);
    let experts = FeedForward::Experts(take_experts(&mut fields)?);
    let first = fields.opt_count_from_zero("first_k_dense_replace", MAX_LAYERS)?.unwrap_or(0);
    let layer = |i| Layer {
        attention: Attention::Latent(attention.clone()),
        feed_forward: if i < first { dense.clone() } else { experts.clone() },
    };
    let layers = (0..sizes.layers).map(layer).collect();
    let drafts = fields.opt_count_from_zero("num_nextn_predict_layers", MAX_LAYERS)?.unwrap_or(0);
    let draft = |i| format!("model.layers.{}.", sizes.layers + i);
    let config = finish(fields, names, &sizes, &rope, layers)?;
    Ok(Config { draft_prefixes: (0..drafts).map(draft).collect(), ..config })
}

fn take_even(fields: &mut Fields, key: &str) -> Result<u64, ModelError> {
    let n = fields.count(key, MAX_HEAD_DIM)?;
    if !n.is_multiple_of(2) {
        let supported = format!("even numbers to {MAX_HEAD_DIM}");
        return Err(fields.unsupported(key, &json!(n), &supported));
    }
    Ok(n)
}

fn take_attention(
    fields: &mut Fields,
    sizes: &Sizes,
    rope_dim: u64,
    rope: &Rope,
    indexer: bool,
) -> Result<LatentAttention, ModelError> {
    let nope_dim = fields.count("qk_nope_head_dim", MAX_HEAD_DIM)?;
    fields.only("qk_head_dim", &json!(nope_dim + rope_dim))?;
    let indexer = if indexer { Some(take_indexer(fields, rope_dim)?) } else { None };
    Ok(LatentAttention {
        heads: sizes.heads,
        query_rank: fields.count("q_lora_rank", MAX_HIDDEN)?,
        latent: fields.count("kv_lora_rank", MAX_HIDDEN)?,
        nope_dim,
        rope_dim,
        value_dim: fields.count("v_head_dim", MAX_HEAD_DIM)?,
        scale: (((nope_dim + rope_dim) as f64).powf(-0.5) * rope.score_factor) as f32,
        norm_eps: INNER_EPS,
        indexer,
    })
}

fn take_indexer(fields: &mut Fields, rope_dim: u64) -> Result<Indexer, ModelError> {
    let dim = fields.count("index_head_dim", MAX_HEAD_DIM)?;
    if dim < rope_dim {
        let supported = format!("at least `qk_rope_head_dim`, {rope_dim}");
        return Err(fields.unsupported("index_head_dim", &json!(dim), &supported));
    }
    Ok(Indexer {
        heads: fields.count("index_n_heads", MAX_HEADS)?,
        dim,
        keys: fields.count("index_topk", MAX_CONTEXT)?,
        norm_eps: INNER_EPS,
    })
}

fn take_experts(fields: &mut Fields) -> Result<Experts, ModelError> {
    fields.only("scoring_func", &json!("sigmoid"))?;
    fields.only("topk_method", &json!("noaux_tc"))?;
    let count = fields.count("n_routed_experts", MAX_EXPERTS)?;
    let groups = fields.opt_count("n_group", MAX_EXPERTS)?.unwrap_or(1);
    if !count.is_multiple_of(groups) || (groups > 1 && count / groups < 2) {
        let supported = format!("divisors of `n_routed_experts`, {count}, with 2 experts each");
        return Err(fields.unsupported("n_group", &json!(groups), &supported));
    }
    let top_groups = fields.opt_count("topk_group", MAX_EXPERTS)?.unwrap_or(groups);
    if top_groups > groups {
        let supported = format!("whole numbers to `n_group`, {groups}");
        return Err(fields.unsupported("topk_group", &json!(top_groups), &supported));
    }
    let route = RouteSpec {
        score: RouteScore::Sigmoid,
        k: 1,
        renormalize: fields.flag("norm_topk_prob", true)?,
        groups,
        top_groups,
        scale: fields.opt_number("routed_scaling_factor", (1e-6, 1e6))?.unwrap_or(1.0) as f32,
    };
    let route = take_route(fields, "num_experts_per_tok", count, route)?;
    let width = fields.count("moe_intermediate_size", MAX_INTERMEDIATE)?;
    let shared = fields.opt_count_from_zero("n_shared_experts", MAX_EXPERTS)?.unwrap_or(0);
    let shared = (shared > 0).then_some(SharedExpert {
        part: "mlp.shared_experts",
        width: shared * width,
        gate: false,
    });
    Ok(Experts {
        count,
        width,
        route,
        score_bias: true,
        router: "mlp.gate",
        router_bias: false,
        form: ExpertForm::Separate,
        shared,
    })
}
