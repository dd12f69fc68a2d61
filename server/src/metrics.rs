//! `GET /metrics`, in Prometheus' text format.

mod exposition;
mod histogram;

use crate::app::{App, AppState};
use axum::{
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use exposition::Exposition;
use histogram::Histogram;
use runtime::Stats;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Upper bounds in seconds, from a fast step on a small model to a long wait in the queue.
const FIRST_TOKEN_BOUNDS: &[f64] = &[
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const TOKEN_GAP_BOUNDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08,
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0,
];
const REQUEST_BOUNDS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0,
    200.0, 400.0,
];

/// Times of responses, as this server sees them.
pub(crate) struct Latencies {
    first_token: Histogram,
    token_gap: Histogram,
    request: Histogram,
    stop_texts: AtomicU64,
    cached_tokens: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            first_token: Histogram::new(FIRST_TOKEN_BOUNDS),
            token_gap: Histogram::new(TOKEN_GAP_BOUNDS),
            request: Histogram::new(REQUEST_BOUNDS),
            stop_texts: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
        }
    }
}

impl Latencies {
    /// A token came now; `last` is when the one before it did.
    pub(crate) fn token(&self, arrival: Instant, last: &mut Option<Instant>) {
        let now = Instant::now();
        match last.replace(now) {
            None => self.first_token.observe(now - arrival),
            Some(before) => self.token_gap.observe(now - before),
        }
    }

    /// An answer is complete.
    pub(crate) fn end(&self, latency: Duration, cached_tokens: usize) {
        self.request.observe(latency);
        self.cached_tokens.fetch_add(cached_tokens as u64, Relaxed);
    }

    /// An answer ended at a stop string. The engine, which does not know those, counts it as
    /// aborted.
    pub(crate) fn count_stop_text(&self) {
        self.stop_texts.fetch_add(1, Relaxed);
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(AppState(app)): State<AppState>) -> Response {
    let text = expose(&app, &app.engine.stats());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn expose(app: &App, stats: &Stats) -> String {
    let mut out = Exposition::new(&app.model.name);
    let used = stats.total_blocks.saturating_sub(stats.free_blocks);
    let usage = used as f64 / stats.total_blocks.max(1) as f64;
    out.gauge("sglang:num_running_reqs", "Requests that are computed.", stats.running as f64);
    out.gauge("vllm:num_requests_running", "Requests that are computed.", stats.running as f64);
    out.gauge("sglang:num_queue_reqs", "Requests that wait.", stats.waiting as f64);
    out.gauge("vllm:num_requests_waiting", "Requests that wait.", stats.waiting as f64);
    out.gauge("sglang:token_usage", "Used share of the KV memory.", usage);
    out.gauge("vllm:kv_cache_usage_perc", "Used share of the KV memory.", usage);
    let used_tokens = (used * stats.block_tokens) as f64;
    out.gauge("sglang:num_used_tokens", "Tokens of used KV blocks.", used_tokens);
    let throughput = stats.gen_throughput;
    out.gauge("sglang:gen_throughput", "Generated tokens per second.", throughput);
    counters(&mut out, app, stats);
    latencies(&mut out, &app.latencies);
    buckets(&mut out, stats);
    out.finish()
}

fn counters(out: &mut Exposition, app: &App, stats: &Stats) {
    // Answers that ended at a stop string were aborted in the engine's eyes only.
    let stop_texts = app.latencies.stop_texts.load(Relaxed).min(stats.requests_aborted_total);
    let aborted = stats.requests_aborted_total - stop_texts;
    let finished = stats.requests_finished_total + stop_texts;
    let cached = app.latencies.cached_tokens.load(Relaxed);
    for (names, help, value) in [
        (
            &["sglang:prompt_tokens_total", "vllm:prompt_tokens_total"][..],
            "Prompt tokens of admitted requests.",
            stats.prompt_tokens_total,
        ),
        (
            &["sglang:generation_tokens_total", "vllm:generation_tokens_total"],
            "Generated tokens.",
            stats.generation_tokens_total,
        ),
        (&["sglang:cached_tokens_total"], "Prompt tokens taken from a cache.", cached),
        (&["sglang:num_requests_total"], "Requests that have ended.", finished + aborted),
        (&["vllm:request_success_total"], "Requests that ended with an answer.", finished),
        (
            &["sglang:num_aborted_requests_total"],
            "Requests whose client left or that could not be served.",
            aborted,
        ),
        (
            &["sglang:num_retractions_total", "vllm:num_preemptions_total"],
            "Requests that gave their KV blocks back and were computed again.",
            stats.preemptions_total,
        ),
        (
            &["precast:requests_rejected_total"],
            "Requests refused because the queue was full.",
            stats.requests_rejected_total,
        ),
        (&["precast:prefill_steps_total"], "Prefill chunks computed.", stats.prefill_steps_total),
        (&["precast:decode_steps_total"], "Decode steps computed.", stats.decode_steps_total),
    ] {
        for name in names {
            out.counter(name, help, value);
        }
    }
}

fn latencies(out: &mut Exposition, latencies: &Latencies) {
    for (suffix, help, histogram) in [
        ("time_to_first_token_seconds", "From request to first token.", &latencies.first_token),
        ("inter_token_latency_seconds", "Between two tokens.", &latencies.token_gap),
        ("e2e_request_latency_seconds", "From request to last token.", &latencies.request),
    ] {
        let snapshot = histogram.snapshot();
        out.histogram(&format!("sglang:{suffix}"), help, &snapshot);
        out.histogram(&format!("vllm:{suffix}"), help, &snapshot);
    }
}

fn buckets(out: &mut Exposition, stats: &Stats) {
    let labels: Vec<String> = stats
        .buckets
        .iter()
        .map(|bucket| {
            let (phase, rows, context) = (bucket.phase, bucket.rows, bucket.context_tokens);
            format!("phase=\"{phase}\",bucket=\"{rows}\",context=\"{context}\"")
        })
        .collect();
    let replays = || stats.buckets.iter().map(|bucket| bucket.replays);
    let padded = || stats.buckets.iter().map(|bucket| bucket.padded_rows);
    let help = "Replays of a captured graph.";
    out.labelled_counter("precast:graph_replays_total", help, labels.iter().zip(replays()));
    let help = "Rows of those replays that were padding.";
    out.labelled_counter("precast:graph_padded_rows_total", help, labels.iter().zip(padded()));
}
