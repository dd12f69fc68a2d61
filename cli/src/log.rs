//! Where messages go: stderr, as text or as JSON.

use crate::args::LogFormat;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Installs the log. `RUST_LOG` overrides the level, which is `info`.
pub(crate) fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Told on stderr, they would panic once nobody reads it, and end a server that runs well.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    // A second call, as tests make it, keeps the first log.
    let _ = match format {
        LogFormat::Json => log.json().try_init(),
        LogFormat::Text => log
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .without_time()
            .try_init(),
    };
}

/// Prints why a command failed: what, and every cause that the message before it leaves out.
pub(crate) fn failure(error: &anyhow::Error) {
    for line in explanation(error) {
        eprintln!("{line}");
    }
}

/// Whether a command failed only because nobody reads its output any more, as in `| head`.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

fn explanation(error: &anyhow::Error) -> Vec<String> {
    let mut last = error.to_string();
    let mut lines = vec![format!("error: {last}")];
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !last.contains(&cause) {
            lines.push(format!("  because: {cause}"));
            last = cause;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn causes_are_told_once() {
        let error = anyhow!("no room").context("cannot write x: no room").context("packing");
        assert_eq!(explanation(&error), ["error: packing", "  because: cannot write x: no room"]);
    }

    #[test]
    fn only_a_closed_pipe_passes_for_one() {
        use std::io::{Error, ErrorKind};
        assert!(is_closed_pipe(&Error::from(ErrorKind::BrokenPipe).into()));
        assert!(!is_closed_pipe(&Error::from(ErrorKind::StorageFull).into()));
        assert!(!is_closed_pipe(&anyhow!("Broken pipe")));
    }
}
