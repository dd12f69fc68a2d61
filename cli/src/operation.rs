//! Options of `serve` and `run` about who may call, how much, and when the server gives up.

use clap::{Args, ValueEnum};
use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

/// How the server is operated.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Operation")]
pub struct OperationArgs {
    /// Key that clients must send as `Authorization: Bearer KEY`.
    #[arg(long, value_name = "KEY", env = "PRECAST_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Origin whose pages may call, `*` for all; may be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub cors_allow_origin: Vec<String>,
    /// The longest request body in bytes; a longer one is answered 413.
    #[arg(long, value_name = "BYTES", default_value = "67108864")]
    pub max_body_bytes: NonZeroUsize,
    /// The most connections; further ones wait to be accepted.
    #[arg(long, value_name = "N", default_value = "4096")]
    pub max_connections: NonZeroUsize,
    /// How long running requests may take to finish after a signal to stop, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: u64,
    /// How long a connection may take to send the head of a request, and how long it may be idle between
    /// two, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    pub header_timeout: NonZeroU64,
    /// How long a connection may make no progress while it sends a body or is to take an answer, in
    /// seconds.
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    pub stall_timeout: NonZeroU64,
    /// How long a step of the engine may take before its requests fail, in seconds; 0 waits for ever.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    pub watchdog_timeout: f64,
    /// OpenTelemetry collector that gets traces of requests by OTLP over HTTP: HOST:PORT, or a URL.
    #[arg(long, value_name = "URL", value_parser = server::otlp_traces_url)]
    pub otlp_traces_endpoint: Option<String>,
    /// Which requests get a line in the log when they end.
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        default_value_t = LogRequests::All,
        num_args = 0..=1,
        default_missing_value = "all"
    )]
    pub log_requests: LogRequests,
}

/// Which requests get a line in the log when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogRequests {
    /// None.
    None,
    /// Those that were refused, failed or abandoned.
    Errors,
    /// All, probes at the level for debugging.
    All,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    let is_time = Duration::try_from_secs_f64(seconds).is_ok();
    if is_time { Ok(seconds) } else { Err("must be 0 or more".to_owned()) }
}

impl OperationArgs {
    /// The server's options with these.
    pub(crate) fn apply(&self, options: server::ServerOptions) -> server::ServerOptions {
        let watchdog = Duration::from_secs_f64(self.watchdog_timeout);
        server::ServerOptions {
            api_key: self.api_key.clone(),
            cors_allow_origins: self.cors_allow_origin.clone(),
            max_body_bytes: self.max_body_bytes.get(),
            max_connections: self.max_connections,
            drain_timeout: Duration::from_secs(self.drain_timeout),
            header_timeout: Duration::from_secs(self.header_timeout.get()),
            stall_timeout: Duration::from_secs(self.stall_timeout.get()),
            watchdog_timeout: Some(watchdog).filter(|timeout| !timeout.is_zero()),
            otlp_traces_url: self.otlp_traces_endpoint.clone(),
            log_requests: match self.log_requests {
                LogRequests::None => server::LogRequests::None,
                LogRequests::Errors => server::LogRequests::Errors,
                LogRequests::All => server::LogRequests::All,
            },
            ..options
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        operation: OperationArgs,
    }

    fn options(line: &str) -> Result<server::ServerOptions, clap::Error> {
        let only = Only::try_parse_from(["serve"].into_iter().chain(line.split_whitespace()))?;
        Ok(only.operation.apply(server::ServerOptions::default()))
    }

    #[test]
    fn the_defaults_are_the_servers() {
        let (here, there) = (options("").unwrap(), server::ServerOptions::default());
        assert_eq!(format!("{here:?}"), format!("{there:?}"));
    }

    #[test]
    fn flags_reach_the_server() {
        let line = "--cors-allow-origin http://a --cors-allow-origin http://b --drain-timeout 5 \
                    --watchdog-timeout 0.5 --max-connections 7 --log-requests errors --api-key k --header-timeout 9";
        let options = options(line).unwrap();
        assert_eq!(options.cors_allow_origins, ["http://a", "http://b"]);
        assert_eq!(options.drain_timeout, Duration::from_secs(5));
        assert_eq!(options.watchdog_timeout, Some(Duration::from_millis(500)));
        assert_eq!(options.max_connections.get(), 7);
        assert_eq!(options.header_timeout, Duration::from_secs(9));
        assert_eq!(options.log_requests, server::LogRequests::Errors);
        assert_eq!(options.api_key.as_deref(), Some("k"));
        let url = self::options("--otlp-traces-endpoint otel:99").unwrap();
        assert_eq!(url.otlp_traces_url.as_deref(), Some("http://otel:99/v1/traces"));
    }

    #[test]
    fn the_watchdog_can_be_off_and_not_negative() {
        assert_eq!(options("--watchdog-timeout 0").unwrap().watchdog_timeout, None);
        for wrong in [
            "--watchdog-timeout=-1",
            "--watchdog-timeout x",
            "--max-connections 0",
            "--otlp-traces-endpoint https://x",
        ] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
        let all = options("--log-requests --drain-timeout 1").unwrap().log_requests;
        assert_eq!(all, server::LogRequests::All);
    }
}
