//! The command line as data.

use crate::{
    from_sglang::FromSglangArgs,
    graph_bs::{AutoArgs, GraphBs},
    operation::OperationArgs,
    scheduling::SchedulingArgs,
    target,
};
use clap::{
    ArgAction, Args, Parser, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use std::{ffi::OsString, path::PathBuf};

/// Compiles large language models ahead of time and serves them.
#[derive(Debug, Parser)]
#[command(name = "precast", version, infer_long_args = true, args_override_self = true)]
pub struct Cli {
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A command with its options.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Checkpoint to artifact: lower, fuse, specialise, place, pack.
    #[command(
        after_help = "Example:\n  precast compile --model demo --graph-bs 8 16 24 --out artifacts/demo"
    )]
    Compile(CompileArgs),
    /// Serve an artifact over HTTP.
    #[command(after_help = "Example:\n  precast serve artifacts/demo --port 8000")]
    Serve(ServeArgs),
    /// Compile a checkpoint into a cache unless it is there already, then serve it.
    #[command(after_help = "Example:\n  precast run demo")]
    Run(RunArgs),
    /// One completion on the terminal, streamed.
    #[command(
        after_help = "Example:\n  precast generate artifacts/demo --prompt 'What is a bucket?'"
    )]
    Generate(GenerateArgs),
    /// What is inside an artifact.
    #[command(after_help = "Example:\n  precast inspect artifacts/demo --ir decode")]
    Inspect(InspectArgs),
    /// Whether a device computes what an artifact means: each op beside the interpreter, each batch
    /// size beside another artifact.
    #[command(
        after_help = "Example:\n  precast selfcheck artifacts/demo --against artifacts/demo-cpu > report.md"
    )]
    Selfcheck(SelfcheckArgs),
    /// Run passes on text IR and print the result.
    #[command(
        after_help = "Example:\n  precast opt layer.ir --passes fuse-add-rms-norm --check-numerics"
    )]
    Opt(OptArgs),
    /// What this machine has to serve on an Ascend NPU, and what that means.
    #[command(after_help = "Example:\n  precast doctor --device ascend")]
    Doctor(DoctorArgs),
    /// A launch line of SGLang as commands of precast, with a note for each of its flags and
    /// environment variables.
    #[command(
        after_help = "Example:\n  precast from-sglang -- python -m sglang.launch_server --model-path demo --port 8000"
    )]
    FromSglang(FromSglangArgs),
    /// Measure a server.
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Send requests at a rate and print throughput and latencies, as sglang.bench_serving does.
    #[command(
        after_help = "Example:\n  precast bench serving --dataset-name random-ids --random-input-len 128 --random-output-len 32 --random-range-ratio 1 --num-prompts 64 --max-concurrency 8"
    )]
    Serving(Box<loadgen::ServingArgs>),
}

/// What an artifact is compiled for; also the options of `run`.
#[derive(Clone, Debug, Args)]
pub struct BuildArgs {
    /// Decode batch sizes to compile, or `auto`; the most requests that run at once is always one of
    /// them.
    #[arg(
        long,
        visible_alias = "cuda-graph-bs",
        action = ArgAction::Set,
        num_args = 1..,
        value_name = "N",
        default_values = ["1", "2", "4", "8"]
    )]
    pub graph_bs: Vec<GraphBs>,
    /// How `--graph-bs auto` chooses.
    #[command(flatten)]
    pub auto: AutoArgs,
    /// The most requests that decode at once [default: the largest batch size].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_running_requests: Option<u32>,
    /// Lengths of the chunks that prompts are cut into.
    #[arg(
        long,
        num_args = 1..,
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(1..=65536),
        default_values_t = [16, 64, 256, 512]
    )]
    pub prefill_chunks: Vec<u32>,
    /// Context lengths that decode plans are sized for, beside the longest one.
    #[arg(
        long,
        num_args = 1..,
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(1..),
        default_values_t = [2048]
    )]
    pub context_tiers: Vec<u32>,
    /// Longest prompt and answer together [default: the model's own].
    #[arg(
        long,
        visible_alias = "context-length",
        value_name = "TOKENS",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub max_context: Option<u32>,
    /// Element type of weights and matrix inputs.
    #[arg(long, value_enum, default_value_t = DTypeArg::Auto)]
    pub dtype: DTypeArg,
    /// What keys and values are kept as.
    #[arg(long, value_enum, default_value_t = KvCacheArg::Auto)]
    pub kv_cache_dtype: KvCacheArg,
    /// What to compile for.
    #[arg(long, default_value = "cpu", value_parser = PossibleValuesParser::new(target::names()))]
    pub target: String,
    /// Oldest toolkit that an NPU's host may have: operators that are newer are not used.
    #[arg(long, default_value = "8.5", value_parser = ["8.1", "8.3", "8.5", "9.0"])]
    pub toolkit: String,
    /// Bytes that a branch of a step must move to get a stream of its own, on an NPU [default: 5 us of
    /// its memory bandwidth].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub fork_bytes: Option<u64>,
    /// KV blocks to plan for [default: 4,096 tokens a running request, as far as memory allows].
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "mem_fraction"
    )]
    pub kv_blocks: Option<u32>,
    /// Fraction of the memory for weights, KV blocks and arena together.
    #[arg(long, visible_alias = "mem-fraction-static", value_name = "F", value_parser = fraction)]
    pub mem_fraction: Option<f64>,
    /// Bytes of memory to plan for, with an optional suffix K, M or G [default: this machine's].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Batch size up to which a CPU keeps weights of bf16 in 12 bits, without loss: less to read and to keep, more to
    /// compute. 0 for never; those of experts always are [default: 32 where this processor has AMX, 16 with AVX-512, 8 with
    /// AVX2, else 0].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=4096))]
    pub compact_rows: Option<u32>,
    /// How to quantise a model that is stored in floats.
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    /// Quantise the inputs of FP8 weights too, as their publisher does; else only the weights are
    /// FP8.
    #[arg(long)]
    pub quantize_activations: bool,
    /// The most likely tokens that the device finds for each row, in order: requests with a `top_k` up to
    /// it are sampled from these, and their logits stay where they are; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub head_top_k: u64,
    /// Leave a pass out.
    #[arg(long = "disable-pass", value_name = "PASS", num_args = 1..)]
    pub disable_pass: Vec<String>,
    /// Stop after this many rewrites, to find the one that breaks a model.
    #[arg(long, value_name = "N")]
    pub rewrite_limit: Option<usize>,
}

/// How to quantise a model that is stored in floats.
#[derive(Clone, Debug, Default, Args)]
pub struct QuantizeArgs {
    /// Quantise matrix products: weights to 8 or 4 bits, inputs to 8 bits with a scale for each
    /// token. Routers, norms and the output projection stay in floats.
    #[arg(long, value_enum, value_name = "SCHEME")]
    pub quantize: Option<Scheme>,
    /// Weights of a row that share a scale; `channel` is a whole row, one scale for each output
    /// [default: channel; for w4a8 on a CPU the first of 128, 64 and 32 that divides the row].
    #[arg(
        long,
        value_name = "N",
        value_parser = PossibleValuesParser::new(["32", "64", "128", "channel"])
            .map(|n| n.parse::<u64>().unwrap_or(passes::WHOLE)),
        requires = "quantize"
    )]
    pub quantize_group: Option<u64>,
    /// Quantise the output projection too.
    #[arg(long, requires = "quantize")]
    pub quantize_head: bool,
}

/// Bits of weights and of their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scheme {
    /// 8-bit weights, 8-bit inputs.
    W8a8,
    /// 4-bit weights, 8-bit inputs.
    W4a8,
}

impl QuantizeArgs {
    /// The option of the pass, if quantisation is asked for.
    pub(crate) fn option(&self) -> Option<passes::Quantize> {
        let bits = match self.quantize? {
            Scheme::W8a8 => 8,
            Scheme::W4a8 => 4,
        };
        Some(passes::Quantize { bits, group: self.quantize_group, head: self.quantize_head })
    }
}

/// Options of `compile`.
#[derive(Clone, Debug, Args)]
pub struct CompileArgs {
    /// Directory with config.json, the tokenizer and the safetensors files; with --config-only a
    /// config.json is enough.
    #[arg(long, visible_alias = "model-path", value_name = "DIR")]
    pub model: PathBuf,
    /// Where the artifact goes; an older artifact there is replaced.
    #[arg(long, value_name = "DIR", default_value = "artifacts")]
    pub out: PathBuf,
    /// What to compile for.
    #[command(flatten)]
    pub build: BuildArgs,
    /// Keep the text IR after every pass that changed something.
    #[arg(long)]
    pub dump_ir: bool,
    /// Print what each pass did and why it left things alone.
    #[arg(long)]
    pub explain_passes: bool,
    /// Fail when the pass NAME fires less than N times in all functions together.
    #[arg(long, value_name = "NAME=N", value_parser = match_floor, action = ArgAction::Append)]
    pub require_match: Vec<MatchFloor>,
    /// Print buckets, memory, parameters and plans, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Plan from config.json alone, for a model whose weights are not here. This machine's memory
    /// is then no limit.
    #[arg(long, requires = "dry_run")]
    pub config_only: bool,
    /// Do not run the artifact to record reference tokens for `serve --verify`.
    #[arg(long)]
    pub no_record: bool,
}

/// How often a pass must fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchFloor {
    /// Pass.
    pub pass: String,
    /// Replacements in all functions together.
    pub least: usize,
}

/// What an artifact runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceArg {
    /// The processors of this host.
    Cpu,
    /// An Ascend NPU.
    Ascend,
    /// A software device that behaves as the runtime of an NPU is documented to, for tests.
    AscendSim,
}

impl std::fmt::Display for DeviceArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Ascend => "ascend",
            Self::AscendSim => "ascend-sim",
        })
    }
}

/// How the engine runs on this machine.
#[derive(Clone, Debug, Default, Args)]
pub struct EngineArgs {
    /// Threads [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Keep each thread on one processor. Only where no other process wants it: a step takes many
    /// times as long beside one.
    #[arg(long)]
    pub pin_threads: bool,
    /// Instruction set of the kernels: portable, avx2, avxvnni, avx512, avx512bf16 or avx512amx; on
    /// 64-bit Arm portable, neon, neondot or neonbf16 [default: the best].
    #[arg(long, value_name = "NAME")]
    pub instruction_set: Option<String>,
    /// Where it runs: on the CPU, on an Ascend NPU, or on the software device in place of one
    /// [default: what the artifact is compiled for].
    #[arg(long, value_enum, value_name = "DEVICE")]
    pub device: Option<DeviceArg>,
    /// Number of the NPU.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    pub device_id: i32,
    /// Do not compare the weight file with its checksum.
    #[arg(long)]
    pub no_checksum: bool,
}

/// Options of the HTTP server.
#[derive(Clone, Debug, Args)]
pub struct HttpArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Model name in answers [default: the checkpoint's].
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// How the model writes tool calls: auto, none, or a format such as qwen25, qwen3_coder,
    /// deepseekv3, deepseekv31, deepseekv32, gpt-oss, llama3.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub tool_call_parser: server::ParserOption<server::ToolFormat>,
    /// How the model writes its reasoning: auto, none, qwen3, deepseek-r1, deepseek-v3 or gpt-oss.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub reasoning_parser: server::ParserOption<server::ReasoningFormat>,
    /// Do not keep KV blocks for later requests that begin with the same tokens.
    #[arg(long, visible_alias = "disable-prefix-cache")]
    pub disable_radix_cache: bool,
    /// Changes nothing: answers always say how many tokens of the prompt were in the prefix cache.
    #[arg(long)]
    pub enable_cache_report: bool,
    /// How requests are scheduled.
    #[command(flatten)]
    pub scheduling: SchedulingArgs,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the server is operated.
    #[command(flatten)]
    pub operation: OperationArgs,
}

/// Options of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The artifact.
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// The most requests that decode at once [default: the artifact's ceiling].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_running_requests: Option<u32>,
    /// The most tokens in KV memory, rounded down to whole blocks [default: what the artifact has].
    #[arg(long, value_name = "N")]
    pub max_total_tokens: Option<u32>,
    /// Repeat the run that was recorded at compile time and refuse to serve if it differs.
    #[arg(long)]
    pub verify: bool,
    /// The server.
    #[command(flatten)]
    pub http: HttpArgs,
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// A checkpoint, or an artifact.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// What to compile for.
    #[command(flatten)]
    pub build: BuildArgs,
    /// The server.
    #[command(flatten)]
    pub http: HttpArgs,
}

/// Options of `generate`.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// The artifact.
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// What the user says; `-` reads it from standard input.
    #[arg(long, short)]
    pub prompt: String,
    /// What comes before the user's message, for models with a chat template.
    #[arg(long)]
    pub system: Option<String>,
    /// Continue the prompt as it is, without the chat template.
    #[arg(long)]
    pub raw: bool,
    /// The most tokens of the answer.
    #[arg(long, default_value_t = 256)]
    pub max_tokens: u32,
    /// 0 always takes the most probable token.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.0)]
    pub temperature: f32,
    /// Keeps the fewest tokens whose probability reaches this.
    #[arg(long, default_value_t = 1.0)]
    pub top_p: f32,
    /// Keeps this many tokens.
    #[arg(long)]
    pub top_k: Option<u32>,
    /// Seed of the random numbers.
    #[arg(long)]
    pub seed: Option<u64>,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Options of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// The artifact.
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// Print the text IR of a function.
    #[arg(long, value_name = "FUNC", value_parser = ["decode", "prefill", "head"])]
    pub ir: Option<String>,
    /// Print what computes each kind of op, and why, where the target had a choice.
    #[arg(long)]
    pub why: bool,
    /// Print the steps of a plan, such as decode-bs8-ctx2048.
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Print the passes with their sources, and what they did.
    #[arg(long)]
    pub passes: bool,
    /// Print the ops of a step of each function before and after the passes.
    #[arg(long)]
    pub ops: bool,
    /// Print the packed weights.
    #[arg(long)]
    pub weights: bool,
    /// Print what quantising lost, the worst weight first.
    #[arg(long)]
    pub quantization: bool,
    /// Print the manifest, or the profile, as JSON.
    #[arg(long)]
    pub json: bool,
    /// Where the time of a step goes.
    #[command(flatten)]
    pub profile: ProfileArgs,
}

/// How `inspect` profiles the steps of an artifact.
#[derive(Clone, Debug, Default, Args)]
pub struct ProfileArgs {
    /// Replay each batch size, prefill chunk and head on this host's processors and print for every
    /// kind of kernel its time, bytes and operations, beside what the machine allows. With --plan
    /// that plan alone.
    #[arg(
        long,
        conflicts_with_all = ["ir", "why", "passes", "ops", "weights", "quantization"]
    )]
    pub profile: bool,
    /// Profile only plans of so many rows: batch sizes of decode, tokens of a chunk.
    #[arg(
        long,
        num_args = 1..,
        value_name = "N",
        requires = "profile",
        conflicts_with = "plan",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub batch: Vec<u32>,
    /// Tokens that each sequence has at the end of a profiled step [default: 512, or the longest
    /// context].
    #[arg(
        long,
        value_name = "TOKENS",
        requires = "profile",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub context: Option<u32>,
    /// Timed replays of a profiled plan [default: 1.5 seconds, 5 to 50].
    #[arg(
        long,
        value_name = "N",
        requires = "profile",
        value_parser = clap::value_parser!(u32).range(1..=10_000).map(|n| n as usize)
    )]
    pub replays: Option<usize>,
    /// Also list so many single launches of each profiled plan, the slowest first.
    #[arg(
        long,
        value_name = "N",
        requires = "profile",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub slowest: usize,
    /// Draw one replay of each profiled plan as a timeline over threads, as SVG.
    #[arg(long, value_name = "FILE", requires = "profile")]
    pub timeline: Option<PathBuf>,
    /// Threads of a profile [default: one a core].
    #[arg(
        long,
        value_name = "N",
        requires = "profile",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub threads: Option<u32>,
    /// Keep each thread of a profile on one processor.
    #[arg(long, requires = "profile")]
    pub pin_threads: bool,
    /// Instruction set of a profile: portable, avx2, avxvnni, avx512, avx512bf16 or avx512amx [default: the
    /// best].
    #[arg(long, value_name = "NAME", requires = "profile")]
    pub instruction_set: Option<String>,
}

/// Options of `selfcheck`.
#[derive(Clone, Debug, Args)]
pub struct SelfcheckArgs {
    /// The artifact.
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// An artifact of the same checkpoint for the CPU: every batch size must answer like it.
    #[arg(long, value_name = "ARTIFACT")]
    pub against: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The device.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Which runtime `doctor` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoctorDevice {
    /// The vendor's.
    Ascend,
    /// That of the software device.
    AscendSim,
}

/// Options of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Which runtime to look at.
    #[arg(long, value_enum, default_value_t = DoctorDevice::Ascend)]
    pub device: DoctorDevice,
    /// Number of the device.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    pub device_id: i32,
    /// A library that serves as the whole runtime, instead of the one that is found.
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `opt`.
#[derive(Clone, Debug, Args)]
pub struct OptArgs {
    /// Text IR; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Passes to run, in order; without it the whole pipeline.
    #[arg(long, value_delimiter = ',')]
    pub passes: Option<Vec<String>>,
    /// What the passes may use: kernels, layouts and element types of this target.
    #[arg(long, default_value = "cpu", value_parser = PossibleValuesParser::new(target::names()))]
    pub target: String,
    /// What the pass quantize-matmuls does.
    #[command(flatten)]
    pub quantize: QuantizeArgs,
    /// Leave a pass out.
    #[arg(long = "disable-pass", value_name = "PASS", num_args = 1..)]
    pub disable_pass: Vec<String>,
    /// Stop after this many rewrites.
    #[arg(long, value_name = "N")]
    pub rewrite_limit: Option<usize>,
    /// Print the IR after every pass that changed something, each under a comment with its number
    /// and name.
    #[arg(long)]
    pub print_after_all: bool,
    /// Print the result as Graphviz instead, composites as boxes around their ops.
    #[arg(long, conflicts_with = "print_after_all")]
    pub dot: bool,
    /// Print what each pass did and why it left things alone.
    #[arg(long)]
    pub explain_passes: bool,
    /// Fail when the pass NAME fires less than N times in all functions together.
    #[arg(long, value_name = "NAME=N", value_parser = match_floor, action = ArgAction::Append)]
    pub require_match: Vec<MatchFloor>,
    /// Interpret before and after on random inputs and compare every bit; on a difference name the
    /// rewrite to blame. Not with --quantize, which is meant to change numbers.
    #[arg(long, conflicts_with = "quantize")]
    pub check_numerics: bool,
}

/// Element type of weights and matrix inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DTypeArg {
    /// bf16, or f32 for a checkpoint stored in f32.
    Auto,
    /// bfloat16 weights and matrix inputs, sums and residuals in f32.
    #[value(alias = "bfloat16")]
    Bf16,
    /// f32 throughout.
    #[value(alias = "float32")]
    F32,
}

/// What keys and values are kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvCacheArg {
    /// The element type of the weights.
    Auto,
    /// 8-bit integers with a scale for each head of a token: about half of the memory of bf16.
    Int8,
}

fn match_floor(text: &str) -> Result<MatchFloor, String> {
    let floor = text.split_once('=').and_then(|(pass, least)| {
        let least = least.parse().ok().filter(|_| !pass.is_empty())?;
        Some(MatchFloor { pass: pass.to_owned(), least })
    });
    floor.ok_or_else(|| format!("`{text}` is not a pass and a number such as fuse-qkv=61"))
}

fn fraction(text: &str) -> Result<f64, String> {
    let f: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if f > 0.0 && f <= 1.0 { Ok(f) } else { Err("must be above 0 and at most 1".into()) }
}

pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 1u64 << 10),
        Some((i, 'M' | 'm')) => (&text[..i], 1 << 20),
        Some((i, 'G' | 'g')) => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|&n| n > 0)
        .ok_or_else(|| format!("`{text}` is not a number of bytes such as 24G"))
}

/// Parses arguments, the program name first.
///
/// # Errors
/// clap's error, which also carries help and version texts.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    // Lines for the Python client write flags with underscores too.
    let is_bench = args.windows(2).any(|pair| pair[0] == "bench" && pair[1] == "serving");
    let spelt = |arg| if is_bench { loadgen::hyphenate(arg) } else { arg };
    Cli::try_parse_from(args.into_iter().map(spelt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cli(line: &str) -> Result<Cli, clap::Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_definition_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn both_names_of_the_bucket_list_parse() {
        for flag in ["--graph-bs", "--cuda-graph-bs"] {
            let cli = cli(&format!("x compile --model m {flag} 8 16 24")).unwrap();
            let Command::Compile(args) = cli.command else { panic!("{cli:?}") };
            assert_eq!(args.build.graph_bs, [8, 16, 24].map(GraphBs::Size));
        }
    }

    /// As with argparse: prefixes are enough and the last of repeated flags wins.
    #[test]
    fn prefixes_and_repeated_flags_parse() {
        let cli = cli("x compile --model m --max-run 4 --max-running-requests 6").unwrap();
        let Command::Compile(args) = cli.command else { panic!("{cli:?}") };
        assert_eq!(args.build.max_running_requests, Some(6));
        let Command::Compile(args) =
            self::cli("x compile --model m --graph-bs 4 8 --graph-bs 1 2").unwrap().command
        else {
            panic!()
        };
        assert_eq!(args.build.graph_bs, [1, 2].map(GraphBs::Size));
    }

    #[test]
    fn lines_for_the_python_client_parse() {
        let line = "x bench serving --backend vllm --num-prompt 5 --max_concurrency 2";
        let Command::Bench(BenchCommand::Serving(args)) = cli(line).unwrap().command else {
            panic!("{line}")
        };
        assert_eq!((args.num_prompts, args.max_concurrency), (5, Some(2)));
    }

    #[test]
    fn memory_takes_a_unit() {
        assert_eq!(bytes("24G"), Ok(24 << 30));
        assert_eq!(bytes("512"), Ok(512));
        assert!(bytes("many").is_err() && bytes("").is_err() && bytes("99999999999G").is_err());
    }

    #[test]
    fn required_matches_add_up() {
        let line = "x compile --model m --require-match fuse-qkv=61 --require-match fold-cast=0";
        let Command::Compile(args) = cli(line).unwrap().command else { panic!("{line}") };
        let floor = |pass: &str, least| MatchFloor { pass: pass.to_owned(), least };
        assert_eq!(args.require_match, [floor("fuse-qkv", 61), floor("fold-cast", 0)]);
    }

    #[test]
    fn quantisation_is_an_option_of_the_pass() {
        let option = |flags: &str| {
            let Command::Compile(args) =
                cli(&format!("x compile --model m {flags}")).unwrap().command
            else {
                panic!("{flags}")
            };
            args.build.quantize.option()
        };
        assert_eq!(option(""), None);
        let quantize = |bits, group, head| Some(passes::Quantize { bits, group, head });
        assert_eq!(option("--quantize w8a8"), quantize(8, None, false));
        let all = "--quantize w4a8 --quantize-group 64 --quantize-head";
        assert_eq!(option(all), quantize(4, Some(64), true));
        let channel = "--quantize w4a8 --quantize-group channel";
        assert_eq!(option(channel), quantize(4, Some(passes::WHOLE), false));
    }

    #[test]
    fn bad_values_are_refused() {
        for line in [
            "x compile --model m --graph-bs 0",
            "x compile --model m --graph-bs automatic",
            "x compile --model m --graph-bs auto --graph-bs-limit 0",
            "x compile --model m --mem-fraction 1.5",
            "x compile --model m --kv-blocks 0",
            "x compile --model m --max-context 0",
            "x compile --model m --context-tiers 2048 0",
            "x compile --model m --kv-blocks 4 --mem-fraction 0.5",
            "x compile --model m --quantize w2a2",
            "x compile --model m --quantize w4a8 --quantize-group 48",
            "x compile --model m --quantize-group 64",
            "x compile --model m --quantize-head",
            "x compile --model m --config-only",
            "x compile --model m --require-match fuse-qkv",
            "x compile --model m --require-match =3",
            "x compile --model m --require-match fuse-qkv=-1",
            "x compile",
        ] {
            assert!(cli(line).is_err(), "{line}");
        }
    }
}
