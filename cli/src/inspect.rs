//! `inspect`: what is inside an artifact.

use crate::{
    Precast,
    args::InspectArgs,
    graph_bs, profile, program,
    report::{self, bytes_text},
};
use anyhow::Context;
use artifact::{Artifact, Manifest, Plan};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

pub(crate) fn inspect(precast: &Precast, args: &InspectArgs) -> anyhow::Result<()> {
    let artifact = Artifact::open(&args.artifact)?;
    if args.profile.profile {
        return profile::profile(precast, &artifact, args);
    }
    let manifest = artifact.manifest();
    let out = &mut io::stdout().lock();
    let text = |path: &str| -> anyhow::Result<String> {
        let bytes = artifact
            .file(path)?
            .with_context(|| format!("{}: there is no {path}", args.artifact.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(manifest)?)?;
    } else if let Some(func) = &args.ir {
        write!(out, "{}", text(&format!("ir/{func}.ir"))?)?;
    } else if args.passes {
        write!(out, "{}{}", program::passes(&manifest.pipeline), text("passes.txt")?)?;
    } else if args.ops {
        write!(out, "{}", program::ops(&manifest.functions))?;
    } else if args.weights {
        print_weights(out, manifest)?;
    } else if args.quantization {
        match report::quantization(&manifest.weights) {
            none if none.is_empty() => writeln!(out, "no weight was quantised by compile")?,
            table => write!(out, "{table}")?,
        }
    } else if args.why {
        print_choices(out, manifest)?;
    } else if let Some(name) = &args.plan {
        let plans = artifact.plans()?;
        let plan = plans.iter().find(|p| p.name == *name).with_context(|| {
            let names: Vec<&str> = plans.iter().map(|p| p.name.as_str()).collect();
            format!("no plan `{name}`; there are {}", names.join(", "))
        })?;
        write!(out, "{plan}")?;
    } else {
        summary(out, manifest, &artifact.plans()?)?;
    }
    Ok(())
}

fn summary(out: &mut impl Write, m: &Manifest, plans: &[Plan]) -> io::Result<()> {
    writeln!(out, "{} ({}, {})", m.model.name, m.model.architecture, m.model.dtype)?;
    writeln!(out, "  parameters        {}", m.model.parameters)?;
    writeln!(out, "  context           {} tokens", m.model.max_context)?;
    writeln!(
        out,
        "  target            {} (at least {})",
        m.target.device, m.target.instruction_set
    )?;
    writeln!(out, "  running requests  {}", m.max_running_requests)?;
    writeln!(out, "memory")?;
    writeln!(out, "  weights           {}", bytes_text(m.memory.weights_bytes))?;
    for (kind, stored) in report::by_kind(&m.weights) {
        let (count, bytes) = (stored.count, bytes_text(stored.bytes));
        writeln!(out, "    {kind:<15} {bytes}, {count} tensors")?;
    }
    for (what, how_much) in report::states(&m.kv, m.window, m.sequences, &m.states) {
        writeln!(out, "  {what:<17} {how_much}")?;
    }
    writeln!(out, "  state             {}", bytes_text(m.memory.state_bytes))?;
    writeln!(out, "  arena             {}", bytes_text(m.memory.arena_bytes))?;
    let errors = m.weights.iter().filter_map(|w| Some((w.quantization_error?, w)));
    if let Some((error, worst)) = errors.max_by(|a, b| a.0.total_cmp(&b.0)) {
        let count = m.weights.iter().filter(|w| w.quantization_error.is_some()).count();
        let percent = f64::from(error) * 100.0;
        writeln!(
            out,
            "quantised by compile: {count} weights, the worst {percent:.3} % off (--quantization): {}",
            worst.recipe
        )?;
    }
    write!(out, "{}", program::summary(&m.pipeline, &m.functions))?;
    for e in &m.extensions {
        let called = if e.kernels.is_empty() { "no kernels".into() } else { e.kernels.join(", ") };
        writeln!(out, "extension {} (sources {}): {called}", e.name, e.hash)?;
    }
    writeln!(out, "buckets")?;
    for b in &m.buckets {
        let kept = if b.kept { "" } else { " (dropped)" };
        writeln!(out, "  {:<8} {:>6}{kept}  {}", b.phase, b.rows, b.reason)?;
    }
    if let Some(choice) = graph_bs::Choice::of(m) {
        write!(out, "{choice}")?;
    }
    writeln!(out, "plans")?;
    let width = m.plans.iter().map(|p| p.file.path.len()).max().unwrap_or(0);
    writeln!(
        out,
        "  {:<width$} {:>6} {:>11} {:>11} {:>7}",
        "file", "steps", "arena", "unshared", "padding"
    )?;
    for p in &m.plans {
        writeln!(
            out,
            "  {:<width$} {:>6} {:>11} {:>11} {:>6.0}%",
            p.file.path,
            p.steps,
            bytes_text(p.arena_bytes),
            bytes_text(p.unshared_bytes),
            worst_padding(m, p) * 100.0,
        )?;
    }
    writeln!(out, "kernels of {}", plans.first().map_or("", |p| p.name.as_str()))?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    if let Some(plan) = plans.first() {
        for step in &plan.steps {
            *counts.entry(&plan.kernels[step.kernel as usize]).or_default() += 1;
        }
    }
    for (kernel, count) in counts {
        writeln!(out, "  {count:>5} x {kernel}")?;
    }
    Ok(())
}

/// The share of rows that is padding when the plan runs the fewest rows it is ever picked for.
fn worst_padding(m: &Manifest, plan: &artifact::PlanEntry) -> f64 {
    let below = m
        .plans
        .iter()
        .filter(|p| p.phase == plan.phase && p.rows < plan.rows)
        .map(|p| p.rows)
        .max()
        .unwrap_or(0);
    f64::from(plan.rows - below - 1) / f64::from(plan.rows)
}

fn print_weights(out: &mut impl Write, m: &Manifest) -> io::Result<()> {
    for w in &m.weights {
        writeln!(
            out,
            "{:>12} {:>11}  {} {:?} {}  {}",
            w.offset,
            bytes_text(w.bytes),
            w.dtype,
            w.dims,
            w.layout,
            w.recipe
        )?;
    }
    Ok(())
}

/// What computes each kind of op, and why.
fn print_choices(out: &mut impl Write, m: &Manifest) -> io::Result<()> {
    if m.choices.is_empty() {
        writeln!(out, "target {} has one kernel for each op", m.target.device)?;
    }
    for c in &m.choices {
        writeln!(out, "{:>6} x {:<22} {}", c.count, c.op, c.calls.join(", "))?;
        writeln!(out, "{:>31} {}", "", c.why)?;
    }
    Ok(())
}
