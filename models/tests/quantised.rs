//! Quantised checkpoints on the interpreter against the recorded results of their arithmetic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/run.rs"]
mod run;
mod support;

use precast_models::{BuildOptions, Checkpoint};
use recorded::Oracle;
use run::Session;
use std::fs;
use support::{F32, fixture};

/// Largest distance of `found` from `expected`.
fn off(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max)
}

/// What the reference records of its own arithmetic: how far single precision moves its logits from
/// those in double precision, which is far only where a value is rounded the other way.
fn recorded_flips(name: &str, prompt: &str) -> f64 {
    let text = fs::read_to_string(fixture(name).join("oracle.json")).unwrap();
    let oracle: serde_json::Value = serde_json::from_str(&text).unwrap();
    oracle["metrics"][format!("max_abs_diff_f32_vs_f64_{prompt}")].as_f64().unwrap()
}

/// Logits of both prompts within [`EXACT`], and what the reference itself is off by, of
/// `logits_{kind}_*`, and both greedy continuations those of `gen_ids_{kind}_*`.
fn check(name: &str, options: &BuildOptions, kind: &str) {
    for prompt in ["a", "b"] {
        check_prompt(name, options, kind, prompt, 32);
    }
}

/// [`check`] of one prompt and the first `tokens` of its continuation.
fn check_prompt(name: &str, options: &BuildOptions, kind: &str, prompt: &str, tokens: usize) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let oracle = Oracle::of(name);
    let mut session = Session::new(&checkpoint, options);
    let ids = oracle.ids(&format!("input_ids_{prompt}"));
    session.prefill(&ids);
    let (logits, argmax) = session.head(ids.len());
    let off = off(logits.data(), oracle.get(&format!("logits_{kind}_{prompt}")));
    let bound = EXACT + recorded_flips(name, prompt);
    assert!(off < bound, "{name} {prompt}: logits are off by {off}");

    let mut generated = vec![*argmax.data().last().unwrap() as usize];
    while generated.len() < tokens {
        let (_, next) = session.decode(*generated.last().unwrap());
        generated.push(next);
    }
    let expected = oracle.ids(&format!("gen_ids_{kind}_{prompt}"));
    assert_eq!(generated, expected[..tokens], "{name} {prompt}");
}

/// Integer products are exact; where no input lies on a rounding boundary, only the last bits of
/// single precision differ.
const EXACT: f64 = 1e-3;

#[test]
fn static_8_bit_with_norm_biases_and_layers_in_floating_point() {
    check("qwen3_w8a8", &F32, "f32");
}

#[test]
fn dynamic_8_bit() {
    check("qwen3_w8a8_dynamic", &F32, "f32");
}

#[test]
fn dense_4_bit() {
    check("qwen3_w4a8_dynamic", &F32, "f32");
}

#[test]
fn static_attention_and_dynamic_experts() {
    check("qwen3_moe_w8a8", &F32, "f32");
}

#[test]
fn dynamic_experts() {
    check("qwen3_moe_w8a8_dynamic", &F32, "f32");
}

#[test]
fn experts_in_4_bit() {
    check("qwen3_moe_w4a8_dynamic", &F32, "f32");
}

#[test]
fn experts_in_4_bit_between_layers_in_floating_point() {
    check("qwen3_moe_w4a8_mixed", &F32, "f32");
}

#[test]
fn latent_attention_static_and_experts_dynamic() {
    check("deepseek_v3_w8a8", &F32, "f32");
}

#[test]
fn latent_attention_and_experts_dynamic() {
    check("deepseek_v3_w8a8_dynamic", &F32, "f32");
}

#[test]
fn latent_attention_dynamic_and_experts_in_4_bit() {
    check("deepseek_v3_w4a8_dynamic", &F32, "f32");
}

#[test]
fn latent_attention_static_beside_an_indexer_in_floating_point() {
    check("deepseek_v32_w8a8", &F32, "f32");
}

#[test]
fn gated_delta_rule_with_quantised_inputs() {
    check("qwen3_next_w8a8", &F32, "f32");
}

/// In prompt a the reference rounds an input of token 35 the other way in single precision, by its
/// own record; the interpreter rounds it as double precision does. All tokens before agree.
#[test]
fn only_the_recorded_flip_moves_logits() {
    let name = "qwen3_next_w8a8";
    assert!(recorded_flips(name, "a") > 0.01 && recorded_flips(name, "b") < EXACT);
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let oracle = Oracle::of(name);
    let mut session = Session::new(&checkpoint, &F32);
    session.prefill(&oracle.ids("input_ids_a")[..35]);
    let (logits, _) = session.head(35);
    assert!(off(logits.data(), &oracle.get("logits_f32_a")[..logits.data().len()]) < EXACT);
}

#[test]
fn fp8_blocks_as_weights_only() {
    check("deepseek_v3_fp8", &F32, "f32");
    check("deepseek_v32_fp8", &F32, "f32");
}

const ACTIVATIONS_TOO: BuildOptions = BuildOptions { quantize_activations: true, ..F32 };

/// In the continuation of prompt b, the token after the 17th has an input of the first layer within
/// a millionth of a step of an FP8 rounding boundary, which another order of summation crosses. The
/// 26th token, whose two best logits are 0.01 apart, is then another one; all before agree.
#[test]
fn fp8_blocks_with_quantised_activations() {
    check_prompt("deepseek_v3_fp8", &ACTIVATIONS_TOO, "actquant_f32", "a", 32);
    check_prompt("deepseek_v3_fp8", &ACTIVATIONS_TOO, "actquant_f32", "b", 25);
}

#[test]
fn fp8_blocks_with_activation_scales_that_are_powers_of_two() {
    check("deepseek_v32_fp8", &ACTIVATIONS_TOO, "actquant_f32");
}
