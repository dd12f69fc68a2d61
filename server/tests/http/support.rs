//! Requests and answers in few words.

use crate::scripted::Scripted;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header::HeaderMap},
};
use precast_server::{AppState, Backend, Model, ModelFiles, ModelInfo, ServerOptions, router};
use serde_json::{Map, Value};
use std::sync::Arc;
use tower::ServiceExt;

pub(crate) const MAX_CONTEXT: usize = 256;

/// `<|im_end|>` of the test model.
pub(crate) const EOS: u32 = 480;

const TOKENIZER: &[u8] = include_bytes!("../data/qwen3/tokenizer.json");

/// A tiny Qwen3.
pub(crate) fn model() -> Model {
    model_of(MAX_CONTEXT)
}

/// One with a context of so many tokens.
pub(crate) fn model_of(max_context: usize) -> Model {
    crate::access::install_log();
    let files = ModelFiles {
        tokenizer: TOKENIZER,
        tokenizer_config: Some(include_bytes!("../data/qwen3/tokenizer_config.json")),
        generation_config: Some(include_bytes!("../data/qwen3/generation_config.json")),
        chat_template: None,
    };
    let info = ModelInfo {
        path: "artifacts/tiny".into(),
        model_type: "qwen3".into(),
        architecture: "Qwen3ForCausalLM".into(),
        vocab_size: 512,
        max_context,
        eos_token_ids: vec![480, 478],
        weights_bytes: 1 << 30,
        state_bytes: 1 << 29,
        arena_bytes: 1 << 20,
        max_running_requests: 4,
        config: Map::new(),
    };
    Model::new(files, info, "tiny").unwrap()
}

/// The ids of `text`.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    let tokenizer = tokenizers::Tokenizer::from_bytes(TOKENIZER).unwrap();
    tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
}

/// The text of one id.
pub(crate) fn text_of(id: u32) -> String {
    tokenizers::Tokenizer::from_bytes(TOKENIZER).unwrap().decode(&[id], false).unwrap()
}

pub(crate) fn app(engine: Arc<impl Backend + 'static>) -> Router {
    app_with(engine, ServerOptions::default())
}

pub(crate) fn app_with(engine: Arc<impl Backend + 'static>, options: ServerOptions) -> Router {
    router(AppState::new(engine, model(), options))
}

/// A server whose every answer is `text`, ended by the end-of-sequence id.
pub(crate) fn saying(text: &str) -> (Router, Arc<Scripted>) {
    let mut answer = ids(text);
    answer.push(EOS);
    let engine = Scripted::answering(answer).into_arc();
    (app(Arc::clone(&engine)), engine)
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// The chunks of a stream, read the way benchmark clients read it: every line that is not
    /// empty is `data: ` and one JSON value, and the last is `data: [DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let lines: Vec<&str> = self.text.lines().filter(|line| !line.is_empty()).collect();
        let data = |line: &&str| {
            line.strip_prefix("data: ").unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let mut data: Vec<String> = lines.iter().map(data).collect();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        assert!(self.text.ends_with("data: [DONE]\n\n"));
        data.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Answer { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

pub(crate) fn request(path: &str, body: Value) -> Request<Body> {
    Request::post(path).body(Body::from(body.to_string())).unwrap()
}

pub(crate) async fn post(app: &Router, path: &str, body: Value) -> Answer {
    send(app, request(path, body)).await
}

pub(crate) async fn get(app: &Router, path: &str) -> Answer {
    send(app, Request::get(path).body(Body::empty()).unwrap()).await
}

/// The body of a successful request.
pub(crate) async fn ok(app: &Router, path: &str, body: Value) -> Value {
    let answer = post(app, path, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()
}
