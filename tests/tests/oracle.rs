//! The served models compute what is recorded of Hugging Face transformers, and of the published
//! arithmetic of quantised checkpoints: seen through HTTP alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use codegen_cpu::InstructionSet;
use precast_tests::{
    answer::{Answer, TOP},
    compare::{Positions, Prompt, distances},
    compile, fixture,
    http::Server,
    oracle::Oracle,
    precast, root,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");
const STEPS: usize = 32;
const PROMPTS: [&str; 2] = ["a", "b"];
/// Tokens of a KV block.
const BLOCK: u64 = 16;

/// Chunks of 16 and 8 tokens cut the prompts of 23 to 150 tokens into several pieces with a padded
/// last. The 12 blocks hold the longest context and fewer than the four sequences that run at once.
const OPTIONS: &str = "--graph-bs 1 4 --prefill-chunks 8 16 --max-context 192 --kv-blocks 12";

/// A checkpoint with what transformers made of it.
struct Fixture {
    name: &'static str,
    /// Elements that attention keeps of a token, over all layers that see the whole context.
    token: u64,
    /// The same for layers with a sliding window.
    window: Option<u64>,
    /// Bytes that a sequence keeps whatever its length: elements of the cache's type, and f32.
    sequence: Option<(u64, u64)>,
    /// How close logits come in float32.
    logits: Logits,
    /// Whether what becomes of quantised activations is recorded too, where they are left to the
    /// compiler.
    activations: bool,
    /// Whether a row chooses experts: near ties make single positions differ.
    experts: bool,
    bfloat16: Bfloat16,
}

/// Over what our bfloat16 is at most 1.25 times as far from float32 as the oracle's own.
#[derive(Clone, Copy, PartialEq)]
enum Bfloat16 {
    EachPrompt,
    BothPrompts,
    /// Both prompts without the positions, one in so many, that are furthest away.
    AllButOneIn(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum Logits {
    /// Within 2e-4 of the largest logit of the row.
    Float,
    /// Activations are rounded to few values. Within 1e-3 up to the first that lies between two of
    /// them and is rounded the other way, because a sum before it was made in another order; after
    /// it, at most half as far off as bfloat16. That happens in one of the two prompts at most.
    Rounded,
}

const PLAIN: Fixture = Fixture {
    name: "",
    token: 0,
    window: None,
    sequence: None,
    logits: Logits::Float,
    activations: false,
    experts: true,
    bfloat16: Bfloat16::EachPrompt,
};

/// Lists the fixtures and makes two tests of each.
macro_rules! fixtures {
    ($($name:ident { $($field:ident: $value:expr),* })*) => {
        const FIXTURES: &[Fixture] =
            &[$(Fixture { name: stringify!($name), $($field: $value,)* ..PLAIN }),*];
        mod float32 {
            $(#[test] fn $name() { super::float32(super::find(stringify!($name))) })*
        }
        mod bfloat16 {
            $(#[test] fn $name() { super::bfloat16(super::find(stringify!($name))) })*
        }
    };
}

fixtures! {
    // Layers, keys and values, cache heads, channels.
    qwen2 { experts: false, token: 3 * 2 * 2 * 16 }
    qwen3 { experts: false, token: 7 * 2 * 2 * 16 }
    qwen3_w8a8 { experts: false, token: 7 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_w8a8_dynamic { experts: false, token: 7 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_w4a8_dynamic { experts: false, token: 7 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_moe { token: 4 * 2 * 2 * 16 }
    qwen3_moe_w8a8 { token: 4 * 2 * 2 * 16, logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    qwen3_moe_w8a8_dynamic { token: 4 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_moe_w4a8_dynamic { token: 4 * 2 * 2 * 16, logits: Logits::Rounded }
    qwen3_moe_w4a8_mixed { token: 4 * 2 * 2 * 16, logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    // One layer in four attends; the others keep 3 rows for the convolution and a matrix per head.
    qwen3_next { token: 2 * 2 * 32, sequence: Some((4 * 3 * 128, 4 * 4 * 16 * 16)) }
    qwen3_next_w8a8 {
        token: 2 * 2 * 32, sequence: Some((4 * 3 * 128, 4 * 4 * 16 * 16)), logits: Logits::Rounded
    }
    // Layers, latent vector, rotated key.
    deepseek_v3 { token: 4 * (32 + 8), bfloat16: Bfloat16::BothPrompts }
    deepseek_v3_fp8 { token: 3 * (64 + 16), activations: true }
    deepseek_v3_w8a8 { token: 4 * (32 + 8), logits: Logits::Rounded }
    deepseek_v3_w8a8_dynamic { token: 4 * (32 + 8), logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    deepseek_v3_w4a8_dynamic { token: 4 * (32 + 8), logits: Logits::Rounded, bfloat16: Bfloat16::BothPrompts }
    // The same and the indexer's key. Two of the 74 positions are ties: at 26 of the first prompt
    // scores of experts of layer 2 are 0.0009 apart and rounding moves them by 0.002, at 16 of the
    // second those of layer 3 0.0026. Either alone, lost, is more than the bound of its prompt.
    deepseek_v32 { token: 4 * (32 + 8 + 16), bfloat16: Bfloat16::AllButOneIn(20) }
    deepseek_v32_fp8 { token: 3 * (64 + 16 + 32), activations: true }
    deepseek_v32_w8a8 { token: 4 * (32 + 8 + 16), logits: Logits::Rounded }
    // Every other layer has a window.
    gpt_oss { token: 2 * 2 * 2 * 16, window: Some(2 * 2 * 2 * 16) }
}

fn find(name: &str) -> &'static Fixture {
    FIXTURES.iter().find(|f| f.name == name).unwrap()
}

#[test]
fn every_recorded_model_is_listed() {
    for entry in std::fs::read_dir(root("tests/fixtures")).unwrap() {
        let dir = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(dir.join("oracle.json")) else { continue };
        let recorded: Value = serde_json::from_str(&text).unwrap();
        let name = dir.file_name().unwrap().to_str().unwrap();
        // A draft head has no outputs without the model that it belongs to.
        let is_draft = recorded.get("target").is_some();
        assert_eq!(FIXTURES.iter().any(|f| f.name == name), !is_draft, "{name}");
    }
}

struct Compiled {
    dir: TempDir,
    oracle: Oracle,
}

impl Compiled {
    fn new(fixture_: &Fixture, options: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("artifact");
        compile(PRECAST, &fixture(fixture_.name), &out, &format!("{OPTIONS} {options}"));
        Self { dir, oracle: Oracle::open(&fixture(fixture_.name)) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("artifact")
    }

    fn serve(&self, options: &str) -> Server {
        Server::start(PRECAST, &self.path(), options)
    }

    fn prompt(&self, name: &str) -> Vec<u32> {
        self.oracle.ids(&format!("input_ids_{name}"))
    }
}

fn float32(fixture: &Fixture) {
    let compiled = Compiled::new(fixture, "--dtype f32");
    check_memory(fixture, &compiled.path(), 4);
    compare(fixture, &compiled, "f32", fixture.logits);
    if fixture.activations {
        let compiled = Compiled::new(fixture, "--dtype f32 --quantize-activations");
        compare(fixture, &compiled, "actquant_f32", Logits::Rounded);
    }
}

/// Compares both prompts and their greedy continuations with what is recorded as `kind`.
fn compare(fixture: &Fixture, compiled: &Compiled, kind: &str, logits: Logits) {
    let oracle = &compiled.oracle;
    let coarse = kind.replace("f32", "bf16");
    for set in InstructionSet::available() {
        let server = compiled.serve(&format!("--instruction-set {set}"));
        let context = format!("{} {kind} {set}", fixture.name);
        let prompts = PROMPTS.map(|name| {
            let exact = oracle.floats(&format!("logits_{kind}_{name}"));
            let answer = Answer::greedy(&server, &compiled.prompt(name), STEPS, TOP);
            let steps = oracle.steps(&format!("{kind}_{name}"));
            let ids: Vec<u32> = steps.iter().map(|step| step.id).collect();
            assert_eq!(answer.ids(), ids, "{context} {name}");
            Prompt {
                answer,
                exact,
                coarse: oracle.floats(&format!("logits_{coarse}_{name}")),
                steps,
            }
        });
        match logits {
            Logits::Float => prompts.iter().for_each(|prompt| check_close(prompt, &context)),
            Logits::Rounded => check_rounded(&prompts, &context),
        }
    }
}

fn check_close(prompt: &Prompt, context: &str) {
    for (i, worst) in prompt.worst().into_iter().enumerate() {
        // A log-probability is a logit minus a sum of all, so it may be off twice as far.
        let bound = 2.0 * 2e-4 * prompt.exact.largest(i);
        assert!(worst <= bound, "{context} position {i}: off by {worst}");
    }
    let worst = prompt.step_differences().into_iter().fold(0.0, f32::max);
    assert!(worst < 2e-3, "{context}: the continuation is off by {worst}");
}

fn check_rounded(prompts: &[Prompt], context: &str) {
    let exact = |prompt: &Prompt| prompt.worst().iter().take_while(|&&w| w <= 2.0 * 1e-3).count();
    let exact: Vec<usize> = prompts.iter().map(exact).collect();
    let (ours, theirs) = distances(prompts, Positions::All);
    println!("{context}: {exact:?} positions are exact; {ours:.5}, bfloat16 {theirs:.5}");
    let whole = prompts.iter().zip(&exact).any(|(prompt, &exact)| exact == prompt.positions());
    assert!(whole && exact.iter().all(|&n| n >= 5), "{context}: {exact:?} positions");
    assert!(ours <= theirs / 2.0, "{context}: {ours}, bfloat16 {theirs}");
    for prompt in prompts {
        let differences: Vec<f32> = prompt.step_differences();
        let squares: f64 = differences.iter().map(|&d| f64::from(d).powi(2)).sum();
        let off = (squares / differences.len() as f64).sqrt();
        assert!(off <= theirs / 2.0, "{context}: the continuation is off by {off}");
    }
}

/// Compares what the artifact says of its memories with the sizes of the model.
fn check_memory(fixture: &Fixture, artifact: &Path, cache_bytes: u64) {
    let args = ["inspect".as_ref(), "--json".as_ref(), artifact.as_os_str()];
    let output = precast(PRECAST, args);
    let manifest: Value = serde_json::from_slice(&output.stdout).unwrap();
    let size = |field: &str, key: &str| manifest[field][key].as_u64();
    let name = fixture.name;
    assert_eq!(size("kv", "block_tokens"), Some(BLOCK));
    assert_eq!(size("kv", "blocks"), Some(12));
    assert_eq!(size("kv", "bytes_per_token"), Some(fixture.token * cache_bytes), "{name}");
    let window = fixture.window.map(|elements| elements * cache_bytes * BLOCK);
    assert_eq!(size("window", "bytes_per_block"), window, "{name}");
    let sequence = fixture.sequence.map(|(elements, floats)| elements * cache_bytes + floats * 4);
    assert_eq!(size("sequences", "bytes_per_slot"), sequence, "{name}");
}

fn bfloat16(fixture: &Fixture) {
    let compiled = Compiled::new(fixture, "--dtype bf16");
    check_memory(fixture, &compiled.path(), 2);
    for set in InstructionSet::available() {
        let server = compiled.serve(&format!("--instruction-set {set}"));
        check_distance(fixture, &compiled, &server, set);
    }
    check_batches(fixture, &compiled);
}

/// Our bfloat16 is as close to float32 as the oracle's own, and finds the best token as often.
fn check_distance(fixture: &Fixture, compiled: &Compiled, server: &Server, set: InstructionSet) {
    let oracle = &compiled.oracle;
    let prompts = PROMPTS.map(|name| Prompt {
        answer: Answer::greedy(server, &compiled.prompt(name), 1, TOP),
        exact: oracle.floats(&format!("logits_f32_{name}")),
        coarse: oracle.floats(&format!("logits_bf16_{name}")),
        steps: Vec::new(),
    });
    let name = fixture.name;
    // Tiles sum in an order of their own, so near ties of experts fall elsewhere.
    let tiles = fixture.experts && set == InstructionSet::Avx512Amx;
    let judged = if tiles { Bfloat16::AllButOneIn(10) } else { fixture.bfloat16 };
    let (parts, positions) = match judged {
        Bfloat16::EachPrompt => (1, Positions::All),
        Bfloat16::BothPrompts => (prompts.len(), Positions::All),
        Bfloat16::AllButOneIn(n) => (prompts.len(), Positions::AllButOneIn(n)),
    };
    for part in prompts.chunks(parts) {
        let (ours, theirs) = distances(part, positions);
        println!("{name} {set}: {ours:.5}, transformers {theirs:.5}");
        assert!(ours <= 1.25 * theirs, "{name} {set}: {ours} against {theirs}");
    }

    let (mut found, mut theirs, mut all) = (0, 0, 0);
    for prompt in &prompts {
        for i in 0..prompt.positions() {
            let best = prompt.exact.argmax(i);
            found += usize::from(prompt.answer.after_position(i)[0].1 == best);
            theirs += usize::from(prompt.coarse.argmax(i) == best);
            all += 1;
        }
    }
    assert!(found * 10 + all >= theirs * 10, "{name} {set}: {found} of {all}, they {theirs}");
}

/// What a request gets depends neither on the company it keeps nor on giving its memory back
/// halfway.
fn check_batches(fixture: &Fixture, compiled: &Compiled) {
    let server = compiled.serve("");
    let long = compiled.prompt("a");
    let prompts: Vec<&[u32]> = (1..9).map(|n| &long[..n * 5 - 2]).collect();
    let ask = |prompt: &&[u32]| Answer::greedy(&server, prompt, 100, 3);
    let alone: Vec<Answer> = prompts.iter().map(ask).collect();
    let preempted = || server.metric("sglang:num_retractions_total");
    assert_eq!(preempted(), 0.0, "one request fits");
    // Four of the eight want 7 blocks each and more of 12 when they end.
    for _ in 0..5 {
        let together: Vec<Answer> = std::thread::scope(|scope| {
            let asked: Vec<_> = prompts.iter().map(|p| scope.spawn(move || ask(p))).collect();
            asked.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(alone.results(), together.results(), "{} prompt {i}", fixture.name);
        }
        if preempted() > 0.0 {
            return;
        }
    }
    panic!("{}: four sequences were meant to need more blocks than there are", fixture.name);
}
