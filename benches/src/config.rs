//! `config.json` of a few layers in the shape of released models, with a small vocabulary.

use serde_json::{Value, json};

/// What every configuration has.
fn common(architecture: &str, model_type: &str, layers: u32, of: Value) -> Value {
    let mut config = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "num_hidden_layers": layers,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    });
    if let (Value::Object(all), Value::Object(of)) = (&mut config, of) {
        all.extend(of);
    }
    config
}

/// Layers of Qwen3-0.6B.
pub fn qwen3_0_6b_layers(layers: u32) -> Value {
    let of = json!({
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
    });
    common("Qwen3ForCausalLM", "qwen3", layers, of)
}

/// Layers of a small Qwen3-MoE: 32 experts of which a token uses 4.
pub fn qwen3_moe_layers(layers: u32) -> Value {
    let of = json!({
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 2048,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    });
    common("Qwen3MoeForCausalLM", "qwen3_moe", layers, of)
}

/// Layers of a small DeepSeek-V3: latent attention of 16 heads, 32 experts in 4 groups.
pub fn deepseek_v3_layers(layers: u32) -> Value {
    let of = json!({
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": 384,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "intermediate_size": 2048,
        "moe_intermediate_size": 384,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "n_routed_experts": 32,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
        "attention_bias": false,
    });
    common("DeepseekV3ForCausalLM", "deepseek_v3", layers, of)
}

/// Layers of a small Qwen3-Next: three of the gated delta rule to one of gated attention.
pub fn qwen3_next_layers(layers: u32) -> Value {
    let of = json!({
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_num_key_heads": 8,
        "linear_value_head_dim": 64,
        "linear_num_value_heads": 16,
        "intermediate_size": 2048,
        "moe_intermediate_size": 384,
        "shared_expert_intermediate_size": 384,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": false,
    });
    common("Qwen3NextForCausalLM", "qwen3_next", layers, of)
}

/// `config` with projections in FP8 blocks of 128 by 128.
pub fn in_fp8(mut config: Value) -> Value {
    config["quantization_config"] = json!({
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    });
    config
}
