//! What the engine itself costs in a decode step: everything but the replay. A device without a
//! model gives logits over a vocabulary of 151,936; the engine writes inputs, chooses tokens and
//! pushes them. Exits with 1 when a greedy step over a context tier of
//! 2,048 tokens takes more than 60 us of its own.
//!
//! `cargo bench -p precast-benches --bench engine_overhead`

use runtime::testing::{FakeDevice, FakeModel, collector};
use runtime::{Engine, EngineOptions, Request, Sampling, StepOutcome};
use std::time::Duration;

const VOCABULARY: u32 = 151_936;
const LIMIT: Duration = Duration::from_micros(60);

/// Decode steps that are timed.
const STEPS: usize = 60;

struct Case {
    name: &'static str,
    sampling: Sampling,
    /// Tokens that block tables have room for.
    tier: u32,
    is_limited: bool,
}

fn cases() -> Vec<Case> {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let top = Sampling { temperature: 0.8, top_k: Some(50), top_p: 0.95, ..Sampling::default() };
    // More than the device finds.
    let wide = Sampling { top_k: Some(100), ..top.clone() };
    let plain = Sampling { temperature: 0.8, ..Sampling::default() };
    let case = |name, sampling, tier, is_limited| Case { name, sampling, tier, is_limited };
    vec![
        case("greedy", greedy.clone(), 2048, true),
        case("greedy, tables of 40,960 tokens", greedy, 40_960, false),
        case("top_k 50, top_p 0.95", top, 2048, false),
        case("top_k 100, top_p 0.95", wide, 2048, false),
        case("temperature alone", plain, 2048, false),
    ]
}

fn engine(rows: u32, tier: u32) -> Engine<FakeDevice> {
    let model = FakeModel {
        vocab_size: VOCABULARY,
        max_context: tier,
        block_tokens: 16,
        blocks: 4096,
        decode_rows: vec![1, 8, 24],
        prefill_rows: vec![16],
        head_rows: vec![1],
        context_tiers: vec![tier],
        max_running_requests: rows,
        head_top_k: 64,
        ..FakeModel::default()
    };
    model.engine(EngineOptions::default())
}

fn request(id: u64, sampling: &Sampling) -> Request {
    // The sink stays open though nobody reads.
    let (sink, collected) = collector();
    collected.reserve(4096);
    let request = Request::greedy(id, vec![id as u32 + 1; 8], 1000, sink);
    Request { sampling: sampling.clone(), ignore_eos: true, ..request }
}

/// Time of the engine's own in a decode step of `rows` requests: the median.
fn overhead(rows: u32, case: &Case) -> Duration {
    let mut engine = engine(rows, case.tier);
    for id in 0..u64::from(rows) {
        engine.add(request(id, &case.sampling)).expect("it fits");
    }
    let mut times = Vec::with_capacity(STEPS);
    while times.len() < STEPS {
        let before = engine.stats().engine_time;
        let outcome = engine.step().expect("the fake device does not fail");
        if outcome == (StepOutcome::Decode { rows }) {
            times.push(engine.stats().engine_time - before);
        }
    }
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    println!("us of the engine in a decode step; the limit for greedy is {LIMIT:?}");
    println!("{:<34}{:>8}{:>8}{:>8}", "batch", 1, 8, 24);
    let mut slowest = Duration::ZERO;
    for case in cases() {
        let times = [1, 8, 24].map(|rows| overhead(rows, &case));
        let [a, b, c] = times.map(|time| time.as_secs_f64() * 1e6);
        println!("{:<34}{a:>8.1}{b:>8.1}{c:>8.1}", case.name);
        if case.is_limited {
            slowest = times.into_iter().fold(slowest, Duration::max);
        }
    }
    if slowest > LIMIT {
        eprintln!("a greedy step takes {slowest:?}, more than {LIMIT:?}");
        std::process::exit(1);
    }
}
