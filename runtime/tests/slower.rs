//! What makes steps slower than need be is counted each time and logged once, with what avoids it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use precast_runtime::testing::FakeModel;
use precast_runtime::{EngineOptions, Stats, StepOutcome};
use support::{logged, request};

/// Runs a request for each prompt length and number of tokens; returns the sequences of each decode
/// step, the counters and what was logged.
fn run(model: &FakeModel, requests: &[(usize, usize)]) -> (Vec<u32>, Stats, Vec<String>) {
    let ((steps, stats), log) = logged(|| {
        let options = EngineOptions {
            disable_mixed_chunk: true,
            prefix_cache: false,
            ..EngineOptions::default()
        };
        let mut engine = model.engine(options);
        let collected: Vec<_> = (0..)
            .zip(requests)
            .map(|(id, &(prompt, tokens))| {
                let (request, collected) = request(id, &vec![id as u32 + 1; prompt], tokens);
                engine.add(request).unwrap();
                collected
            })
            .collect();
        let mut steps = Vec::new();
        loop {
            match engine.step().unwrap() {
                StepOutcome::Idle => break,
                StepOutcome::Decode { rows } => steps.push(rows),
                StepOutcome::Prefill { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        for (collected, (_, tokens)) in collected.iter().zip(requests) {
            assert_eq!(collected.tokens().len(), *tokens);
        }
        (steps, engine.stats())
    });
    (steps, stats, log)
}

/// The only line about it.
fn only<'a>(log: &'a [String], about: &str) -> &'a str {
    let lines: Vec<_> = log.iter().filter(|line| line.contains(about)).collect();
    assert_eq!(lines.len(), 1, "once: {log:#?}");
    lines[0]
}

fn count(steps: &[u32], is: impl Fn(u32) -> bool) -> u64 {
    steps.iter().filter(|&&rows| is(rows)).count() as u64
}

#[test]
fn a_batch_that_no_replay_takes() {
    let model = FakeModel { max_running_requests: 7, ..FakeModel::default() };
    let (steps, stats, log) = run(&model, &[(4, 20); 7]);
    let split = count(&steps, |rows| rows > 4);
    assert!(split > 10, "{steps:?}");
    assert_eq!(stats.fallbacks.split, split);
    let line = only(&log, "decode at once and a replay takes");
    let what = "WARN 5 requests decode at once and a replay takes 4 of them";
    assert!(line.starts_with(what), "{line}");
    assert!(line.contains("`--graph-bs` ... 5") && line.contains("`--max-running-requests 4`"));
}

#[test]
fn a_long_context_among_short_ones() {
    let (steps, stats, log) = run(&FakeModel::default(), &[(100, 30), (1, 30)]);
    let both = count(&steps, |rows| rows == 2);
    assert!(both > 10, "{steps:?}");
    assert_eq!(stats.fallbacks.context, both);
    let line = only(&log, "decodes together with shorter ones");
    assert!(line.starts_with("INFO a request with a context of 10"), "{line}");
    assert!(line.contains("a plan for 256 tokens where 64 would do"), "{line}");
    assert!(line.contains("`--context-tiers`"), "{line}");
}

#[test]
fn more_padding_than_work() {
    let model = FakeModel { decode_rows: vec![4], prefill_rows: vec![4], ..FakeModel::default() };
    let (steps, stats, log) = run(&model, &[(4, 20), (4, 40)]);
    let alone = count(&steps, |rows| rows == 1);
    assert!(alone > 10 && count(&steps, |rows| rows == 2) > 10, "{steps:?}");
    assert_eq!(stats.fallbacks.padding, alone, "two of four rows are not more than half");
    let line = only(&log, "are padding");
    assert!(line.starts_with("INFO 3 of the 4 rows of a decode replay are padding"), "{line}");
    assert!(line.contains("`--graph-bs` ... 1"), "{line}");

    let model = FakeModel { prefill_rows: vec![16], ..FakeModel::default() };
    let (_, stats, log) = run(&model, &[(3, 1), (3, 1), (9, 1)]);
    assert_eq!(stats.fallbacks.padding, 2, "7 of 16 rows are not more than half");
    let line = only(&log, "are padding");
    assert!(line.starts_with("INFO 13 of the 16 rows of a prefill replay are padding"), "{line}");
    assert!(line.contains("`--prefill-chunks` ... 3"), "{line}");
}

#[test]
fn memory_that_runs_out() {
    // Two answers of 60 tokens need 16 blocks; there are 10.
    let model = FakeModel { blocks: 10, max_context: 80, ..FakeModel::default() };
    let (_, stats, log) = run(&model, &[(4, 60), (4, 60), (4, 60)]);
    assert!(stats.preemptions_total > 1);
    let line = only(&log, "KV memory is full");
    assert!(line.starts_with("WARN KV memory is full with 3 requests running"), "{line}");
    for flag in ["`--max-running-requests`", "`--max-total-tokens`", "`--kv-blocks`"] {
        assert!(line.contains(flag), "{line}");
    }
}

#[test]
fn a_chunk_that_no_plan_takes() {
    let start = |tokens| {
        let options =
            EngineOptions { chunked_prefill_size: Some(tokens), ..EngineOptions::default() };
        logged(|| FakeModel::default().engine(options)).1
    };
    let log = start(17);
    let line = only(&log, "chunked-prefill-size");
    let what = "WARN `--chunked-prefill-size 17` has no effect: the largest prefill plan takes 16";
    assert!(line.starts_with(what), "{line}");
    assert!(line.contains("`--prefill-chunks` ... 17"), "{line}");
    assert!(!start(16).iter().any(|line| line.contains("chunked-prefill-size")));
}

#[test]
fn nothing_is_said_where_nothing_is_lost() {
    let (steps, stats, log) = run(&FakeModel::default(), &[(4, 20)]);
    assert_eq!(steps.len(), 19);
    assert_eq!(stats.fallbacks, precast_runtime::Fallbacks::default());
    assert!(log.iter().all(|line| line.starts_with("INFO prefix cache")), "{log:#?}");
}
