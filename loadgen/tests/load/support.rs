//! Options and runs in few words.

use clap::{Args, Command, FromArgMatches};
use precast_loadgen::{BenchError, Report, ServingArgs, run};
use std::net::SocketAddr;

/// The options of a command line.
pub(crate) fn options(line: &str) -> ServingArgs {
    let command = ServingArgs::augment_args(Command::new("bench"));
    let words = std::iter::once("bench").chain(line.split_whitespace());
    ServingArgs::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
}

/// Runs against `address`; the report and what was printed.
pub(crate) fn bench(address: SocketAddr, line: &str) -> Result<(Report, String), BenchError> {
    let args = options(&format!("--base-url http://{address} {line}"));
    let chat = |_: &std::path::Path| -> Result<precast_loadgen::Chat, String> {
        Ok(Box::new(|text| Ok(format!("user: {text} assistant:"))))
    };
    let mut out = Vec::new();
    let report = run(&args, &chat, &mut out)?;
    Ok((report, String::from_utf8(out).unwrap()))
}

/// The value of a row.
pub(crate) fn row<'a>(table: &'a str, label: &str) -> &'a str {
    let line = table.lines().find(|line| line.starts_with(label));
    let line = line.unwrap_or_else(|| panic!("no row `{label}` in\n{table}"));
    // The layout that programs which read such tables rely on.
    assert_eq!(&line[40..41], " ", "{line}");
    assert!(line.len() >= 51, "{line}");
    line[41..].trim_end()
}
