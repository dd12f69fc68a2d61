//! `compile`: checkpoint to artifact.

use crate::{
    args::{BuildArgs, CompileArgs, DTypeArg},
    recorded::record,
};
use anyhow::{Context, bail};
use artifact::{Manifest, Model};
use codegen_cpu::target::{CpuTarget, KV_BLOCK_TOKENS};
use compiler::{KvBudget, Options, Prepared};
use ir::DType;
use models::{BuildOptions, Checkpoint, Precision};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    path::Path,
    time::Instant,
};

/// Files of a checkpoint that travel along.
const FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Compiles `args.model` into `args.out`. `None` after a dry run.
///
/// # Errors
/// What the checkpoint, the passes, the memory plan or the disk has against it.
pub fn compile(args: &CompileArgs) -> anyhow::Result<Option<Manifest>> {
    let started = Instant::now();
    check_checkpoint(&args.model)?;
    if !args.dry_run {
        check_out(&args.out)?;
    }
    let checkpoint = Checkpoint::open(&args.model)?;
    for ignored in checkpoint.ignored() {
        tracing::info!("tensor `{}` is not used: {}", ignored.name, ignored.reason);
    }
    let files = read_files(&args.model)?;
    check_files(&files).with_context(|| args.model.display().to_string())?;
    let model = model(&checkpoint, &args.build)?;
    let build = BuildOptions {
        precision: Precision { weights: model.dtype, activations: DType::F32 },
        kv_dtype: model.dtype,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations: false,
    };
    let module = models::build(&checkpoint, &build);
    let options = options(&args.build, &model, args.dump_ir)?;
    let prepared = compiler::prepare(module, &model, &CpuTarget, &options)?;
    eprint!("{}", plan_text(&model, &prepared));
    if args.explain_passes {
        write!(std::io::stdout(), "{}", prepared.report)?;
    }
    if args.dry_run {
        return Ok(None);
    }

    let source = compiler::Checkpoint {
        model,
        config_json: std::fs::read(args.model.join("config.json"))
            .with_context(|| format!("{}", args.model.join("config.json").display()))?,
        tensors: checkpoint.source().tensors().cloned().collect(),
        weights: checkpoint.source(),
        files,
    };
    let mut progress = Progress::new(prepared.memory.weights_bytes);
    let mut recorder = |staging: &Path| record(staging).map_err(|e| format!("{e:#}"));
    let recorder: Option<compiler::Recorder<'_>> =
        if args.no_record { None } else { Some(&mut recorder) };
    let manifest = prepared
        .write(&source, &args.out, &mut |bytes| progress.at(bytes), recorder)
        .with_context(|| format!("cannot write the artifact to {} (--out)", args.out.display()))?;
    tracing::info!(
        "wrote {} in {:.1} s: {} plans, {} of weights",
        args.out.display(),
        started.elapsed().as_secs_f64(),
        manifest.plans.len(),
        bytes_text(manifest.memory.weights_bytes),
    );
    Ok(Some(manifest))
}

/// Says so when `dir` is no checkpoint at all.
pub(crate) fn check_checkpoint(dir: &Path) -> anyhow::Result<()> {
    let problem = if !dir.exists() {
        "no such directory"
    } else if !dir.is_dir() {
        "not a directory"
    } else if !dir.join("config.json").exists() {
        "it has no config.json"
    } else {
        return Ok(());
    };
    bail!(
        "{}: not a checkpoint: {problem}; point at a directory with config.json, tokenizer.json and \
         safetensors files",
        dir.display()
    )
}

/// Refuses a place that no artifact can be written to, before the long work.
fn check_out(out: &Path) -> anyhow::Result<()> {
    let problem = match std::fs::read_dir(out).map(|mut entries| entries.next().is_some()) {
        Ok(true) if !out.join("manifest.json").exists() => "it holds files that are no artifact",
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => "it is a file",
        _ => return Ok(()),
    };
    bail!("{}: {problem}; choose another directory with --out", out.display())
}

fn read_files(dir: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in FILES {
        let path = dir.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => files.push((name.to_owned(), bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if name == "tokenizer.json" {
                    bail!("{}: no such file; serving needs the tokenizer", path.display());
                }
            }
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        }
    }
    Ok(files)
}

/// Refuses a tokenizer or chat template that no server could use.
fn check_files(files: &[(String, Vec<u8>)]) -> Result<(), server::ModelError> {
    let file = |name: &str| files.iter().find(|(n, _)| n == name).map(|(_, bytes)| &bytes[..]);
    server::ModelFiles {
        tokenizer: file("tokenizer.json").unwrap_or_default(),
        tokenizer_config: file("tokenizer_config.json"),
        generation_config: file("generation_config.json"),
        chat_template: file("chat_template.jinja"),
    }
    .check()
}

fn model(checkpoint: &Checkpoint, build: &BuildArgs) -> anyhow::Result<Model> {
    let info = checkpoint.info();
    let count = |n: u64, what: &str| {
        u32::try_from(n).with_context(|| format!("{what} of {n} is too large"))
    };
    Ok(Model {
        name: info.name.clone(),
        model_type: info.model_type.clone(),
        architecture: info.architecture.clone(),
        vocab_size: count(info.vocab_size, "vocab_size")?,
        max_context: count(info.max_context, "max_position_embeddings")?,
        eos_token_ids: info.eos_token_ids.clone(),
        dtype: match build.dtype {
            DTypeArg::Bf16 => DType::BF16,
            DTypeArg::F32 => DType::F32,
            DTypeArg::Auto if info.dtype == DType::F32 => DType::F32,
            DTypeArg::Auto => DType::BF16,
        },
        parameters: info.parameters,
        sliding_window: info.sliding_window.map(|n| count(n, "sliding_window")).transpose()?,
    })
}

fn options(build: &BuildArgs, model: &Model, dump_ir: bool) -> anyhow::Result<Options> {
    if let Some(n) = build.max_context
        && n > model.max_context
    {
        bail!(
            "--max-context {n} is more than the model's {} (max_position_embeddings in config.json)",
            model.max_context
        );
    }
    let mut config = BTreeMap::new();
    config.insert("dtype".to_owned(), model.dtype.name().into());
    config.insert("target".to_owned(), build.target.clone().into());
    Ok(Options {
        graph_bs: build.graph_bs.clone(),
        max_running_requests: build.max_running_requests,
        prefill_chunks: build.prefill_chunks.clone(),
        context_tiers: build.context_tiers.clone(),
        max_context: build.max_context,
        kv: match (build.kv_blocks, build.mem_fraction) {
            (Some(n), _) => KvBudget::Blocks(n),
            (_, Some(f)) => KvBudget::Fraction(f),
            (None, None) => KvBudget::Default,
        },
        memory_limit: build.memory.or_else(physical_memory),
        disabled_passes: build.disable_pass.clone(),
        rewrite_limit: build.rewrite_limit.unwrap_or(usize::MAX),
        dump_ir,
        config,
    })
}

/// Bytes of memory of this machine, where the system tells.
fn physical_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// What will be needed, before the long work.
fn plan_text(model: &Model, prepared: &Prepared) -> String {
    let mut text = String::new();
    let memory = &prepared.memory;
    let _ = writeln!(
        text,
        "{} ({}): {} parameters, {}, context {}",
        model.name,
        model.architecture,
        model.parameters,
        model.dtype,
        prepared.buckets.tiers.last().copied().unwrap_or(0),
    );
    for note in &prepared.buckets.notes {
        if note.reason != "requested" {
            let verb = if note.kept { "added" } else { "dropped" };
            let _ = writeln!(text, "  {verb} {} {}: {}", note.phase, note.rows, note.reason);
        }
    }
    let _ = writeln!(
        text,
        "memory: weights {}, KV {} ({} blocks of {} tokens, {} bytes a token), arena {}",
        bytes_text(memory.weights_bytes),
        bytes_text(memory.state_bytes),
        prepared.kv.blocks,
        prepared.kv.block_tokens,
        prepared.kv.bytes_per_token,
        bytes_text(memory.arena_bytes),
    );
    let _ = writeln!(text, "{:<28} {:>6} {:>12} {:>12}", "plan", "steps", "arena", "unshared");
    for plan in &prepared.plans {
        let _ = writeln!(
            text,
            "{:<28} {:>6} {:>12} {:>12}",
            plan.name,
            plan.steps,
            bytes_text(plan.arena_bytes),
            bytes_text(plan.unshared_bytes),
        );
    }
    text
}

/// Bytes for people.
pub(crate) fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} B"),
        10_000..=9_999_999 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..=9_999_999_999 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Progress of the packing: a line that is rewritten on a terminal, a few plain lines in a log.
struct Progress {
    total: u64,
    shown: u64,
    terminal: bool,
}

impl Progress {
    fn new(total: u64) -> Self {
        Self { total, shown: 0, terminal: std::io::stderr().is_terminal() }
    }

    fn at(&mut self, bytes: u64) {
        let percent = bytes * 100 / self.total.max(1);
        let step = if self.terminal { 1 } else { 25 };
        if percent / step == self.shown / step && percent != 100 {
            return;
        }
        self.shown = percent;
        if self.terminal {
            eprint!("\rpacking weights {percent:>3} %");
            if percent == 100 {
                eprintln!();
            }
        } else {
            tracing::info!("packing weights: {percent} %");
        }
    }
}
