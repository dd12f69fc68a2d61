//! Which pages of other origins may call.

use crate::{ServerOptions, access::REQUEST_ID};
use axum::http::HeaderValue;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// Lets pages of `cors_allow_origins` in; without any, browsers keep all others out.
pub(crate) fn layer(options: &ServerOptions) -> CorsLayer {
    let origins = &options.cors_allow_origins;
    if origins.is_empty() {
        return CorsLayer::new();
    }
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods(Any)
        // `*` would not cover the key.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID])
}
