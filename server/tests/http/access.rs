//! Request ids, the line at the end of each request, other origins and content types.

use crate::{
    scripted::Scripted,
    support::{Answer, app_with, ids, request, saying, send},
};
use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode},
};
use precast_server::{LogRequests, ServerOptions};
use serde_json::{Value, json};
use std::{cell::RefCell, io::Write, sync::LazyLock};
use tower::ServiceExt;

thread_local! {
    /// What was logged on this thread, which is a test's own.
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct ThisThread;

impl Write for ThisThread {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| logged.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Installs the log. Every test does it before anything is logged.
pub(crate) fn install_log() {
    static INSTALLED: LazyLock<()> = LazyLock::new(|| {
        let log = tracing_subscriber::fmt().json().flatten_event(true);
        log.with_writer(|| ThisThread).init();
    });
    LazyLock::force(&INSTALLED);
}

/// What was logged so far, for tests that do all their work on their own thread.
pub(crate) fn log_lines() -> Vec<Value> {
    let text = LOGGED.with_borrow(|logged| String::from_utf8(logged.clone()).unwrap());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The lines about requests so far.
fn logged() -> Vec<Value> {
    log_lines().into_iter().filter(|line| line["message"] == "request").collect()
}

async fn with_id(app: &Router, id: &str) -> Answer {
    let mut request = request("/v1/completions", json!({"prompt": "Hi"}));
    request.headers_mut().insert("x-request-id", id.parse().unwrap());
    send(app, request).await
}

#[tokio::test]
async fn a_request_id_is_kept_if_harmless_and_made_if_not() {
    let (app, _) = saying("a");
    for id in ["abc-123", "trace/7:a_b.c+d=", &"x".repeat(128)] {
        assert_eq!(with_id(&app, id).await.headers["x-request-id"], *id);
    }
    let mut made = Vec::new();
    for id in ["a b", "\"}{", "", &"x".repeat(129)] {
        let answer = with_id(&app, id).await;
        assert_eq!(answer.status, StatusCode::OK);
        let id = answer.headers["x-request-id"].to_str().unwrap().to_owned();
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
        made.push(id);
    }
    made.sort();
    made.dedup();
    assert_eq!(made.len(), 4);
}

#[tokio::test]
async fn a_request_is_logged_when_it_ends() {
    let (app, _) = saying("abc");
    with_id(&app, "first").await;
    let body = json!({"prompt": "Hi", "stream": true, "n": 2, "max_tokens": 2});
    let stream = app.clone().oneshot(request("/v1/completions", body)).await.unwrap();
    assert_eq!(logged().len(), 1, "the stream has not been read");
    axum::body::to_bytes(stream.into_body(), usize::MAX).await.unwrap();
    send(&app, request("/v1/completions", json!({"prompt": 1}))).await;
    let logged = logged();
    assert_eq!(logged.len(), 3);
    let fields = |line: &Value| -> Vec<Value> {
        let names = [
            "method",
            "path",
            "status",
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
            "finish_reason",
        ];
        names.iter().map(|name| line[*name].clone()).collect()
    };
    let path = "/v1/completions";
    let prompt = ids("Hi").len();
    let answer = ids("abc").len() + 1;
    assert_eq!(logged[0]["request_id"], "first");
    let expected = json!(["POST", path, 200, prompt, answer, 0, "stop"]);
    assert_eq!(json!(fields(&logged[0])), expected);
    assert!(logged[0]["ttft_ms"].as_f64() <= logged[0]["total_ms"].as_f64());
    assert!(logged[0]["ttft_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(logged[0]["queued_ms"], 0.0);
    assert_eq!(logged[0].get("retractions"), None);
    let expected = json!(["POST", path, 200, 2 * prompt, 4, 0, "length"]);
    assert_eq!(json!(fields(&logged[1])), expected);
    assert_eq!((&logged[2]["status"], &logged[2]["level"]), (&json!(400), &json!("INFO")));
    assert_eq!(logged[2].get("completion_tokens"), None);
}

#[tokio::test]
async fn a_client_that_leaves_is_logged() {
    let engine = Scripted::holding().into_arc();
    let app = app_with(engine.clone(), ServerOptions::default());
    let body = json!({"prompt": "a", "stream": true});
    let stream = app.clone().oneshot(request("/v1/completions", body)).await.unwrap();
    engine.push(0, ids("a")[0], None);
    drop(stream);
    let whole = tokio::spawn(app.oneshot(request("/v1/completions", json!({"prompt": "a"}))));
    while engine.held.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    whole.abort();
    assert!(whole.await.is_err());
    let logged = logged();
    let facts: Vec<_> =
        logged.iter().map(|l| (&l["status"], &l["finish_reason"], &l["error"])).collect();
    let (abort, left) = (json!("abort"), json!("the client left"));
    assert_eq!(facts, [(&json!(200), &abort, &left), (&json!(499), &abort, &left)]);
}

#[tokio::test]
async fn logs_can_be_restricted() {
    for (log_requests, count) in
        [(LogRequests::All, 2), (LogRequests::Errors, 1), (LogRequests::None, 0)]
    {
        LOGGED.take();
        let options = ServerOptions { log_requests, ..ServerOptions::default() };
        let app = app_with(Scripted::answering(ids("a")).into_arc(), options);
        with_id(&app, "good").await;
        send(&app, request("/v1/completions", json!({}))).await;
        send(&app, Request::get("/health").body(Body::empty()).unwrap()).await;
        assert_eq!(logged().len(), count, "{log_requests:?}");
    }
}

async fn preflight(app: &Router, origin: &str) -> Answer {
    let request = Request::builder()
        .method(Method::OPTIONS)
        .uri("/v1/chat/completions")
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type")
        .body(Body::empty());
    send(app, request.unwrap()).await
}

#[tokio::test]
async fn pages_of_named_origins_may_call() {
    let with = |origins: &[&str]| ServerOptions {
        cors_allow_origins: origins.iter().map(|&origin| origin.into()).collect(),
        api_key: Some("secret".into()),
        ..ServerOptions::default()
    };
    let allowed = |answer: &Answer| {
        let origin = answer.headers.get("access-control-allow-origin");
        origin.map(|origin| origin.to_str().unwrap().to_owned())
    };
    let engine = || Scripted::answering(ids("a")).into_arc();
    let app = app_with(engine(), with(&[]));
    assert_eq!(allowed(&preflight(&app, "http://a").await), None);
    let app = app_with(engine(), with(&["http://a"]));
    let answer = preflight(&app, "http://a").await;
    assert_eq!((answer.status, allowed(&answer)), (StatusCode::OK, Some("http://a".into())));
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization,content-type");
    assert_eq!(allowed(&preflight(&app, "http://b").await), None);
    let app = app_with(engine(), with(&["*"]));
    assert_eq!(allowed(&preflight(&app, "http://b").await), Some("*".into()));
    // A refusal can be read by the page too.
    let mut refused = request("/v1/completions", json!({"prompt": "a"}));
    refused.headers_mut().insert("origin", "http://b".parse().unwrap());
    let refused = send(&app, refused).await;
    assert_eq!((refused.status, allowed(&refused)), (StatusCode::UNAUTHORIZED, Some("*".into())));
}

#[tokio::test]
async fn a_body_that_says_it_is_not_json_is_415() {
    let (app, _) = saying("a");
    for (kind, status) in [
        ("application/json", StatusCode::OK),
        ("application/json; charset=utf-8", StatusCode::OK),
        ("application/vnd.x+json", StatusCode::OK),
        ("application/x-www-form-urlencoded", StatusCode::OK),
        ("multipart/form-data; boundary=x", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("application/xml", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let mut request = request("/v1/completions", json!({"prompt": "a"}));
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        let answer = send(&app, request).await;
        assert_eq!(answer.status, status, "{kind}");
        if status != StatusCode::OK {
            assert_eq!(answer.json()["object"], "error");
        }
    }
}
