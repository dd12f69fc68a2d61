//! Endpoints that clients of other servers look for, and why they are not here.

use crate::{ApiError, app::AppState};
use axum::{Router, http::Uri, routing::any};

/// Endpoints of models that do not generate.
const EMBEDDING: [&str; 7] =
    ["/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/encode", "/classify", "/score"];

/// Answers 501 and says why.
pub(crate) fn not_offered() -> Router<AppState> {
    let router = EMBEDDING.iter().fold(Router::new(), |router, path| {
        router.route(path, any(|uri: Uri| async move {
            ApiError::NotOffered(format!(
                "{} is not offered: this server generates text and makes no embeddings or scores",
                uri.path()
            ))
        }))
    });
    router.route(
        "/v1/responses",
        any(|| async {
            ApiError::NotOffered(
                "/v1/responses is not offered: this server keeps no conversations; use \
             /v1/chat/completions"
                    .into(),
            )
        }),
    )
}
