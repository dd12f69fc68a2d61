//! `serve` and `run`: an artifact behind HTTP.

use crate::{
    Precast,
    args::{BuildArgs, CompileArgs, DeviceArg, EngineArgs, HttpArgs, RunArgs, ServeArgs},
    cache, compile,
    device::HostDevice,
    engine::load_engine,
    graph_bs,
    limits::{MemoryLimit, raise_open_files},
    recorded::check_recorded,
    target::HostTarget,
};
use anyhow::Context;
use artifact::Artifact;
use runtime::{Engine, EngineHandle, EngineOptions};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Runs `precast serve`.
pub(crate) fn serve(precast: &Precast, args: &ServeArgs) -> anyhow::Result<()> {
    let limits = (args.max_running_requests, args.max_total_tokens);
    start(precast, &args.artifact, limits, args.verify, &args.http)
}

/// Runs `precast run`: compiles into the cache what is not there yet, then serves it.
pub(crate) fn run(precast: &Precast, args: &RunArgs) -> anyhow::Result<()> {
    check_address(&args.http)?;
    let artifact = if args.dir.join("manifest.json").is_file() {
        args.dir.clone()
    } else {
        cached(precast, &args.dir, &args.build)?
    };
    start(precast, &artifact, (None, None), false, &args.http)
}

/// The artifact of a checkpoint, compiled unless the cache holds it.
fn cached(precast: &Precast, checkpoint: &Path, build: &BuildArgs) -> anyhow::Result<PathBuf> {
    compile::check_checkpoint(checkpoint)?;
    // A cache may be shared by machines, each of which would choose for itself.
    let build = BuildArgs { compact_rows: compile::compact_rows(build)?, ..build.clone() };
    let options = format!("{build:?} {}", graph_bs::inputs(&build)?);
    let out = cache::location(precast, checkpoint, &options)?;
    if Artifact::open(&out).is_ok() {
        tracing::info!("{} is compiled already: {}", checkpoint.display(), out.display());
        return Ok(out);
    }
    compile::compile(
        precast,
        &CompileArgs {
            model: checkpoint.into(),
            out: out.clone(),
            build,
            dump_ir: false,
            explain_passes: false,
            require_match: Vec::new(),
            dry_run: false,
            config_only: false,
            no_record: false,
        },
    )?;
    Ok(out)
}

/// Opens, checks and binds an artifact and serves it until a signal asks to stop.
///
/// # Errors
/// What the artifact, the machine or the address has against it.
fn start(
    precast: &Precast,
    path: &Path,
    (max_running_requests, max_total_tokens): (Option<u32>, Option<u32>),
    verify: bool,
    http: &HttpArgs,
) -> anyhow::Result<()> {
    let started = Instant::now();
    check_address(http)?;
    raise_open_files();
    let artifact = Artifact::open(path)?;
    check_memory(&artifact, &http.engine)?;
    // The tokenizer of a large vocabulary takes as long to build as the engine, so both are done at
    // once. The engine stays on the thread that loads it, which the device may keep on a processor, and
    // on that thread's child; threads that serve connections are children of this one.
    let (model, engine) = std::thread::scope(|scope| {
        let engine = scope.spawn(|| -> anyhow::Result<EngineHandle> {
            let options = EngineOptions {
                max_running_requests,
                check_weights: !http.engine.no_checksum,
                prefix_cache: !http.disable_radix_cache,
                max_total_tokens,
                ..EngineOptions::default()
            };
            let options = http.scheduling.apply(options);
            let mut engine = load_engine(precast, &artifact, &http.engine, options, false)?;
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
    let options = http.operation.apply(server::ServerOptions {
        host: http.host.clone(),
        port: http.port,
        served_model_name: http.served_model_name.clone(),
        tool_call_parser: http.tool_call_parser,
        reasoning_parser: http.reasoning_parser,
        ..Default::default()
    });
    server::serve_blocking(Arc::new(engine), model, options)?;
    Ok(())
}

/// Refuses an artifact for which this host has too little memory, where its memory is what counts.
fn check_memory(artifact: &Artifact, args: &EngineArgs) -> anyhow::Result<()> {
    let manifest = artifact.manifest();
    let on_host = HostTarget::named(&manifest.target.device).is_some_and(|t| t.runs_here());
    match MemoryLimit::of_this_process() {
        Some(limit) if on_host && args.device.is_none_or(|d| d == DeviceArg::Cpu) => limit
            .check(manifest)
            .with_context(|| format!("cannot serve {}", artifact.root().display())),
        _ => Ok(()),
    }
}

/// Finds an address that is in use before the long work. Nothing stays bound, so that clients are
/// refused until the server answers.
fn check_address(http: &HttpArgs) -> Result<(), server::ServeError> {
    match std::net::TcpListener::bind((http.host.as_str(), http.port)) {
        Ok(_) => Ok(()),
        Err(source) => {
            Err(server::ServeError::Listen { host: http.host.clone(), port: http.port, source })
        }
    }
}

/// Logs how long the parts of the start took.
fn report_start(engine: &Engine<HostDevice>) {
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
