//! Answers of models that know nothing, held to a grammar. The server's own tests have the variety;
//! here are a real model, its sampler and its tokenizer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{compile, fixture, http::Server};
use serde_json::{Value, json};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");
const BUILD: &str = "--graph-bs 1 4 8 --prefill-chunks 16 --max-context 2048 --kv-blocks 1024";

fn sampled(seed: u64) -> Value {
    json!({"prompt": "Answer: ", "max_tokens": 1800, "temperature": 1.0, "seed": seed})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

fn together(server: &Server, bodies: &[Value]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let ask = |body| scope.spawn(move || server.ask("/v1/completions", body));
        let asked: Vec<_> = bodies.iter().map(ask).collect();
        asked.into_iter().map(|t| t.join().unwrap()["choices"].take()).collect()
    })
}

/// `-0`, which JSON has, is no `i64`.
fn is_side(value: &Value) -> bool {
    value.as_f64().is_some_and(|n| n.fract() == 0.0 && (-5.0..=250.0).contains(&n))
}

/// Tokenizers of two families.
#[test]
fn every_answer_is_a_text_of_its_grammar_and_changes_no_other() {
    for name in ["qwen3", "deepseek_v3"] {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("artifact");
        compile(PRECAST, &fixture(name), &out, BUILD);
        let server = Server::start(PRECAST, &out, "");
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "sides": {
                    "type": "array", "minItems": 2, "maxItems": 4,
                    "items": {"type": "integer", "minimum": -5, "maximum": 250}
                },
                "unit": {"enum": ["cm", "Ω", null]}
            },
            "required": ["name", "sides", "unit"],
            "additionalProperties": false
        });
        let bound = |seed| with(sampled(seed), "json_schema", schema.clone());
        let bound: Vec<Value> = (0..6).map(bound).collect();
        let free = |seed| with(with(sampled(seed), "max_tokens", json!(40)), "logprobs", json!(1));
        let free: Vec<Value> = (0..4).map(free).collect();
        let alone: Vec<Value> =
            free.iter().flat_map(|b| together(&server, std::slice::from_ref(b))).collect();
        let all: Vec<Value> = bound.iter().chain(&free).cloned().collect();
        let (first, second) = (together(&server, &all), together(&server, &all));
        assert_eq!(first, second, "the same seeds, the same answers");
        assert_eq!(first[bound.len()..], alone);
        for choices in &first[..bound.len()] {
            assert_eq!(choices[0]["finish_reason"], "stop", "{choices}");
            let text = choices[0]["text"].as_str().unwrap();
            let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!(value.as_object().unwrap().keys().eq(["name", "sides", "unit"]), "{value}");
            assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{value}");
            let sides = value["sides"].as_array().unwrap();
            assert!((2..=4).contains(&sides.len()), "{value}");
            assert!(sides.iter().all(is_side), "{value}");
            assert!([json!("cm"), json!("Ω"), Value::Null].contains(&value["unit"]), "{value}");
        }
        assert!(server.metric("precast:grammar_masks_total") > 100.0);
    }
}
