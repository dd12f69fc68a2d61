//! Families beyond dense decoders: what their `config.json` may say, and the interface of their
//! programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ir::{DType, Module};
use precast_models::{
    Attention, BuildOptions, Checkpoint, Config, FeedForward, Precision, Published, build,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use support::{F32, Scratch, fixture, parsed};

const FAMILIES: [&str; 5] = ["qwen3_moe", "qwen3_next", "deepseek_v3", "deepseek_v32", "gpt_oss"];

const BF16: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::BF16, activations: DType::F32 },
    kv_dtype: DType::BF16,
    ..F32
};

/// The `config.json` of a fixture with `changes` made to it.
fn config_with(name: &str, changes: Value) -> Value {
    let text = fs::read_to_string(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn with(name: &str, changes: Value) -> Config {
    parsed(&config_with(name, changes)).unwrap()
}

fn refusal(name: &str, changes: Value) -> String {
    let error = parsed(&config_with(name, changes)).expect_err("must be refused").to_string();
    error.strip_prefix("config.json: ").unwrap().to_owned()
}

/// Which layers have experts.
fn sparse(config: &Config) -> Vec<bool> {
    config.layers.iter().map(|l| matches!(l.feed_forward, FeedForward::Experts(_))).collect()
}

/// As newer versions of the library write it: rotary settings in one object, `dtype`.
fn resaved(mut config: Value) -> Value {
    let fields = config.as_object_mut().unwrap();
    let mut rope = match fields.remove("rope_scaling") {
        Some(Value::Object(scaling)) => scaling,
        _ => json!({ "rope_type": "default" }).as_object().unwrap().clone(),
    };
    if let Some(kind) = rope.remove("type") {
        rope.insert("rope_type".to_owned(), kind);
    }
    for key in ["rope_theta", "partial_rotary_factor"] {
        rope.extend(fields.remove(key).map(|value| (key.to_owned(), value)));
    }
    fields.insert("rope_parameters".to_owned(), Value::Object(rope));
    if let Some(dtype) = fields.remove("torch_dtype") {
        fields.insert("dtype".to_owned(), dtype);
    }
    config
}

#[test]
fn both_spellings_mean_the_same() {
    for name in FAMILIES {
        let old = config_with(name, json!({}));
        let new = resaved(old.clone());
        assert_ne!(old, new);
        assert_eq!(parsed(&old).unwrap(), parsed(&new).unwrap(), "{name}");
    }
}

#[test]
fn a_mixed_rotary_factor_is_refused() {
    let mut config = resaved(config_with("qwen3_next", json!({})));
    config["partial_rotary_factor"] = json!(0.5);
    let message = parsed(&config).unwrap_err().to_string();
    assert_eq!(
        message,
        "config.json: `partial_rotary_factor` is 0.5; supported: 0.25, as in `rope_parameters`"
    );
}

#[test]
fn refusals_name_key_value_and_what_is_supported() {
    let cases = [
        (
            "qwen3_moe",
            json!({ "num_experts_per_tok": 17 }),
            "`num_experts_per_tok` is 17; supported: numbers that 16 experts allow",
        ),
        ("qwen3_moe", json!({ "num_experts": null }), "`num_experts` is missing"),
        (
            "qwen3_moe",
            json!({ "mlp_only_layers": [4] }),
            "`mlp_only_layers` is [4]; supported: a list of layers below 4",
        ),
        (
            "qwen3_moe",
            json!({ "mlp_only_layers": 1 }),
            "`mlp_only_layers` is 1; supported: a list of layers below 4",
        ),
        (
            "qwen3_moe",
            json!({ "shared_expert_intermediate_size": 8 }),
            "`shared_expert_intermediate_size` is 8; supported: 0",
        ),
        ("qwen3_moe", json!({ "use_qk_norm": false }), "`use_qk_norm` is false; supported: true"),
        (
            "qwen3_moe",
            json!({ "use_sliding_window": true }),
            "`use_sliding_window` is true; supported: false",
        ),
        (
            "qwen3_moe",
            json!({ "partial_rotary_factor": 0.5 }),
            "`partial_rotary_factor` is 0.5; supported: 1.0",
        ),
        (
            "qwen3_moe",
            json!({ "num_zero_experts": 2 }),
            "`num_zero_experts` is not understood, and may change what the model computes; remove what does not matter",
        ),
        (
            "qwen3_next",
            json!({ "linear_num_value_heads": 3 }),
            "`linear_num_value_heads` is 3; supported: multiples of `linear_num_key_heads`, 2",
        ),
        (
            "qwen3_next",
            json!({ "linear_conv_kernel_dim": 1 }),
            "`linear_conv_kernel_dim` is 1; supported: whole numbers from 2 to 64",
        ),
        (
            "qwen3_next",
            json!({ "partial_rotary_factor": 0.1 }),
            "`partial_rotary_factor` is 0.1; supported: shares of 32 channels that are even numbers",
        ),
        (
            "qwen3_next",
            json!({ "partial_rotary_factor": 2.0 }),
            "`partial_rotary_factor` is 2.0; supported: numbers from 0.001 to 1",
        ),
        (
            "qwen3_next",
            json!({ "layer_types": ["full_attention"] }),
            "`layer_types` is [\"full_attention\"]; supported: a list of 5 times \"linear_attention\" or \"full_attention\"",
        ),
        (
            "deepseek_v3",
            json!({ "scoring_func": "softmax" }),
            "`scoring_func` is \"softmax\"; supported: \"sigmoid\"",
        ),
        (
            "deepseek_v3",
            json!({ "topk_method": "greedy" }),
            "`topk_method` is \"greedy\"; supported: \"noaux_tc\"",
        ),
        (
            "deepseek_v3",
            json!({ "n_group": 3 }),
            "`n_group` is 3; supported: divisors of `n_routed_experts`, 16, with 2 experts each",
        ),
        (
            "deepseek_v3",
            json!({ "n_group": 16 }),
            "`n_group` is 16; supported: divisors of `n_routed_experts`, 16, with 2 experts each",
        ),
        (
            "deepseek_v3",
            json!({ "topk_group": 5 }),
            "`topk_group` is 5; supported: whole numbers to `n_group`, 4",
        ),
        (
            "deepseek_v3",
            json!({ "num_experts_per_tok": 9 }),
            "`num_experts_per_tok` is 9; supported: numbers that 16 experts allow",
        ),
        ("deepseek_v3", json!({ "q_lora_rank": null }), "`q_lora_rank` is missing"),
        (
            "deepseek_v3",
            json!({ "qk_rope_head_dim": 7 }),
            "`qk_rope_head_dim` is 7; supported: even numbers to 2048",
        ),
        (
            "deepseek_v3",
            json!({ "num_key_value_heads": 2 }),
            "`num_key_value_heads` is 2; supported: 4",
        ),
        (
            "deepseek_v3",
            json!({ "attention_bias": true }),
            "`attention_bias` is true; supported: false",
        ),
        (
            "deepseek_v3",
            json!({ "rope_interleave": false }),
            "`rope_interleave` is false; supported: true",
        ),
        ("deepseek_v3", json!({ "moe_layer_freq": 2 }), "`moe_layer_freq` is 2; supported: 1"),
        (
            "deepseek_v3",
            json!({ "index_topk": 8 }),
            "`index_topk` is not understood, and may change what the model computes; remove what does not matter",
        ),
        ("deepseek_v32", json!({ "index_topk": null }), "`index_topk` is missing"),
        (
            "deepseek_v32",
            json!({ "index_head_dim": 4 }),
            "`index_head_dim` is 4; supported: at least `qk_rope_head_dim`, 8",
        ),
        (
            "gpt_oss",
            json!({ "hidden_size": 72 }),
            "`hidden_size` is 72; supported: multiples of 32",
        ),
        (
            "gpt_oss",
            json!({ "intermediate_size": 72 }),
            "`intermediate_size` is 72; supported: multiples of 32",
        ),
        ("gpt_oss", json!({ "sliding_window": null }), "`sliding_window` is missing"),
        ("gpt_oss", json!({ "experts_per_token": 2 }), "`experts_per_token` is 2; supported: 4"),
        (
            "gpt_oss",
            json!({ "quantization_config": null }),
            "`quantization_config.quant_method` is null; supported: \"mxfp4\", as the weights were published",
        ),
    ];
    for (name, changes, expected) in cases {
        assert_eq!(refusal(name, changes), expected, "{name}");
    }
}

#[test]
fn experts_stand_where_the_file_says() {
    let of = |changes| sparse(&with("qwen3_moe", changes));
    assert_eq!(of(json!({})), [true; 4]);
    assert_eq!(of(json!({ "mlp_only_layers": [0, 2] })), [false, true, false, true]);
    assert_eq!(of(json!({ "decoder_sparse_step": 2 })), [false, true, false, true]);
    assert_eq!(
        of(json!({ "decoder_sparse_step": 2, "mlp_only_layers": [3] })),
        [false, true, false, false]
    );
    let of = |changes| sparse(&with("deepseek_v3", changes));
    assert_eq!(of(json!({})), [false, true, true, true]);
    assert_eq!(of(json!({ "first_k_dense_replace": 0 })), [true; 4]);
    assert_eq!(of(json!({ "first_k_dense_replace": 3 })), [false, false, false, true]);
}

#[test]
fn attention_alternates_as_the_file_says() {
    let attends = |changes| -> Vec<bool> {
        let config = with("qwen3_next", changes);
        config.layers.iter().map(|l| matches!(l.attention, Attention::Full(_))).collect()
    };
    assert_eq!(attends(json!({})), [false, false, false, true, false]);
    assert_eq!(attends(json!({ "full_attention_interval": 2 })), [false, true, false, true, false]);
    let (linear, full) = ("linear_attention", "full_attention");
    let listed = json!({ "layer_types": [full, linear, linear, full, full] });
    assert_eq!(attends(listed), [true, false, false, true, true]);

    let windows = |changes| -> Vec<Option<u64>> {
        let window = |l: &precast_models::Layer| match &l.attention {
            Attention::Full(a) => a.window(),
            other => panic!("{other:?}"),
        };
        with("gpt_oss", changes).layers.iter().map(window).collect()
    };
    assert_eq!(windows(json!({})), [Some(12), None, Some(12), None]);
    assert_eq!(windows(json!({ "layer_types": null })), [Some(12), None, Some(12), None]);
    let config = with("gpt_oss", json!({ "layer_types": [full, full, full, full] }));
    assert_eq!(config.sliding_window(), None);
}

/// `m^2 / sqrt(nope + rope)` with `m = 0.1 ln(factor) + 1`; cosine and sine are left alone.
#[test]
fn stretched_latent_attention_sharpens_its_scores() {
    let scale = |changes| match &with("deepseek_v3", changes).layers[0].attention {
        Attention::Latent(a) => f64::from(a.scale),
        other => panic!("{other:?}"),
    };
    let plain = 24f64.powf(-0.5);
    let stretched = plain * (0.1 * 40f64.ln() + 1.0).powi(2);
    assert!((scale(json!({})) - stretched).abs() < 1e-7);
    assert!((scale(json!({ "rope_scaling": null })) - plain).abs() < 1e-7);
    assert_eq!(with("deepseek_v3", json!({})).rope.attention_factor(), 1.0);
}

#[test]
fn draft_layers_are_passed_over_with_a_reason() {
    for (name, prefix) in [
        ("deepseek_v3", "model.layers.4."),
        ("deepseek_v32", "model.layers.4."),
        ("qwen3_next", "mtp."),
    ] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        assert!(!checkpoint.ignored().is_empty(), "{name}");
        for ignored in checkpoint.ignored() {
            assert!(ignored.name.starts_with(prefix), "{name}: {}", ignored.name);
            assert_eq!(ignored.reason, "draft layer, not part of the main model");
        }
    }
    // Layers that no key announces are not passed over.
    let unannounced = with("deepseek_v3", json!({ "num_nextn_predict_layers": null }));
    assert!(unannounced.draft_prefixes.is_empty());
}

#[test]
fn facts_for_the_manifest() {
    let info = |name: &str| Checkpoint::open(fixture(name)).unwrap().info().clone();
    let gpt_oss = info("gpt_oss");
    assert_eq!((gpt_oss.sliding_window, gpt_oss.dtype), (Some(12), DType::BF16));
    // Embedding, head and final norm; norms, attention with sinks, router; experts.
    let (h, v, i, e) = (64, 512, 64, 8);
    let attention = (128 * h + 128) + 2 * (32 * h + 32) + (h * 128 + h) + 8;
    let experts = e * (2 * i * h + 2 * i + h * i + h);
    let layer = 2 * h + attention + (e * h + e) + experts;
    assert_eq!(gpt_oss.parameters, 2 * v * h + h + 4 * layer);
    assert_eq!(info("qwen3_next").sliding_window, None);
    assert_eq!(with("gpt_oss", json!({})).published, Published::MxFp4);
}

fn interface(module: &Module, name: &str) -> Vec<String> {
    let f = module.func(name).unwrap();
    f.params.iter().map(|&p| format!("{} {}", f.values[p].name, f.values[p].ty)).collect()
}

fn built(name: &str, options: &BuildOptions) -> Module {
    build(&Checkpoint::open(fixture(name)).unwrap(), options)
}

#[test]
fn functions_declare_the_memories_they_need() {
    let step = ["token_ids i32[T]", "positions i32[T]", "slots i32[T]", "block_table i32[1,W]"];
    let check = |name: &str, inputs: &[&str], states: &[&str]| {
        let mut expected = step.to_vec();
        expected.extend(inputs);
        expected.extend(states);
        let module = built(name, &BF16);
        let mut found = interface(&module, "prefill");
        assert!(found.pop().unwrap().starts_with("hidden state f32[R,"));
        assert_eq!(found, expected, "{name}");
        let decode = interface(&module, "decode");
        let per_row = |p: &String| p.replace("[1,W]", "[T,W]");
        assert_eq!(decode, found.iter().map(per_row).collect::<Vec<_>>(), "{name}");
        // Every state comes back, in order, in its own type.
        let f = module.func("decode").unwrap();
        let types = |values: &[ir::ValueId]| -> Vec<String> {
            values.iter().map(|&v| f.values[v].ty.to_string()).collect()
        };
        let first = f.params.len() - states.len();
        assert_eq!(types(&f.results[2..]), types(&f.params[first..]), "{name}");
    };
    let windowed = "state bf16[NW,2,2,16,16]";
    let full = "state bf16[NB,2,2,16,16]";
    check(
        "gpt_oss",
        &["window_slots i32[T]", "window_table i32[1,W]"],
        &[
            &format!("window_kv.0 {windowed}"),
            &format!("kv.1 {full}"),
            &format!("window_kv.2 {windowed}"),
            &format!("kv.3 {full}"),
        ],
    );
    let delta = |i: usize| {
        [format!("conv.{i} state bf16[NS,3,128]"), format!("delta.{i} state f32[NS,4,16,16]")]
    };
    let mut states: Vec<String> = (0..3).flat_map(delta).collect();
    states.push("kv.3 state bf16[NB,2,2,16,32]".to_owned());
    states.extend(delta(4));
    let states: Vec<&str> = states.iter().map(String::as_str).collect();
    check("qwen3_next", &["sequences i32[T]"], &states);

    let latent = |i: usize| {
        [format!("latent.{i} state bf16[NB,16,32]"), format!("rope_key.{i} state bf16[NB,16,8]")]
    };
    let states: Vec<String> = (0..4).flat_map(latent).collect();
    check("deepseek_v3", &[], &states.iter().map(String::as_str).collect::<Vec<_>>());
    let index = |i: usize| {
        let [a, b] = latent(i);
        [a, b, format!("index_key.{i} state bf16[NB,16,16]")]
    };
    let states: Vec<String> = (0..4).flat_map(index).collect();
    check("deepseek_v32", &[], &states.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Replaces or removes one entry at the top or inside the rotary scaling.
fn mutate(config: &mut Value, place: usize, value: Option<Value>) {
    let inner = config["rope_scaling"].as_object().map_or(0, |m| m.len());
    let outer = config.as_object().unwrap().len();
    let place = place % (inner + outer);
    let (target, at) = match place.checked_sub(outer) {
        None => (config.as_object_mut(), place),
        Some(at) => (config["rope_scaling"].as_object_mut(), at),
    };
    let target = target.unwrap();
    let key = target.keys().nth(at).unwrap().clone();
    match value {
        Some(value) => target.insert(key, value),
        None => target.remove(&key),
    };
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..70).prop_map(Value::from),
        prop::collection::vec((0u64..6).prop_map(Value::from), 0..4).prop_map(Value::from),
        prop_oneof!["sigmoid", "yarn", "linear", "full_attention", ".*"].prop_map(Value::from),
    ]
}

fn sound(module: &Module) {
    for f in &module.funcs {
        f.verify().unwrap();
        for &n in &f.order {
            assert!(!f.nodes[n].op.is_fused(), "{}", f.describe(n));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a file says, it is refused or gives a sound program.
    #[test]
    fn no_configuration_panics(
        name in prop::sample::select(FAMILIES.to_vec()),
        mutations in prop::collection::vec((any::<usize>(), prop::option::of(any_value())), 0..4),
        options in prop::sample::select(vec![F32, BF16]),
    ) {
        let mut config = config_with(name, json!({}));
        for (place, value) in mutations {
            mutate(&mut config, place, value);
        }
        if parsed(&config).is_ok() {
            let scratch = Scratch::new();
            scratch.write_json("config.json", &config);
            let checkpoint = Checkpoint::config_only(scratch.path()).unwrap();
            sound(&build(&checkpoint, &options));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sizes that share no factor by accident: every slice and reshape is computed, not lucky.
    #[test]
    fn every_shape_gives_a_sound_program(
        name in prop::sample::select(FAMILIES.to_vec()),
        (groups, kv_heads, half_dim) in (1u64..4, 1u64..4, 1u64..9),
        (blocks, width, layers) in (1u64..4, 1u64..40, 1u64..6),
        (key_heads, served, key_dim, value_dim, taps) in (1u64..4, 1u64..4, 1u64..9, 1u64..9, 2u64..6),
        (query, latent, nope, value) in (1u64..40, 1u64..40, 1u64..20, 1u64..20),
        (experts, k) in (1u64..5, 1u64..3),
        options in prop::sample::select(vec![F32, BF16]),
    ) {
        let heads = groups * kv_heads;
        let latent_family = name.starts_with("deepseek");
        let mut changes = json!({
            "hidden_size": 32 * blocks, "num_hidden_layers": layers, "layer_types": null,
            "intermediate_size": if name == "gpt_oss" { 32 * groups } else { width },
            "num_attention_heads": heads,
            "num_key_value_heads": if latent_family { heads } else { kv_heads },
            "num_experts_per_tok": k,
        });
        let own = match name {
            "gpt_oss" => json!({
                "head_dim": 2 * half_dim, "num_local_experts": k + experts, "experts_per_token": k,
            }),
            "qwen3_moe" => json!({
                "head_dim": 2 * half_dim, "num_experts": k + experts, "moe_intermediate_size": width,
            }),
            "qwen3_next" => json!({
                "head_dim": 8 * half_dim, "num_experts": k + experts, "moe_intermediate_size": width,
                "linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * served,
                "linear_key_head_dim": key_dim, "linear_value_head_dim": value_dim,
                "linear_conv_kernel_dim": taps, "shared_expert_intermediate_size": value,
                "full_attention_interval": experts,
            }),
            _ => json!({
                "q_lora_rank": query, "kv_lora_rank": latent, "qk_nope_head_dim": nope,
                "qk_rope_head_dim": 2 * half_dim, "v_head_dim": value,
                "n_routed_experts": 4 * k, "n_group": 2, "topk_group": 1,
                "moe_intermediate_size": width, "n_shared_experts": experts - 1,
            }),
        };
        changes.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        if name == "deepseek_v32" {
            changes["index_head_dim"] = json!(2 * half_dim + key_dim);
            changes["index_n_heads"] = json!(key_heads);
        }
        let scratch = Scratch::new();
        scratch.write_json("config.json", &config_with(name, changes));
        let checkpoint = Checkpoint::config_only(scratch.path()).unwrap();
        sound(&build(&checkpoint, &options));
    }
}
