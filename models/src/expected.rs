//! The tensors that a configuration calls for.

use crate::config::{
    Attention, Config, DeltaAttention, ExpertForm, Experts, FeedForward, FullAttention, Gated,
    LatentAttention, Layer, Linear,
};
use crate::quant::mxfp4;
use tensor::DType;

/// Names of tensors, spelled once for the loader and the builder.
pub(crate) mod names {
    pub(crate) const EMBED: &str = "model.embed_tokens.weight";
    pub(crate) const FINAL_NORM: &str = "model.norm";
    pub(crate) const HEAD: &str = "lm_head";
    /// The projection of latent attention that multiplies other matrices, not activations.
    pub(crate) const ABSORBED: &str = ".kv_b_proj";
    pub(crate) const ATTENTION_NORM: &str = "input_layernorm";
    pub(crate) const FEED_FORWARD_NORM: &str = "post_attention_layernorm";

    pub(crate) const SINKS: &str = "self_attn.sinks";
    pub(crate) const EXPERTS_UP: &str = "mlp.experts.gate_up_proj";
    pub(crate) const EXPERTS_DOWN: &str = "mlp.experts.down_proj";
    pub(crate) const SCORE_BIAS: &str = "mlp.gate.e_score_correction_bias";
    pub(crate) const INDEXER_WEIGHTS: &str = "self_attn.indexer.weights_proj.weight";

    /// Expert `e` of a layer.
    pub(crate) fn expert(e: u64) -> String {
        format!("mlp.experts.{e}")
    }

    /// `model.layers.{layer}`.
    pub(crate) fn layer(layer: usize) -> String {
        format!("model.layers.{layer}")
    }
}

/// Something that a checkpoint must store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// A projection: `{prefix}.weight`, perhaps `{prefix}.bias`, or what a quantised format stores
    /// in their place.
    Linear {
        /// Name without the last component.
        prefix: String,
        /// Shape.
        linear: Linear,
    },
    /// The weight of a norm, `{prefix}.weight`.
    Norm {
        /// Name without the last component.
        prefix: String,
        /// Channels.
        width: u64,
    },
    /// Matrices `[count,rows,columns]` in MXFP4: `{prefix}_blocks`, `{prefix}_scales`.
    MxFp4 {
        /// Name without the last component.
        prefix: String,
        /// Shape.
        dims: [u64; 3],
    },
    /// One tensor in floating point.
    Tensor {
        /// Whole name.
        name: String,
        /// Shape.
        dims: Vec<u64>,
    },
}

/// Collects the parts of one module of a checkpoint.
struct Parts<'a> {
    prefix: String,
    all: &'a mut Vec<Part>,
}

impl Parts<'_> {
    fn linear(&mut self, part: &str, outputs: u64, inputs: u64, bias: bool) {
        let prefix = format!("{}.{part}", self.prefix);
        self.all.push(Part::Linear { prefix, linear: Linear { outputs, inputs, bias } });
    }

    fn norm(&mut self, part: &str, width: u64) {
        self.all.push(Part::Norm { prefix: format!("{}.{part}", self.prefix), width });
    }

    fn tensor(&mut self, part: &str, dims: Vec<u64>) {
        self.all.push(Part::Tensor { name: format!("{}.{part}", self.prefix), dims });
    }

    /// Matrices of all experts and their biases.
    fn stacked(&mut self, part: &str, dims: [u64; 3]) {
        let prefix = format!("{}.{part}", self.prefix);
        self.all.push(Part::MxFp4 { prefix, dims });
        self.tensor(&format!("{part}_bias"), dims[..2].to_vec());
    }

    fn full_attention(&mut self, a: &FullAttention, inputs: u64, hidden: u64) {
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let q_rows = if a.gate { 2 * q } else { q };
        self.linear("self_attn.q_proj", q_rows, inputs, a.qkv_bias);
        self.linear("self_attn.k_proj", kv, inputs, a.qkv_bias);
        self.linear("self_attn.v_proj", kv, inputs, a.qkv_bias);
        self.linear("self_attn.o_proj", hidden, q, a.o_bias);
        if a.sinks.is_some() {
            self.tensor(names::SINKS, vec![a.heads]);
        }
        if a.qk_norm {
            self.norm("self_attn.q_norm", a.head_dim);
            self.norm("self_attn.k_norm", a.head_dim);
        }
    }

    fn latent_attention(&mut self, a: &LatentAttention, hidden: u64) {
        let query = a.nope_dim + a.rope_dim;
        self.linear("self_attn.q_a_proj", a.query_rank, hidden, false);
        self.norm("self_attn.q_a_layernorm", a.query_rank);
        self.linear("self_attn.q_b_proj", a.heads * query, a.query_rank, false);
        self.linear("self_attn.kv_a_proj_with_mqa", a.latent + a.rope_dim, hidden, false);
        self.norm("self_attn.kv_a_layernorm", a.latent);
        self.linear("self_attn.kv_b_proj", a.heads * (a.nope_dim + a.value_dim), a.latent, false);
        self.linear("self_attn.o_proj", hidden, a.heads * a.value_dim, false);
        if let Some(indexer) = &a.indexer {
            self.linear("self_attn.indexer.wq_b", indexer.heads * indexer.dim, a.query_rank, false);
            self.linear("self_attn.indexer.wk", indexer.dim, hidden, false);
            self.tensor("self_attn.indexer.k_norm.weight", vec![indexer.dim]);
            self.tensor("self_attn.indexer.k_norm.bias", vec![indexer.dim]);
            self.tensor(names::INDEXER_WEIGHTS, vec![indexer.heads, hidden]);
        }
    }

    fn delta_attention(&mut self, a: &DeltaAttention, hidden: u64) {
        let (keys, values) = (a.keys(), a.values());
        self.linear("linear_attn.in_proj_qkvz", 2 * (keys + values), hidden, false);
        self.linear("linear_attn.in_proj_ba", 2 * a.value_heads, hidden, false);
        self.tensor("linear_attn.conv1d.weight", vec![a.channels(), 1, a.taps]);
        self.tensor("linear_attn.A_log", vec![a.value_heads]);
        self.tensor("linear_attn.dt_bias", vec![a.value_heads]);
        self.norm("linear_attn.norm", a.value_dim);
        self.linear("linear_attn.out_proj", hidden, values, false);
    }

    fn gated(&mut self, part: &str, gated: &Gated, hidden: u64) {
        let (i, bias) = (gated.width, gated.bias);
        self.linear(&format!("{part}.gate_proj"), i, hidden, bias);
        self.linear(&format!("{part}.up_proj"), i, hidden, bias);
        self.linear(&format!("{part}.down_proj"), hidden, i, bias);
    }

    fn experts(&mut self, experts: &Experts, hidden: u64) {
        self.linear(experts.router, experts.count, hidden, experts.router_bias);
        if experts.score_bias {
            self.tensor(names::SCORE_BIAS, vec![experts.count]);
        }
        if let Some(shared) = &experts.shared {
            self.gated(shared.part, &Gated { width: shared.width, bias: false }, hidden);
            if shared.gate {
                self.linear(&format!("{}_gate", shared.part), 1, hidden, false);
            }
        }
        if let ExpertForm::Stacked { .. } = experts.form {
            self.stacked(names::EXPERTS_UP, [experts.count, 2 * experts.width, hidden]);
            return self.stacked(names::EXPERTS_DOWN, [experts.count, hidden, experts.width]);
        }
        let expert = Gated { width: experts.width, bias: false };
        for e in 0..experts.count {
            self.gated(&names::expert(e), &expert, hidden);
        }
    }
}

/// Adds what the layer stored under `prefix` is made of. Its attention reads `inputs` channels.
pub(crate) fn layer_parts(
    prefix: String,
    layer: &Layer,
    inputs: u64,
    hidden: u64,
    all: &mut Vec<Part>,
) {
    let mut parts = Parts { prefix, all };
    parts.norm(names::ATTENTION_NORM, hidden);
    match &layer.attention {
        Attention::Full(a) => parts.full_attention(a, inputs, hidden),
        Attention::Latent(a) => parts.latent_attention(a, hidden),
        Attention::Delta(a) => parts.delta_attention(a, hidden),
    }
    parts.norm(names::FEED_FORWARD_NORM, hidden);
    match &layer.feed_forward {
        FeedForward::Dense(gated) => parts.gated("mlp", gated, hidden),
        FeedForward::Experts(experts) => parts.experts(experts, hidden),
    }
}

impl Config {
    /// Everything that the model is made of, a tied head once.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let (h, v) = (self.hidden, self.vocab_size);
        let mut all = vec![
            Part::Tensor { name: names::EMBED.to_owned(), dims: vec![v, h] },
            Part::Norm { prefix: names::FINAL_NORM.to_owned(), width: h },
        ];
        if !self.tied {
            let linear = Linear { outputs: v, inputs: h, bias: false };
            all.push(Part::Linear { prefix: names::HEAD.to_owned(), linear });
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer_parts(names::layer(i), layer, h, h, &mut all);
        }
        all
    }

    /// Every tensor of the model with its type and shape, a tied head once, as a checkpoint that is not
    /// quantised stores it: in bf16, but for codes and exponents (u8) of experts that are published in MXFP4 alone.
    pub fn tensors(&self) -> Vec<(String, DType, Vec<u64>)> {
        let float = |name, dims| (name, DType::BF16, dims);
        let mut all = Vec::new();
        for part in self.parts() {
            match part {
                Part::Linear { prefix, linear: Linear { outputs, inputs, bias } } => {
                    all.push(float(format!("{prefix}.weight"), vec![outputs, inputs]));
                    if bias {
                        all.push(float(format!("{prefix}.bias"), vec![outputs]));
                    }
                }
                Part::Norm { prefix, width } => {
                    all.push(float(format!("{prefix}.weight"), vec![width]));
                }
                Part::MxFp4 { prefix, dims } => {
                    all.extend(mxfp4(&prefix, dims).map(|of| (of.name, DType::U8, of.dims)));
                }
                Part::Tensor { name, dims } => all.push(float(name, dims)),
            }
        }
        all
    }

    /// Why a stored tensor that the model does not use may be passed over, if it may.
    pub(crate) fn ignorable(&self, name: &str) -> Option<&'static str> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some("rotary frequencies are computed from config.json");
        }
        if self.draft_prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            return Some("draft layer, not part of the main model");
        }
        (self.tied && name.strip_suffix(".weight") == Some(names::HEAD))
            .then_some("config.json ties the head to the embedding table")
    }
}
