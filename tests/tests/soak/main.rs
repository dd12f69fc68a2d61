//! A server at saturation for as long as one likes: nothing leaks, nothing is lost, and every answer
//! is the one that an idle server gives.
//!
//! The long form runs for `SOAK_MINUTES` (20 when unset):
//! `SOAK_MINUTES=20 cargo test --release -p precast-tests --test soak -- --ignored --nocapture`
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;
mod client;

use cases::Api;
use client::{Client, Expected, Tally};
use precast_tests::{
    compile, fixture,
    http::Server,
    process::{open_files, resident_bytes},
    root,
};
use serde_json::json;
use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// More clients than may run, more that may run than the largest bucket has rows, and too few blocks
/// for all of those: steps are split, requests wait, are refused and give their blocks back.
const CLIENTS: u64 = 24;
const BUILD: &str = "--graph-bs 1 2 4 8 --prefill-chunks 16 64 --max-context 512 --kv-blocks 34";
const OPTIONS: &str = "--threads 2 --max-running-requests 12 --max-queued-requests 16";

/// What is served, and what it can be asked.
struct Subject {
    model: PathBuf,
    apis: &'static [Api],
}

fn demo() -> Subject {
    Subject { model: root("demo"), apis: &[Api::Generate, Api::Completions, Api::Chat] }
}

#[test]
fn nothing_is_lost_or_leaks_in_seconds_of_saturation() {
    soak(&demo(), Duration::from_secs(6), 18);
}

#[test]
fn recurrent_memory_is_neither_lost_nor_leaked() {
    let apis = &[Api::Generate, Api::Completions];
    let server = soak(&Subject { model: fixture("qwen3_next"), apis }, Duration::from_secs(4), 12);
    assert!(server.slots > 0.0, "it has recurrent memory");
}

#[test]
fn windows_are_neither_lost_nor_leaked() {
    let apis = &[Api::Generate, Api::Completions];
    let server = soak(&Subject { model: fixture("gpt_oss"), apis }, Duration::from_secs(4), 12);
    assert!(server.window_blocks > 0.0, "it has windows");
}

#[test]
#[ignore = "takes as many minutes as SOAK_MINUTES says"]
fn nothing_is_lost_or_leaks_in_a_long_saturation() {
    let minutes = std::env::var("SOAK_MINUTES").map_or(20.0, |m| m.parse().unwrap());
    let soaked = soak(&demo(), Duration::from_secs_f64(60.0 * minutes), 300);
    assert!(soaked.retractions > 0.0, "blocks ran out");
}

/// What the system and the engine say about a server that has nothing to do.
#[derive(Clone, Copy, Debug)]
struct Rest {
    resident: u64,
    files: usize,
    ended: f64,
    succeeded: f64,
    tokens: f64,
}

/// What a soak was about.
struct Soaked {
    /// How often requests gave their blocks back.
    retractions: f64,
    /// Slots of recurrent memory and blocks of windows, all of them free in the end.
    slots: f64,
    window_blocks: f64,
}

fn soak(subject: &Subject, time: Duration, case_count: usize) -> Soaked {
    let dir = TempDir::new().unwrap();
    let artifact = dir.path().join("artifact");
    compile(PRECAST, &subject.model, &artifact, BUILD);
    let mut server = Server::start(PRECAST, &artifact, OPTIONS);
    let expected = alone(&server, subject, case_count);
    let tally = Tally::default();
    // Buffers reach their sizes, threads are started, the allocator has what it will ever have.
    saturate(&server, &expected, &tally, time / 4, 1);
    let warm = rest(&server);
    saturate(&server, &expected, &tally, time - time / 4, 2);
    let end = rest(&server);
    println!("{tally:?}\nwarm: {warm:?}\nend:  {end:?}");
    for name in [
        "sglang:num_retractions_total",
        "sglang:cached_tokens_total",
        "sglang:num_aborted_requests_total",
        "precast:requests_rejected_total",
    ] {
        println!("{name} {}", server.metric(name));
    }

    // What it was for has happened.
    for count in [&tally.answered, &tally.slow, &tally.refused, &tally.cancelled, &tally.bad] {
        assert!(count.load(Relaxed) > 0, "{tally:?}");
    }
    assert!(end.tokens > warm.tokens);
    let soaked = Soaked {
        retractions: server.metric("sglang:num_retractions_total"),
        slots: server.metric("precast:sequence_slots"),
        window_blocks: server.metric("precast:window_blocks"),
    };
    // Every answer that was waited for is counted once, and so is every other at most.
    let idle: f64 = expected.iter().map(|e| e.answer.len() as f64).sum();
    let waited_for = idle + tally.choices.load(Relaxed) as f64;
    let at_most = waited_for + tally.abandoned.load(Relaxed) as f64;
    assert!(end.succeeded >= waited_for, "{} of {waited_for}", end.succeeded);
    assert!(end.ended <= at_most, "{} of {at_most}", end.ended);
    // The clients have left; what the server holds is what it held before.
    assert_eq!(end.files, warm.files, "file descriptors");
    let room = warm.resident / 10 + (16 << 20);
    assert!(end.resident <= warm.resident + room, "memory: {warm:?}, {end:?}");

    let pid = server.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(server.wait().success(), "{}", server.log());
    let log = server.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    soaked
}

/// What the server answers when it has nothing else to do.
fn alone(server: &Server, subject: &Subject, count: usize) -> Vec<Expected> {
    let cases = cases::cases(count, 7, 180, subject.apis);
    cases
        .into_iter()
        .map(|case| {
            let (status, json) = server.post(case.path(), &case.body(false));
            assert_eq!(status, 200, "{}: {json}", case.body);
            let answer = case.whole(&json).unwrap();
            Expected { case, answer }
        })
        .collect()
}

/// Every client asks again and again for `time`, or until one is not content.
fn saturate(server: &Server, expected: &[Expected], tally: &Tally, time: Duration, seed: u64) {
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let mut client = Client::new(server.base(), seed << 32 | i, tally);
                let stop = &stop;
                scope.spawn(move || -> Result<(), String> {
                    while start.elapsed() < time && !stop.load(Relaxed) {
                        client.act(expected).inspect_err(|_| stop.store(true, Relaxed))?;
                    }
                    Ok(())
                })
            })
            .collect();
        let errors: Vec<String> =
            clients.into_iter().filter_map(|c| c.join().unwrap().err()).collect();
        assert!(errors.is_empty(), "{}\n{}", errors.join("\n"), server.log());
    });
}

/// Waits until nothing runs, and flushes: then every block must be free, and nothing be open but what
/// is always open.
fn rest(server: &Server) -> Rest {
    let start = Instant::now();
    let is_idle = || {
        server.metric("sglang:num_running_reqs") == 0.0
            && server.metric("sglang:num_queue_reqs") == 0.0
            && server.post_text("/flush_cache", &json!({})).0 == 200
    };
    while !is_idle() {
        assert!(start.elapsed() < Duration::from_secs(30), "the server does not come to rest");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.metric("sglang:num_used_tokens"), 0.0, "blocks are missing");
    assert_eq!(server.metric("precast:window_blocks_used"), 0.0, "window blocks are missing");
    assert_eq!(server.metric("precast:sequence_slots_used"), 0.0, "slots are missing");
    // Connections that clients have closed are seen when they are read next.
    std::thread::sleep(Duration::from_millis(300));
    Rest {
        resident: resident_bytes(server.pid()),
        files: open_files(server.pid()),
        ended: server.metric("sglang:num_requests_total"),
        succeeded: server.metric("vllm:request_success_total"),
        tokens: server.metric("sglang:generation_tokens_total"),
    }
}
