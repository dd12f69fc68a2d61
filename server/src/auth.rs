//! The API key.

use crate::{ApiError, app::AppState};
use axum::{
    extract::{Request, State},
    http::header::AUTHORIZATION,
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Paths that orchestration probes without a key, and the page, which asks for it.
const OPEN_PATHS: [&str; 6] = ["/", "/health", "/health_generate", "/metrics", "/ping", "/ready"];

/// Lets requests with the right key through.
pub(crate) async fn require_key(
    State(AppState(app)): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = &app.options.api_key else { return next.run(request).await };
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let given = given.and_then(|value| value.strip_prefix(b"Bearer "));
    let is_open = OPEN_PATHS.contains(&request.uri().path());
    if is_open || given.is_some_and(|given| is_same(given, key.as_bytes())) {
        return next.run(request).await;
    }
    ApiError::Unauthorized.into_response()
}

/// Compares without telling by its duration how much agrees.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn keys_are_compared_whole() {
        assert!(is_same(b"key", b"key"));
        assert!(!is_same(b"kez", b"key"));
        assert!(!is_same(b"ke", b"key"));
        assert!(!is_same(b"keyy", b"key"));
    }
}
