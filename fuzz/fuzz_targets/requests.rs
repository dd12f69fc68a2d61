//! Whatever a client posts is answered, and never as the server's fault. An input is a path, a line
//! break, and a body.

#![no_main]

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header::CONTENT_TYPE},
};
use libfuzzer_sys::{Corpus, fuzz_target};
use precast_runtime::{
    EngineOptions,
    testing::{FakeModel, fake_engine},
};
use precast_server::{AppState, Model, ModelFiles, ModelInfo, ServerOptions, router, routes};
use std::sync::{Arc, LazyLock};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const VOCAB: u32 = 512;
const CONTEXT: u32 = 256;
const MOST_ANSWER_BYTES: usize = 1 << 26;

struct Server {
    runtime: Runtime,
    router: Router,
    paths: Vec<&'static str>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let eos = vec![480, 478];
    let fake = FakeModel {
        vocab_size: VOCAB,
        max_context: CONTEXT,
        eos_token_ids: eos.clone(),
        ..FakeModel::default()
    };
    let files = ModelFiles {
        tokenizer: include_bytes!("../../server/tests/data/qwen3/tokenizer.json"),
        tokenizer_config: Some(include_bytes!(
            "../../server/tests/data/qwen3/tokenizer_config.json"
        )),
        ..ModelFiles::default()
    };
    let info = ModelInfo {
        path: "artifacts/tiny".into(),
        model_type: "qwen3".into(),
        architecture: "Qwen3ForCausalLM".into(),
        vocab_size: VOCAB,
        max_context: CONTEXT as usize,
        eos_token_ids: eos,
        weights_bytes: 0,
        state_bytes: 0,
        arena_bytes: 0,
        max_running_requests: fake.max_running_requests,
        config: Default::default(),
    };
    let model = Model::new(files, info, "tiny").expect("the model's files are good");
    let engine = Arc::new(fake_engine(&fake, EngineOptions::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Server {
        runtime: runtime.expect("a runtime can be made"),
        router: router(AppState::new(engine, model, ServerOptions::default())),
        paths: routes().into_iter().filter(|r| r.method == "POST").map(|r| r.path).collect(),
    }
});

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some(end) = data.iter().position(|&byte| byte == b'\n') else { return Corpus::Reject };
    let (path, body) = (&data[..end], data[end + 1..].to_vec());
    let Some(path) = SERVER.paths.iter().find(|known| known.as_bytes() == path) else {
        return Corpus::Reject;
    };
    let request = Request::post(*path).header(CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body)).expect("the parts are valid");
    let (status, answer) = SERVER.runtime.block_on(async {
        let response = SERVER.router.clone().oneshot(request).await.expect("it cannot fail");
        let status = response.status();
        // Fails when a stream has no end within reason.
        (status, to_bytes(response.into_body(), MOST_ANSWER_BYTES).await.expect("a body"))
    });
    if *path == "/pause_generation" {
        let go_on = Request::post("/continue_generation").body(Body::empty());
        let go_on = go_on.expect("the parts are valid");
        let response = SERVER.runtime.block_on(SERVER.router.clone().oneshot(go_on));
        assert_eq!(response.expect("it cannot fail").status(), StatusCode::OK);
    }
    let is_fault = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
    assert!(!is_fault, "{path} answered {status}: {}", String::from_utf8_lossy(&answer));
    assert!(std::str::from_utf8(&answer).is_ok(), "{path} answered something that is no text");
    Corpus::Keep
});
