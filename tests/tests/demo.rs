//! The demonstration model, served in bf16, is as good as it was recorded to be, and nearly as good
//! when `compile` quantises it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{compile, http::Server, root};
use serde_json::{Value, json};
use std::{
    fs,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");
const CLIENTS: usize = 8;

#[test]
fn the_demo_reaches_its_recorded_accuracy() {
    let recorded: Value =
        serde_json::from_slice(&fs::read(root("tools/demo-model/results.json")).unwrap()).unwrap();
    let recorded = &recorded["evaluation"]["exact_match"]["all"];
    let (total, wrong) = evaluate("--dtype bf16", "bf16");
    assert_eq!(recorded["total"], total);
    let expected = recorded["correct"].as_u64().unwrap() as usize;
    assert!(total - wrong.len() >= expected, "recorded {expected} of {total}: {wrong:#?}");
}

/// Exact answers are what small errors destroy first: a digit of a sum, a letter of a word.
#[test]
fn quantising_costs_few_answers() {
    let (total, wrong) = evaluate("--dtype bf16 --quantize w8a8 --quantize-head", "i8");
    assert!(wrong.len() * 10 <= total, "w8a8: {} of {total} wrong: {wrong:#?}", wrong.len());
    let (total, wrong) = evaluate("--dtype bf16 --quantize w4a8 --quantize-group 32", "i4");
    assert!(wrong.len() * 4 <= total, "w4a8: {} of {total} wrong: {wrong:#?}", wrong.len());
    let (total, wrong) = evaluate("--dtype bf16 --kv-cache-dtype int8", "bf16");
    assert!(wrong.len() * 10 <= total, "int8 KV: {} of {total} wrong: {wrong:#?}", wrong.len());
}

/// How many questions there are, and the wrong answers of the model compiled with `options`, which
/// make its projections `dtype`.
fn evaluate(options: &str, dtype: &str) -> (usize, Vec<String>) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("demo");
    compile(PRECAST, &root("demo"), &out, &format!("--graph-bs 1 4 8 {options}"));
    let manifest: Value =
        serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    let weights = manifest["weights"].as_array().unwrap();
    let down = weights.iter().find(|w| w["recipe"].to_string().contains("down_proj")).unwrap();
    assert_eq!(down["dtype"], dtype);
    let server = Server::start(PRECAST, &out, "");

    let items: Vec<Value> = fs::read_to_string(root("tools/demo-model/eval_set.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let answer = server.ask(
                        "/v1/chat/completions",
                        &json!({
                            "messages": [{"role": "user", "content": item["prompt"]}],
                            "temperature": 0,
                            "max_tokens": 96,
                        }),
                    );
                    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
                    if text.trim() != item["expected"].as_str().unwrap() {
                        wrong.lock().unwrap().push(format!("{}: {text}", item["prompt"]));
                    }
                }
            });
        }
    });

    let wrong = wrong.into_inner().unwrap();
    println!("{options}: {} of {} correct", items.len() - wrong.len(), items.len());
    (items.len(), wrong)
}
