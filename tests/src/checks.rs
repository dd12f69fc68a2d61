//! A fixture through `compile`, `serve` and HTTP, compared with what is recorded of it.

use crate::{
    answer::{Answer, TOP},
    compare::{Positions, Prompt, distances},
    compile, fixture,
    fixtures::{Bfloat16, Fixture, Logits},
    http::Server,
    oracle::Oracle,
    precast,
};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// Tokens of a continuation.
const STEPS: usize = 32;
const PROMPTS: [&str; 2] = ["a", "b"];
/// What a log-probability in float32 may be off by: what the recorded outputs are good for.
const FLOAT_BOUND: f32 = 1e-3;
/// The same where inputs are rounded to few values and one was rounded the other way.
const ROUNDED_BOUND: f32 = 1e-1;
/// Where one value lies so near the middle of two codes that sums in other orders than the oracle's, on
/// all instruction sets alike, round it the other way, and it leads further: one logit of a dense model,
/// one position whose second group of experts is another (`choices.rs` names it), and twelve positions of
/// a model that selects keys. What comes before is exact, and so is the other prompt.
const FURTHER: [(&str, f32); 3] = [
    ("qwen3_w8a8_dynamic f32", 0.15),
    ("deepseek_v3_w4a8_dynamic f32", 2.0),
    ("deepseek_v32_fp8 actquant_f32", 0.6),
];
/// Devices where near ties of experts fall elsewhere than where transformers computes in bfloat16: tiles
/// sum in an order of their own, and an NPU keeps all activations in bfloat16, as transformers does, with
/// more and other roundings.
const OTHER_TIES: [&str; 2] = ["avx512amx", "ascend-sim"];
/// Fixtures and devices of which one position has such a near tie.
const ONE_TIE: [(&str, &str); 1] = [("qwen3_moe", "avx512bf16")];

/// A target and the devices that run it.
pub struct Host<'a> {
    /// The program under test.
    pub program: &'a str,
    /// Options of `compile`, beside the element type.
    pub compile: &'a str,
    /// Tokens of a KV block.
    pub block: u64,
    /// KV blocks.
    pub blocks: u64,
    /// What is asked together.
    pub company: Company,
    /// Whether it computes with FP8 inputs.
    pub fp8_inputs: bool,
    /// Devices, each with options of `serve`.
    pub devices: Vec<(String, String)>,
}

/// Requests that run together.
pub struct Company {
    /// Tokens of each prompt.
    pub prompts: Vec<usize>,
    /// Tokens of each answer.
    pub tokens: usize,
    /// Whether they must want more blocks, when they end, than there are, so that some give theirs back
    /// halfway.
    pub preempts: bool,
}

/// A compiled fixture.
struct Compiled<'a> {
    host: &'a Host<'a>,
    dir: TempDir,
    oracle: Oracle,
}

impl<'a> Compiled<'a> {
    fn new(host: &'a Host<'a>, name: &str, options: &str) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let out = dir.path().join("artifact");
        let options = format!("{} --kv-blocks {} {options}", host.compile, host.blocks);
        compile(host.program, &fixture(name), &out, &options);
        Self { host, dir, oracle: Oracle::open(&fixture(name)) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("artifact")
    }

    fn serve(&self, options: &str) -> Server {
        Server::start(self.host.program, &self.path(), options)
    }

    fn prompt(&self, name: &str) -> Vec<u32> {
        self.oracle.ids(&format!("input_ids_{name}"))
    }
}

/// Prompts and greedy continuations in float32 are those that are recorded.
///
/// # Panics
/// When they are not.
pub fn float32(host: &Host<'_>, fixture: &Fixture) {
    let compiled = Compiled::new(host, fixture.name, "--dtype f32");
    check_memory(fixture, &compiled, 4);
    compare(fixture, &compiled, "f32", fixture.logits);
    if fixture.activations && host.fp8_inputs {
        let compiled = Compiled::new(host, fixture.name, "--dtype f32 --quantize-activations");
        compare(fixture, &compiled, "actquant_f32", Logits::Rounded);
    }
}

/// Compares both prompts and their greedy continuations with what is recorded as `kind`.
fn compare(fixture: &Fixture, compiled: &Compiled<'_>, kind: &str, logits: Logits) {
    let oracle = &compiled.oracle;
    let coarse = kind.replace("f32", "bf16");
    for (set, options) in &compiled.host.devices {
        let server = compiled.serve(options);
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
    let worst = prompt.worst();
    let largest = worst.iter().copied().fold(0.0, f32::max);
    let step = prompt.step_differences().into_iter().fold(0.0, f32::max);
    println!("{context}: off by {largest:.1e}, the continuation by {step:.1e}");
    for (i, worst) in worst.into_iter().enumerate() {
        // A log-probability is a logit minus a sum of all, so it may be off twice as far.
        let bound = (2.0 * 2e-4 * prompt.exact.largest(i)).min(FLOAT_BOUND);
        assert!(worst <= bound, "{context} position {i}: off by {worst}");
    }
    assert!(step <= FLOAT_BOUND, "{context}: the continuation is off by {step}");
}

fn check_rounded(prompts: &[Prompt], context: &str) {
    let exact = |prompt: &Prompt| prompt.worst().iter().take_while(|&&w| w <= FLOAT_BOUND).count();
    let exact: Vec<usize> = prompts.iter().map(exact).collect();
    let (ours, theirs) = distances(prompts, Positions::All);
    let largest = prompts.iter().flat_map(Prompt::worst).fold(0.0, f32::max);
    println!(
        "{context}: {exact:?} positions are exact; {ours:.5}, bfloat16 {theirs:.5}; {largest:.1e}"
    );
    let further = FURTHER.iter().find(|(of, _)| context.starts_with(of));
    let bound = further.map_or(ROUNDED_BOUND, |&(_, bound)| bound);
    assert!(largest <= bound, "{context}: off by {largest}");
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
fn check_memory(fixture: &Fixture, compiled: &Compiled<'_>, cache_bytes: u64) {
    let (path, host) = (compiled.path(), compiled.host);
    let args = ["inspect".as_ref(), "--json".as_ref(), path.as_os_str()];
    let output = precast(host.program, args);
    let manifest: Value = serde_json::from_slice(&output.stdout).expect("a manifest");
    let size = |field: &str, key: &str| manifest[field][key].as_u64();
    let name = fixture.name;
    assert_eq!(size("kv", "block_tokens"), Some(host.block));
    assert_eq!(size("kv", "blocks"), Some(host.blocks));
    assert_eq!(size("kv", "bytes_per_token"), Some(fixture.token * cache_bytes), "{name}");
    let window = fixture.window.map(|elements| elements * cache_bytes * host.block);
    assert_eq!(size("window", "bytes_per_block"), window, "{name}");
    let sequence = fixture.sequence.map(|(elements, floats)| elements * cache_bytes + floats * 4);
    assert_eq!(size("sequences", "bytes_per_slot"), sequence, "{name}");
}

/// bfloat16 is as close to float32 as that of the oracle, and rows do not depend on their company.
///
/// # Panics
/// When one of these does not hold.
pub fn bfloat16(host: &Host<'_>, fixture: &Fixture) {
    let compiled = Compiled::new(host, fixture.name, "--dtype bf16");
    check_memory(fixture, &compiled, 2);
    for (device, options) in &host.devices {
        check_distance(fixture, &compiled, &compiled.serve(options), device);
    }
    for (device, options) in &host.devices {
        check_batches(fixture, &compiled, device, options);
    }
}

/// Our bfloat16 is as close to float32 as the oracle's own, and finds the best token as often.
fn check_distance(fixture: &Fixture, compiled: &Compiled<'_>, server: &Server, device: &str) {
    let oracle = &compiled.oracle;
    let prompts = PROMPTS.map(|name| Prompt {
        answer: Answer::greedy(server, &compiled.prompt(name), 1, TOP),
        exact: oracle.floats(&format!("logits_f32_{name}")),
        coarse: oracle.floats(&format!("logits_bf16_{name}")),
        steps: Vec::new(),
    });
    let name = fixture.name;
    let ties = fixture.experts && OTHER_TIES.contains(&device);
    let judged = match fixture.bfloat16 {
        // Ties of experts and of keys.
        Bfloat16::AllButOneIn(_) if ties => Bfloat16::AllButOneIn(4),
        _ if ties => Bfloat16::AllButOneIn(10),
        _ if ONE_TIE.contains(&(name, device)) => Bfloat16::AllButOneIn(20),
        judged => judged,
    };
    let (parts, positions) = match judged {
        Bfloat16::EachPrompt => (1, Positions::All),
        Bfloat16::BothPrompts => (prompts.len(), Positions::All),
        Bfloat16::AllButOneIn(n) => (prompts.len(), Positions::AllButOneIn(n)),
    };
    for part in prompts.chunks(parts) {
        let (ours, theirs) = distances(part, positions);
        println!("{name} {device}: {ours:.5}, transformers {theirs:.5}");
        assert!(ours <= 1.25 * theirs, "{name} {device}: {ours} against {theirs}");
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
    assert!(found * 10 + all >= theirs * 10, "{name} {device}: {found} of {all}, they {theirs}");
}

/// What a request gets depends neither on the company it keeps nor on giving its memory back
/// halfway.
fn check_batches(fixture: &Fixture, compiled: &Compiled<'_>, device: &str, options: &str) {
    let server = compiled.serve(options);
    let company = &compiled.host.company;
    let long = compiled.prompt("a");
    let cut = |&tokens: &usize| long.iter().copied().cycle().take(tokens).collect();
    let prompts: Vec<Vec<u32>> = company.prompts.iter().map(cut).collect();
    let ask = |prompt: &Vec<u32>| Answer::greedy(&server, prompt, company.tokens, 3);
    let alone: Vec<Answer> = prompts.iter().map(ask).collect();
    let preempted = || server.metric("sglang:num_retractions_total");
    assert_eq!(preempted(), 0.0, "one request fits");
    for _ in 0..5 {
        let together: Vec<Answer> = std::thread::scope(|scope| {
            let asked: Vec<_> = prompts.iter().map(|p| scope.spawn(move || ask(p))).collect();
            asked.into_iter().map(|t| t.join().expect("the request ends")).collect()
        });
        for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
            let context = format!("{} {device} prompt {i}", fixture.name);
            assert_eq!(alone.results(), together.results(), "{context}");
        }
        if preempted() > 0.0 || !company.preempts {
            return;
        }
    }
    panic!("{} {device}: four sequences were meant to need more blocks", fixture.name);
}
