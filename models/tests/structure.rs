//! The program that the builder writes: its interface, its ops, its text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ir::{DType, Func, Module, Op, text};
use precast_models::{BuildOptions, Checkpoint, Precision, build};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{fs, path::Path};
use support::{F32, Scratch, fixture, llama_config, llama_with, parsed, safetensors};

const BF16: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::BF16, activations: DType::F32 },
    kv_dtype: DType::BF16,
    kv_block_tokens: 16,
    quantize_activations: false,
    head_top_k: 0,
};

fn sound(module: &Module) {
    for f in &module.funcs {
        f.verify().unwrap();
        for &n in &f.order {
            assert!(!f.nodes[n].op.is_fused(), "{}", f.describe(n));
        }
    }
}

fn types(f: &Func, values: &[ir::ValueId]) -> Vec<String> {
    values.iter().map(|&v| format!("{} {}", f.values[v].name, f.values[v].ty)).collect()
}

#[test]
fn functions_have_the_promised_interface() {
    let checkpoint = Checkpoint::open(fixture("qwen2")).unwrap();
    let module = build(&checkpoint, &BF16);
    sound(&module);
    let of = |name: &str| {
        let f = module.func(name).unwrap();
        (types(f, &f.params), types(f, &f.results))
    };
    let kv = "state bf16[NB,2,2,16,16]";
    let (params, results) = of("decode");
    let step = |table: &str| {
        let mut params: Vec<String> =
            ["token_ids", "positions", "slots"].iter().map(|n| format!("{n} i32[T]")).collect();
        params.push(format!("block_table i32[{table},W]"));
        params.extend((0..3).map(|i| format!("kv.{i} {kv}")));
        params
    };
    let caches = (0..3).map(|i| format!("layers.{i}.kv {kv}"));
    assert_eq!(params, step("T"));
    let mut expected = vec!["logits f32[T,512]".to_owned(), "argmax i32[T]".to_owned()];
    expected.extend(caches.clone());
    assert_eq!(results, expected);

    let (params, results) = of("prefill");
    let mut expected = step("1");
    expected.push("hidden state f32[R,96]".to_owned());
    assert_eq!(params, expected);
    let stored = "hidden.out state f32[R,96]".to_owned();
    assert_eq!(results, caches.chain([stored]).collect::<Vec<_>>());

    let (params, results) = of("head");
    let table = "block_table i32[1,W]".to_owned();
    let (cache, hidden) = (format!("kv.2 {kv}"), "hidden state f32[R,96]".to_owned());
    let rows = ["rows i32[T]".to_owned(), "positions i32[T]".to_owned()];
    assert_eq!(params, [&rows[..], &[table, cache, hidden]].concat());
    assert_eq!(results, ["logits f32[T,512]", "argmax i32[T]"]);
}

/// The largest logits come after the largest one, as many as there are at most.
#[test]
fn the_largest_logits_are_returned_where_they_are_asked_for() {
    let checkpoint = Checkpoint::open(fixture("qwen2")).unwrap();
    for (asked, found) in [(1, 1), (64, 64), (512, 512), (1000, 512)] {
        let module = build(&checkpoint, &BuildOptions { head_top_k: asked, ..BF16 });
        sound(&module);
        for name in ["decode", "head"] {
            let func = module.func(name).unwrap();
            let results = types(func, &func.results[..4]);
            let top = [format!("top_logits f32[T,{found}]"), format!("top_ids i32[T,{found}]")];
            assert_eq!(results[1..], [&["argmax i32[T]".to_owned()], &top[..]].concat(), "{name}");
        }
    }
}

/// Every tensor of a checkpoint is read by some function, and every function is sound.
#[test]
fn checkpoints_of_every_family_build() {
    for name in
        ["qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "deepseek_v32", "qwen3_next", "gpt_oss"]
    {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        for options in [F32, BF16] {
            let module = build(&checkpoint, &options);
            sound(&module);
            for tensor in checkpoint.source().tensors() {
                let read = module
                    .funcs
                    .iter()
                    .any(|f| f.weight_of(&tensor.name).is_some_and(|w| f.uses(w) > 0));
                assert!(read, "{name}: {}", tensor.name);
            }
        }
    }
}

fn casts(module: &Module) -> usize {
    let is_cast =
        |f: &Func| f.order.iter().filter(|&&n| matches!(f.nodes[n].op, Op::Cast { .. })).count();
    module.funcs.iter().map(is_cast).sum()
}

/// Stores the tensors of `config` as zeros of element type `dtype`.
fn zeros(config: &Value, dtype: &'static str, bytes: u64) -> (Scratch, Checkpoint) {
    let scratch = Scratch::new();
    scratch.write_json("config.json", config);
    let zero = |(name, _, dims): (String, DType, Vec<u64>)| {
        let n = dims.iter().product::<u64>() * bytes;
        (name, dtype, dims, vec![0; n as usize])
    };
    let tensors: Vec<_> = parsed(config).unwrap().tensors().into_iter().map(zero).collect();
    fs::write(scratch.file("model.safetensors"), safetensors(&tensors)).unwrap();
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    (scratch, checkpoint)
}

#[test]
fn casts_stand_only_where_types_differ() {
    let (_dir, stored_f32) = zeros(&llama_config(), "F32", 4);
    assert_eq!(casts(&build(&stored_f32, &F32)), 0);
    let (_dir, stored_bf16) = zeros(&llama_config(), "BF16", 2);
    let module = build(&stored_bf16, &BF16);
    sound(&module);
    // Each layer has two norm weights, what both norms give and the gated product, in two functions;
    // then the final norm and its weight, in two functions. The last layer's attention has its norm in
    // `@prefill` and in `@head`.
    assert_eq!(casts(&module), 2 * 2 * 5 + 2 * 2 + 2);
    let (_dir, stored_f16) = zeros(&llama_config(), "F16", 2);
    sound(&build(&stored_f16, &BF16));
}

#[test]
fn a_tied_table_is_named_and_cast_once() {
    let (_dir, checkpoint) = zeros(&llama_with(json!({ "tie_word_embeddings": true })), "F16", 2);
    let module = build(&checkpoint, &BF16);
    sound(&module);
    let f = module.func("decode").unwrap();
    let readers = |name: &str| {
        let (v, _) = f.values.iter().find(|(_, v)| v.name == name).unwrap();
        f.uses(v)
    };
    assert_eq!(readers("model.embed_tokens.weight"), 1);
    assert_eq!(readers("model.embed_tokens.weight.bf16"), 2);
}

/// The whole text of one layer. `UPDATE_EXPECT=1` rewrites the files.
#[test]
fn one_layer_reads_as_recorded() {
    let one_layer = json!({ "num_hidden_layers": 1 });
    let qwen3 = json!({
        "num_hidden_layers": 1, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
        "tie_word_embeddings": true,
    });
    let biased = json!({ "num_hidden_layers": 1, "attention_bias": true, "mlp_bias": true });
    for (name, changes, dtype, bytes, options) in [
        ("llama_f32", one_layer, "F32", 4, F32),
        ("llama_biased_f16_stored", biased, "F16", 2, F32),
        ("qwen3_bf16", qwen3, "BF16", 2, BF16),
    ] {
        let (_dir, checkpoint) = zeros(&llama_with(changes), dtype, bytes);
        let module = build(&checkpoint, &options);
        sound(&module);
        let found = text::print_module(&module);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/expected/{name}.ir"));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &found).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap();
        assert_eq!(found, expected, "{name}");
        let parsed = text::parse(name, &found).unwrap();
        assert_eq!(text::print_module(&parsed), found, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever sizes and switches a configuration has, its program is sound.
    #[test]
    fn every_shape_gives_a_sound_program(
        family in prop::sample::select(vec![
            ("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM"),
        ]),
        (kv_heads, group, half_dim) in (1u64..4, 1u64..4, 1u64..9),
        (hidden, intermediate, layers) in (1u64..40, 1u64..40, 1u64..4),
        (tied, bias) in (any::<bool>(), any::<bool>()),
        options in prop::sample::select(vec![F32, BF16]),
    ) {
        let mut config = llama_with(json!({
            "model_type": family.0, "architectures": [family.1], "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": kv_heads * group, "num_key_value_heads": kv_heads,
            "head_dim": 2 * half_dim, "tie_word_embeddings": tied,
        }));
        if family.0 != "qwen2" {
            config["attention_bias"] = json!(bias);
        }
        let (_dir, checkpoint) = zeros(&config, "BF16", 2);
        sound(&build(&checkpoint, &options));
    }
}

#[test]
#[should_panic(expected = "built in floating point")]
fn integer_precision_is_a_bug_of_the_caller() {
    let checkpoint = Checkpoint::open(fixture("qwen2")).unwrap();
    let precision = Precision { weights: DType::I8, activations: DType::F32 };
    build(&checkpoint, &BuildOptions { precision, ..F32 });
}
