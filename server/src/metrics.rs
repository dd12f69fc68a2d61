//! `GET /metrics`, in Prometheus' text format. `docs/metrics.md` lists what is there.

mod counted;
mod engine;
mod grammar;
mod page;
mod process;

use crate::app::{App, AppState};
use axum::{
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use page::Page;
use prometheus::{Encoder, Histogram, HistogramOpts, IntCounterVec, Opts, TextEncoder};
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
const QUEUE_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0,
    320.0,
];

/// What this server counts itself; the engine's counters are read when somebody asks.
pub(crate) struct Metrics {
    first_token: Histogram,
    token_gap: Histogram,
    request: Histogram,
    queue: Histogram,
    stop_texts: AtomicU64,
    responses: IntCounterVec,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = |name: &str, help: &str, bounds: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(bounds.to_vec());
            Histogram::with_opts(opts).expect("the bounds ascend")
        };
        let responses = Opts::new("precast:http_responses_total", "Responses by path and status.");
        Self {
            first_token: seconds(
                "sglang:time_to_first_token_seconds",
                "From request to first token.",
                FIRST_TOKEN_BOUNDS,
            ),
            token_gap: seconds(
                "sglang:inter_token_latency_seconds",
                "Between two tokens of an answer.",
                TOKEN_GAP_BOUNDS,
            ),
            request: seconds(
                "sglang:e2e_request_latency_seconds",
                "From request to last token.",
                REQUEST_BOUNDS,
            ),
            queue: seconds(
                "sglang:queue_time_seconds",
                "From request to its first room on the device.",
                QUEUE_BOUNDS,
            ),
            stop_texts: AtomicU64::new(0),
            responses: IntCounterVec::new(responses, &["path", "status"])
                .expect("the name is well formed"),
        }
    }
}

impl Metrics {
    /// A token came now; `last` is when the one before it did.
    pub(crate) fn token(&self, arrival: Instant, last: &mut Option<Instant>) {
        let now = Instant::now();
        match last.replace(now) {
            None => self.first_token.observe((now - arrival).as_secs_f64()),
            Some(before) => self.token_gap.observe((now - before).as_secs_f64()),
        }
    }

    /// A request got room after it had waited for so long.
    pub(crate) fn start(&self, queued: Duration) {
        self.queue.observe(queued.as_secs_f64());
    }

    /// An answer is complete.
    pub(crate) fn end(&self, latency: Duration) {
        self.request.observe(latency.as_secs_f64());
    }

    /// An answer ended at a stop string. The engine, which does not know those, counts it as
    /// aborted.
    pub(crate) fn count_stop_text(&self) {
        self.stop_texts.fetch_add(1, Relaxed);
    }

    /// A response begins. `path` is one of the router's, so that labels stay few.
    pub(crate) fn count_response(&self, path: &str, status: u16) {
        self.responses.with_label_values(&[path, &status.to_string()]).inc();
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(AppState(app)): State<AppState>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], expose(&app)).into_response()
}

fn expose(app: &App) -> Vec<u8> {
    let mut page = Page::new(&app.model.name);
    let own = &app.metrics;
    engine::expose(&mut page, &app.engine.stats(), own.stop_texts.load(Relaxed));
    grammar::expose(&mut page, &app.grammars.mask_times);
    engine::expose_startup(&mut page, &app.engine.startup());
    process::expose(&mut page);
    let dropped = app.traces.dropped();
    page.counter("precast:trace_spans_dropped_total", "Spans that no collector took.", dropped);
    for histogram in [&own.first_token, &own.token_gap, &own.request, &own.queue] {
        page.add(histogram.clone());
    }
    page.add(own.responses.clone());
    let mut text = Vec::new();
    TextEncoder::new().encode(&page.finish(), &mut text).expect("writing to memory cannot fail");
    text
}
