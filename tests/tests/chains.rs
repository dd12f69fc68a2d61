//! Chains change where values lie and how often threads meet, not one bit of a result.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use artifact::Artifact;
use precast_tests::{
    compile_here,
    engine::{Output, load, request},
    fixture,
};
use runtime::StepOutcome;
use tempfile::TempDir;

const TOKENS: usize = 12;
/// More rows than threads, and padding in the last plan.
const LENGTHS: [u32; 5] = [1, 7, 20, 33, 60];

macro_rules! models {
    ($($name:ident)*) => {
        $(#[test] fn $name() { chains_keep_every_bit(stringify!($name)) })*
    };
}

models! {
    deepseek_v3_w8a8_dynamic deepseek_v32_fp8 gpt_oss qwen2 qwen3_moe qwen3_next_w8a8 qwen3_w8a8
}

/// Tokens and log-probabilities of requests that run together.
fn answers(artifact: &Artifact, threads: u32) -> Vec<Vec<(u32, f32)>> {
    let mut engine = load(artifact, threads);
    let outputs: Vec<Output> = LENGTHS.iter().map(|_| Output::default()).collect();
    for (id, (&len, output)) in (0..).zip(LENGTHS.iter().zip(&outputs)) {
        let prompt: Vec<u32> = (0..len).map(|i| (i * 37 + len * 11) % 470).collect();
        engine.add(request(id, &prompt, TOKENS, output)).unwrap();
    }
    while engine.step().unwrap() != StepOutcome::Idle {}
    outputs.iter().map(Output::tokens).collect()
}

fn launches(artifact: &Artifact) -> (usize, usize) {
    let plans = artifact.plans().unwrap();
    let chains = plans.iter().map(|p| p.chains.len()).sum();
    (chains, plans.iter().map(artifact::Plan::launches).sum())
}

fn chains_keep_every_bit(model: &str) {
    let dir = TempDir::new().unwrap();
    let compile = |name: &str, options: &str| {
        let options = format!(
            "{options} --max-context 128 --no-record --graph-bs 1 8 --prefill-chunks 16 --kv-blocks 64"
        );
        compile_here(&fixture(model), &dir.path().join(name), &options)
    };
    let chained = compile("chained", "");
    let plain = compile("plain", "--disable-pass fuse-rows fuse-qk-rope-write");
    let (chains, with) = launches(&chained);
    let (none, without) = launches(&plain);
    assert!(chains > 0 && none == 0 && with < without, "{chains} {with}, {none} {without}");
    let expected = answers(&plain, 2);
    assert!(expected.iter().all(|tokens| tokens.len() == TOKENS));
    for threads in [1, 2, 3] {
        assert!(answers(&chained, threads) == expected, "{model}, {threads} threads");
    }
}
