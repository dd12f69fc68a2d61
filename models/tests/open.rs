//! Opening checkpoints: whole ones, and every way in which one can be broken.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ir::DType;
use precast_models::{Attention, Checkpoint, ModelInfo};
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use support::{
    Scratch, Stored, fixture, llama_config, llama_with, refusal, safetensors, write_checkpoint,
};
use tensor::WeightSource;

#[test]
fn fixtures_open_with_their_facts() {
    let qwen2 = Checkpoint::open(fixture("qwen2")).unwrap();
    let expected = ModelInfo {
        name: "qwen2".to_owned(),
        model_type: "qwen2".to_owned(),
        architecture: "Qwen2ForCausalLM".to_owned(),
        vocab_size: 512,
        max_context: 32768,
        eos_token_ids: vec![480, 478],
        hidden: 96,
        layers: 3,
        sliding_window: None,
        parameters: 262_272,
        dtype: DType::BF16,
    };
    assert_eq!(qwen2.info(), &expected);
    let qwen3 = Checkpoint::open(fixture("qwen3")).unwrap();
    assert_eq!(qwen3.info().layers, 7);
    let Attention::Full(attention) = &qwen3.config().layers[0].attention else {
        panic!("{:?}", qwen3.config());
    };
    assert!(!qwen3.config().tied && attention.qk_norm && attention.head_dim == 16);
    let demo = Checkpoint::open(fixture("../../demo")).unwrap();
    assert_eq!(demo.info().parameters, 2_558_784);
    assert_eq!(demo.info().eos_token_ids, [1023]);
}

#[test]
fn the_source_reads_what_the_file_stores() {
    let (scratch, weights) = write_checkpoint(&llama_config());
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let source = checkpoint.source();
    let names: Vec<&str> = source.tensors().map(|t| &t.name[..]).collect();
    assert!(names.is_sorted() && names.len() == weights.len());
    for (name, _, dims, bytes) in &weights {
        assert_eq!(&source.info(name).unwrap().dims, dims);
        let mut part = vec![0; bytes.len() - 8];
        source.read(name, 4, &mut part).unwrap();
        assert_eq!(part, bytes[4..bytes.len() - 4]);
        let mut streamed = Vec::new();
        source.stream(name, |piece| streamed.extend_from_slice(piece)).unwrap();
        assert_eq!(&streamed, bytes);
    }
    let missing = source.read("no.such", 0, &mut []).unwrap_err();
    assert_eq!(missing.to_string(), "tensor `no.such` is not in the checkpoint");
}

#[test]
#[should_panic(expected = "leaves `model.norm.weight`")]
fn a_range_outside_the_tensor_is_a_bug_of_the_caller() {
    let (scratch, _) = write_checkpoint(&llama_config());
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let _ = checkpoint.source().read("model.norm.weight", 90, &mut [0; 8]);
}

/// A compiler may read weights from several threads.
#[test]
fn checkpoints_can_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Checkpoint>();
}

/// Writes `weights` over those of a sound checkpoint.
fn with_weights(change: impl FnOnce(&mut Vec<Stored>)) -> Scratch {
    let (scratch, mut weights) = write_checkpoint(&llama_config());
    change(&mut weights);
    fs::write(scratch.file("model.safetensors"), safetensors(&weights)).unwrap();
    scratch
}

#[test]
fn tensors_that_do_not_fit_are_all_named() {
    let at = |w: &[Stored], name: &str| w.iter().position(|t| t.0 == name).unwrap();
    let scratch = with_weights(|w| {
        w.remove(at(w, "model.norm.weight"));
        let k = at(w, "model.layers.1.self_attn.k_proj.weight");
        w[k].2 = vec![24, 16];
        let up = at(w, "model.layers.0.mlp.up_proj.weight");
        w[up].1 = "I32";
        let q = at(w, "model.layers.0.self_attn.q_proj.weight");
        w[q].1 = "U32";
        w.push(("model.layers.0.self_attn.q_proj.bias".to_owned(), "F32", vec![1], vec![0; 4]));
    });
    let dir = scratch.path().display();
    assert_eq!(
        refusal(scratch.path()),
        format!(
            "the weights in {dir} do not fit config.json: \
             `model.layers.0.mlp.up_proj.weight` is stored as i32, supported: f32, f16, bf16; \
             `model.layers.0.self_attn.q_proj.weight` is stored as U32, supported: f32, f16, bf16; \
             `model.layers.1.self_attn.k_proj.weight` has shape [24, 16], expected [16, 24]; \
             `model.norm.weight` [24] is missing; \
             `model.layers.0.self_attn.q_proj.bias` is stored but no part of the model"
        )
    );
}

#[test]
fn a_wrong_configuration_is_not_a_wall_of_text() {
    let (scratch, _) = write_checkpoint(&llama_config());
    scratch.write_json("config.json", &llama_with(json!({ "hidden_size": 28 })));
    let message = refusal(scratch.path());
    assert!(message.ends_with("; and 16 more"), "{message}");
}

#[test]
fn known_leftovers_are_passed_over_with_a_reason() {
    let (scratch, mut weights) = write_checkpoint(&llama_config());
    scratch.write_json("config.json", &llama_with(json!({ "tie_word_embeddings": true })));
    weights.push((
        "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
        "F64",
        vec![4],
        vec![0; 32],
    ));
    fs::write(scratch.file("model.safetensors"), safetensors(&weights)).unwrap();
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let ignored: Vec<_> = checkpoint.ignored().iter().map(|i| (&i.name[..], i.reason)).collect();
    assert_eq!(
        ignored,
        [
            ("lm_head.weight", "config.json ties the head to the embedding table"),
            (
                "model.layers.0.self_attn.rotary_emb.inv_freq",
                "rotary frequencies are computed from config.json"
            ),
        ]
    );
    assert!(checkpoint.source().info("lm_head.weight").is_none());
}

#[test]
fn other_safetensors_files_are_left_alone() {
    let (scratch, _) = write_checkpoint(&llama_config());
    fs::write(scratch.file("oracle.safetensors"), b"nothing of the model").unwrap();
    assert!(Checkpoint::open(scratch.path()).is_ok());
}

#[test]
fn missing_files_are_named() {
    let scratch = Scratch::new();
    assert!(refusal(scratch.path()).starts_with("reading config.json: No such file"));
    scratch.write_json("config.json", &llama_config());
    assert!(refusal(scratch.path()).contains("has neither model.safetensors nor"));
    fs::create_dir(scratch.file("model.safetensors")).unwrap();
    assert!(refusal(scratch.path()).contains("model.safetensors"));
}

#[test]
fn eos_ids_come_from_the_generation_settings_first() {
    let ids = |settings: Option<serde_json::Value>| {
        let (scratch, _) = write_checkpoint(&llama_config());
        if let Some(settings) = settings {
            scratch.write_json("generation_config.json", &settings);
        }
        Checkpoint::open(scratch.path()).map(|c| c.info().eos_token_ids.clone())
    };
    assert_eq!(ids(None).unwrap(), [1, 2]);
    assert_eq!(ids(Some(json!({ "temperature": 0.5 }))).unwrap(), [1, 2]);
    assert_eq!(ids(Some(json!({ "eos_token_id": 7 }))).unwrap(), [7]);
    assert_eq!(ids(Some(json!({ "eos_token_id": [7, 9] }))).unwrap(), [7, 9]);
    let error = ids(Some(json!({ "eos_token_id": "</s>" }))).unwrap_err().to_string();
    assert!(error.contains("generation_config.json: `eos_token_id` is \"</s>\""), "{error}");
}

#[test]
fn damaged_weights_are_refused() {
    let (scratch, weights) = write_checkpoint(&llama_config());
    let whole = safetensors(&weights);
    let data: usize = weights.iter().map(|w| w.3.len()).sum();
    let path = scratch.file("model.safetensors");
    let message = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        refusal(scratch.path())
    };
    assert_eq!(
        message(&whole[..whole.len() - 5]),
        format!(
            "model.safetensors is damaged: the header promises {data} bytes of weights, {} are \
             there; download it again",
            data - 5
        )
    );
    assert!(message(&whole[..100]).contains("it promises a header of"));
    assert!(message(&whole[..4]).contains("4 bytes are too few"));
    assert!(message(b"").contains("0 bytes are too few"));
    let mut garbled = whole.clone();
    garbled[9] = b'x';
    assert!(message(&garbled).contains("is damaged: bad header:"));
    let mut huge = whole.clone();
    huge[7] = 0xff;
    assert!(message(&huge).contains("it promises a header of"));
    let mut longer = whole;
    longer.push(0);
    assert!(message(&longer).contains("bytes of weights"));
}

/// Splits a sound checkpoint over two files and an index, which `change` may spoil.
fn sharded(change: impl FnOnce(&mut serde_json::Value)) -> Scratch {
    let (scratch, weights) = write_checkpoint(&llama_config());
    fs::remove_file(scratch.file("model.safetensors")).unwrap();
    let (a, b) = weights.split_at(weights.len() / 2);
    let mut index = json!({ "metadata": { "total_size": 1 }, "weight_map": {} });
    for (file, part) in [("model-00001-of-00002.safetensors", a), ("b.safetensors", b)] {
        fs::write(scratch.file(file), safetensors(part)).unwrap();
        for (name, ..) in part {
            index["weight_map"][name] = json!(file);
        }
    }
    change(&mut index);
    scratch.write_json("model.safetensors.index.json", &index);
    scratch
}

#[test]
fn sharded_checkpoints_read_like_whole_ones() {
    let (whole, weights) = write_checkpoint(&llama_config());
    let whole = Checkpoint::open(whole.path()).unwrap();
    let scratch = sharded(|_| {});
    let parts = Checkpoint::open(scratch.path()).unwrap();
    assert!(whole.source().tensors().eq(parts.source().tensors()));
    for (name, _, _, bytes) in &weights {
        let mut read = vec![0; bytes.len()];
        parts.source().read(name, 0, &mut read).unwrap();
        assert_eq!(&read, bytes);
    }
}

#[test]
fn an_index_that_contradicts_its_files_is_refused() {
    let name = "model.norm.weight";
    let broken = |place: serde_json::Value| {
        refusal(sharded(|index| index["weight_map"][name] = place).path())
    };
    let index = "model.safetensors.index.json is damaged: `model.norm.weight`";
    assert!(broken(json!("b.safetensors")).starts_with(&format!("{index} is not in b.saf")));
    assert!(broken(json!(3)).starts_with(&format!("{index} lies in 3, which is no file name")));
    for outside in ["../b.safetensors", "/etc/passwd", "..", "", "a/b"] {
        let message = broken(json!(outside));
        assert!(message.starts_with(&format!("{index} lies in {}", json!(outside))), "{message}");
    }
    assert!(broken(json!("c.safetensors")).starts_with("reading c.safetensors: No such file"));
    let no_map = refusal(sharded(|index| index["weight_map"] = json!([])).path());
    assert!(no_map.contains("`weight_map` is not an object of file names"));
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let scratch = sharded(|_| {});
    let twice = fs::read(scratch.file("b.safetensors")).unwrap();
    fs::write(scratch.file("c.safetensors"), twice).unwrap();
    let path = scratch.file("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let last = index["weight_map"].as_object().unwrap().keys().next_back().unwrap().clone();
    index["weight_map"][last] = json!("c.safetensors");
    scratch.write_json("model.safetensors.index.json", &index);
    let message = refusal(scratch.path());
    assert!(message.contains("c.safetensors is damaged: `"), "{message}");
    assert!(message.contains("is also in b.safetensors"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Flipped, cut and appended bytes end in an error or in a checkpoint that can be read whole.
    #[test]
    fn no_weight_file_panics(
        flips in prop::collection::vec((0usize..3000, any::<u8>()), 0..6),
        keep in prop::option::of(0usize..4000),
    ) {
        let (scratch, weights) = write_checkpoint(&llama_config());
        let mut bytes = safetensors(&weights);
        for (at, value) in flips {
            bytes[at] = value;
        }
        bytes.truncate(keep.unwrap_or(usize::MAX));
        fs::write(scratch.file("model.safetensors"), bytes).unwrap();
        if let Ok(checkpoint) = Checkpoint::open(scratch.path()) {
            for tensor in checkpoint.source().tensors() {
                checkpoint.source().stream(&tensor.name, |_| {}).unwrap();
            }
        }
    }
}
