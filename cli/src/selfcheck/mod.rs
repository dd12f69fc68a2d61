//! `selfcheck`: whether a device computes what an artifact means, op by op and bucket by bucket.

mod buckets;
mod cases;
mod ops;
mod values;

use crate::{
    Precast,
    args::{EngineArgs, SelfcheckArgs},
    device,
    engine::load_engine,
    target::HostTarget,
};
use anyhow::{Context, bail};
use artifact::Artifact;
use ops::Outcome;
use runtime::EngineOptions;
use serde::Serialize;
use std::io::Write;

/// The report.
#[derive(Serialize)]
struct Report {
    precast: &'static str,
    artifact: String,
    target: String,
    device: String,
    ops: Vec<ops::Line>,
    buckets: Vec<buckets::Line>,
}

/// Runs `precast selfcheck`.
///
/// # Errors
/// When the artifact or a device cannot be opened, or something does not agree.
pub(crate) fn selfcheck(precast: &Precast, args: &SelfcheckArgs) -> anyhow::Result<()> {
    let artifact = Artifact::open(&args.artifact)?;
    let name = &artifact.manifest().target.device;
    let target = HostTarget::named(name)
        .with_context(|| format!("{}: no target `{name}`", args.artifact.display()))?;
    // As it was compiled, or other kernels would be asked for than it has.
    let toolkit = artifact.manifest().config.get("toolkit").and_then(|v| v.as_str());
    let target = target.tuned(toolkit.unwrap_or_default(), None);
    let mut cases = cases::cases(&artifact)?;
    if !target.has_plain_caches() {
        cases.retain(|case| !case.has_cache());
    }
    let mut name_of_device = String::new();
    let mut open = || -> anyhow::Result<_> {
        let opened = device::open(precast, &artifact, &args.engine, false)?;
        name_of_device = hal::Device::name(&opened);
        Ok(opened)
    };
    let exact = target.sums_in_f32();
    let ops = ops::check(&cases, target.as_target(precast), artifact.root(), exact, &mut open)?;
    let buckets = match &args.against {
        Some(other) => {
            let other = Artifact::open(other)?;
            // Every batch size computes its prompts, with prefill plans.
            let options = || EngineOptions {
                prefix_cache: false,
                disable_mixed_chunk: true,
                ..EngineOptions::default()
            };
            let mut ours = load_engine(precast, &artifact, &args.engine, options(), false)?;
            let plain = EngineArgs::default();
            let mut theirs = load_engine(precast, &other, &plain, options(), false)?;
            let m = artifact.manifest();
            let rows =
                m.plans.iter().filter(|p| p.phase == artifact::Phase::Decode).map(|p| p.rows);
            let mut rows: Vec<u32> = rows.collect();
            rows.sort_unstable();
            rows.dedup();
            buckets::check(&rows, m.model.vocab_size, &mut ours, &mut theirs)
                .with_context(|| format!("against {}", other.root().display()))?
        }
        None => Vec::new(),
    };
    let report = Report {
        precast: env!("CARGO_PKG_VERSION"),
        artifact: artifact.manifest().model.name.clone(),
        target: name.clone(),
        device: name_of_device,
        ops,
        buckets,
    };
    let out = &mut std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(out, &report)?;
    }
    let bad =
        report.ops.iter().filter(|l| !matches!(l.outcome, Outcome::Agrees | Outcome::Skipped(_)));
    let bad = bad.count() + report.buckets.iter().filter(|l| !l.holds).count();
    if bad > 0 {
        bail!("{bad} of {} checks do not hold", report.ops.len() + report.buckets.len());
    }
    Ok(())
}

/// As Markdown, to attach to an issue.
fn print(out: &mut impl Write, r: &Report) -> std::io::Result<()> {
    writeln!(out, "# precast {} selfcheck: {} for {}\n", r.precast, r.artifact, r.target)?;
    writeln!(out, "device: {}\n", r.device)?;
    writeln!(out, "| op | of | calls | off by | may be | us | |\n|---|---|---|---|---|---|---|")?;
    for l in &r.ops {
        let outcome = match &l.outcome {
            Outcome::Agrees => "agrees".to_owned(),
            Outcome::Differs => "DIFFERS".to_owned(),
            Outcome::Skipped(why) => format!("skipped: {why}"),
            Outcome::Failed(why) => format!("FAILED: {why}"),
        };
        let calls = l.calls.join(", ");
        writeln!(
            out,
            "| {} | {} | {calls} | {:.1e} | {:.1e} | {:.0} | {outcome} |",
            l.op, l.at, l.worst, l.bound, l.replay_us
        )?;
    }
    if !r.buckets.is_empty() {
        writeln!(out, "\n| sequences at once | same tokens | log-probabilities off by | |")?;
        writeln!(out, "|---|---|---|---|")?;
    }
    for l in &r.buckets {
        let outcome = if l.holds { "agrees" } else { "DIFFERS" };
        writeln!(out, "| {} | {} of {} | {:.4} | {outcome} |", l.rows, l.same, l.tokens, l.worst)?;
    }
    let count = |is: fn(&Outcome) -> bool| r.ops.iter().filter(|l| is(&l.outcome)).count();
    writeln!(
        out,
        "\n{} ops agree, {} differ, {} failed, {} were skipped.",
        count(|o| *o == Outcome::Agrees),
        count(|o| *o == Outcome::Differs),
        count(|o| matches!(o, Outcome::Failed(_))),
        count(|o| matches!(o, Outcome::Skipped(_))),
    )
}
