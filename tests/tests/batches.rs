//! A request's tokens and log-probabilities depend on nothing but the request: not on its batch,
//! bucket, padding, chunk lengths, threads, on being preempted, or on whether its prompt was fed by
//! prefill or decode plans.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use artifact::{Artifact, Phase, PlanEntry};
use codegen_cpu::InstructionSet;
use precast_tests::{
    compile_here,
    engine::{self, Output, load_on},
    fixture,
};
use runtime::{EngineOptions, LogprobOptions, Request, Sampling, StepOutcome};
use std::time::Duration;
use tempfile::TempDir;

const REQUESTS: u64 = 24;

/// Threads of each schedule; single runs have one.
const THREADS: [u32; 3] = [2, 3, 1];

/// Small numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The prompt and length of request `id`.
fn job(id: u64) -> (Vec<u32>, usize) {
    let mut random = Random(id);
    let len = 1 + random.below(60);
    ((0..len).map(|_| random.below(478) as u32).collect(), 1 + random.below(40) as usize)
}

/// Some are sampled from the most likely tokens, which the device finds where it was compiled to.
fn request(id: u64, prompt: &[u32], max_tokens: usize, output: &Output) -> Request {
    let request = engine::request(id, prompt, max_tokens, output);
    if id % 3 != 1 {
        return request;
    }
    let top_k = Some(1 + id as u32);
    let sampling = Sampling { top_k, top_p: 0.95, ..request.sampling };
    Request { sampling, logprobs: LogprobOptions::default(), ..request }
}

macro_rules! models {
    ($($name:ident $dtype:ident)*) => {
        $(#[test] fn $name() {
            random_batches_equal_single_runs(stringify!($name), stringify!($dtype))
        })*
    };
}

models! {
    qwen2 f32 qwen3 bf16 qwen3_moe_w8a8 auto qwen3_next bf16 deepseek_v3 f32 deepseek_v32 bf16
    gpt_oss bf16
}

#[test]
fn keys_and_values_in_8_bits() {
    random_batches_equal_single_runs("gpt_oss", "bf16 --kv-cache-dtype int8");
}

/// Plan times of the first schedules are given, so that these are the same in every run: decode plans so
/// dear that prompts crowd in, which preempts where blocks are few, then large decode plans so cheap
/// that whole prompts go through them. The last schedule's are measured.
fn engine_options(artifact: &Artifact, seed: u64) -> EngineOptions {
    let given = |decode_row: Duration| -> Vec<Duration> {
        let time = |plan: &PlanEntry| match plan.phase {
            Phase::Decode => decode_row * plan.rows,
            Phase::Prefill | Phase::Head => Duration::from_millis(1),
        };
        artifact.manifest().plans.iter().map(time).collect()
    };
    let plan_times = match seed % 3 {
        2 => Some(given(Duration::from_millis(10))),
        0 => Some(given(Duration::from_micros(1))),
        _ => None,
    };
    EngineOptions { plan_times, max_running_requests: Some(64), ..EngineOptions::default() }
}

fn random_batches_equal_single_runs(model: &str, dtype: &str) {
    let dir = TempDir::new().unwrap();
    let compile = |name: &str, options: &str| {
        let options = format!("{options} --dtype {dtype} --max-context 128 --no-record");
        compile_here(&fixture(model), &dir.path().join(name), &options)
    };
    let plain = compile("plain", "--graph-bs 1 --prefill-chunks 64 --kv-blocks 64 --head-top-k 0");
    let batched = [
        compile("a", "--graph-bs 1 3 8 --prefill-chunks 8 --kv-blocks 200 --context-tiers 32"),
        compile("b", "--graph-bs 4 5 --prefill-chunks 16 48 --kv-blocks 14 --head-top-k 10"),
    ];
    for set in InstructionSet::available() {
        // Every schedule where engines run by default, the first elsewhere.
        let schedules = if set == InstructionSet::best() { THREADS.len() } else { 1 };
        batches_equal_single_runs(&format!("{model} {set}"), set, &plain, &batched, schedules);
    }
}

/// Runs the first so many schedules with kernels of `set`.
fn batches_equal_single_runs(
    context: &str,
    set: InstructionSet,
    plain: &Artifact,
    batched: &[Artifact],
    schedules: usize,
) {
    let unmixed = EngineOptions { disable_mixed_chunk: true, ..EngineOptions::default() };
    let mut engine = load_on(plain, set, 1, unmixed);
    let alone: Vec<_> = (0..REQUESTS)
        .map(|id| {
            let (prompt, tokens) = job(id);
            let output = Output::default();
            engine.add(request(id, &prompt, tokens, &output)).unwrap();
            while engine.step().unwrap() != StepOutcome::Idle {}
            output.tokens()
        })
        .collect();

    let (mut preemptions, mut largest, mut mixed) = (0, 0, [0, 0]);
    for (name, artifact) in ["a", "b"].into_iter().zip(batched) {
        for (seed, threads) in (1001..).zip(&THREADS[..schedules]) {
            let mut random = Random(seed);
            let mut engine = load_on(artifact, set, *threads, engine_options(artifact, seed));
            let outputs: Vec<Output> = (0..REQUESTS).map(|_| Output::default()).collect();
            let mut waiting: Vec<u64> = (0..REQUESTS).collect();
            loop {
                for _ in 0..random.below(3).min(waiting.len() as u64) {
                    let id = waiting.swap_remove(random.below(waiting.len() as u64) as usize);
                    let (prompt, tokens) = job(id);
                    let output = &outputs[id as usize];
                    engine.add(request(id, &prompt, tokens, output)).unwrap();
                }
                match engine.step().unwrap() {
                    StepOutcome::Idle if waiting.is_empty() => break,
                    StepOutcome::Mixed { rows, tokens } => {
                        mixed[usize::from(rows > 0)] += tokens;
                        largest = largest.max(rows);
                    }
                    StepOutcome::Decode { rows } => largest = largest.max(rows),
                    _ => {}
                }
            }
            preemptions += engine.stats().preemptions_total;
            for (id, output) in outputs.iter().enumerate() {
                assert_eq!(output.tokens(), alone[id], "{context} {name} {seed} request {id}");
            }
        }
    }
    assert!(preemptions > 0, "{context}: 14 blocks are too few for all");
    assert!(largest > 5, "{context}: requests ran together");
    if schedules == THREADS.len() {
        assert!(mixed[0] > 0, "{mixed:?} prompt tokens in replays of their own");
        assert!(mixed[1] > 100, "{mixed:?} prompt tokens beside rows that decode");
    }
}
