//! Projections that quantise their input with a stored scale and offset: those of one input share its
//! codes where what they store is equal.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use ir::{Func, Op};
use precast_models::{Checkpoint, Config, build};
use serde_json::json;
use std::{collections::BTreeMap, fs};
use support::{F32, Scratch, Stored, llama_config, random_weights, safetensors};

const ATTENTION: &str = "model.layers.0.self_attn";

/// A llama whose first layer has static projections in attention, each with a scale and an offset
/// for its input.
fn checkpoint(inputs: [(&str, f32, f32); 4]) -> (Scratch, Checkpoint) {
    let scratch = Scratch::new();
    scratch.write_json("config.json", &llama_config());
    let config = Config::read(&scratch.file("config.json")).unwrap();
    let mut weights = random_weights(&config, 5);
    let mut description = json!({ "model_quant_type": "W8A8", "version": "1.0.0" });
    for (name, ..) in &weights {
        description[name] = json!("FLOAT");
    }
    for (projection, scale, offset) in inputs {
        let prefix = format!("{ATTENTION}.{projection}_proj");
        let weight: &mut Stored =
            weights.iter_mut().find(|w| w.0 == format!("{prefix}.weight")).unwrap();
        let rows = weight.2[0];
        *weight = (weight.0.clone(), "I8", weight.2.clone(), vec![3; weight.3.len() / 4]);
        let parts = [
            ("input_scale", "F32", vec![scale.to_bits()]),
            ("input_offset", "F32", vec![offset.to_bits()]),
            ("quant_bias", "I32", vec![1; rows as usize]),
            ("deq_scale", "F32", vec![0.01f32.to_bits(); rows as usize]),
        ];
        description[format!("{prefix}.weight")] = json!("W8A8");
        for (part, dtype, words) in parts {
            let name = format!("{prefix}.{part}");
            description[&name] = json!("W8A8");
            let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            weights.push((name, dtype, vec![words.len() as u64], bytes));
        }
    }
    scratch.write_json("quant_model_description.json", &description);
    fs::write(scratch.file("quant_model_weight_w8a8.safetensors"), safetensors(&weights)).unwrap();
    let opened = Checkpoint::open(scratch.path()).unwrap();
    (scratch, opened)
}

/// Which codes each static product reads: projections by the name of the codes.
fn readers(func: &Func) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for &n in &func.order {
        let node = &func.nodes[n];
        if let Op::StaticMatmul { .. } = node.op {
            let name = |v| func.values[v].name.strip_prefix("layers.0.").unwrap();
            found.entry(name(node.args[0])).or_default().push(name(node.outs[0]));
        }
    }
    found
}

#[test]
fn equal_scales_and_offsets_are_one_quantisation_of_an_input() {
    // The output projection stores the same for another input.
    let same = ["q", "k", "v", "o"].map(|projection| (projection, 0.02, -3.0));
    let (_scratch, opened) = checkpoint(same);
    for func in &build(&opened, &F32).funcs[..2] {
        let readers = readers(func);
        let read: Vec<usize> = readers.values().map(Vec::len).collect();
        assert!(read == [1, 3] || read == [3, 1], "{readers:?}");
    }
}

#[test]
fn scales_or_offsets_that_differ_in_one_bit_stay_apart() {
    let next = f32::from_bits(0.02f32.to_bits() + 1);
    let mixed = [("q", 0.02, 0.0), ("k", next, 0.0), ("v", 0.02, -0.0), ("o", 0.02, 0.0)];
    let (_scratch, opened) = checkpoint(mixed);
    for func in &build(&opened, &F32).funcs[..2] {
        let readers = readers(func);
        assert_eq!(readers.len(), 4, "{readers:?}");
    }
}
