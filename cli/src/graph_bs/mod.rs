//! `--graph-bs auto`: the list of decode batch sizes, chosen.

mod choice;
mod source;
mod times;

pub(crate) use choice::Choice;

use crate::args::{BuildArgs, bytes};
use anyhow::{Context, bail};
use clap::Args;
use compiler::{Load, Options, Rates, SizeCost, SizeList, StepWork};
use source::{read_histogram, read_times};
use std::str::FromStr;
use times::Times;

/// A decode batch size, or the word that leaves the choice to the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphBs {
    /// The compiler chooses.
    Auto,
    /// This one.
    Size(u32),
}

impl FromStr for GraphBs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(n @ 1..=4096) => Ok(Self::Size(n)),
            _ => Err("must be a number from 1 to 4096, or auto".into()),
        }
    }
}

/// How `--graph-bs auto` chooses.
#[derive(Clone, Debug, Default, Args)]
pub struct AutoArgs {
    /// The most batch sizes that --graph-bs auto chooses.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub graph_bs_limit: u32,
    /// Bytes that the decode plans which --graph-bs auto chooses may take together.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub graph_bs_memory: Option<u64>,
    /// How often how many requests decode at once, for --graph-bs auto: a file or http URL with the
    /// /metrics of a server, or JSON such as {"8": 120} [default: each number as often].
    #[arg(long, value_name = "FILE|URL")]
    pub graph_bs_histogram: Option<String>,
    /// How long steps take by batch size, for --graph-bs auto: a file or http URL with JSON such as
    /// {"8": 0.012} in seconds, or the /metrics of a server that ran them [default: a model].
    #[arg(long, value_name = "FILE|URL")]
    pub graph_bs_times: Option<String>,
    /// What the sizes that --graph-bs auto chooses are multiples of, but for the largest.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub graph_bs_multiple_of: u32,
}

/// The sizes that are listed; `None` when they are to be chosen.
///
/// # Errors
/// When `auto` does not stand alone or has no ceiling, or only `auto` could use what is given.
pub(crate) fn listed(build: &BuildArgs) -> anyhow::Result<Option<Vec<u32>>> {
    let auto = build.graph_bs.contains(&GraphBs::Auto);
    if auto && build.graph_bs.len() > 1 {
        bail!("--graph-bs auto chooses the whole list; leave the numbers out");
    }
    if auto && build.max_running_requests.is_none() {
        bail!("--graph-bs auto chooses sizes up to --max-running-requests; give that too");
    }
    let AutoArgs { graph_bs_memory, graph_bs_histogram, graph_bs_times, .. } = &build.auto;
    let given = [
        (graph_bs_memory.is_some(), "--graph-bs-memory"),
        (graph_bs_histogram.is_some(), "--graph-bs-histogram"),
        (graph_bs_times.is_some(), "--graph-bs-times"),
    ];
    if let Some((_, flag)) = given.into_iter().find(|&(given, _)| given && !auto) {
        bail!("{flag} is for --graph-bs auto; give that too, or drop it");
    }
    let size = |s: &GraphBs| match s {
        GraphBs::Auto => None,
        GraphBs::Size(n) => Some(*n),
    };
    Ok(build.graph_bs.iter().map(size).collect())
}

/// What the choice depends on beside the options and the checkpoint: contents of the files named.
///
/// # Errors
/// When one cannot be read.
pub(crate) fn inputs(build: &BuildArgs) -> anyhow::Result<String> {
    let AutoArgs { graph_bs_histogram, graph_bs_times, .. } = &build.auto;
    let histogram = graph_bs_histogram.as_deref().map(read_histogram).transpose()?;
    let times = graph_bs_times.as_deref().map(read_times).transpose()?;
    Ok(format!("{histogram:?} {times:?}"))
}

/// What the model and the target have to say.
pub(crate) struct Facts {
    pub(crate) work: StepWork,
    pub(crate) rates: Rates,
    /// Tokens of the rows in `work`.
    pub(crate) context: u32,
    /// What the plans of one size take and how many of them the device has room for; a function since
    /// finding out takes as long as planning.
    pub(crate) size: Option<(SizeCost, Option<u64>)>,
}

/// Chooses the sizes of `options`, which must name its ceiling, and records why.
///
/// # Errors
/// When a file of figures cannot be read.
pub(crate) fn choose(
    args: &AutoArgs,
    options: &mut Options,
    facts: Facts,
) -> anyhow::Result<Choice> {
    let ceiling = options.max_running_requests.context("--graph-bs auto needs a ceiling")?;
    let (weights, histogram) = match &args.graph_bs_histogram {
        Some(source) => (read_histogram(source)?.weights(ceiling), source.clone()),
        None => (vec![1.0; ceiling as usize], format!("each of 1 to {ceiling} as often")),
    };
    let Facts { work, rates, context, size } = facts;
    let measured = args.graph_bs_times.as_deref().map(read_times).transpose()?;
    let times = Times { measured: measured.unwrap_or_default(), work: &work, rates };
    let seconds: Vec<f64> = (1..=ceiling).map(|n| times.seconds(n)).collect();

    let mut limit = (args.graph_bs_limit, "--graph-bs-limit");
    if let Some((cost, room)) = size {
        let by_memory = args.graph_bs_memory.map(|bytes| bytes / cost.plan_bytes.max(1));
        for (most, why) in
            [(by_memory, "--graph-bs-memory"), (room, "streams and events of the device")]
        {
            match most {
                Some(most) if most < u64::from(limit.0) => limit = (most.max(1) as u32, why),
                _ => {}
            }
        }
    }
    let load = Load { seconds: &seconds, weights: &weights };
    let best = load.best(limit.0 as usize + 1, args.graph_bs_multiple_of);
    let SizeList { sizes, seconds: expected } = best[best.len().min(limit.0 as usize) - 1].clone();
    // With fewer sizes than allowed, the neighbours are those of the list, not of the limit.
    let count = sizes.len();
    let every: Vec<u32> = (1..=ceiling).collect();
    let choice = Choice {
        ceiling,
        limit: limit.0,
        limited_by: limit.1.to_owned(),
        multiple_of: args.graph_bs_multiple_of,
        histogram,
        times: args.graph_bs_times.clone(),
        work,
        rates,
        context,
        every_size_seconds: load.expected(&every),
        fewer: count.checked_sub(2).map(|i| best[i].clone().into()),
        more: best.get(count).filter(|l| l.sizes.len() > count).map(|l| l.clone().into()),
        sizes,
        expected_seconds: expected,
    };
    options.graph_bs = choice.sizes.clone();
    options.config.insert(choice::KEY.to_owned(), serde_json::to_value(&choice)?);
    Ok(choice)
}
