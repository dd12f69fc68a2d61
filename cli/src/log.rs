//! Where messages go: stderr, as text or as JSON.

use crate::args::LogFormat;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Installs the log. `RUST_LOG` overrides the level, which is `info`.
pub(crate) fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
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

/// Prints why a command failed: what, and every cause.
pub(crate) fn failure(error: &anyhow::Error) {
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
}
