//! `opt`: text IR in, passes, text IR out.

use crate::{Precast, args::OptArgs, matches, target::HostTarget};
use anyhow::{Context, bail};
use ir::{Module, text};
use passes::{Options, Stage, TargetInfo};
use std::{
    io::{Read, Write},
    path::Path,
};

/// Seeds of the inputs that `--check-numerics` draws.
const SEEDS: [u64; 3] = [1, 2, 3];

pub(crate) fn opt(precast: &Precast, args: &OptArgs) -> anyhow::Result<()> {
    let (name, source) = read(&args.file)?;
    let before = text::parse(&name, &source)?;
    let stages = match &args.passes {
        Some(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            precast.catalog.pipeline_of(&names)?
        }
        None => precast.catalog.pipeline(),
    };
    matches::check_names(&args.require_match, &precast.catalog)?;
    let target = HostTarget::named(&args.target).context("clap knows the targets")?;
    let target = target.as_target(precast).info();
    let mut after = before.clone();
    let mut last = text::print_module(&before);
    let mut shown = Ok(());
    let mut show = |index: usize, pass: &str, ir: &str| {
        if ir != last && shown.is_ok() {
            shown = writeln!(std::io::stdout(), "; ==== {index:02} {pass}\n{ir}");
            ir.clone_into(&mut last);
        }
    };
    let limit = args.rewrite_limit.unwrap_or(usize::MAX);
    let mut options = options(precast, args, limit);
    if args.print_after_all {
        options.dump = Some(&mut show);
    }
    let report = passes::run(&mut after, &stages, &mut options, &target)?;
    shown?;
    if args.explain_passes {
        eprint!("{report}");
    }
    matches::check(&args.require_match, &report)?;
    if args.check_numerics {
        check(precast, args, &target, [&before, &after], &stages)?;
    }
    if args.dot {
        write!(std::io::stdout(), "{}", ir::dot(&after))?;
    } else if !args.print_after_all {
        write!(std::io::stdout(), "{}", text::print_module(&after))?;
    }
    Ok(())
}

fn options<'a>(precast: &Precast, args: &OptArgs, limit: usize) -> Options<'a> {
    Options {
        catalog: precast.catalog.clone(),
        rewrite_limit: limit,
        disabled: args.disable_pass.clone(),
        quantize: args.quantize.option(),
        dump: None,
    }
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

/// Interprets what `after` must equal and `after` on the same random inputs; on a difference finds
/// the rewrite to blame.
fn check(
    precast: &Precast,
    args: &OptArgs,
    target: &TargetInfo,
    [before, after]: [&Module; 2],
    stages: &[Stage],
) -> anyhow::Result<()> {
    let options_of = |limit| options(precast, args, limit);
    let all = options_of(usize::MAX);
    let reference = passes::numeric_reference(before, stages, &all, target, &SEEDS)?;
    let difference = match same_numbers(&reference, after) {
        Ok(elements) => {
            tracing::info!("{elements} elements agree in {} runs", SEEDS.len());
            return Ok(());
        }
        Err(difference) => difference,
    };
    let most = args.rewrite_limit.unwrap_or(usize::MAX);
    let culprit = passes::first_wrong_rewrite(
        before,
        stages,
        &|limit| options_of(limit.min(most)),
        target,
        &|module| same_numbers(&reference, module).is_ok(),
    )?;
    match culprit {
        Some(culprit) => bail!("{difference:#}\n{culprit}"),
        None => bail!("{difference:#}"),
    }
}

/// How many elements were compared.
fn same_numbers(before: &Module, after: &Module) -> anyhow::Result<usize> {
    let mut elements = 0;
    for (b, a) in before.funcs.iter().zip(&after.funcs) {
        let report = passes::check_numerics(b, a, &SEEDS, &passes::sample_bindings(b));
        elements += report.with_context(|| format!("@{}", b.name))?.elements;
    }
    Ok(elements)
}
