//! `opt`: text IR in, passes, text IR out.

use crate::{args::OptArgs, matches};
use anyhow::{Context, bail};
use codegen_cpu::target::CpuTarget;
use compiler::Target;
use ir::{Module, text};
use passes::Stage;
use std::{
    io::{Read, Write},
    path::Path,
};

/// Seeds of the inputs that `--check-numerics` draws.
const SEEDS: [u64; 3] = [1, 2, 3];

pub(crate) fn opt(args: &OptArgs) -> anyhow::Result<()> {
    let (name, source) = read(&args.file)?;
    let before = text::parse(&name, &source)?;
    let stages = match &args.passes {
        Some(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            passes::pipeline_of(&names)?
        }
        None => passes::default_pipeline(),
    };
    matches::check_names(&args.require_match, &passes::Catalog::builtin())?;
    let limit = args.rewrite_limit.unwrap_or(usize::MAX);
    let mut after = before.clone();
    let mut last = text::print_module(&before);
    let mut shown = Ok(());
    let mut show = |index: usize, pass: &str, ir: &str| {
        if ir != last && shown.is_ok() {
            shown = writeln!(std::io::stdout(), "; ==== {index:02} {pass}\n{ir}");
            ir.clone_into(&mut last);
        }
    };
    let mut options = passes::Options {
        rewrite_limit: limit,
        quantize: args.quantize.option(),
        dump: if args.print_after_all { Some(&mut show) } else { None },
        ..Default::default()
    };
    let report = passes::run(&mut after, &stages, &mut options, &CpuTarget.info())?;
    shown?;
    if args.explain_passes {
        eprint!("{report}");
    }
    matches::check(&args.require_match, &report)?;
    if args.check_numerics {
        check(&before, &after, &stages, limit)?;
    }
    if !args.print_after_all {
        write!(std::io::stdout(), "{}", text::print_module(&after))?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<(String, String)> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        return Ok(("stdin".into(), text));
    }
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
    Ok((name, text))
}

/// Interprets `before` and `after` on the same random inputs; on a difference finds the rewrite to
/// blame.
fn check(before: &Module, after: &Module, stages: &[Stage], limit: usize) -> anyhow::Result<()> {
    let Err(difference) = same_numbers(before, after) else { return Ok(()) };
    // Invariant: `good` rewrites agree, `bad` rewrites do not.
    let (mut good, mut bad) = (0, total_rewrites(before, stages, limit)?);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match same_numbers(before, &rewritten(before, stages, middle)?.0) {
            Ok(()) => good = middle,
            Err(_) => bad = middle,
        }
    }
    let culprit = rewritten(before, stages, bad)?
        .1
        .passes
        .iter()
        .rfind(|p| p.fired > 0)
        .map_or("?", |p| p.pass);
    bail!("{difference}\nrewrite {bad}, by {culprit}, is to blame: --rewrite-limit {good} agrees")
}

fn same_numbers(before: &Module, after: &Module) -> anyhow::Result<()> {
    for (b, a) in before.funcs.iter().zip(&after.funcs) {
        let report = passes::check_numerics(b, a, &SEEDS, &passes::sample_bindings(b))?;
        tracing::info!("@{}: {} elements agree in {} runs", b.name, report.elements, report.runs);
    }
    Ok(())
}

fn rewritten(
    before: &Module,
    stages: &[Stage],
    limit: usize,
) -> anyhow::Result<(Module, passes::Report)> {
    let mut module = before.clone();
    let mut options = passes::Options { rewrite_limit: limit, ..Default::default() };
    let report = passes::run(&mut module, stages, &mut options, &CpuTarget.info())?;
    Ok((module, report))
}

fn total_rewrites(before: &Module, stages: &[Stage], limit: usize) -> anyhow::Result<usize> {
    let report = rewritten(before, stages, limit)?.1;
    Ok(report.passes.iter().map(|p| p.fired).sum::<usize>().max(1))
}
