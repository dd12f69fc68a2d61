//! What the standard client cannot see: the socket's side of the requests, and what this program
//! itself cost.

use crate::{
    client::ClientCost,
    metrics::Latency,
    output::{FailureKind, Output},
};

/// The socket's side of the requests. Of those that succeeded, but for the counts of failures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SocketMetrics {
    /// Connections that were refused, or ended before an answer began.
    pub connection_errors: usize,
    /// Answers with another status than 200.
    pub http_errors: usize,
    /// Answers that broke off, could not be read or ended with an error.
    pub stream_errors: usize,
    /// Answers that ended well without any text.
    pub empty_answers: usize,
    /// Time to open a connection.
    pub connect: Latency,
    /// Time from sending to the first byte of the answer.
    pub first_byte: Latency,
    /// Time between reads that brought bytes.
    pub gap: Latency,
    /// Tokens for each read that brought bytes after the first.
    pub tokens_per_read: f64,
    /// Bytes of the answers.
    pub bytes: u64,
    /// Tokens of prompts as the server counts them, where it does.
    pub prompt_tokens: Option<u64>,
    /// Of these, those that it did not compute again.
    pub cached_tokens: Option<u64>,
    /// Tokens of answers as the server counts them.
    pub completion_tokens: Option<u64>,
    /// From the arrival of bytes to when this program had dealt with them.
    pub lag: Latency,
    /// How much later than it could be a request was sent.
    pub late: Latency,
    /// What this program cost.
    pub cost: ClientCost,
}

impl SocketMetrics {
    /// The numbers.
    pub fn new(outputs: &[Output], cost: ClientCost) -> Self {
        let failures = |kind| {
            outputs.iter().filter(|o| o.failure.as_ref().is_some_and(|f| f.kind == kind)).count()
        };
        let done = || outputs.iter().filter(|o| o.failure.is_none());
        let times = |f: fn(&Output) -> f64| Latency::of(done().map(f).collect());
        let all = |f: fn(&Output) -> &[f32]| {
            Latency::of(done().flat_map(|o| f(o).iter().map(|&s| f64::from(s))).collect())
        };
        let sum =
            |f: fn(&Output) -> Option<u64>| done().filter_map(f).reduce(|sum, tokens| sum + tokens);
        let reads: usize = done().map(|o| o.socket.gaps.len()).sum();
        let tokens: usize = done().map(|o| o.output_len.saturating_sub(1)).sum();
        Self {
            connection_errors: failures(FailureKind::Connection),
            http_errors: failures(FailureKind::Status),
            stream_errors: failures(FailureKind::Stream),
            empty_answers: done().filter(|o| o.text.is_empty()).count(),
            connect: times(|o| o.socket.connect),
            first_byte: times(|o| o.socket.first_byte),
            gap: all(|o| &o.socket.gaps),
            tokens_per_read: if reads > 0 { tokens as f64 / reads as f64 } else { 0.0 },
            bytes: done().map(|o| o.socket.bytes).sum(),
            prompt_tokens: sum(|o| o.usage.prompt),
            cached_tokens: sum(|o| o.usage.cached),
            completion_tokens: sum(|o| o.usage.completion),
            lag: all(|o| &o.socket.lags),
            late: times(|o| o.socket.late),
            cost,
        }
    }
}
