//! `from-sglang`: a launch line of SGLang in our terms.

mod argparse;
mod flags;
mod ours;
#[cfg(test)]
mod page;
mod script;
mod shell;
mod show;
mod table;
#[cfg(test)]
mod tests;
mod translate;
mod variables;

use crate::target;
use anyhow::Context;
use clap::{Args, builder::PossibleValuesParser};
use script::Script;
use shell::Word;
use std::{
    io::{self, Read, Write},
    path::PathBuf,
};
use translate::{Translation, translate};

/// Options of `from-sglang`.
#[derive(Clone, Debug, Args)]
pub struct FromSglangArgs {
    /// A script with launch lines; `-` reads standard input, as does leaving out both this and a
    /// line.
    #[arg(long, value_name = "FILE", conflicts_with = "line")]
    pub file: Option<PathBuf>,
    /// What to compile for [default: ascend910_93 where the line is for an NPU, else cpu].
    #[arg(long, value_parser = PossibleValuesParser::new(target::names()))]
    pub target: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// A launch line, with assignments of environment variables before it.
    #[arg(value_name = "LINE", last = true)]
    pub line: Vec<String>,
}

/// There is no launch line in what was given.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}: no launch line of SGLang; expected `python -m sglang.launch_server ..`, `sglang serve ..` or \
     `python -m sglang_router.launch_router ..`"
)]
pub struct NoLaunchLine(String);

/// Prints the commands.
///
/// # Errors
/// [`NoLaunchLine`], or when the script cannot be read.
pub(crate) fn from_sglang(args: &FromSglangArgs) -> anyhow::Result<()> {
    let (from, text) = match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string());
            (path.display().to_string(), text?)
        }
        None if !args.line.is_empty() => {
            let words = args.line.iter().map(|word| Word::literal(word).raw);
            ("the command line".to_owned(), words.collect::<Vec<_>>().join(" "))
        }
        _ => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("standard input")?;
            ("standard input".to_owned(), text)
        }
    };
    let (script, translations) = translated(&text, args.target.as_deref());
    if translations.is_empty() {
        return Err(NoLaunchLine(from).into());
    }
    let shown = if args.json {
        let value = show::json(&script, &translations);
        format!("{}\n", serde_json::to_string_pretty(&value)?)
    } else {
        show::text(&script, &translations)
    };
    write!(io::stdout(), "{shown}")?;
    Ok(())
}

fn translated(text: &str, target: Option<&str>) -> (Script, Vec<Translation>) {
    let script = script::read(text);
    let translations = script.launches.iter().map(|l| translate(l, target)).collect();
    (script, translations)
}
