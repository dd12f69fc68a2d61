//! `inspect --profile`: where the time of a step goes, beside what the machine allows.

mod feed;
mod measure;
mod report;
mod table;
mod timeline;
mod work;

use crate::{
    Precast,
    args::{EngineArgs, InspectArgs, ProfileArgs},
    device::{self, HostDevice},
};
use anyhow::{Context, bail, ensure};
use artifact::{Artifact, Manifest, Phase, Plan};
use codegen_cpu::{
    CpuDevice,
    probe::{Peak, ReadProbe, peak_flops},
};
use feed::{Feed, fill_states};
use hal::{Device, MemoryRequest};
use measure::{experts_met, launches, measure};
use report::{Bucket, Limits, Rate, Report};
use std::{fs::File, io::Write, sync::Arc};
use work::{Call, Operands};

/// Tokens of context, unless asked otherwise.
const CONTEXT: u32 = 512;

/// Runs `precast inspect --profile`.
///
/// # Errors
/// When the artifact is for another device or damaged, a flag does not fit it, or memory or an
/// instruction set is missing.
pub(crate) fn profile(
    precast: &Precast,
    artifact: &Artifact,
    args: &InspectArgs,
) -> anyhow::Result<()> {
    precast.check_extensions(artifact)?;
    let (manifest, plans) = (artifact.manifest(), artifact.plans()?);
    let asked = &args.profile;
    let context = asked.context.unwrap_or(CONTEXT.min(manifest.model.max_context));
    ensure!(
        context <= manifest.model.max_context,
        "--context {context}: the artifact has a context of {} tokens",
        manifest.model.max_context
    );
    let chosen = choose(manifest, &plans, args.plan.as_deref(), &asked.batch, context)?;
    // A file that cannot be written is known before the work.
    let picture = match &asked.timeline {
        Some(path) => {
            let named = || format!("--timeline {}", path.display());
            Some((File::create(path).with_context(named)?, named))
        }
        None => None,
    };
    let mut device = open(precast, artifact, asked)?;
    let feeds: Vec<_> = chosen.iter().map(|p| Feed::new(p, manifest, context)).collect();
    fill_states(&mut device, manifest, &feeds);
    let threads = device.threads();
    let peaks = Peak::ALL.map(|peak| (peak_flops(peak, threads), peak));
    let rates = Operands::ALL.map(|operands| {
        let of = peaks.iter().filter(|(_, peak)| operands.multiplied_by(*peak));
        let known = of.filter_map(|&(gops, peak)| Some((gops?, peak)));
        let best = known.max_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(gops, peak)| Rate { operands: operands.name(), gops, instruction: peak.name() })
    });
    let memory = ReadProbe::new();
    let mut report = Report::new(manifest, &device, rates);
    let out = &mut std::io::stdout().lock();
    if !args.json {
        table::head(out, &report)?;
    }
    for (plan, feed) in chosen.iter().zip(&feeds) {
        let limits = Limits { gbs: memory.bandwidth(threads), rates };
        let bucket = one(&mut device, manifest, (plan, feed), limits, asked.replays)
            .with_context(|| format!("plan `{}`", plan.name))?;
        if !args.json {
            table::bucket(out, &bucket, asked.slowest)?;
        }
        report.buckets.push(bucket);
    }
    if let Some((mut file, named)) = picture {
        file.write_all(timeline::svg(&report.buckets).as_bytes()).with_context(named)?;
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

/// Profiles one plan.
fn one(
    device: &mut CpuDevice,
    manifest: &Manifest,
    (plan, feed): (&Plan, &Feed),
    limits: Limits,
    replays: Option<usize>,
) -> anyhow::Result<Bucket> {
    let met = experts_met(device, plan, feed, manifest)?;
    let graph = hal::capture(device, plan)?;
    let write = |device: &mut CpuDevice| feed.write(device, manifest, plan);
    let measured = measure(device, &graph, write, replays)?;
    let mut lines = Vec::new();
    for (steps, &times) in launches(plan).into_iter().zip(&measured.launches) {
        let calls = steps.map(|i| {
            let step = &plan.steps[i];
            let call = Call { kernel: &plan.kernels[step.kernel as usize], step };
            (call, call.work(feed, met.get(&i).copied()))
        });
        lines.push(report::Launch::new(calls, times, &limits));
    }
    Ok(Bucket::new(plan, feed, measured, limits, lines))
}

/// The plans to profile: the one called `name`, or for each number of rows the one that holds
/// `context` tokens with the least to spare.
fn choose<'a>(
    manifest: &Manifest,
    plans: &'a [Plan],
    name: Option<&str>,
    rows: &[u32],
    context: u32,
) -> anyhow::Result<Vec<&'a Plan>> {
    if let Some(name) = name {
        let plan = plans.iter().find(|p| p.name == name).with_context(|| {
            let names: Vec<&str> = plans.iter().map(|p| p.name.as_str()).collect();
            format!("--plan {name}: there is no such plan; there are {}", names.join(", "))
        })?;
        return Ok(vec![plan]);
    }
    let mut chosen: Vec<&Plan> = Vec::new();
    for phase in [Phase::Decode, Phase::Prefill, Phase::Head] {
        let of_phase = || plans.iter().filter(|p| p.phase == phase);
        let mut sizes: Vec<u32> = of_phase().map(|p| p.rows).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.retain(|size| rows.is_empty() || rows.contains(size));
        for size in sizes {
            let of_size = || of_phase().filter(|p| p.rows == size);
            let fits = of_size().filter(|p| p.context_tokens >= context);
            let longest = || of_size().max_by_key(|p| p.context_tokens);
            chosen.extend(fits.min_by_key(|p| p.context_tokens).or_else(longest));
        }
    }
    for size in rows {
        if !chosen.iter().any(|p| p.rows == *size) {
            let mut sizes: Vec<u32> = manifest.plans.iter().map(|p| p.rows).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
            bail!("--batch {size}: no plan has so many rows; there are {}", sizes.join(", "));
        }
    }
    Ok(chosen)
}

/// The processors of this host with the memory of the artifact.
fn open(precast: &Precast, artifact: &Artifact, args: &ProfileArgs) -> anyhow::Result<CpuDevice> {
    let engine = EngineArgs {
        threads: args.threads,
        pin_threads: args.pin_threads,
        instruction_set: args.instruction_set.clone(),
        ..EngineArgs::default()
    };
    let opened = device::open(precast, artifact, &engine, false)?;
    let HostDevice::Cpu(mut device) = opened else {
        let (root, target) = (artifact.root().display(), &artifact.manifest().target.device);
        bail!(
            "{root}: compiled for {target}; --profile takes apart the steps of the CPU alone, use the \
             profiler of the device"
        );
    };
    let memory = &artifact.manifest().memory;
    device.load(MemoryRequest {
        root: artifact.root().to_owned(),
        weights: Arc::new(artifact.map_weights()?),
        arena_bytes: memory.arena_bytes,
        state_bytes: memory.state_bytes,
    })?;
    Ok(*device)
}
