//! Which path is answered by whom.

use crate::{
    ApiError,
    app::AppState,
    auth::require_key,
    control::{abort_request, flush_cache},
    fields::body_limit,
    generate::generate,
    info::{health, health_generate, model_info, ping, server_info, version},
    metrics::metrics,
    openai::{self, chat_completions, completions, model, models},
    page::page,
    parse,
    tokenize::{detokenize, tokenize},
};
use axum::{
    Router,
    http::Uri,
    middleware::from_fn_with_state,
    routing::{get, post},
};

/// All endpoints.
pub fn router(state: AppState) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/generate", post(generate).put(generate))
        .route("/health", get(health))
        .route("/health_generate", get(health_generate))
        .route("/ping", get(ping))
        .route("/version", get(version))
        .route("/model_info", get(model_info))
        .route("/get_model_info", get(model_info))
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/flush_cache", get(flush_cache).post(flush_cache))
        .route("/abort_request", post(abort_request))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/v1/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/v1/detokenize", post(detokenize))
        .merge(parse::routes())
        .merge(openai::not_offered())
        .fallback(no_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(body_limit())
        .layer(from_fn_with_state(state.clone(), require_key))
        .with_state(state)
}

async fn no_path(uri: Uri) -> ApiError {
    ApiError::NoPath(uri.path().to_owned())
}

async fn wrong_method(uri: Uri) -> ApiError {
    ApiError::Method(uri.path().to_owned())
}
