use crate::{
    scripted::Scripted,
    support::{EOS, app, app_with, get, ids, ok, post, request, saying, send},
};
use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use precast_server::ServerOptions;
use runtime::Finish;
use serde_json::json;
use std::sync::atomic::Ordering::SeqCst;
use tower::ServiceExt;

#[tokio::test]
async fn a_wrong_type_names_the_field() {
    let (app, _) = saying("a");
    let answer = post(&app, "/v1/completions", json!({"prompt": "a", "max_tokens": "x"})).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = answer.json();
    assert_eq!(error["object"], "error");
    assert_eq!(error["type"], "BadRequestError");
    assert_eq!(error["param"], "max_tokens");
    assert_eq!(error["code"], 400);
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("`max_tokens` is wrong: invalid type: string \"x\""), "{message}");
}

#[tokio::test]
async fn a_body_that_is_no_object_is_refused() {
    let (app, _) = saying("a");
    for body in ["", "{", "[]", "3", "{\"prompt\": \"a\"} x", "\u{0}"] {
        for path in ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"] {
            let request = Request::post(path).body(Body::from(body)).unwrap();
            let answer = send(&app, request).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body}");
            assert!(answer.text.contains("the body must be a JSON object"), "{}", answer.text);
        }
    }
}

#[tokio::test]
async fn json_that_is_deep_huge_or_no_text_is_refused() {
    let (app, _) = saying("a");
    let nested = |open: &str, close: &str, n: usize| open.repeat(n) + &close.repeat(n);
    let bodies: Vec<(Vec<u8>, &str)> = vec![
        (format!("{{\"prompt\": {}}}", nested("[", "]", 100_000)).into(), "recursion limit"),
        (format!("{{\"x\": {}}}", nested("{\"a\":[", "]}", 50_000)).into(), "recursion limit"),
        (nested("[", "", 1_000_000).into(), "the body must be a JSON object"),
        (b"{\"prompt\": \"a\", \"max_tokens\": 1e999}".into(), "number out of range"),
        (b"{\"prompt\": \"a\", \"max_tokens\": 99999999999999999999}".into(), "`max_tokens`"),
        (b"{\"prompt\": \"a\", \"max_tokens\": 18446744073709551615}".into(), "`max_tokens`"),
        (b"{\"prompt\": \"a\", \"temperature\": 1e308}".into(), "`temperature`"),
        (b"{\"prompt\": \"a\", \"seed\": 1e20}".into(), "`seed`"),
        (b"{\"prompt\": [4294967296]}".into(), "`prompt"),
        (b"{\"prompt\": \"\xff\xfe\"}".into(), "the body must be a JSON object"),
        (b"{\"prompt\": \"\xed\xa0\x80\"}".into(), "the body must be a JSON object"),
        (b"{\"prompt\": \"\\ud800\"}".into(), "the body must be a JSON object"),
        (b"\xef\xbb\xbf{\"prompt\": \"a\"}".into(), "the body must be a JSON object"),
        (b"{\"prompt\": \"a\", \"stop\": \"\x01\"}".into(), "the body must be a JSON object"),
    ];
    for (body, why) in bodies {
        let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let request = Request::post("/v1/completions").body(Body::from(body)).unwrap();
        let answer = send(&app, request).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{start}: {}", answer.text);
        assert!(answer.text.contains(why), "{start}: {}", answer.text);
        assert!(answer.text.len() < 1000, "{start}: {} bytes", answer.text.len());
    }
    // The same depth where any value may stand.
    let deep = |n: usize| nested("[", "]", n);
    for (n, status) in [(100, StatusCode::OK), (1000, StatusCode::BAD_REQUEST)] {
        let body = format!("{{\"prompt\": \"a\", \"metadata\": {}}}", deep(n));
        let request = Request::post("/v1/completions").body(Body::from(body)).unwrap();
        assert_eq!(send(&app, request).await.status, status, "{n}");
    }
}

#[tokio::test]
async fn a_prompt_must_fit() {
    let (app, engine) = saying("a");
    for (prompt, text) in [
        (json!(""), "the prompt is empty"),
        (json!(vec![1; 256]), "shorten the prompt"),
        (json!(vec![1; 300]), "the prompt has 300 tokens"),
    ] {
        let answer = post(&app, "/v1/completions", json!({"prompt": prompt})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert!(answer.json()["message"].as_str().unwrap().contains(text), "{}", answer.text);
    }
    assert!(engine.seen.lock().unwrap().is_empty());
    ok(&app, "/v1/completions", json!({"prompt": vec![1; 255]})).await;
    assert_eq!(engine.last_seen().max_tokens, 1);
}

#[tokio::test]
async fn a_long_body_is_413() {
    let (app, _) = saying("a");
    let body = format!("{{\"prompt\": \"{}\"}}", "a".repeat(64 << 20));
    let answer = send(&app, Request::post("/v1/completions").body(Body::from(body)).unwrap()).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.json()["code"], 413);
}

#[tokio::test]
async fn a_full_queue_is_429_and_says_when_to_come_back() {
    let engine = Scripted::holding().with_room(1).into_arc();
    let app = app(engine.clone());
    let body = json!({"prompt": "a", "stream": true});
    let first = app.clone().oneshot(request("/v1/completions", body.clone())).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let second = post(&app, "/v1/completions", body).await;
    assert_eq!(second.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(second.headers["retry-after"], "1");
    assert_eq!(second.json()["type"], "RateLimitError");
    let other = post(&app, "/generate", json!({"text": "a"})).await;
    assert_eq!(other.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(other.json()["error"]["message"].as_str().unwrap().contains("the queue is full"));
}

#[tokio::test]
async fn a_refused_batch_leaves_nothing_behind() {
    let engine = Scripted::holding().with_room(1).into_arc();
    let app = app(engine.clone());
    let answer = post(&app, "/v1/completions", json!({"prompt": ["a", "b"]})).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!engine.is_open(0));
}

#[tokio::test]
async fn a_draining_server_finishes_and_refuses() {
    let engine = Scripted::holding().into_arc();
    let state = precast_server::AppState::new(
        engine.clone(),
        crate::support::model(),
        ServerOptions::default(),
    );
    let app = precast_server::router(state.clone());
    let running = app.clone();
    let body = json!({"prompt": "a", "max_tokens": 3});
    let running = tokio::spawn(async move { ok(&running, "/v1/completions", body).await });
    while engine.held.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    state.drain();
    let refused = post(&app, "/v1/completions", json!({"prompt": "a"})).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(get(&app, "/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    engine.push(0, EOS, Some(Finish::Stop { token: EOS }));
    assert_eq!(running.await.unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn an_engine_that_dies_is_an_error_and_not_a_hang() {
    let engine = Scripted::holding().into_arc();
    let app = app(engine.clone());
    let whole = app.clone();
    let whole =
        tokio::spawn(async move { post(&whole, "/v1/completions", json!({"prompt": "a"})).await });
    let streamed = app.clone();
    let body = json!({"text": "a", "stream": true});
    let streamed = tokio::spawn(async move { post(&streamed, "/generate", body).await });
    while engine.held.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    engine.stopped.store(true, SeqCst);
    engine.held.lock().unwrap().clear();
    let whole = whole.await.unwrap();
    assert_eq!(whole.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(whole.json()["message"], "the engine has stopped");
    let chunks = streamed.await.unwrap().chunks();
    assert_eq!(chunks, [json!({"error": {"message": "the engine has stopped"}})]);
    let next = post(&app, "/v1/completions", json!({"prompt": "a"})).await;
    assert_eq!(next.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_client_that_leaves_closes_its_sink() {
    let engine = Scripted::holding().into_arc();
    let app = app(engine.clone());
    let body = json!({"prompt": "a", "stream": true});
    let response = app.clone().oneshot(request("/v1/completions", body)).await.unwrap();
    assert!(engine.is_open(0));
    assert!(engine.push(0, ids("a")[0], None));
    drop(response);
    assert!(!engine.is_open(0));
    assert!(!engine.push(0, ids("a")[0], None));

    let body = json!({"prompt": "a"});
    let whole = tokio::spawn(app.oneshot(request("/v1/completions", body)));
    while engine.held.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(engine.is_open(1));
    whole.abort();
    assert!(whole.await.unwrap_err().is_cancelled());
    assert!(!engine.is_open(1));
}

#[tokio::test]
async fn a_key_opens_everything_but_probes_need_none() {
    let options = ServerOptions { api_key: Some("secret".into()), ..ServerOptions::default() };
    let app = app_with(Scripted::answering(ids("a")).into_arc(), options);
    for path in ["/health", "/metrics", "/health_generate"] {
        assert_eq!(get(&app, path).await.status, StatusCode::OK, "{path}");
    }
    for path in ["/v1/models", "/server_info", "/nowhere"] {
        let answer = get(&app, path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(answer.json()["type"], "AuthenticationError");
    }
    for (key, status) in [
        ("Bearer secret", StatusCode::OK),
        ("Bearer wrong", StatusCode::UNAUTHORIZED),
        ("secret", StatusCode::UNAUTHORIZED),
    ] {
        let mut request = request("/v1/completions", json!({"prompt": "a"}));
        request.headers_mut().insert("authorization", key.parse().unwrap());
        assert_eq!(send(&app, request).await.status, status, "{key}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_json_errors() {
    let (app, _) = saying("a");
    let answer = get(&app, "/v2/x").await;
    assert_eq!((answer.status, &answer.json()["code"]), (StatusCode::NOT_FOUND, &json!(404)));
    let answer = get(&app, "/v1/completions").await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.json()["object"], "error");
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let (app, _) = saying("a");
    for (body, field) in [
        (json!({"max_tokens": 1}), "prompt"),
        (json!({"prompt": {}}), "prompt"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "best_of": 2, "stream": true}), "best_of"),
        (json!({"prompt": "a", "best_of": 1, "n": 2}), "best_of"),
        (json!({"prompt": "a", "n": 129}), "n"),
        (json!({"prompt": "a", "logprobs": 1000}), "logprobs"),
        (json!({"prompt": "a", "stop": vec!["x"; 17]}), "stop"),
        (
            json!({"prompt": "a", "stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (json!({"prompt": "a", "ebnf": "root ::= x"}), "ebnf"),
        (json!({"prompt": "a", "presence_penalty": 3}), "presence_penalty"),
    ] {
        let answer = post(&app, "/v1/completions", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field}");
        assert_eq!(answer.json()["param"], field, "{}", answer.text);
    }
}
