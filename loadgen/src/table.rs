//! The table, in the standard client's layout, and one below it with what that client has not.

use crate::{
    metrics::{Latency, Metrics},
    options::ServingArgs,
    socket::SocketMetrics,
};
use std::{
    fmt::Display,
    io::{self, Write},
};

const WIDTH: usize = 50;

struct Table<'a>(&'a mut dyn Write);

impl Table<'_> {
    fn title(&mut self, title: &str) -> io::Result<()> {
        writeln!(self.0, "{title:=^WIDTH$}")
    }

    fn section(&mut self, title: &str) -> io::Result<()> {
        writeln!(self.0, "{title:-^WIDTH$}")
    }

    fn row(&mut self, label: &str, value: impl Display) -> io::Result<()> {
        writeln!(self.0, "{label:<40} {:<10}", value.to_string())
    }

    fn number(&mut self, label: &str, value: f64) -> io::Result<()> {
        self.row(label, format_args!("{value:.2}"))
    }

    fn counted(&mut self, label: &str, value: Option<impl Display>) -> io::Result<()> {
        match value {
            Some(value) => self.row(label, value),
            None => self.row(label, "n/a"),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.title("")
    }
}

/// Prints the standard client's table.
pub(crate) fn print(out: &mut dyn Write, args: &ServingArgs, m: &Metrics) -> io::Result<()> {
    let mut t = Table(out);
    writeln!(t.0)?;
    t.title(" Serving Benchmark Result ")?;
    t.row("Backend:", args.backend.name())?;
    t.row("Traffic request rate:", format_args!("{:?}", args.request_rate))?;
    match args.max_concurrency {
        Some(most) => t.row("Max request concurrency:", most)?,
        None => t.row("Max request concurrency:", "not set")?,
    }
    t.row("Successful requests:", m.completed)?;
    t.number("Benchmark duration (s):", m.duration)?;
    t.row("Total input tokens:", m.total_input)?;
    t.row("Total input text tokens:", m.total_input)?;
    t.row("Total input vision tokens:", 0)?;
    t.row("Total generated tokens:", m.total_output)?;
    t.counted("Total generated tokens (retokenized):", m.total_output_retokenized)?;
    t.number("Request throughput (req/s):", m.request_throughput)?;
    t.number("Input token throughput (tok/s):", m.input_throughput)?;
    t.number("Output token throughput (tok/s):", m.output_throughput)?;
    t.number("Peak output token throughput (tok/s):", m.max_output_tokens_per_s)?;
    t.row("Peak concurrent requests:", m.max_concurrent_requests)?;
    t.number("Total token throughput (tok/s):", m.total_throughput)?;
    t.number("Concurrency:", m.concurrency)?;
    if let Some(accepted) = m.accept_length.filter(|&length| length > 0.0) {
        t.number("Accept length:", accepted)?;
    }
    t.section("End-to-End Latency")?;
    t.number("Mean E2E Latency (ms):", m.e2e.mean)?;
    t.number("Median E2E Latency (ms):", m.e2e.median)?;
    let mut three = |title: &str, name: &str, times: Latency| -> io::Result<()> {
        t.section(title)?;
        t.number(&format!("Mean {name} (ms):"), times.mean)?;
        t.number(&format!("Median {name} (ms):"), times.median)?;
        if name == "ITL" {
            t.number(&format!("P95 {name} (ms):"), times.p95)?;
        }
        t.number(&format!("P99 {name} (ms):"), times.p99)
    };
    three("Time to First Token", "TTFT", m.ttft)?;
    three("Time per Output Token (excl. 1st token)", "TPOT", m.tpot)?;
    three("Inter-Token Latency", "ITL", m.itl)?;
    t.number("Max ITL (ms):", m.itl.max)?;
    t.end()
}

/// Prints what the socket saw.
pub(crate) fn print_socket(out: &mut dyn Write, s: &SocketMetrics) -> io::Result<()> {
    let mut t = Table(out);
    t.title(" Seen at the Socket ")?;
    t.row("Connection errors:", s.connection_errors)?;
    t.row("HTTP errors:", s.http_errors)?;
    t.row("Broken answers:", s.stream_errors)?;
    t.row("Answers without text:", s.empty_answers)?;
    t.number("Mean time to connect (ms):", s.connect.mean)?;
    t.number("Median time to first byte (ms):", s.first_byte.median)?;
    t.number("P99 time to first byte (ms):", s.first_byte.p99)?;
    t.number("Median gap between reads (ms):", s.gap.median)?;
    t.number("P99 gap between reads (ms):", s.gap.p99)?;
    t.number("Max gap between reads (ms):", s.gap.max)?;
    t.number("Tokens a read:", s.tokens_per_read)?;
    t.row("Bytes received:", s.bytes)?;
    t.counted("Input tokens by the server:", s.prompt_tokens)?;
    t.counted("Cached of these:", s.cached_tokens)?;
    t.counted("Generated tokens by the server:", s.completion_tokens)?;
    t.section("Cost of this client")?;
    t.number("Processor time (% of a core):", s.cost.percent())?;
    t.number("P99 lag behind the socket (us):", s.lag.p99 * 1e3)?;
    t.number("Max lag behind the socket (us):", s.lag.max * 1e3)?;
    t.number("P99 lateness of requests (ms):", s.late.p99)?;
    t.end()
}
