//! The server under load, bad input and departing clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{compile, fixture, http::Server, oracle::Oracle};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// Room for 12 blocks of 16 tokens: four requests of 8 blocks do not fit together.
const TIGHT: &str = "--graph-bs 1 4 --prefill-chunks 16 --max-context 128 --kv-blocks 12";

fn serve(name: &str, build: &str, options: &str) -> (Server, TempDir) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture(name), &out, build);
    (Server::start(PRECAST, &out, options), dir)
}

fn body(prompt: &[u32], tokens: usize, seed: u64) -> Value {
    json!({
        "input_ids": prompt,
        "sampling_params": {
            "temperature": 0.8, "max_new_tokens": tokens, "ignore_eos": true, "sampling_seed": seed
        },
        "return_logprob": true,
    })
}

fn prompts() -> Vec<Vec<u32>> {
    let long = Oracle::open(&fixture("qwen3")).ids("input_ids_a");
    (0..8).map(|i| long[i..20 + 2 * i].to_vec()).collect()
}

fn outputs(answer: &Value) -> (Value, Value) {
    (answer["output_ids"].clone(), answer["meta_info"]["output_token_logprobs"].clone())
}

fn together(server: &Server, bodies: &[Value]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            bodies.iter().map(|b| scope.spawn(move || server.ask("/generate", b))).collect();
        asked.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn preempted_requests_go_on_as_if_nothing_happened() {
    let (server, _dir) = serve("qwen3", TIGHT, "");
    let bodies: Vec<Value> =
        prompts().iter().zip(0..).map(|(p, seed)| body(p, 128 - p.len(), seed)).collect();
    let alone: Vec<Value> = bodies.iter().map(|b| server.ask("/generate", b)).collect();
    let before = server.metric("sglang:num_retractions_total");
    let crowded = together(&server, &bodies);
    assert!(
        server.metric("sglang:num_retractions_total") > before,
        "the pool is too small for all"
    );
    for (a, b) in alone.iter().zip(&crowded) {
        assert_eq!(outputs(a), outputs(b));
    }
}

#[test]
fn more_rows_than_the_largest_bucket_are_split() {
    let build = "--graph-bs 1 2 --prefill-chunks 16 --max-context 64 --kv-blocks 64";
    let (server, _dir) = serve("qwen3", build, "--max-running-requests 8");
    let bodies: Vec<Value> = prompts().iter().zip(0..).map(|(p, s)| body(p, 20, s)).collect();
    let alone: Vec<Value> = bodies.iter().map(|b| server.ask("/generate", b)).collect();
    for (a, b) in alone.iter().zip(&together(&server, &bodies)) {
        assert_eq!(outputs(a), outputs(b));
    }
}

#[test]
fn thread_counts_do_not_change_a_bit() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, TIGHT);
    let prompt = Oracle::open(&fixture("qwen2")).ids("input_ids_a");
    let answers: Vec<_> = ["--threads 1", "--threads 2", "--threads 3"]
        .map(|threads| {
            let server = Server::start(PRECAST, &out, threads);
            outputs(&server.ask("/generate", &body(&prompt, 30, 1)))
        })
        .into();
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn a_vanished_client_frees_its_blocks() {
    let build = "--graph-bs 1 --prefill-chunks 16 --max-context 32768 --kv-blocks 2048";
    let (server, _dir) = serve("qwen3", build, "");
    let mut request = body(&prompts()[0], 30_000, 1);
    request["stream"] = true.into();
    let mut lines = BufReader::new(server.post_stream("/generate", &request)).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("data: {"));
    assert_eq!(server.metric("sglang:num_running_reqs"), 1.0);
    drop(lines);
    eventually("the request ends", || server.metric("sglang:num_running_reqs") == 0.0);
    assert_eq!(server.metric("sglang:token_usage"), 0.0);
}

#[test]
fn sigterm_finishes_what_runs_and_takes_no_more() {
    let build = "--graph-bs 1 2 --prefill-chunks 16 --max-context 4096 --kv-blocks 512";
    let (mut server, _dir) = serve("qwen3", build, "");
    let mut request = body(&prompts()[0], 2000, 1);
    request["stream"] = true.into();
    let mut lines = BufReader::new(server.post_stream("/generate", &request)).lines();
    lines.next().unwrap().unwrap();
    let pid = server.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let rest: Vec<String> = lines.map(Result::unwrap).filter(|l| !l.is_empty()).collect();
    assert_eq!(rest.last().unwrap(), "data: [DONE]");
    let last: Value = serde_json::from_str(&rest[rest.len() - 2]["data: ".len()..]).unwrap();
    assert_eq!(last["meta_info"]["completion_tokens"], 2000);
    assert!(server.wait().success());
}

/// The answer would take minutes, and draining waits for it; who does not want to wait asks again.
#[test]
fn a_second_sigterm_ends_what_runs_at_once() {
    let build = "--graph-bs 1 2 --prefill-chunks 16 --max-context 40960 --kv-blocks 2560";
    let (mut server, _dir) = serve("qwen3", build, "--drain-timeout 600");
    let mut request = body(&prompts()[0], 40_000, 1);
    request["stream"] = true.into();
    request["return_logprob"] = false.into();
    let mut lines = BufReader::new(server.post_stream("/generate", &request)).lines();
    lines.next().unwrap().unwrap();
    let pid = server.pid().to_string();
    let term = || assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    term();
    eventually("it drains", || server.get("/health").0 == 503);
    assert_eq!(server.metric("sglang:num_running_reqs"), 1.0, "the first waits for the answer");
    let start = Instant::now();
    term();
    let rest: Vec<String> = lines.map_while(Result::ok).filter(|l| !l.is_empty()).collect();
    assert!(server.wait().success(), "{}", server.log());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let error = rest.iter().rfind(|l| l.contains("\"error\"")).expect("the client is told");
    assert!(error.contains("shutting down"), "{error}");
    let log = server.log();
    assert!(log.contains("a second signal ends running requests"), "{log}");
}

/// As `timeout` sends them: to the process, and to its group.
#[test]
fn signals_that_come_twice_stop_an_idle_server_well() {
    let (mut server, _dir) = serve("qwen2", TIGHT, "");
    let pid = server.pid().to_string();
    // The last may find nobody.
    for _ in 0..5 {
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    }
    let status = server.wait();
    let log = server.log();
    assert!(status.success() && !log.contains("ERROR"), "{status}: {log}");
}

#[test]
fn the_name_it_is_served_under_shows_everywhere() {
    let (server, _dir) = serve("qwen2", TIGHT, "--served-model-name org/some-name");
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    assert_eq!(models["data"][0]["id"], "org/some-name");
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
    let prompt = json!({"model": "org/some-name", "prompt": "x", "max_tokens": 2});
    let mut streamed = prompt.clone();
    streamed["stream"] = true.into();
    assert_eq!(server.ask("/v1/completions", &prompt)["model"], "org/some-name");
    let (_, text) = server.post_text("/v1/completions", &streamed);
    let first = text.lines().next().unwrap().strip_prefix("data: ").unwrap();
    let first: Value = serde_json::from_str(first).unwrap();
    assert_eq!(first["model"], "org/some-name");
    let metrics = server.get("/metrics").1;
    assert!(metrics.contains("model_name=\"org/some-name\""), "{metrics}");
}

#[test]
fn nothing_a_client_sends_stops_the_engine() {
    let (server, _dir) = serve("qwen2", TIGHT, "");
    let chat = "/v1/chat/completions";
    let hostile = [
        ("/generate", json!({"input_ids": []}), ""),
        ("/generate", json!({"input_ids": [99999]}), "99999"),
        ("/generate", json!({"input_ids": [-1]}), "input_ids"),
        ("/generate", json!({"text": "x", "sampling_params": {"top_p": 0}}), "top_p"),
        (
            "/generate",
            json!({"text": "x", "sampling_params": {"temperature": "hot"}}),
            "temperature",
        ),
        ("/generate", json!({"text": "word ".repeat(400)}), ""),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": -1}), "max_tokens"),
        ("/v1/completions", json!({"prompt": {"a": 1}}), "prompt"),
        ("/v1/completions", json!([1, 2]), ""),
        (chat, json!({"messages": []}), "messages"),
        (chat, json!({"messages": [{"role": "user"}]}), ""),
        (chat, json!({"messages": "hello"}), "messages"),
        ("/tokenize", json!({"prompt": 3}), "prompt"),
    ];
    for (path, request, field) in hostile {
        let (status, answer) = server.post(path, &request);
        assert_eq!(status, 400, "{path} {request}: {answer}");
        assert!(answer.to_string().contains(field), "{path} {request}: {answer}");
    }
    let (status, _) = server.get("/nowhere");
    assert_eq!(status, 404);
    let prompt = Oracle::open(&fixture("qwen2")).ids("input_ids_b");
    server.ask("/generate", &body(&prompt, 5, 1));
}
