//! `GET /`: a page to talk to the model and to watch the engine.

use axum::{
    http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY},
    response::{IntoResponse, Response},
};

const PAGE: &str = include_str!("page/index.html");

/// The page loads nothing and calls nobody but this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// `GET /`. The page holds no secret: it asks for the API key where one is needed.
pub(crate) async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::PAGE;

    #[test]
    fn the_page_asks_nobody_else() {
        for outside in ["http://", "https://", "//cdn", "@import", "src="] {
            assert!(!PAGE.contains(outside), "the page contains {outside}");
        }
    }
}
