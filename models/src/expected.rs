//! The tensors that a configuration calls for.

use crate::config::Config;

/// Names of tensors, spelled once for the loader and the builder.
pub(crate) mod names {
    pub(crate) const EMBED: &str = "model.embed_tokens.weight";
    pub(crate) const FINAL_NORM: &str = "model.norm.weight";
    pub(crate) const HEAD: &str = "lm_head.weight";

    /// `model.layers.{layer}.{part}`.
    pub(crate) fn layer(layer: u64, part: &str) -> String {
        format!("model.layers.{layer}.{part}")
    }
}

/// A projection of a layer: where it is stored, its shape, and whether it has a bias.
pub(crate) struct Projection {
    pub(crate) part: &'static str,
    pub(crate) outputs: u64,
    pub(crate) inputs: u64,
    pub(crate) bias: bool,
}

impl Config {
    /// The seven projections of a layer: q, k, v, o, gate, up, down.
    pub(crate) fn projections(&self) -> [Projection; 7] {
        let (h, i) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let of = |part, outputs, inputs, bias| Projection { part, outputs, inputs, bias };
        [
            of("self_attn.q_proj", q, h, self.qkv_bias),
            of("self_attn.k_proj", kv, h, self.qkv_bias),
            of("self_attn.v_proj", kv, h, self.qkv_bias),
            of("self_attn.o_proj", h, q, self.o_bias),
            of("mlp.gate_proj", i, h, self.mlp_bias),
            of("mlp.up_proj", i, h, self.mlp_bias),
            of("mlp.down_proj", h, i, self.mlp_bias),
        ]
    }

    /// Every tensor of the model with its shape, a tied head once.
    pub fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let (h, v) = (self.hidden, self.vocab_size);
        let mut all =
            vec![(names::EMBED.to_owned(), vec![v, h]), (names::FINAL_NORM.to_owned(), vec![h])];
        if !self.tied {
            all.push((names::HEAD.to_owned(), vec![v, h]));
        }
        for layer in 0..self.layers {
            let mut add = |part: &str, dims: Vec<u64>| all.push((names::layer(layer, part), dims));
            for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
                add(norm, vec![h]);
            }
            if self.qk_norm {
                for norm in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
                    add(norm, vec![self.head_dim]);
                }
            }
            for p in self.projections() {
                add(&format!("{}.weight", p.part), vec![p.outputs, p.inputs]);
                if p.bias {
                    add(&format!("{}.bias", p.part), vec![p.outputs]);
                }
            }
        }
        all
    }

    /// Why a stored tensor that the model does not use may be passed over, if it may.
    pub(crate) fn ignorable(&self, name: &str) -> Option<&'static str> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some("rotary frequencies are computed from config.json");
        }
        (self.tied && name == names::HEAD)
            .then_some("config.json ties the head to the embedding table")
    }
}
