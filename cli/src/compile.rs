//! `compile`: checkpoint to artifact.

use crate::{
    Precast,
    args::{BuildArgs, CompileArgs, DTypeArg, KvCacheArg},
    graph_bs,
    limits::MemoryLimit,
    matches,
    recorded::record,
    report::{self, bytes_text},
    target::HostTarget,
};
use anyhow::{Context, bail};
use artifact::{Manifest, Model};
use codegen_cpu::device::InstructionSet;
use compiler::{KvBudget, Options, Prepared, StepWork};
use ir::DType;
use models::{Attention, BuildOptions, Checkpoint, Precision, Published};
use std::{
    collections::BTreeMap,
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

/// The pass behind `--quantize`.
const QUANTIZE: &str = "quantize-matmuls";

/// Compiles `args.model` into `args.out`. `None` after a dry run.
///
/// # Errors
/// What the checkpoint, the passes, the memory plan or the disk has against it.
pub(crate) fn compile(precast: &Precast, args: &CompileArgs) -> anyhow::Result<Option<Manifest>> {
    let started = Instant::now();
    if args.config_only {
        dry_run(precast, args, &Checkpoint::config_only(&args.model)?, None)?;
        return Ok(None);
    }
    check_checkpoint(&args.model)?;
    if !args.dry_run {
        check_out(&args.out)?;
    }
    let checkpoint = Checkpoint::open(&args.model)?;
    tell_ignored(checkpoint.ignored());
    let files = read_files(&args.model)?;
    check_files(&files).with_context(|| args.model.display().to_string())?;
    if args.dry_run {
        dry_run(precast, args, &checkpoint, memory_here())?;
        return Ok(None);
    }
    let (model, prepared) = prepare(precast, args, &checkpoint, memory_here())?;
    eprint!("{}", report::plan(&model, &prepared));
    let source = compiler::Checkpoint {
        model,
        config_json: std::fs::read(args.model.join("config.json"))
            .with_context(|| format!("{}", args.model.join("config.json").display()))?,
        tensors: checkpoint.source().tensors().cloned().collect(),
        weights: checkpoint.source(),
        files,
    };
    let weights_bytes = prepared.memory.weights_bytes;
    let mut progress = Progress::new(weights_bytes);
    let mut recorder = |staging: &Path| record(precast, staging).map_err(|e| format!("{e:#}"));
    let recorder: Option<compiler::Recorder<'_>> =
        if args.no_record || !target(&args.build).runs_here() { None } else { Some(&mut recorder) };
    let manifest = prepared
        .write(&source, &args.out, &mut |bytes| progress.at(bytes), recorder)
        .with_context(|| {
            let weights = bytes_text(weights_bytes);
            let out = args.out.display();
            format!("cannot write the artifact, {weights} of weights, to {out} (--out)")
        })?;
    tracing::info!(
        "wrote {} in {:.1} s: {} plans, {} of weights",
        args.out.display(),
        started.elapsed().as_secs_f64(),
        manifest.plans.len(),
        bytes_text(manifest.memory.weights_bytes),
    );
    eprint!("{}", report::quantization(&manifest.weights));
    Ok(Some(manifest))
}

/// Says which tensors are not used, those with one reason together; all of them for debugging.
fn tell_ignored(ignored: &[models::Ignored]) {
    const NAMED: usize = 3;
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for tensor in ignored {
        tracing::debug!("tensor `{}` is not used: {}", tensor.name, tensor.reason);
        reasons.entry(tensor.reason).or_default().push(&tensor.name);
    }
    for (reason, names) in reasons {
        let more = if names.len() > NAMED { ", .." } else { "" };
        let first = names[..names.len().min(NAMED)].join("`, `");
        tracing::info!("{} tensors are not used, {reason}: `{first}`{more}", names.len());
    }
}

/// Prints what compiling would need.
fn dry_run(
    precast: &Precast,
    args: &CompileArgs,
    checkpoint: &Checkpoint,
    memory: Option<u64>,
) -> anyhow::Result<()> {
    let (model, prepared) = prepare(precast, args, checkpoint, memory)?;
    write!(std::io::stdout(), "{}", report::plan(&model, &prepared))?;
    Ok(())
}

/// Everything but the weights; `memory` is the limit where none is asked for.
fn prepare(
    precast: &Precast,
    args: &CompileArgs,
    checkpoint: &Checkpoint,
    memory: Option<u64>,
) -> anyhow::Result<(Model, Prepared)> {
    check_quantization(&args.build, checkpoint)?;
    matches::check_names(&args.require_match, &precast.catalog)?;
    let target = target(&args.build);
    let model = model(checkpoint, &args.build)?;
    let build = BuildOptions {
        precision: Precision { weights: model.dtype, activations: target.activations(model.dtype) },
        kv_dtype: kv_dtype(checkpoint, &model, &args.build)?,
        kv_block_tokens: target.kv_block_tokens(),
        quantize_activations: args.build.quantize_activations,
        head_top_k: head_top_k(&args.build, &target)?.min(model.vocab_size.into()),
    };
    let module = models::build(checkpoint, &build);
    let mut options = options(precast, &args.build, &model, args.dump_ir, target.memory(memory))?;
    options.config.insert("head_top_k".to_owned(), build.head_top_k.into());
    options.config.insert("kv_cache_dtype".to_owned(), build.kv_dtype.name().into());
    if graph_bs::listed(&args.build)?.is_none() {
        let facts = facts(&module, &model, &target, precast, &args.build, &options)?;
        let choice = graph_bs::choose(&args.build.auto, &mut options, facts)?;
        if args.dry_run {
            write!(std::io::stdout(), "{choice}")?;
        } else {
            tracing::info!("--graph-bs auto chose {:?}", choice.sizes);
        }
    }
    let prepared = compiler::prepare(module, &model, target.as_target(precast), &options)?;
    if args.explain_passes {
        write!(std::io::stdout(), "{}", prepared.report)?;
    }
    matches::check(&args.require_match, &prepared.report)?;
    if options.quantize.is_some() && prepared.report.fired(QUANTIZE) == 0 {
        bail!(
            "--quantize found nothing to quantise: the products of this checkpoint are quantised \
             already, or must stay as they are; --explain-passes tells why"
        );
    }
    Ok((model, prepared))
}

/// What the choice of batch sizes goes by.
fn facts(
    module: &ir::Module,
    model: &Model,
    target: &HostTarget,
    precast: &Precast,
    build: &BuildArgs,
    options: &Options,
) -> anyhow::Result<graph_bs::Facts> {
    /// Tokens of a sequence where nothing is said of them.
    const CONTEXT: u32 = 2048;
    let context = compiler::Context {
        tokens: options.max_context.unwrap_or(model.max_context).min(CONTEXT),
        window: model.sliding_window,
        block_tokens: target.kv_block_tokens() as u32,
    };
    let as_target = target.as_target(precast);
    let budget = as_target.streams().budget;
    let size = if budget.is_some() || build.auto.graph_bs_memory.is_some() {
        // Planning for the ceiling alone tells what each further size takes.
        let ceiling = options.max_running_requests.into_iter().collect();
        let trial = Options { graph_bs: ceiling, ..options.clone() };
        let trial = compiler::prepare(module.clone(), model, as_target, &trial)?;
        let cost = trial.size_cost(as_target);
        let room = budget.zip(trial.queues).zip(cost.queues);
        let room = room.map(|((budget, all), each)| {
            let more = |budget: u64, all: u64, each: u64| (budget - all) / each.max(1);
            let streams = more(budget.streams, all.streams, each.streams);
            1 + streams.min(more(budget.events, all.events, each.events))
        });
        Some((cost, room))
    } else {
        None
    };
    Ok(graph_bs::Facts {
        work: StepWork::of(module, context, options.quantize.map(|q| q.bits)),
        rates: target.rates(),
        context: context.tokens,
        size,
    })
}

/// What keys and values are kept as.
fn kv_dtype(checkpoint: &Checkpoint, model: &Model, build: &BuildArgs) -> anyhow::Result<DType> {
    if build.kv_cache_dtype == KvCacheArg::Auto {
        return Ok(model.dtype);
    }
    if !target(build).runs_here() {
        bail!("--kv-cache-dtype int8 is for --target cpu; {} keeps {}", build.target, model.dtype);
    }
    let head = |layer: &models::Layer| match &layer.attention {
        Attention::Full(a) => Some(a.head_dim),
        _ => None,
    };
    let mut heads = checkpoint.config().layers.iter().filter_map(head).peekable();
    let config = checkpoint.dir().join("config.json");
    if heads.peek().is_none() {
        bail!(
            "--kv-cache-dtype int8: no layer of {} keeps keys and values of heads; leave it out",
            config.display()
        );
    }
    if let Some(d) = heads.find(|&d| !codegen_cpu::kernels::kv::holds_codes(d)) {
        bail!(
            "--kv-cache-dtype int8 takes heads of a multiple of 4 elements up to 1,024; those of {} \
             have {d}; leave it out",
            config.display()
        );
    }
    Ok(DType::I8)
}

fn target(build: &BuildArgs) -> HostTarget {
    let target = HostTarget::named(&build.target);
    let target = target.expect("the command line takes names of targets only");
    target.tuned(&build.toolkit, build.fork_bytes)
}

/// How many of the largest logits of a row the device finds.
fn head_top_k(build: &BuildArgs, target: &HostTarget) -> anyhow::Result<u64> {
    let (asked, most) = (build.head_top_k, target.most_found());
    if asked > most {
        bail!("--head-top-k {asked}: {} finds at most {most} tokens of a row", build.target);
    }
    Ok(asked)
}

/// Refuses options that the checkpoint or other options leave without effect.
fn check_quantization(build: &BuildArgs, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let fp8 = matches!(checkpoint.config().published, Published::Fp8 { .. });
    if build.quantize_activations && !fp8 {
        bail!(
            "--quantize-activations is for checkpoints in FP8; {} is none (quantization_config in \
             config.json)",
            checkpoint.dir().display()
        );
    }
    if build.quantize.quantize.is_some() && build.disable_pass.iter().any(|p| p == QUANTIZE) {
        bail!("--quantize is the work of {QUANTIZE}, which --disable-pass leaves out; drop one");
    }
    Ok(())
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

fn options(
    precast: &Precast,
    build: &BuildArgs,
    model: &Model,
    dump_ir: bool,
    memory: Option<u64>,
) -> anyhow::Result<Options> {
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
    if !target(build).runs_here() {
        config.insert("toolkit".to_owned(), build.toolkit.clone().into());
        config.insert("fork_bytes".to_owned(), build.fork_bytes.into());
    }
    config.insert("quantize_activations".to_owned(), build.quantize_activations.into());
    Ok(Options {
        graph_bs: graph_bs::listed(build)?.unwrap_or_default(),
        max_running_requests: build.max_running_requests,
        prefill_chunks: build.prefill_chunks.clone(),
        context_tiers: build.context_tiers.clone(),
        max_context: build.max_context,
        kv: match (build.kv_blocks, build.mem_fraction) {
            (Some(n), _) => KvBudget::Blocks(n),
            (_, Some(f)) => KvBudget::Fraction(f),
            (None, None) => KvBudget::Default,
        },
        memory_limit: build.memory.or(memory),
        compact_rows: compact_rows(build)?,
        quantize: build.quantize.option(),
        catalog: precast.catalog.clone(),
        extensions: precast.extensions.clone(),
        disabled_passes: build.disable_pass.clone(),
        rewrite_limit: build.rewrite_limit.unwrap_or(usize::MAX),
        dump_ir,
        config,
    })
}

/// Up to how many rows compact weights are used, on a target that has them.
pub(crate) fn compact_rows(build: &BuildArgs) -> anyhow::Result<Option<u32>> {
    if target(build).runs_here() {
        let here = || codegen_cpu::target::compact_rows(InstructionSet::best());
        return Ok(Some(build.compact_rows.unwrap_or_else(here)));
    }
    if build.compact_rows.is_some() {
        bail!("--compact-rows is for --target cpu; {} keeps weights as they are", build.target);
    }
    Ok(None)
}

/// Bytes of memory that a process like this one may have, where the system tells.
fn memory_here() -> Option<u64> {
    MemoryLimit::of_this_process().map(|limit| limit.bytes)
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
