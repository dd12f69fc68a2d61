//! How the server is run.

use crate::parse::{ParserOption, ReasoningFormat, ToolFormat};
use serde::Serialize;
use std::{num::NonZeroUsize, time::Duration};

/// Where sampling values come from that a request of the OpenAI endpoints leaves out. `/generate`
/// always uses the API's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SamplingDefaults {
    /// The checkpoint's `generation_config.json`, where it asks for sampling.
    #[default]
    Model,
    /// The API: temperature 1, nothing cut off.
    OpenAi,
}

/// Which requests get a line in the log when they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogRequests {
    /// None.
    None,
    /// Those that were refused, failed or abandoned.
    Errors,
    /// All; probes at the level for debugging.
    #[default]
    All,
}

/// How the server is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on.
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Key that clients must send; `None` lets everyone in.
    pub api_key: Option<String>,
    /// Name of the model as clients see it; `None` takes the artifact's.
    pub served_model_name: Option<String>,
    /// Tokens between two chunks of a stream; the first and the last token are sent at once.
    pub stream_interval: NonZeroUsize,
    /// Where sampling values come from that a request leaves out.
    pub sampling_defaults: SamplingDefaults,
    /// How tool calls are written.
    pub tool_call_parser: ParserOption<ToolFormat>,
    /// How reasoning is written.
    pub reasoning_parser: ParserOption<ReasoningFormat>,
    /// How long running requests may take to finish after a signal to stop.
    pub drain_timeout: Duration,
    /// Origins whose pages may call, `*` for all; browsers keep others out.
    pub cors_allow_origins: Vec<String>,
    /// The longest request body in bytes.
    pub max_body_bytes: usize,
    /// The most connections; further ones wait to be accepted.
    pub max_connections: NonZeroUsize,
    /// How long a connection may take to send the head of a request, and how long it may be idle
    /// between two.
    pub header_timeout: Duration,
    /// How long a connection may make no progress while it sends a body or is to take an answer.
    pub stall_timeout: Duration,
    /// How much of a response may wait for its client in bytes, beyond what is on the way; the
    /// response ends as failed when it is more.
    pub max_unread_bytes: usize,
    /// How long a step of the engine may take before the server says that it is stuck; `None` waits
    /// for ever.
    pub watchdog_timeout: Option<Duration>,
    /// Where traces of requests are sent, as [`crate::otlp_traces_url`] spells it.
    pub otlp_traces_url: Option<String>,
    /// Which requests get a line in the log.
    pub log_requests: LogRequests,
    /// Threads that serve connections.
    pub worker_threads: NonZeroUsize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            api_key: None,
            served_model_name: None,
            stream_interval: NonZeroUsize::MIN,
            sampling_defaults: SamplingDefaults::default(),
            tool_call_parser: ParserOption::Auto,
            reasoning_parser: ParserOption::Auto,
            drain_timeout: Duration::from_secs(30),
            cors_allow_origins: Vec::new(),
            max_body_bytes: 64 << 20,
            max_connections: const { NonZeroUsize::new(4096).expect("not 0") },
            header_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            max_unread_bytes: 4 << 20,
            watchdog_timeout: Some(Duration::from_secs(300)),
            otlp_traces_url: None,
            log_requests: LogRequests::All,
            worker_threads: NonZeroUsize::MIN,
        }
    }
}
