//! A real server over a device whose step takes a known time.

use crate::support::{bench, row};
use runtime::{
    EngineOptions,
    testing::{FakeModel, fake_engine},
};
use serde_json::{Map, Value};
use server::{Model, ModelFiles, ModelInfo, ServerOptions, listen, serve};
use std::{net::SocketAddr, sync::Arc, time::Duration};

const STEP: Duration = Duration::from_millis(10);
const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/data/qwen3");

/// A server with room for four requests at once.
fn start() -> SocketAddr {
    let read = |name: &str| std::fs::read(format!("{TOKENIZER}/{name}")).unwrap();
    let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let fake = FakeModel { vocab_size: 512, replay_time: STEP, ..FakeModel::default() };
    let files = ModelFiles {
        tokenizer: &tokenizer,
        tokenizer_config: Some(&config),
        ..ModelFiles::default()
    };
    let info = ModelInfo {
        path: "artifacts/tiny".into(),
        model_type: "qwen3".into(),
        architecture: "Qwen3ForCausalLM".into(),
        vocab_size: 512,
        max_context: fake.max_context as usize,
        eos_token_ids: vec![480],
        weights_bytes: 0,
        state_bytes: 0,
        arena_bytes: 0,
        max_running_requests: fake.max_running_requests,
        config: Map::new(),
    };
    let model = Model::new(files, info, "tiny").unwrap();
    let (told, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let options = ServerOptions { port: 0, ..ServerOptions::default() };
            let listener = listen(&options).await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            let engine = Arc::new(fake_engine(&fake, EngineOptions::default()));
            serve(listener, engine, model, options).await.unwrap();
        });
    });
    address.recv().unwrap()
}

fn number(table: &str, label: &str) -> f64 {
    row(table, label).parse().unwrap()
}

/// Without a tokenizer, for the server says how large its vocabulary is.
#[test]
fn the_table_has_the_times_of_the_engine() {
    let line = "--dataset-name random-ids --random-input-len 8 --random-output-len 11 \
                --random-range-ratio 1 --num-prompts 6 --max-concurrency 2 --backend sglang";
    let (report, table) = bench(start(), line).unwrap();
    report.check().unwrap();
    assert_eq!(row(&table, "Successful requests:"), "6");
    assert_eq!(row(&table, "Max request concurrency:"), "2");
    assert_eq!(row(&table, "Traffic request rate:"), "inf");
    assert_eq!(row(&table, "Total input tokens:"), "48");
    assert_eq!(row(&table, "Total generated tokens:"), "66");
    assert_eq!(report.socket.prompt_tokens, Some(48));
    // A step is at least this long, at most two requests share one, and a first token takes one.
    let step = STEP.as_secs_f64() * 1e3;
    for label in ["Mean TTFT (ms):", "Mean TPOT (ms):", "Median ITL (ms):"] {
        let time = number(&table, label);
        assert!(time > 0.95 * step && time < 20.0 * step, "{label} {time}");
    }
    let e2e = number(&table, "Mean E2E Latency (ms):");
    let sum = number(&table, "Mean TTFT (ms):") + 10.0 * number(&table, "Mean TPOT (ms):");
    assert!((e2e - sum).abs() < 0.2, "{e2e} {sum}");
    let duration = number(&table, "Benchmark duration (s):");
    assert!(duration >= 3.0 * 10.0 * STEP.as_secs_f64(), "{duration}");
    let concurrency = number(&table, "Concurrency:");
    assert!(concurrency > 1.5 && concurrency <= 2.01, "{concurrency}");
    assert!(number(&table, "Median time to first byte (ms):") > 0.0);
    assert!(report.socket.lag.median < 5.0, "{:?}", report.socket.lag);
}

#[test]
fn every_api_answers_streamed_and_whole() {
    let address = start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("results.jsonl");
    let backends = ["sglang", "sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat"];
    for backend in backends {
        for stream in ["", "--disable-stream"] {
            let line = format!(
                "--dataset-name random-ids --tokenizer {TOKENIZER} --random-input-len 8 \
                 --random-output-len 4 --random-range-ratio 1 --num-prompts 3 --request-rate 100 \
                 --backend {backend} {stream} --tag x --output-details --output-file {}",
                file.display()
            );
            let (report, table) = bench(address, &line).unwrap();
            report.check().unwrap();
            assert_eq!(row(&table, "Backend:"), backend);
            assert_eq!(row(&table, "Traffic request rate:"), "100.0");
            assert_eq!(row(&table, "Max request concurrency:"), "not set");
            assert_eq!(row(&table, "Total generated tokens:"), "12", "{backend} {stream}");
            assert!(number(&table, "Total generated tokens (retokenized):") > 0.0);
        }
    }
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2 * backends.len());
    for line in &lines {
        assert_eq!((&line["tag"], &line["completed"]), (&"x".into(), &3.into()));
        assert_eq!(line["server_info"]["served_model_name"], "tiny");
        assert_eq!(line["output_lens"], serde_json::json!([4, 4, 4]));
        assert_eq!(line["errors"], serde_json::json!(["", "", ""]));
        for key in ["mean_ttft_ms", "p99_tpot_ms", "p95_itl_ms", "std_e2e_latency_ms"] {
            assert!(line[key].is_number(), "{key}: {line}");
        }
    }
}

#[test]
fn recorded_conversations_and_shared_prefixes_are_sent() {
    let address = start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talks.json");
    let talks: Vec<Value> = (0..5)
        .map(|i| {
            let turns = [format!("question {i} about plans"), "an answer of words".to_owned()];
            serde_json::json!({"conversations": turns.map(|t| serde_json::json!({"value": t}))})
        })
        .chain([serde_json::json!({"conversations": [{"value": "alone"}]})])
        .collect();
    std::fs::write(&file, serde_json::to_vec(&talks).unwrap()).unwrap();
    let file = format!("--tokenizer {TOKENIZER} --dataset-path {}", file.display());
    let lines = [
        (format!("--dataset-name sharegpt --sharegpt-output-len 4 {file}"), 5),
        (
            format!("--dataset-name sharegpt --sharegpt-output-len 4 --apply-chat-template {file}"),
            5,
        ),
        (format!("--dataset-name random --random-input 9 --random-output 2 {file}"), 5),
        (
            format!(
                "--dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-output-len 3 \
                 --gsp-prompts-per-group 4 --gsp-system-prompt-len 12 --gsp-question-len 3 {file}"
            ),
            8,
        ),
    ];
    let mut inputs = Vec::new();
    for (line, requests) in lines {
        let line = line.replace("--random-input ", "--random-input-len ");
        let line = line.replace("--random-output ", "--random-output-len ");
        let (report, _) = bench(address, &line).unwrap();
        report.check().unwrap();
        assert_eq!(report.metrics.completed, requests, "{line}");
        inputs.push(report.metrics.total_input);
        // What is counted here is what the server counted.
        assert_eq!(report.socket.prompt_tokens, Some(report.metrics.total_input as u64), "{line}");
    }
    assert!(inputs[1] > inputs[0], "the template adds words: {inputs:?}");
}

#[test]
fn options_that_cannot_be_used_are_named() {
    let address = start();
    let cases = [
        ("--dataset-name random", "--tokenizer is needed"),
        ("--dataset-name sharegpt --tokenizer /nowhere", "/nowhere"),
        ("--dataset-name random-ids --backend vllm-chat", "--tokenizer is needed"),
        ("--dataset-name random-ids --extra-request-body [1]", "--extra-request-body"),
        ("--dataset-name random-ids --header x", "--header"),
        ("--dataset-name sharegpt --tokenize-prompt", "--tokenize-prompt"),
        ("--dataset-name random-ids --apply-chat-template", "--apply-chat-template"),
    ];
    for (line, expected) in cases {
        let error = bench(address, line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let tokenizer = format!("--dataset-name random --tokenizer {TOKENIZER}");
    let error = bench(address, &tokenizer).unwrap_err().to_string();
    assert!(error.starts_with("--dataset-path is needed"), "{error}");
}
