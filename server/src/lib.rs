//! The HTTP server: OpenAI endpoints and the `/generate` family over an engine.
//!
//! A handler reads a request field by field, turns text into tokens, submits, and writes what the
//! engine sends back; it holds no lock and does no inference. [`router()`] is a plain service, so
//! tests call it without a port; [`serve()`] and [`serve_blocking`] put it on one.

#![forbid(unsafe_code)]

mod abort;
mod access;
mod app;
mod auth;
mod backend;
mod connections;
mod control;
mod cors;
mod error;
mod fields;
mod generate;
mod generation;
mod grammar;
mod info;
mod load;
mod metrics;
mod model;
mod openai;
mod options;
mod output;
mod page;
mod params;
mod parse;
mod prompt;
mod router;
mod serve;
mod sink;
mod sse;
mod text;
mod tokenize;
mod traces;
mod watchdog;

pub use app::AppState;
pub use backend::Backend;
pub use model::{GenerationDefaults, Model, ModelError, ModelFiles, ModelInfo};
pub use options::{LogRequests, SamplingDefaults, ServerOptions};
pub use parse::{ParserOption, ReasoningFormat, ToolFormat, UnknownParser};
pub use router::{Route, router, routes};
pub use serve::{ServeError, listen, serve, serve_blocking, serve_until};
pub use traces::otlp_traces_url;

pub(crate) use error::ApiError;
