//! Decode and prefill speed of a released shape with random weights, as fractions of what this
//! machine's memory and arithmetic allow, measured in the same run.
//!
//! `cargo bench --bench speed -- [SHAPE] [WEIGHTS] [INSTRUCTION SET]`, with the shapes qwen2.5-0.5b,
//! qwen3-0.6b and qwen3-moe-small, and weights in bf16, w8a8 or w4a8. The limit of prefill is that of
//! floating point, which products of integers may exceed.

use anyhow::Context;
use artifact::{Artifact, Manifest};
use cli::HostDevice;
use cli::{Command, EngineArgs, load_engine, parse};
use precast_benches::{
    checkpoint::{Shape, write_random},
    probe::{Peak, median, peak_flops, read_bandwidth},
};
use runtime::{Engine, EngineOptions, Request, StepOutcome, TokenEvent, TokenSink};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use tensor::layout::Layout;

const THREADS: usize = 2;
/// Alternating runs of which the median counts.
const RUNS: usize = 5;
const PROMPT: usize = 512;
/// Decode steps of a run.
const STEPS: usize = 16;
const BATCHES: [usize; 4] = [1, 8, 16, 24];

struct Ignore;

impl TokenSink for Ignore {
    fn push(&mut self, _: TokenEvent) -> bool {
        true
    }
    fn is_open(&self) -> bool {
        true
    }
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let name = args.first().map_or("qwen2.5-0.5b", String::as_str);
    let shape = match name {
        "qwen2.5-0.5b" => Shape::qwen2_5_0_5b(),
        "qwen3-0.6b" => Shape::qwen3_0_6b(),
        "qwen3-moe-small" => Shape::qwen3_moe_small(),
        other => {
            anyhow::bail!("`{other}` is no shape; use qwen2.5-0.5b, qwen3-0.6b or qwen3-moe-small")
        }
    };
    let (weights, instruction_set) = match args.get(1).map(String::as_str) {
        Some(weights @ ("bf16" | "w8a8" | "w4a8")) => (weights, args.get(2).cloned()),
        _ => ("bf16", args.get(1).cloned()),
    };
    let artifact = artifact(name, weights, &shape)?;
    // Every prompt is computed.
    let options = EngineOptions {
        prefix_cache: false,
        disable_mixed_chunk: true,
        ..EngineOptions::default()
    };
    let engine_args =
        EngineArgs { threads: Some(THREADS as u32), instruction_set, ..EngineArgs::default() };
    let mut engine = load_engine(&artifact, &engine_args, options, false)?;
    let device = engine.device_name();
    println!("{name}, {weights}, {device}");
    let m = artifact.manifest();

    println!("prefill of {PROMPT} tokens");
    let flops = prefill_flops(&shape, PROMPT as f64);
    let mut rows = Vec::new();
    for run in 0..RUNS {
        let peak = best_peak(device.contains("amx"))?;
        let seconds = prefill(&mut engine, run)?;
        rows.push((PROMPT as f64 / seconds, flops / seconds / 1e9, peak));
    }
    report("GFLOP/s", &rows);

    for batch in BATCHES {
        println!("decode, batch {batch}, context about {PROMPT}");
        let bytes = decode_bytes(&shape, m, batch);
        start_decoding(&mut engine, batch)?;
        let mut rows = Vec::new();
        for _ in 0..RUNS {
            let bandwidth = read_bandwidth(THREADS);
            let seconds = decode(&mut engine, batch)?;
            rows.push((batch as f64 / seconds, bytes / seconds / 1e9, bandwidth));
        }
        report("GB/s", &rows);
        while engine.step()? != StepOutcome::Idle {}
    }
    Ok(())
}

/// Tokens per second, the rate that matters, and its limit: medians, and the median of the ratios.
fn report(unit: &str, rows: &[(f64, f64, f64)]) {
    let column = |f: &dyn Fn(&(f64, f64, f64)) -> f64| median(rows.iter().map(f).collect());
    println!(
        "  {:>8.1} tok/s   {:>7.1} {unit} of {:>7.1}   ratio {:.2}",
        column(&|r| r.0),
        column(&|r| r.1),
        column(&|r| r.2),
        column(&|r| r.1 / r.2),
    );
}

/// The compiled shape; the checkpoint is made once and kept below the target directory.
fn artifact(name: &str, weights: &str, shape: &Shape) -> anyhow::Result<Artifact> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (model, out) = (root.join(name), root.join(format!("{name}-artifact")));
    if !model.join("config.json").exists() {
        std::fs::create_dir_all(&model)?;
        write_random(&model, shape, 1)?;
    }
    let words = "--graph-bs 1 8 16 24 --max-context 2048 --prefill-chunks 64 512 --kv-blocks 1024";
    match weights {
        "bf16" => compile(&model, &out, words)?,
        quantized => compile(&model, &out, &format!("{words} --quantize {quantized}"))?,
    }
    Ok(Artifact::open(&out)?)
}

fn compile(model: &Path, out: &PathBuf, words: &str) -> anyhow::Result<()> {
    let mut line = vec!["precast".into(), "compile".into(), "--model".into(), model.into()];
    line.extend(["--out".into(), out.into(), "--no-record".into()]);
    line.extend(words.split(' ').map(Into::into));
    let Command::Compile(args) = parse(line)?.command else { anyhow::bail!("not a compile") };
    cli::compile(&args)?.context("compiled").map(|_| ())
}

fn add(
    engine: &mut Engine<HostDevice>,
    id: u64,
    prompt: usize,
    tokens: usize,
) -> anyhow::Result<()> {
    let prompt = (0..prompt as u64).map(|i| ((i * 31 + id * 17) % 256) as u32).collect();
    let request = Request::greedy(id, prompt, tokens, Box::new(Ignore));
    engine.add(Request { ignore_eos: true, ..request })?;
    Ok(())
}

/// Seconds from a waiting prompt to its first token.
fn prefill(engine: &mut Engine<HostDevice>, run: usize) -> anyhow::Result<f64> {
    add(engine, run as u64, PROMPT, 1)?;
    let start = Instant::now();
    engine.step()?;
    let seconds = start.elapsed().as_secs_f64();
    anyhow::ensure!(engine.step()? == StepOutcome::Idle, "one chunk and one token end the request");
    Ok(seconds)
}

/// Feeds the prompts of `batch` sequences, which then decode together.
fn start_decoding(engine: &mut Engine<HostDevice>, batch: usize) -> anyhow::Result<()> {
    for i in 0..batch {
        // The first decodes between the chunks of the others and ends with the same context.
        add(engine, i as u64, PROMPT, RUNS * STEPS + batch + 2 - i)?;
    }
    while engine.step()? != (StepOutcome::Decode { rows: batch as u32 }) {}
    Ok(())
}

/// Median seconds of a decode step over `batch` sequences.
fn decode(engine: &mut Engine<HostDevice>, batch: usize) -> anyhow::Result<f64> {
    let mut steps = Vec::new();
    for _ in 0..STEPS {
        let start = Instant::now();
        let outcome = engine.step()?;
        steps.push(start.elapsed().as_secs_f64());
        anyhow::ensure!(outcome == StepOutcome::Decode { rows: batch as u32 }, "{outcome:?}");
    }
    Ok(median(steps))
}

/// The best rate of multiply-accumulates on bf16 values: in matrix tiles, or in vectors alone.
fn best_peak(tiles: bool) -> anyhow::Result<f64> {
    Peak::ALL
        .into_iter()
        .filter(|p| tiles || *p != Peak::AmxBf16)
        .filter_map(|p| peak_flops(p, THREADS))
        .reduce(f64::max)
        .context("a vector unit")
}

/// Weights of one layer: those that every token meets, and one expert.
fn layer_weights(s: &Shape) -> (f64, f64) {
    let (h, d) = (s.hidden as f64, s.head_dim as f64);
    let (q, kv) = (s.heads as f64 * d, s.kv_heads as f64 * d);
    let attention = h * (q + 2.0 * kv) + q * h;
    match s.experts {
        None => (attention + 3.0 * h * s.intermediate as f64, 0.0),
        Some(e) => (attention + h * e.count as f64, 3.0 * h * e.width as f64),
    }
}

/// Bytes a decode step reads at least: every weight it needs once, and the keys and values of each
/// context. Of the experts it needs as many as a random choice for each token hits, of an embedding
/// table of its own no more than a few rows.
fn decode_bytes(s: &Shape, m: &Manifest, batch: usize) -> f64 {
    let hit = s
        .experts
        .map_or(1.0, |e| 1.0 - (1.0 - e.per_token as f64 / e.count as f64).powi(batch as i32));
    let needed = m.weights.iter().map(|w| match w.dims.len() {
        3 => hit * w.bytes as f64,
        2 if w.layout == Layout::Nd => 0.0,
        _ => w.bytes as f64,
    });
    let context = (PROMPT + RUNS * STEPS / 2) as f64;
    needed.sum::<f64>() + batch as f64 * context * m.kv.bytes_per_token as f64
}

/// Operations of a prefill: the layers for every token, causal attention, the head once.
fn prefill_flops(s: &Shape, tokens: f64) -> f64 {
    let (always, expert) = layer_weights(s);
    let used = s.experts.map_or(0.0, |e| e.per_token as f64);
    let weights = s.layers as f64 * (always + used * expert);
    let q = (s.heads * s.head_dim) as f64;
    let attention = s.layers as f64 * 2.0 * 2.0 * q * tokens * (tokens + 1.0) / 2.0;
    2.0 * weights * tokens + attention + 2.0 * (s.hidden * s.vocab_size) as f64
}
