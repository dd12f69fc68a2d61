//! What is known of a request when it has been answered: one line in the log.

use crate::{
    app::AppState,
    generation::{Counts, End},
    options::LogRequests,
    traces::Trace,
};
use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    middleware::Next,
    response::Response,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Names a request in the log and in the answer.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest name a client may give, in bytes.
const MAX_ID_BYTES: usize = 128;
/// The longest path in the log, in bytes.
const MAX_PATH_BYTES: usize = 256;
/// Paths that are asked for all the time. They are logged for debugging only, and not traced.
const PROBES: [&str; 6] =
    ["/health", "/ready", "/health_generate", "/ping", "/metrics", "/get_load"];
/// Status of a request whose client left before the answer began.
const CLIENT_LEFT: u16 = 499;

tokio::task_local! {
    static CURRENT: Arc<Record>;
}

/// One request. When the last owner drops it, it is logged.
pub(crate) struct Record {
    id: HeaderValue,
    method: Method,
    path: String,
    started: Instant,
    level: LogRequests,
    trace: Option<Trace>,
    facts: Mutex<Facts>,
}

/// What is found out on the way.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) status: Option<u16>,
    pub(crate) counts: Option<Counts>,
    /// From the beginning of the request until its choices waited for room.
    pub(crate) arrived: Option<Duration>,
    /// The longest wait of a choice.
    pub(crate) queued: Option<Duration>,
    pub(crate) first_token: Option<Duration>,
    pub(crate) finish: Option<&'static str>,
    pub(crate) error: Option<String>,
}

/// Names the request, answers it and sees to it that it is logged.
pub(crate) async fn record(
    State(AppState(app)): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let id = given_id(request.headers()).unwrap_or_else(|| {
        HeaderValue::from_str(&app.unique_name()).expect("hexadecimal digits are a header")
    });
    let mut path = request.uri().path().to_owned();
    // A path is ASCII.
    path.truncate(MAX_PATH_BYTES);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let record = Arc::new(Record {
        id: id.clone(),
        method: request.method().clone(),
        path,
        started: Instant::now(),
        level: app.options.log_requests,
        trace: Some(&request)
            .filter(|r| !is_probe(r.uri().path()))
            .and_then(|r| Trace::of(&app, r)),
        facts: Mutex::default(),
    });
    let mut response = CURRENT.scope(Arc::clone(&record), next.run(request)).await;
    let status = response.status().as_u16();
    app.metrics.count_response(route.as_ref().map_or("other", MatchedPath::as_str), status);
    record.change(|facts| facts.status = Some(status));
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn is_probe(path: &str) -> bool {
    PROBES.contains(&path)
}

/// The client's name of the request, if it is short and harmless.
fn given_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(&REQUEST_ID)?;
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=".contains(b);
    let bytes = id.as_bytes();
    let is_good = (1..=MAX_ID_BYTES).contains(&bytes.len()) && bytes.iter().all(is_plain);
    is_good.then(|| id.clone())
}

impl Record {
    /// The request that this task answers.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Choices are submitted.
    pub(crate) fn arrive(&self) {
        let elapsed = self.started.elapsed();
        self.change(|facts| {
            facts.arrived.get_or_insert(elapsed);
        });
    }

    /// A choice got room after it had waited for so long.
    pub(crate) fn start(&self, queued: Duration) {
        self.change(|facts| facts.queued = facts.queued.max(Some(queued)));
    }

    /// The first token of any choice came.
    pub(crate) fn first_token(&self) {
        let elapsed = self.started.elapsed();
        self.change(|facts| {
            facts.first_token.get_or_insert(elapsed);
        });
    }

    /// A choice ended.
    pub(crate) fn end(&self, end: &End) {
        self.change(|facts| {
            let (finish, error) = match end {
                End::StopToken(_) | End::StopText(_) | End::Complete => ("stop", None),
                End::Length => ("length", None),
                End::Cancelled => ("abort", None),
                End::Failed(why) => ("error", Some(why.clone())),
            };
            facts.finish = Some(finish);
            facts.error = facts.error.take().or(error.map(|error| error.to_string()));
        });
    }

    /// A response is over: `counts` of all its choices, `is_whole` if all of them ended.
    pub(crate) fn close(&self, counts: Counts, is_whole: bool) {
        self.change(|facts| {
            facts.counts = Some(counts);
            if !is_whole && facts.error.is_none() {
                facts.finish = Some("abort");
                facts.error = Some("the client left".into());
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let facts = self.facts.get_mut().unwrap_or_else(PoisonError::into_inner);
        let status = facts.status.unwrap_or(CLIENT_LEFT);
        if let Some(trace) = &self.trace {
            let name = format!("{} {}", self.method, self.path);
            trace.end(name, &self.id, facts, status, self.started.elapsed());
        }
        let is_failure = status >= 500 || facts.finish == Some("error");
        let is_error = status >= 400 || facts.error.is_some();
        if self.level == LogRequests::None || (self.level == LogRequests::Errors && !is_error) {
            return;
        }
        let ms = |time: Duration| (time.as_secs_f64() * 1e5).round() / 1e2;
        let (counts, first_token) = (facts.counts, facts.first_token.map(ms));
        // A retraction is rare, and then worth a field.
        let retractions = counts.map(|c| c.retractions).filter(|&n| n > 0);
        let request_id = self.id.to_str().unwrap_or_default();
        // A level is part of the call.
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    request_id,
                    method = self.method.as_str(),
                    path = self.path,
                    status,
                    prompt_tokens = counts.map(|c| c.prompt_tokens),
                    completion_tokens = counts.map(|c| c.completion_tokens),
                    cached_tokens = counts.map(|c| c.cached_tokens),
                    retractions,
                    queued_ms = facts.queued.map(ms),
                    ttft_ms = first_token,
                    total_ms = ms(self.started.elapsed()),
                    finish_reason = facts.finish,
                    error = facts.error,
                    "request"
                )
            };
        }
        match (is_failure, is_probe(&self.path)) {
            (true, false) => log!(warn),
            (false, false) => log!(info),
            (_, true) => log!(debug),
        }
    }
}
