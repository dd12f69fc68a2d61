use crate::{
    scripted::Scripted,
    support::{app, app_with, get, ids, ok, post, request, saying},
};
use axum::http::StatusCode;
use precast_server::{SamplingDefaults, ServerOptions};
use serde_json::json;
use std::num::NonZeroUsize;
use tower::ServiceExt;

#[tokio::test]
async fn the_cache_is_flushed_when_idle() {
    let engine = Scripted::holding().into_arc();
    let app = app(engine.clone());
    assert_eq!(get(&app, "/flush_cache").await.status, StatusCode::OK);
    assert_eq!(post(&app, "/flush_cache", json!({})).await.status, StatusCode::OK);
    let body = json!({"prompt": "a", "stream": true});
    let _running = app.clone().oneshot(request("/v1/completions", body)).await.unwrap();
    let busy = get(&app, "/flush_cache").await;
    assert_eq!(busy.status, StatusCode::BAD_REQUEST);
    assert!(busy.text.contains("1 requests are running"), "{}", busy.text);
}

#[tokio::test]
async fn text_becomes_tokens_and_text_again() {
    let (app, _) = saying("a");
    let text = "Hello, 今天 <|im_end|>";
    for path in ["/tokenize", "/v1/tokenize"] {
        let body = json!({"model": "m", "prompt": text, "add_special_tokens": false});
        let answer = ok(&app, path, body).await;
        assert_eq!(answer["tokens"], json!(ids(text)));
        assert_eq!(answer["count"], ids(text).len());
        assert_eq!(answer["max_model_len"], 256);
    }
    for path in ["/detokenize", "/v1/detokenize"] {
        let body = json!({"tokens": ids(text), "skip_special_tokens": false});
        let answer = ok(&app, path, body).await;
        assert_eq!((&answer["text"], &answer["prompt"]), (&json!(text), &json!(text)));
        let answer = ok(&app, path, json!({"tokens": ids(text)})).await;
        assert_eq!(answer["text"], "Hello, 今天 ");
    }
    let answer = ok(&app, "/tokenize", json!({"prompt": ["a", "b"]})).await;
    assert_eq!(answer["tokens"], json!([ids("a"), ids("b")]));
    assert_eq!(answer["count"], json!([1, 1]));
    let long = "word ".repeat(4000);
    let answer = ok(&app, "/tokenize", json!({"prompt": long})).await;
    assert_eq!(answer["tokens"], json!(ids(&long)));
    let wrong = post(&app, "/detokenize", json!({"tokens": [99999]})).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn chunks_may_have_several_tokens() {
    let stream_interval = NonZeroUsize::new(4).unwrap();
    let options = ServerOptions { stream_interval, ..ServerOptions::default() };
    let engine = Scripted::answering(ids("a")).into_arc();
    let app = app_with(engine, options);
    let body = json!({"prompt": "a", "max_tokens": 10, "stream": true});
    let chunks = post(&app, "/v1/completions", body).await.chunks();
    let lengths: Vec<usize> =
        chunks.iter().map(|c| c["choices"][0]["text"].as_str().unwrap().len()).collect();
    assert_eq!(lengths, [1, 3, 4, 2]);
}

#[tokio::test]
async fn sampling_values_may_come_from_the_api() {
    let options =
        ServerOptions { sampling_defaults: SamplingDefaults::OpenAi, ..ServerOptions::default() };
    let engine = Scripted::answering(ids("a")).into_arc();
    let app = app_with(engine.clone(), options);
    ok(&app, "/v1/completions", json!({"prompt": "a"})).await;
    assert_eq!(engine.last_seen().sampling, runtime::Sampling::default());
}
