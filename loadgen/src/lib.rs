//! A load generator for serving engines: what the field's standard Python client measures, with its
//! options, formulas and table, and what that client is too slow to see.
//!
//! [`run`] asks the server what it serves, makes prompts, warms up, sends requests at the asked rate
//! and prints the table. One thread does all of it; the time of a token is when its bytes left the
//! socket, however long parsing takes.

#![forbid(unsafe_code)]

mod answer;
mod client;
mod connection;
mod dataset;
mod endpoint;
mod error;
mod metrics;
mod options;
mod output;
mod pace;
mod payload;
mod random;
mod record;
mod run;
mod socket;
mod statistics;
mod table;
mod tokenizer;

pub use client::ClientCost;
pub use error::BenchError;
pub use metrics::{Latency, Measured, Metrics};
pub use options::{ApiBackend, DatasetName, ServingArgs, hyphenate};
pub use output::{Failure, FailureKind, Output, SocketTimes, Usage};
pub use run::{Chat, LoadChat, Report, run};
pub use socket::SocketMetrics;
