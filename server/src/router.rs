//! Which path is answered by whom.

use crate::{
    ApiError,
    access::record,
    app::AppState,
    auth::require_key,
    control::{abort_request, continue_generation, flush_cache, no_profile, pause_generation},
    cors,
    fields::{body_limit, body_timeout},
    generate::generate,
    info::{
        health, health_generate, model_info, openapi, ping, server_info, version, weight_version,
    },
    load::{load, loads},
    metrics::metrics,
    openai::{self, chat_completions, completions, model, models},
    page::page,
    parse::{parse_function_call, separate_reasoning},
    tokenize::{detokenize, tokenize},
};
use axum::{
    Router,
    handler::Handler,
    http::Uri,
    middleware::from_fn_with_state,
    routing::{self, MethodRouter},
};

/// A route and its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Path, with parameters in braces.
    pub path: &'static str,
    /// Method in capitals.
    pub method: &'static str,
}

/// A router that remembers what it routes.
#[derive(Default)]
struct Routes {
    router: Router<AppState>,
    listed: Vec<Route>,
}

impl Routes {
    fn get<T: 'static>(self, path: &'static str, handler: impl Handler<T, AppState>) -> Self {
        self.add("GET", path, routing::get(handler))
    }

    fn post<T: 'static>(self, path: &'static str, handler: impl Handler<T, AppState>) -> Self {
        self.add("POST", path, routing::post(handler))
    }

    fn put<T: 'static>(self, path: &'static str, handler: impl Handler<T, AppState>) -> Self {
        self.add("PUT", path, routing::put(handler))
    }

    fn add(
        mut self,
        method: &'static str,
        path: &'static str,
        handler: MethodRouter<AppState>,
    ) -> Self {
        self.listed.push(Route { path, method });
        Self { router: self.router.route(path, handler), ..self }
    }
}

fn all() -> Routes {
    Routes::default()
        .get("/", page)
        .post("/v1/chat/completions", chat_completions)
        .post("/v1/completions", completions)
        .get("/v1/models", models)
        .get("/v1/models/{*id}", model)
        .post("/generate", generate)
        .put("/generate", generate)
        .get("/health", health)
        .get("/ready", health)
        .get("/health_generate", health_generate)
        .get("/ping", ping)
        .get("/version", version)
        .get("/weight_version", weight_version)
        .get("/openapi.json", openapi)
        .get("/model_info", model_info)
        .get("/get_model_info", model_info)
        .get("/server_info", server_info)
        .get("/get_server_info", server_info)
        .get("/get_load", load)
        .get("/v1/loads", loads)
        .get("/flush_cache", flush_cache)
        .post("/flush_cache", flush_cache)
        .post("/abort_request", abort_request)
        .post("/pause_generation", pause_generation)
        .post("/continue_generation", continue_generation)
        .get("/start_profile", no_profile)
        .post("/start_profile", no_profile)
        .get("/stop_profile", no_profile)
        .post("/stop_profile", no_profile)
        .get("/metrics", metrics)
        .post("/tokenize", tokenize)
        .post("/v1/tokenize", tokenize)
        .post("/detokenize", detokenize)
        .post("/v1/detokenize", detokenize)
        .post("/parse_function_call", parse_function_call)
        .post("/separate_reasoning", separate_reasoning)
}

/// Every route, sorted. `/openapi.json` describes the same.
pub fn routes() -> Vec<Route> {
    let mut listed = all().listed;
    listed.sort();
    listed
}

/// All endpoints.
pub fn router(state: AppState) -> Router {
    let options = &state.0.options;
    all()
        .router
        .merge(openai::not_offered())
        .fallback(no_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(body_limit(options))
        .layer(body_timeout(options))
        .layer(from_fn_with_state(state.clone(), require_key))
        .layer(cors::layer(options))
        .layer(from_fn_with_state(state.clone(), record))
        .with_state(state)
}

async fn no_path(uri: Uri) -> ApiError {
    ApiError::NoPath(uri.path().to_owned())
}

async fn wrong_method(uri: Uri) -> ApiError {
    ApiError::Method(uri.path().to_owned())
}
