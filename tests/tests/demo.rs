//! The demonstration model, served in bf16, is as good as it was recorded to be.
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
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("demo");
    compile(PRECAST, &root("demo"), &out, "--graph-bs 1 4 8 --dtype bf16");
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

    let recorded: Value =
        serde_json::from_slice(&fs::read(root("tools/demo-model/results.json")).unwrap()).unwrap();
    let recorded = &recorded["evaluation"]["exact_match"]["all"];
    assert_eq!(recorded["total"], items.len());
    let correct = items.len() - wrong.lock().unwrap().len();
    println!("{correct} of {} correct, recorded {}", items.len(), recorded["correct"]);
    assert!(
        correct as u64 >= recorded["correct"].as_u64().unwrap(),
        "{correct} correct, recorded {}: {:#?}",
        recorded["correct"],
        wrong.lock().unwrap()
    );
}
