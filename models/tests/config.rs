//! What `config.json` may say, and what is said when it says something else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ir::{DType, RopeScaling};
use precast_models::{Attention, FeedForward};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{llama_config, llama_with, parsed};

/// The message when `changes` are made to a sound configuration.
fn refusal(changes: Value) -> String {
    parsed(&llama_with(changes)).expect_err("must be refused").to_string()
}

fn scaling(settings: Value) -> RopeScaling {
    parsed(&llama_with(json!({ "rope_scaling": settings }))).unwrap().rope.scaling
}

#[test]
fn both_spellings_of_rotary_settings_mean_the_same() {
    let settings = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let old = parsed(&llama_with(json!({
        "rope_theta": 500000.0, "rope_scaling": settings, "torch_dtype": "bfloat16",
    })));
    let mut inner = settings;
    inner["rope_theta"] = json!(500000.0);
    let new = parsed(&llama_with(json!({
        "rope_theta": null, "rope_parameters": inner, "dtype": "bfloat16",
    })));
    let old = old.unwrap();
    assert_eq!(old, new.unwrap());
    assert_eq!(old.rope.theta, 500_000.0);
    let expected =
        RopeScaling::ByWavelength { factor: 8.0, low_freq: 1.0, high_freq: 4.0, original: 64 };
    assert_eq!(old.rope.scaling, expected);
}

#[test]
fn scaling_types_are_read_under_either_key() {
    assert_eq!(scaling(Value::Null), RopeScaling::None);
    assert_eq!(scaling(json!({ "rope_type": "default" })), RopeScaling::None);
    for key in ["type", "rope_type"] {
        let linear = scaling(json!({ key: "linear", "factor": 4 }));
        assert_eq!(linear, RopeScaling::Linear { factor: 4.0 });
    }
}

#[test]
fn yarn_follows_the_published_rules() {
    let yarn = |extra: Value| {
        let mut settings = json!({ "type": "yarn", "factor": 40.0 });
        settings.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let config = parsed(&llama_with(json!({ "rope_scaling": settings }))).unwrap();
        (config.rope, config.max_context)
    };
    let magnitude = 0.1 * 40f64.ln() + 1.0;

    let (rope, context) = yarn(json!({}));
    let plain = RopeScaling::Yarn {
        factor: 40.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original: 256,
        attention_factor: magnitude as f32,
        truncate: true,
    };
    assert_eq!((rope.scaling, context), (plain, 256));

    let (rope, context) = yarn(json!({ "original_max_position_embeddings": 128 }));
    assert!(matches!(rope.scaling, RopeScaling::Yarn { original: 128, .. }));
    assert_eq!(context, 128 * 40);

    let (rope, _) = yarn(json!({ "mscale": 1.0, "mscale_all_dim": 1.0 }));
    assert_eq!(rope.attention_factor(), 1.0);
    let (rope, _) = yarn(json!({ "mscale": 1.0, "mscale_all_dim": 0.5 }));
    let half = 0.05 * 40f64.ln() + 1.0;
    assert_eq!(rope.attention_factor(), (magnitude / half) as f32);
    let (rope, _) = yarn(json!({ "mscale": 1.0 }));
    assert_eq!(rope.attention_factor(), magnitude as f32);
    let (rope, _) = yarn(json!({ "attention_factor": 1.25, "truncate": false }));
    assert_eq!(rope.attention_factor(), 1.25);
    assert!(matches!(rope.scaling, RopeScaling::Yarn { truncate: false, .. }));
}

#[test]
fn families_differ_in_biases_norms_and_defaults() {
    let of = |model_type: &str, architecture: &str, changes: Value| {
        let mut config = llama_with(json!({
            "architectures": [architecture], "model_type": model_type,
        }));
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        let c = parsed(&config).unwrap();
        let (Attention::Full(a), FeedForward::Dense(f)) =
            (&c.layers[0].attention, &c.layers[0].feed_forward)
        else {
            panic!("{c:?}")
        };
        assert!(c.layers.iter().all(|l| *l == c.layers[0]));
        (a.qkv_bias, a.o_bias, f.bias, a.qk_norm, a.head_dim, a.kv_heads)
    };
    let no_head_dim = || json!({ "head_dim": null });
    let qwen2 = of("qwen2", "Qwen2ForCausalLM", no_head_dim());
    assert_eq!(qwen2, (true, false, false, false, 6, 2));
    let qwen3 = of("qwen3", "Qwen3ForCausalLM", no_head_dim());
    assert_eq!(qwen3, (false, false, false, true, 128, 2));
    let biased = of("qwen3", "Qwen3ForCausalLM", json!({ "attention_bias": true }));
    assert_eq!(biased, (true, true, false, true, 8, 2));
    let llama = of("llama", "LlamaForCausalLM", json!({ "num_key_value_heads": null }));
    assert_eq!(llama, (false, false, false, false, 8, 4));
    let biased = json!({ "attention_bias": true, "mlp_bias": true });
    assert_eq!(of("llama", "LlamaForCausalLM", biased), (true, true, true, false, 8, 2));
}

#[test]
fn the_type_alone_names_the_family() {
    assert!(parsed(&llama_with(json!({ "architectures": null }))).is_ok());
    assert!(parsed(&llama_with(json!({ "model_type": null }))).is_ok());
}

#[test]
fn refusals_name_file_key_value_and_what_is_supported() {
    let cases = [
        (
            json!({ "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2" }),
            "config.json: the model `GPT2LMHeadModel` is not supported; supported: Qwen2ForCausalLM, Qwen3ForCausalLM, LlamaForCausalLM, Qwen3MoeForCausalLM, Qwen3NextForCausalLM, DeepseekV3ForCausalLM, DeepseekV32ForCausalLM, GptOssForCausalLM",
        ),
        (
            json!({ "model_type": "mllama" }),
            "config.json: `model_type` is \"mllama\"; supported: \"llama\"",
        ),
        (
            json!({ "architectures": null, "model_type": null }),
            "config.json: `architectures` is missing",
        ),
        (json!({ "hidden_size": null }), "config.json: `hidden_size` is missing"),
        (
            json!({ "hidden_size": -4 }),
            "config.json: `hidden_size` is -4; supported: whole numbers from 1 to 131072",
        ),
        (
            json!({ "hidden_size": 1e300 }),
            "config.json: `hidden_size` is 1e+300; supported: whole numbers from 1 to 131072",
        ),
        (
            json!({ "num_hidden_layers": u64::MAX }),
            "config.json: `num_hidden_layers` is 18446744073709551615; supported: whole numbers from 1 to 1024",
        ),
        (
            json!({ "hidden_act": "gelu" }),
            "config.json: `hidden_act` is \"gelu\"; supported: \"silu\"",
        ),
        (
            json!({ "num_key_value_heads": 3 }),
            "config.json: `num_key_value_heads` is 3; supported: divisors of `num_attention_heads`, 4",
        ),
        (
            json!({ "head_dim": null, "hidden_size": 25 }),
            "config.json: `hidden_size` is 25; supported: multiples of `num_attention_heads`, 4",
        ),
        (json!({ "head_dim": 7 }), "config.json: `head_dim` is 7; supported: even numbers to 2048"),
        (
            json!({ "rms_norm_eps": 0 }),
            "config.json: `rms_norm_eps` is 0; supported: numbers from 0.000000000001 to 1",
        ),
        (
            json!({ "tie_word_embeddings": "no" }),
            "config.json: `tie_word_embeddings` is \"no\"; supported: true, false",
        ),
        (json!({ "pretraining_tp": 2 }), "config.json: `pretraining_tp` is 2; supported: 1"),
        (
            json!({ "eos_token_id": [1, 48] }),
            "config.json: `eos_token_id` is [1,48]; supported: an id or a list of ids below 48",
        ),
        (
            json!({ "layer_types": ["full_attention", "sliding_attention"] }),
            "config.json: `layer_types` is [\"full_attention\",\"sliding_attention\"]; supported: a list of 2 times \"full_attention\"",
        ),
        (
            json!({ "quantization_config": { "quant_method": "gptq" } }),
            "config.json: `quantization_config.quant_method` is \"gptq\"; supported: fp8 and mxfp4; the description of modelslim checkpoints stands in quant_model_description.json",
        ),
        (
            json!({ "quantization_config": { "quant_method": "fp8" } }),
            "config.json: `quantization_config.weight_block_size` is missing",
        ),
        (
            json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [64, 128] } }),
            "config.json: `quantization_config.weight_block_size` is [64,128]; supported: [128,128]",
        ),
        (
            json!({ "quantization_config": {
                "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "static"
            } }),
            "config.json: `quantization_config.activation_scheme` is \"static\"; supported: \"dynamic\"",
        ),
        (
            json!({ "quantization_config": { "quant_method": "mxfp4", "bits": 4 } }),
            "config.json: `quantization_config.bits` is not understood, and may change what the model computes; remove what does not matter",
        ),
        (
            json!({ "rope_theta": 1.0 }),
            "config.json: `rope_theta` is 1.0; supported: numbers from 1.000001 to 1000000000000",
        ),
        (
            json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 } }),
            "config.json: `rope_scaling.rope_type` is \"dynamic\"; supported: default, linear, llama3, yarn",
        ),
        (
            json!({ "rope_scaling": { "factor": 2.0 } }),
            "config.json: `rope_scaling.rope_type` is missing",
        ),
        (
            json!({ "rope_scaling": { "type": "linear" } }),
            "config.json: `rope_scaling.factor` is missing",
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "rope_type": "yarn", "factor": 2.0 } }),
            "config.json: `rope_scaling.rope_type` is \"yarn\"; supported: `type` is \"linear\"",
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "factor": 2.0, "alpha": 1.0 } }),
            "config.json: `rope_scaling.alpha` is not understood, and may change what the model computes; remove what does not matter",
        ),
        (
            json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5.0 } }),
            "config.json: `rope_parameters.rope_theta` is 5.0; supported: the value of the other `rope_theta`",
        ),
        (
            json!({ "logit_scale": 0.5, "residual_multiplier": 2.0, "use_cache": false }),
            "config.json: `logit_scale`, `residual_multiplier` are not understood, and may change what the model computes; remove what does not matter",
        ),
    ];
    for (changes, expected) in cases {
        assert_eq!(refusal(changes), expected);
    }
    let windowed = llama_with(json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": true,
    }));
    assert_eq!(
        parsed(&windowed).unwrap_err().to_string(),
        "config.json: `use_sliding_window` is true; supported: false"
    );
}

/// Files as published: every key in them is known, and the numbers arrive where they belong.
#[test]
fn released_configurations_are_understood() {
    let llama32 = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256,
    });
    let tinyllama = json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5632, "max_position_embeddings": 2048, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 22, "num_key_value_heads": 4,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.35.0", "use_cache": true, "vocab_size": 32000,
    });
    let qwen25_yarn = json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn",
        },
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 152064,
    });
    let qwen3_resaved = json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_types": vec!["full_attention"; 28],
        "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "pad_token_id": null, "rms_norm_eps": 1e-06,
        "rope_parameters": { "rope_theta": 1000000, "rope_type": "default" },
        "sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.0.0",
        "use_cache": true, "use_sliding_window": false, "vocab_size": 151936,
    });
    for (config, parameters, max_context) in [
        (llama32, 1_235_814_400, 131_072),
        (tinyllama, 1_100_048_384, 2048),
        (qwen25_yarn, 7_615_616_512, 131_072),
        (qwen3_resaved, 596_049_920, 40_960),
    ] {
        let config = parsed(&config).unwrap();
        let count = |(_, _, dims): (String, DType, Vec<u64>)| dims.iter().product::<u64>();
        assert_eq!(config.tensors().into_iter().map(count).sum::<u64>(), parameters);
        assert_eq!(config.max_context, max_context);
    }
}

#[test]
fn files_that_hold_no_object_are_refused() {
    for text in ["", "{", "[]", "null", "{\"a\": 1e999}", "\u{0}", "{\"hidden_size\": 1"] {
        let error =
            precast_models::Config::parse("config.json".as_ref(), text.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("config.json is not valid JSON: "), "{error}");
    }
    let deep = "[".repeat(100_000);
    assert!(precast_models::Config::parse("config.json".as_ref(), deep.as_bytes()).is_err());
}

/// Every key that some family reads, so that mutation reaches all of the parser.
fn rich_config() -> Value {
    llama_with(json!({
        "attention_bias": false, "mlp_bias": false, "pretraining_tp": 1, "use_cache": true,
        "use_sliding_window": false, "sliding_window": 16, "max_window_layers": 2,
        "layer_types": ["full_attention", "full_attention"], "partial_rotary_factor": 1.0,
        "rope_scaling": {
            "rope_type": "yarn", "type": "yarn", "factor": 2.0, "beta_fast": 32, "beta_slow": 1,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64, "truncate": true, "attention_factor": 1.0,
        },
    }))
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..9).prop_map(Value::from),
        prop_oneof!["silu", "yarn", "linear", "llama3", "qwen2", "qwen3", "Qwen3ForCausalLM", ".*"]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{0,8}", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Replaces or removes one entry of the configuration, at the top or inside the scaling.
fn mutate(config: &mut Value, (place, value): (usize, Option<Value>)) {
    let inner = config["rope_scaling"].as_object().map_or(0, |m| m.len());
    let outer = config.as_object().unwrap().len();
    let place = place % (inner + outer);
    let target =
        if place < outer { config.as_object_mut() } else { config["rope_scaling"].as_object_mut() };
    let target = target.unwrap();
    let at = if place < outer { place } else { place - outer };
    let key = target.keys().nth(at).unwrap().clone();
    match value {
        Some(value) => target.insert(key, value),
        None => target.remove(&key),
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a file says, reading it ends in a configuration whose sizes can be multiplied out,
    /// or in an error.
    #[test]
    fn no_configuration_panics(
        family in prop::sample::select(vec![
            ("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM"),
        ]),
        from_rich in any::<bool>(),
        mutations in prop::collection::vec((any::<usize>(), prop::option::of(any_value())), 0..4),
    ) {
        let mut config = if from_rich { rich_config() } else { llama_config() };
        config["model_type"] = json!(family.0);
        config["architectures"] = json!([family.1]);
        for mutation in mutations {
            mutate(&mut config, mutation);
        }
        if let Ok(config) = parsed(&config) {
            let bytes = config.tensors().iter().map(|(_, _, dims)| dims.iter().product::<u64>() * 4).sum::<u64>();
            prop_assert!(bytes > 0);
            prop_assert!(config.rope.inverse_frequencies().iter().all(|f| f.is_finite()));
            prop_assert!(config.rope.attention_factor().is_finite());
        }
    }

    #[test]
    fn no_bytes_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = precast_models::Config::parse("config.json".as_ref(), &text);
    }
}
