//! Decode and prefill speed of a released shape with random weights, as fractions of what this
//! machine's memory and arithmetic allow, measured in the same run. `benches/peers` measures other
//! engines beside it.

use anyhow::{Context, bail};
use artifact::Artifact;
use clap::Parser;
use cli::{Command, EngineArgs, HostDevice, load_engine, parse};
use precast_benches::{
    checkpoint::{Shape, write_random},
    probe::{Peak, median, peak_flops, read_bandwidth},
    released::peak_bytes,
    timing::{self, STEPS},
    work::Work,
};
use runtime::Engine;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Tokens of context before the first timed decode step.
const CONTEXT: usize = 512;

/// cargo bench -p precast-benches --bench speed -- [SHAPE] [WEIGHTS] [INSTRUCTION SET]
#[derive(Parser)]
struct Args {
    /// A shape (qwen2.5-0.5b, qwen3-0.6b, qwen3-moe-small or gpt-oss-small), weights (bf16, w8a8 or w4a8), and
    /// an instruction set; the last two may be left out.
    words: Vec<String>,
    /// Pieces of work: `prefill:TOKENS`, or `decode:SEQUENCES` after a context of 512.
    #[arg(long, num_args = 1.., default_values = [
        "prefill:512", "prefill:2048", "decode:1", "decode:8", "decode:16", "decode:24",
    ])]
    work: Vec<String>,
    /// Times that each is measured, of which the median counts.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Quantise the output projection too, where weights are quantised.
    #[arg(long)]
    quantize_head: bool,
    /// Keep keys and values in 8 bits.
    #[arg(long)]
    quantize_kv: bool,
    /// Print a line of JSON for each piece of work, and leave probes of the limits to `limits`.
    #[arg(long)]
    json: bool,
    /// Use the artifact as the last run left it, and compile only if there is none.
    #[arg(long)]
    keep: bool,
    /// Where the checkpoint and the artifacts lie.
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    dir: PathBuf,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bench {
    name: String,
    shape: Shape,
    weights: String,
    instruction_set: Option<String>,
    args: Args,
}

fn main() -> anyhow::Result<()> {
    let bench = Bench::new(Args::parse())?;
    for batches in [FEW, MANY] {
        bench.measure_all(batches)?;
    }
    Ok(())
}

/// What an artifact is for: few sequences, for which weights and KV blocks are stored otherwise than for many.
#[derive(PartialEq)]
struct Batches {
    name: &'static str,
    /// Sequences that decode together.
    sizes: [usize; 2],
    kv_blocks: usize,
}
const FEW: Batches = Batches { name: "few", sizes: [1, 8], kv_blocks: 512 };
const MANY: Batches = Batches { name: "many", sizes: [16, 24], kv_blocks: 1280 };

/// The artifact that does `work`: prompts are for either.
fn batches(work: &str) -> Batches {
    let sequences = work.strip_prefix("decode:").and_then(|n| n.parse::<usize>().ok());
    if sequences.is_some_and(|n| n > 8) { MANY } else { FEW }
}

impl Bench {
    fn new(args: Args) -> anyhow::Result<Self> {
        let word = |i: usize| args.words.get(i).map(String::as_str);
        let name = word(0).unwrap_or("qwen2.5-0.5b").to_owned();
        let (weights, instruction_set) = match word(1) {
            Some(weights @ ("bf16" | "w8a8" | "w4a8")) => (weights, word(2)),
            other => ("bf16", other),
        };
        let (weights, instruction_set) = (weights.to_owned(), instruction_set.map(str::to_owned));
        Ok(Self { shape: Shape::named(&name)?, name, weights, instruction_set, args })
    }

    /// Does the work that is for an artifact of these batches.
    fn measure_all(&self, of: Batches) -> anyhow::Result<()> {
        let work: Vec<&String> = self.args.work.iter().filter(|w| batches(w) == of).collect();
        if work.is_empty() {
            return Ok(());
        }
        let artifact = self.artifact(of)?;
        let engine = EngineArgs {
            threads: Some(self.args.threads),
            instruction_set: self.instruction_set.clone(),
            ..EngineArgs::default()
        };
        let mut engine = load_engine(&artifact, &engine, timing::options(), false)?;
        if !self.args.json {
            println!("{}, {}, {}", self.name, self.weights, engine.device_name());
        }
        for work in work {
            self.measure(&mut engine, &artifact, work)?;
        }
        Ok(())
    }

    /// The compiled shape; the checkpoint is made once.
    fn artifact(&self, batches: Batches) -> anyhow::Result<Artifact> {
        let Batches { name, sizes, kv_blocks } = batches;
        let head = if self.args.quantize_head { "-head" } else { "" };
        let model = self.args.dir.join(&self.name);
        let kv = if self.args.quantize_kv { "-kv" } else { "" };
        let out =
            self.args.dir.join(format!("{}-{}{head}{kv}-{name}-artifact", self.name, self.weights));
        if !(self.args.keep && out.exists()) {
            if !model.join("config.json").exists() {
                write_random(&model, &self.shape, 1)?;
            }
            let mut words = format!(
                "--max-context 4096 --prefill-chunks 64 512 2048 --kv-blocks {kv_blocks} --graph-bs"
            );
            words.extend(sizes.iter().map(|n| format!(" {n}")));
            if self.weights != "bf16" {
                words += &format!(" --quantize {}", self.weights);
                words += if self.args.quantize_head { " --quantize-head" } else { "" };
            }
            if self.args.quantize_kv {
                words += " --kv-cache-dtype int8";
            }
            compile(&model, &out, &words)?;
        }
        Ok(Artifact::open(&out)?)
    }

    fn measure(
        &self,
        engine: &mut Engine<HostDevice>,
        artifact: &Artifact,
        work: &str,
    ) -> anyhow::Result<()> {
        let runs = self.args.runs;
        let (kind, n) = work.split_once(':').unwrap_or((work, ""));
        let n: usize = n.parse().with_context(|| format!("`{work}` has no count"))?;
        let (tokens, least) = match kind {
            "prefill" => (n, Work::prefill(&self.shape, artifact.manifest(), n)),
            "decode" => {
                let context = (CONTEXT + runs * STEPS / 2) as f64;
                timing::start_decoding(engine, n, CONTEXT, runs)?;
                (n, Work::decode(&self.shape, artifact.manifest(), n, context))
            }
            _ => bail!("`{work}` is neither prefill:TOKENS nor decode:SEQUENCES"),
        };
        let decodes = kind == "decode";
        if !decodes {
            timing::prefill(engine, n, runs as u64)?;
        }
        let mut rows = Vec::new();
        for run in 0..runs {
            let limit = if self.args.json { None } else { Some(self.limit(engine, &least)?) };
            let seconds = match decodes {
                true => timing::decode(engine, n)?,
                false => timing::prefill(engine, n, run as u64)?,
            };
            rows.push((seconds, limit));
        }
        timing::finish(engine)?;

        let seconds = median(rows.iter().map(|r| r.0).collect());
        let speed = tokens as f64 / seconds;
        let limits: Vec<f64> = rows.iter().filter_map(|r| Some(r.1? / r.0)).collect();
        if limits.is_empty() {
            let record = json!({
                "work": work, "tokens_per_second": speed, "bytes": least.bytes,
                "product_operations": least.products, "attention_operations": least.attention,
                "peak_bytes": peak_bytes()?,
                "device": engine.device_name(),
            });
            println!("{record}");
        } else {
            let ratio = median(limits);
            println!(
                "{work:<13} {speed:>8.1} tok/s   {:>7.1} GB/s   {:>7.1} GFLOP/s   {ratio:.2} of the limit",
                least.bytes / seconds / 1e9,
                (least.products + least.attention) / seconds / 1e9,
            );
        }
        Ok(())
    }

    /// Seconds that `least` takes at the limits of the machine, probed now.
    fn limit(&self, engine: &Engine<HostDevice>, least: &Work) -> anyhow::Result<f64> {
        let threads = self.args.threads as usize;
        let tiles = engine.device_name().contains("amx");
        let floats = best_peak(false, tiles, threads).context("a vector unit")?;
        let integers = || best_peak(true, tiles, threads);
        let products = if self.weights == "bf16" { None } else { integers() };
        Ok(least.seconds(read_bandwidth(threads), products.unwrap_or(floats), floats))
    }
}

fn compile(model: &Path, out: &Path, words: &str) -> anyhow::Result<()> {
    let mut line = vec!["precast".into(), "compile".into(), "--model".into(), model.into()];
    line.extend(["--out".into(), out.into(), "--no-record".into()]);
    line.extend(words.split_whitespace().map(Into::into));
    let Command::Compile(args) = parse(line)?.command else { bail!("not a compile") };
    cli::compile(&args)?.context("compiled").map(|_| ())
}

/// The best rate of multiply-accumulates on values of the products: `integers`, where that is probed, or
/// bf16, in matrix tiles or in vectors alone.
fn best_peak(integers: bool, tiles: bool, threads: usize) -> Option<f64> {
    Peak::ALL
        .into_iter()
        .filter(|p| p.name().starts_with("int8") == integers)
        .filter(|p| tiles || !matches!(p, Peak::AmxBf16 | Peak::AmxInt8))
        .filter_map(|p| peak_flops(p, threads))
        .reduce(f64::max)
}
