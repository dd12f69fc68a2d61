//! What ends a benchmark before its results.

use std::{io, path::PathBuf};

/// What ends a benchmark before its results.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option cannot be used.
    #[error("--{option} {problem}")]
    Option {
        /// Its name, without hyphens before it.
        option: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Nobody answers there.
    #[error(
        "no server at {url}: {source}; start one, or name another with `--host` and `--port` or `--base-url`"
    )]
    NoServer {
        /// Where it was looked for.
        url: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A question about the server was not answered.
    #[error("{url}: {why}")]
    Question {
        /// What was asked.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// A file cannot be read, or is not what it should be.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// No request of the warm-up succeeded.
    #[error(
        "the warm-up failed: {0}; check the options with one request, or skip it with `--warmup-requests 0`"
    )]
    WarmUp(String),
    /// The results are printed and some requests are not among them.
    #[error("{failed} of {all} requests failed; the first: {first}")]
    Failed {
        /// How many.
        failed: usize,
        /// Of how many.
        all: usize,
        /// Why the first of them did.
        first: String,
    },
    /// The results cannot be printed.
    #[error("cannot print the results: {0}")]
    Print(#[source] io::Error),
    /// The machine lacks something.
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
}

impl BenchError {
    pub(crate) fn option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::Option { option, problem: problem.into() }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, why: impl ToString) -> Self {
        Self::File { path: path.into(), why: why.to_string() }
    }
}
