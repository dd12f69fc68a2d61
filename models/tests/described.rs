//! Opening quantised checkpoints: what the description may say, what must be stored, and how packed
//! tensors read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ir::DType;
use precast_models::{Checkpoint, Config};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use support::{Scratch, Stored, fixture, llama_config, random_weights, refusal, safetensors};
use tensor::WeightSource;

const DOWN: &str = "model.layers.1.mlp.down_proj";
const UP: &str = "model.layers.0.mlp.up_proj";

fn put(weights: &mut Vec<Stored>, name: &str, dtype: &'static str, dims: &[u64], bytes: Vec<u8>) {
    weights.retain(|w| w.0 != name);
    weights.push((name.to_owned(), dtype, dims.to_vec(), bytes));
}

/// A llama with one static and one 4-bit projection, as modelslim would write it; `change` may
/// spoil tensors and description.
fn described(change: impl FnOnce(&mut Vec<Stored>, &mut Value)) -> Scratch {
    let scratch = Scratch::new();
    scratch.write_json("config.json", &llama_config());
    let config = Config::read(&scratch.file("config.json")).unwrap();
    let mut weights = random_weights(&config, 3);
    let mut description = json!({ "model_quant_type": "W8A8", "version": "1.0.0", "metadata": {},
        "group_size": 0, "optional": { "quarot": {} } });
    // down_proj [24,40], static.
    put(&mut weights, &format!("{DOWN}.weight"), "I8", &[24, 40], vec![3; 24 * 40]);
    for (part, n) in [("input_scale", 1), ("input_offset", 1)] {
        put(&mut weights, &format!("{DOWN}.{part}"), "BF16", &[n], vec![0x80, 0x3f]);
    }
    put(&mut weights, &format!("{DOWN}.quant_bias"), "I32", &[24], vec![1; 24 * 4]);
    let patterns = (0..24i64).flat_map(|i| (i64::from((i as f32 + 0.5).to_bits())).to_le_bytes());
    put(&mut weights, &format!("{DOWN}.deq_scale"), "I64", &[24], patterns.collect());
    put(&mut weights, &format!("{DOWN}.bias"), "F32", &[24], vec![7; 24 * 4]);
    // up_proj [40,24], 4 bits.
    let packed = (0..20 * 24).map(|i| (i * 37 % 256) as u8).collect();
    put(&mut weights, &format!("{UP}.weight"), "I8", &[20, 24], packed);
    put(&mut weights, &format!("{UP}.weight_scale"), "F32", &[40, 1], vec![1; 160]);
    put(&mut weights, &format!("{UP}.weight_offset"), "F32", &[40, 1], vec![0; 160]);
    put(&mut weights, &format!("{UP}.scale_bias"), "F32", &[40, 1], vec![9; 160]);
    for (name, ..) in &weights {
        let kind = match name {
            n if n.starts_with(UP) => "W4A8_DYNAMIC",
            n if n.starts_with(DOWN) && !n.ends_with("bias") => "W8A8",
            _ => "FLOAT",
        };
        description[name] = json!(kind);
    }
    description[format!("{DOWN}.quant_bias")] = json!("W8A8");
    change(&mut weights, &mut description);
    scratch.write_json("quant_model_description.json", &description);
    fs::write(scratch.file("quant_model_weight_w8a8.safetensors"), safetensors(&weights)).unwrap();
    scratch
}

#[test]
fn every_stored_tensor_is_used_or_passed_over_with_a_reason() {
    let scratch = described(|_, _| {});
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let ignored: Vec<_> = checkpoint.ignored().iter().map(|i| (&i.name[..], i.reason)).collect();
    assert_eq!(
        ignored,
        [
            (
                "model.layers.0.mlp.up_proj.scale_bias",
                "`scale_bias` serves kernels that split activations into nibbles"
            ),
            (
                "model.layers.0.mlp.up_proj.weight_offset",
                "weights are quantised symmetrically, so offsets are zeros"
            ),
            ("model.layers.1.mlp.down_proj.bias", "`quant_bias` contains the bias"),
        ]
    );
    // Codes count once, scales not at all.
    let float = Checkpoint::open(support::write_checkpoint(&llama_config()).0.path()).unwrap();
    assert_eq!(checkpoint.info().parameters, float.info().parameters);
    assert_eq!(checkpoint.info().dtype, DType::F32);
}

#[test]
fn packed_tensors_read_as_what_they_hold() {
    let scratch = described(|_, _| {});
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let source = checkpoint.source();
    let deq = format!("{DOWN}.deq_scale");
    assert_eq!(source.info(&deq).unwrap().dtype, DType::F32);
    let mut bytes = vec![0; 96];
    source.read(&deq, 0, &mut bytes).unwrap();
    let scales: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(scales.iter().enumerate().all(|(i, &s)| s == i as f32 + 0.5), "{scales:?}");

    let up = format!("{UP}.weight");
    let info = source.info(&up).unwrap();
    assert_eq!((info.dtype, &info.dims[..]), (DType::I4, &[40, 24][..]));
    let mut bytes = vec![0; 40 * 12];
    source.read(&up, 0, &mut bytes).unwrap();
    for (row, bytes) in bytes.chunks_exact(12).enumerate() {
        for column in 0..24 {
            let packed = ((row / 2 * 24 + column) * 37 % 256) as u8;
            let expected = packed >> (row % 2 * 4) & 15;
            assert_eq!(bytes[column / 2] >> (column % 2 * 4) & 15, expected, "{row} {column}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any range of a packed tensor is that part of the whole.
    #[test]
    fn packed_tensors_read_in_ranges(start in 0usize..96, len in 0usize..400) {
        let scratch = described(|_, _| {});
        let checkpoint = Checkpoint::open(scratch.path()).unwrap();
        for part in [format!("{DOWN}.deq_scale"), format!("{UP}.weight")] {
            let mut whole = Vec::new();
            checkpoint.source().stream(&part, |piece| whole.extend_from_slice(piece)).unwrap();
            let len = len.min(whole.len() - start);
            let mut range = vec![0; len];
            checkpoint.source().read(&part, start as u64, &mut range).unwrap();
            prop_assert_eq!(&range, &whole[start..start + len]);
        }
    }
}

#[test]
fn descriptions_that_nothing_here_understands_are_refused() {
    let says = |key: &str, value: Value| refusal(described(|_, d| d[key] = value).path());
    let file = "quant_model_description.json";
    let kinds = "FLOAT, W8A8, W8A8_DYNAMIC, W4A8_DYNAMIC; quantise the model with one of these \
                 recipes";
    assert_eq!(
        says("lm_head.weight", json!("W8A16")),
        format!("{file}: `lm_head.weight` is \"W8A16\"; supported: {kinds}")
    );
    assert_eq!(
        says("model_quant_type", json!("W4A4")),
        format!("{file}: `model_quant_type` is \"W4A4\"; supported: {kinds}")
    );
    assert_eq!(
        says("group_size", json!(256)),
        format!("{file}: `group_size` is 256; supported: 0")
    );
    assert!(says("kv_cache_type", json!("C8")).contains("`kv_cache_type` is not understood"));
    let missing = refusal(
        described(|_, d| {
            d.as_object_mut().unwrap().remove("model.norm.weight");
        })
        .path(),
    );
    assert!(missing.ends_with("`model.norm.weight` has no type in quant_model_description.json"));
    let both = described(|_, _| {});
    let mut config = llama_config();
    config["quantization_config"] = json!({ "quant_method": "mxfp4" });
    both.write_json("config.json", &config);
    assert!(refusal(both.path()).contains("remove the one that does not belong to them"));
}

#[test]
fn stored_tensors_that_do_not_fit_the_description_are_refused() {
    let says = |change: &dyn Fn(&mut Vec<Stored>, &mut Value)| refusal(described(change).path());
    let offset = format!("{UP}.weight_offset");
    let message = says(&|w, _| put(w, &offset, "F32", &[40, 1], vec![1; 160]));
    assert!(message.ends_with(&format!(
        "`{offset}` is not all zeros, and nothing here adds it; quantise symmetrically"
    )));
    // Minus zero is zero.
    let minus = (0..40).flat_map(|_| (-0.0f32).to_le_bytes()).collect::<Vec<u8>>();
    let scratch = described(|w, _| put(w, &offset, "F32", &[40, 1], minus));
    assert!(Checkpoint::open(scratch.path()).is_ok());

    let up = format!("{UP}.weight");
    let message = says(&|w, _| put(w, &up, "I8", &[40, 24], vec![0; 960]));
    assert!(message.ends_with(&format!("`{up}` has shape [40, 24], expected [20, 24]")));
    let message = says(&|w, _| put(w, &up, "U8", &[20, 24], vec![0; 480]));
    assert!(message.ends_with(&format!("`{up}` is stored as u8, supported: i8")));
    let message = says(&|w, _| w.retain(|t| t.0 != format!("{DOWN}.quant_bias")));
    assert!(message.ends_with("down_proj.quant_bias` [24] is missing"), "{message}");
    let message = says(&|w, d| {
        for (part, dtype, n, size) in [
            ("input_scale", "F32", 1, 4),
            ("input_offset", "F32", 1, 4),
            ("quant_bias", "I32", 48, 4),
            ("deq_scale", "F32", 48, 4),
        ] {
            put(w, &format!("lm_head.{part}"), dtype, &[n], vec![0; n as usize * size]);
        }
        put(w, "lm_head.weight", "I8", &[48, 24], vec![0; 48 * 24]);
        d["lm_head.weight"] = json!("W8A8");
    });
    assert!(message.contains("`lm_head.deq_scale` is quantised for inputs of one"), "{message}");
}

#[test]
fn weights_are_found_by_their_names() {
    let scratch = described(|_, _| {});
    let file = scratch.file("quant_model_weight_w8a8.safetensors");
    // What the reference recorded is no part of the model, and neither are other weights.
    fs::write(scratch.file("oracle.safetensors"), b"no weights").unwrap();
    fs::write(scratch.file("model.safetensors"), b"of the model before it was quantised").unwrap();
    assert!(Checkpoint::open(scratch.path()).is_ok());
    fs::copy(&file, scratch.file("quant_model_weights.safetensors")).unwrap();
    let message = refusal(scratch.path());
    assert!(
        message.contains(
            "has both quant_model_weight_w8a8.safetensors and quant_model_weights.safetensors"
        ),
        "{message}"
    );
    fs::remove_file(scratch.file("quant_model_weights.safetensors")).unwrap();
    fs::remove_file(scratch.file("model.safetensors")).unwrap();
    fs::remove_file(scratch.file("quant_model_description.json")).unwrap();
    let message = refusal(scratch.path());
    assert!(message.starts_with("quant_model_description.json is missing"), "{message}");
}

/// The fixtures name every tensor that they store.
#[test]
fn quantised_fixtures_count_as_their_originals() {
    for (quantised, original) in [
        ("qwen3_w8a8_dynamic", "qwen3"),
        ("qwen3_w4a8_dynamic", "qwen3"),
        ("qwen3_moe_w8a8", "qwen3_moe"),
        ("qwen3_moe_w4a8_mixed", "qwen3_moe"),
    ] {
        let parameters = |name| Checkpoint::open(fixture(name)).unwrap().info().parameters;
        assert_eq!(parameters(quantised), parameters(original), "{quantised}");
    }
}

#[test]
fn a_configuration_alone_gives_a_model_without_weights() {
    let (scratch, _) = support::write_checkpoint(&llama_config());
    let whole = Checkpoint::open(scratch.path()).unwrap();
    let promised = Checkpoint::config_only(scratch.file("config.json")).unwrap();
    assert_eq!(promised.info().parameters, whole.info().parameters);
    assert_eq!((&promised.info().name[..], promised.info().dtype), ("config", DType::BF16));
    assert_eq!(Checkpoint::config_only(scratch.path()).unwrap().info().name, whole.info().name);
    let error = promised.source().read("model.norm.weight", 0, &mut [0; 2]).unwrap_err();
    assert!(error.to_string().ends_with(
        "config.json: only the configuration was opened; name a checkpoint directory with weights"
    ));
}
