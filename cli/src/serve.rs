//! `serve` and `run`: an artifact behind HTTP.

use crate::{
    args::{BuildArgs, CompileArgs, EngineArgs, HttpArgs, RunArgs, ServeArgs},
    cache, compile,
};
use anyhow::{Context, bail};
use artifact::{Artifact, Recorded, RecordedToken};
use codegen_cpu::{
    device::{CpuDevice, CpuOptions, InstructionSet},
    target::CpuTarget,
};
use compiler::Target;
use runtime::{
    Engine, EngineHandle, EngineOptions, LogprobOptions, Request, RequestId, Sampling, StepOutcome,
    TokenEvent, TokenSink,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Instant,
};

/// Tokens of the prompt and of the answer that are recorded at compile time.
const RECORDED_PROMPT: u32 = 12;
const RECORDED_TOKENS: usize = 8;

/// How far a recorded log-probability may be off on another instruction set: bf16 keeps 8 bits.
const RECORDED_TOLERANCE: f32 = 0.05;

/// Runs `precast serve`.
pub(crate) fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    start(&args.artifact, args.max_running_requests, args.verify, &args.http)
}

/// Runs `precast run`: compiles into the cache what is not there yet, then serves it.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let artifact = if args.dir.join("manifest.json").is_file() {
        args.dir.clone()
    } else {
        cached(&args.dir, &args.build)?
    };
    start(&artifact, None, false, &args.http)
}

/// The artifact of a checkpoint, compiled unless the cache holds it.
fn cached(checkpoint: &Path, build: &BuildArgs) -> anyhow::Result<PathBuf> {
    let out = cache::location(checkpoint, &format!("{build:?}"))?;
    if Artifact::open(&out).is_ok() {
        tracing::info!("{} is compiled already: {}", checkpoint.display(), out.display());
        return Ok(out);
    }
    compile(&CompileArgs {
        model: checkpoint.into(),
        out: out.clone(),
        build: build.clone(),
        dump_ir: false,
        explain_passes: false,
        dry_run: false,
        no_record: false,
    })?;
    Ok(out)
}

/// Opens, checks and binds an artifact and serves it until a signal asks to stop.
///
/// # Errors
/// What the artifact, the machine or the address has against it.
pub fn start(
    path: &Path,
    max_running_requests: Option<u32>,
    verify: bool,
    http: &HttpArgs,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let artifact = Artifact::open(path)?;
    // The tokenizer of a large vocabulary takes as long to build as the engine, so both are done at
    // once. The engine stays on the thread that loads it, which the device pins to a processor, and
    // on that thread's child; threads that serve connections are children of this one.
    let (model, engine) = std::thread::scope(|scope| {
        let engine = scope.spawn(|| -> anyhow::Result<EngineHandle> {
            let options = EngineOptions {
                max_running_requests,
                max_queued_requests: Some(http.max_queued_requests),
                check_weights: !http.engine.no_checksum,
            };
            let mut engine = load_engine(&artifact, &http.engine, options, false)?;
            if verify {
                check_recorded(&artifact, &mut engine)?;
            }
            report_start(&engine);
            Ok(engine.spawn()?)
        });
        let model = server::Model::from_artifact(&artifact, http.served_model_name.as_deref());
        (model, engine.join().expect("loading an engine does not panic"))
    });
    let (model, engine) = (model?, engine?);
    tracing::info!(
        "{} is loaded after {:.0} ms",
        model.name(),
        started.elapsed().as_secs_f64() * 1e3
    );
    let options = server::ServerOptions {
        host: http.host.clone(),
        port: http.port,
        api_key: http.api_key.clone(),
        served_model_name: http.served_model_name.clone(),
        ..Default::default()
    };
    server::serve_blocking(Arc::new(engine), model, options)?;
    Ok(())
}

/// Logs how long the parts of the start took.
fn report_start(engine: &Engine<CpuDevice>) {
    let s = engine.startup();
    let slowest = s.bind.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
    tracing::info!(
        "{}: map {:.1} ms, checksum {}, memory {:.1} ms, {} plans bound in {:.1} ms (slowest {slowest:.2} ms)",
        engine.device_name(),
        s.map_ms,
        s.check_ms.map_or("off".into(), |ms| format!("{ms:.0} ms")),
        s.load_ms,
        s.bind.len(),
        s.bind.iter().map(|(_, ms)| ms).sum::<f64>(),
    );
}

/// Loads an artifact on the CPU of this machine. With `release_weights` pages of the weight file
/// are given back after use, so that memory stays near the largest tensor.
///
/// # Errors
/// When the artifact is for something else or damaged, or memory or an instruction set is missing.
pub fn load_engine(
    artifact: &Artifact,
    args: &EngineArgs,
    options: EngineOptions,
    release_weights: bool,
) -> anyhow::Result<Engine<CpuDevice>> {
    let available: Vec<&str> = InstructionSet::available().iter().map(|i| i.name()).collect();
    artifact
        .manifest()
        .target
        .check(&CpuTarget.build_target(), &available)
        .with_context(|| artifact.root().display().to_string())?;
    let instruction_set = match &args.instruction_set {
        Some(name) => Some(
            name.parse::<InstructionSet>()
                .map_err(|e| anyhow::anyhow!("--instruction-set: {e}"))?,
        ),
        None => None,
    };
    let device = CpuDevice::new(CpuOptions {
        threads: args.threads.map(|n| n as usize),
        instruction_set,
        release_weights,
        ..Default::default()
    })?;
    Ok(Engine::load(device, artifact, options)?)
}

/// Collects events for a caller that drives the engine itself.
struct Collect(mpsc::Sender<TokenEvent>);

impl TokenSink for Collect {
    fn push(&mut self, event: TokenEvent) -> bool {
        self.0.send(event).is_ok()
    }
    fn is_open(&self) -> bool {
        true
    }
}

/// Runs a finished artifact for a few tokens, so that `serve --verify` can repeat them.
pub(crate) fn record(root: &Path) -> anyhow::Result<Recorded> {
    let artifact = Artifact::open(root)?;
    let args = EngineArgs { no_checksum: true, ..Default::default() };
    let mut engine = load_engine(&artifact, &args, EngineOptions::default(), true)?;
    let vocab = artifact.manifest().model.vocab_size;
    // Spread over the vocabulary; any prompt would do, as long as it is always the same.
    let prompt: Vec<u32> = (0..RECORDED_PROMPT).map(|i| (i * 7919 + 13) % vocab).collect();
    let tokens = replay(&mut engine, &prompt)?;
    let instruction_set = InstructionSet::best().name().to_owned();
    Ok(Recorded { instruction_set, prompt, tokens })
}

fn replay(engine: &mut Engine<CpuDevice>, prompt: &[u32]) -> anyhow::Result<Vec<RecordedToken>> {
    let (events, received) = mpsc::channel();
    engine.add(Request {
        id: RequestId(0),
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 0.0, ..Default::default() },
        max_tokens: RECORDED_TOKENS,
        min_tokens: 0,
        stop_token_ids: Vec::new(),
        ignore_eos: true,
        logprobs: LogprobOptions { output: true, ..Default::default() },
        arrival: Instant::now(),
        sink: Box::new(Collect(events)),
    })?;
    while engine.step()? != StepOutcome::Idle {}
    let mut tokens = Vec::new();
    for event in received.try_iter() {
        match event {
            TokenEvent::Token { token, logprob, .. } => tokens.push(RecordedToken {
                id: token,
                logprob: logprob.and_then(|l| l.logprob).unwrap_or(f32::NAN),
            }),
            TokenEvent::Ended { finish } => bail!("the recorded run ended early: {finish:?}"),
            TokenEvent::Prompt { .. } => {}
        }
    }
    Ok(tokens)
}

/// Repeats the recorded run and compares.
fn check_recorded(artifact: &Artifact, engine: &mut Engine<CpuDevice>) -> anyhow::Result<()> {
    let Some(recorded) = &artifact.manifest().recorded else {
        bail!(
            "{}: nothing was recorded at compile time (--no-record), so --verify has nothing to compare",
            artifact.root().display()
        );
    };
    let got = replay(engine, &recorded.prompt)?;
    let agree = |a: &RecordedToken, b: &RecordedToken| {
        a.id == b.id && (a.logprob - b.logprob).abs() <= RECORDED_TOLERANCE
    };
    let same = got.len() == recorded.tokens.len()
        && got.iter().zip(&recorded.tokens).all(|(a, b)| agree(a, b));
    if !same {
        bail!(
            "--verify: this machine answers {got:?}, the artifact recorded {:?} with {}; \
             run `precast compile` again, or check this machine's memory",
            recorded.tokens,
            recorded.instruction_set
        );
    }
    tracing::info!("verified {} recorded tokens", got.len());
    Ok(())
}
