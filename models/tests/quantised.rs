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
use support::{F32, fixture};

/// Largest distance of `found` from `expected`.
fn off(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max)
}

/// Logits of both prompts within `tolerance` of `logits_{kind}_*`, and both greedy continuations
/// those of `gen_ids_{kind}_*`.
fn check(name: &str, options: &BuildOptions, kind: &str, tolerance: f64) {
    let checkpoint = Checkpoint::open(fixture(name)).unwrap();
    let oracle = Oracle::of(name);
    for prompt in ["a", "b"] {
        let mut session = Session::new(&checkpoint, options);
        let tokens = oracle.ids(&format!("input_ids_{prompt}"));
        session.prefill(&tokens);
        let (logits, argmax) = session.head(tokens.len());
        let off = off(logits.data(), oracle.get(&format!("logits_{kind}_{prompt}")));
        assert!(off < tolerance, "{name} {prompt}: logits are off by {off}");

        let mut generated = vec![*argmax.data().last().unwrap() as usize];
        while generated.len() < 32 {
            let (_, next) = session.decode(*generated.last().unwrap());
            generated.push(next);
        }
        assert_eq!(generated, oracle.ids(&format!("gen_ids_{kind}_{prompt}")), "{name} {prompt}");
    }
}

/// Integer products are exact, and no value of these fixtures lies so near to a rounding boundary
/// that another order of summation moves it.
const EXACT: f64 = 1e-3;

#[test]
fn static_8_bit_with_norm_biases_and_layers_in_floating_point() {
    check("qwen3_w8a8", &F32, "f32", EXACT);
}

#[test]
fn dynamic_8_bit() {
    check("qwen3_w8a8_dynamic", &F32, "f32", EXACT);
}

#[test]
fn dense_4_bit() {
    check("qwen3_w4a8_dynamic", &F32, "f32", EXACT);
}

#[test]
fn static_attention_and_dynamic_experts() {
    check("qwen3_moe_w8a8", &F32, "f32", EXACT);
}

#[test]
fn dynamic_experts() {
    check("qwen3_moe_w8a8_dynamic", &F32, "f32", EXACT);
}

#[test]
fn experts_in_4_bit() {
    check("qwen3_moe_w4a8_dynamic", &F32, "f32", EXACT);
}

#[test]
fn experts_in_4_bit_between_layers_in_floating_point() {
    check("qwen3_moe_w4a8_mixed", &F32, "f32", EXACT);
}
