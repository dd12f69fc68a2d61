//! The tensors that a configuration calls for.

use crate::config::{Attention, Config, Experts, FeedForward, FullAttention, Gated, Linear};

/// Names of tensors, spelled once for the loader and the builder.
pub(crate) mod names {
    pub(crate) const EMBED: &str = "model.embed_tokens.weight";
    pub(crate) const FINAL_NORM: &str = "model.norm";
    pub(crate) const HEAD: &str = "lm_head";
    /// The projection of latent attention that multiplies other matrices, not activations.
    pub(crate) const ABSORBED: &str = ".kv_b_proj";
    pub(crate) const ATTENTION_NORM: &str = "input_layernorm";
    pub(crate) const FEED_FORWARD_NORM: &str = "post_attention_layernorm";

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

    fn full_attention(&mut self, a: &FullAttention, inputs: u64, hidden: u64) {
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        self.linear("self_attn.q_proj", q, inputs, a.qkv_bias);
        self.linear("self_attn.k_proj", kv, inputs, a.qkv_bias);
        self.linear("self_attn.v_proj", kv, inputs, a.qkv_bias);
        self.linear("self_attn.o_proj", hidden, q, a.o_bias);
        if a.qk_norm {
            self.norm("self_attn.q_norm", a.head_dim);
            self.norm("self_attn.k_norm", a.head_dim);
        }
    }

    fn gated(&mut self, part: &str, gated: &Gated, hidden: u64) {
        let (i, bias) = (gated.width, gated.bias);
        self.linear(&format!("{part}.gate_proj"), i, hidden, bias);
        self.linear(&format!("{part}.up_proj"), i, hidden, bias);
        self.linear(&format!("{part}.down_proj"), hidden, i, bias);
    }

    fn experts(&mut self, experts: &Experts, hidden: u64) {
        self.linear("mlp.gate", experts.count, hidden, false);
        let expert = Gated { width: experts.width, bias: false };
        for e in 0..experts.count {
            self.gated(&names::expert(e), &expert, hidden);
        }
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
            let mut parts = Parts { prefix: names::layer(i), all: &mut all };
            parts.norm(names::ATTENTION_NORM, h);
            match &layer.attention {
                Attention::Full(a) => parts.full_attention(a, h, h),
            }
            parts.norm(names::FEED_FORWARD_NORM, h);
            match &layer.feed_forward {
                FeedForward::Dense(gated) => parts.gated("mlp", gated, h),
                FeedForward::Experts(experts) => parts.experts(experts, h),
            }
        }
        all
    }

    /// Every tensor of the model in floating point, with its shape, a tied head once.
    pub fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let mut all = Vec::new();
        for part in self.parts() {
            match part {
                Part::Linear { prefix, linear: Linear { outputs, inputs, bias } } => {
                    all.push((format!("{prefix}.weight"), vec![outputs, inputs]));
                    if bias {
                        all.push((format!("{prefix}.bias"), vec![outputs]));
                    }
                }
                Part::Norm { prefix, width } => {
                    all.push((format!("{prefix}.weight"), vec![width]));
                }
                Part::Tensor { name, dims } => all.push((name, dims)),
            }
        }
        all
    }

    /// Why a stored tensor that the model does not use may be passed over, if it may.
    pub(crate) fn ignorable(&self, name: &str) -> Option<&'static str> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some("rotary frequencies are computed from config.json");
        }
        (self.tied && name.strip_suffix(".weight") == Some(names::HEAD))
            .then_some("config.json ties the head to the embedding table")
    }
}
