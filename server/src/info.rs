//! What the server is and how it does.

use crate::{
    ApiError, ReasoningFormat, ToolFormat,
    app::{App, AppState},
    fields::Fields,
    generation::{End, Generation, Job},
    model::GenerationDefaults,
    params::{GENERATE_NAMES, Params},
};
use axum::{Json, extract::State, http::header::CONTENT_TYPE, response::IntoResponse};
use runtime::{LogprobOptions, PrefixCaching, Stats};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// How long a probe waits for a token.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Weights do not change while the server runs.
const WEIGHT_VERSION: &str = "default";

/// `GET /health`: whether requests are taken.
pub(crate) async fn health(State(AppState(app)): State<AppState>) -> Result<(), ApiError> {
    app.check_ready()
}

/// `GET /health_generate`: whether a token comes.
pub(crate) async fn health_generate(State(AppState(app)): State<AppState>) -> Result<(), ApiError> {
    let mut params =
        Params::take(&mut Fields::default(), &GENERATE_NAMES, &GenerationDefaults::default())?;
    params.max_tokens = Some(1);
    params.sampling.temperature = 0.0;
    let job = Job {
        name: app.unique_name(),
        prompt: vec![0],
        params,
        default_max_tokens: None,
        logprobs: LogprobOptions::default(),
    };
    let mut generation = Generation::start(&app, vec![job]).await?;
    match tokio::time::timeout(PROBE_TIMEOUT, generation.next()).await {
        Ok(Some(step)) if matches!(step.end, Some(End::Failed(_))) => {
            Err(ApiError::Unavailable("the engine gave up on the probe".into()))
        }
        Ok(_) => Ok(()),
        Err(_) => {
            let seconds = PROBE_TIMEOUT.as_secs();
            Err(ApiError::Unavailable(format!("no token came within {seconds} seconds")))
        }
    }
}

/// `GET /ping`.
pub(crate) async fn ping() {}

/// `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}

/// `GET /weight_version`.
pub(crate) async fn weight_version() -> Json<Value> {
    Json(json!({ "weight_version": WEIGHT_VERSION }))
}

/// What `/model_info` says.
#[derive(Serialize)]
pub(crate) struct ModelInfoBody {
    model_path: String,
    tokenizer_path: String,
    is_generation: bool,
    preferred_sampling_params: Option<Value>,
    weight_version: &'static str,
    has_image_understanding: bool,
    has_audio_understanding: bool,
    model_type: String,
    architectures: [String; 1],
    /// Ids below this are tokens.
    vocab_size: u32,
}

/// `GET /model_info`.
pub(crate) async fn model_info(State(AppState(app)): State<AppState>) -> Json<ModelInfoBody> {
    let info = &app.model.info;
    Json(ModelInfoBody {
        model_path: info.path.clone(),
        tokenizer_path: info.path.clone(),
        is_generation: true,
        preferred_sampling_params: None,
        weight_version: WEIGHT_VERSION,
        has_image_understanding: false,
        has_audio_understanding: false,
        model_type: info.model_type.clone(),
        architectures: [info.architecture.clone()],
        vocab_size: info.vocab_size,
    })
}

/// What `/server_info` says.
#[derive(Serialize)]
pub(crate) struct ServerInfoBody {
    model_path: String,
    served_model_name: String,
    host: String,
    port: u16,
    stream_interval: usize,
    sampling_defaults: crate::SamplingDefaults,
    tool_call_parser: Option<&'static str>,
    reasoning_parser: Option<&'static str>,
    version: &'static str,
    status: &'static str,
    uptime_seconds: f64,
    /// What the engine runs on, such as `cpu avx512, 2 threads`.
    device: String,
    context_length: usize,
    max_total_num_tokens: u64,
    disable_radix_cache: bool,
    /// Whether KV blocks are shared, and why not.
    prefix_cache: String,
    max_req_input_len: usize,
    max_running_requests: u64,
    max_queued_requests: u64,
    /// Options the artifact was compiled with.
    compiled: Map<String, Value>,
    /// One for each rank.
    internal_states: [InternalState; 1],
}

#[derive(Serialize)]
struct InternalState {
    last_gen_throughput: f64,
    num_running_reqs: u64,
    num_queue_reqs: u64,
    memory_usage: MemoryUsage,
    buckets: Vec<BucketBody>,
}

/// Gigabytes, but for the capacity.
#[derive(Serialize)]
struct MemoryUsage {
    weight: f64,
    kvcache: f64,
    token_capacity: u64,
    graph: f64,
}

#[derive(Serialize)]
struct BucketBody {
    phase: String,
    rows: u32,
    context_tokens: u32,
    replays: u64,
    padded_rows: u64,
}

/// `GET /server_info`.
pub(crate) async fn server_info(State(AppState(app)): State<AppState>) -> Json<ServerInfoBody> {
    let stats = app.engine.stats();
    let context = app.context_tokens();
    let (info, options) = (&app.model.info, &app.options);
    Json(ServerInfoBody {
        model_path: info.path.clone(),
        served_model_name: app.model.name.clone(),
        host: options.host.clone(),
        port: options.port,
        stream_interval: options.stream_interval.get(),
        sampling_defaults: options.sampling_defaults,
        tool_call_parser: app.formats.tools.map(ToolFormat::name),
        reasoning_parser: app.formats.reasoning.map(ReasoningFormat::name),
        version: env!("CARGO_PKG_VERSION"),
        status: if app.check_ready().is_ok() { "ready" } else { "unavailable" },
        uptime_seconds: app.started.elapsed().as_secs_f64(),
        device: app.engine.device_name(),
        context_length: context,
        max_total_num_tokens: stats.total_blocks * stats.block_tokens,
        disable_radix_cache: stats.prefix_cache != PrefixCaching::On,
        prefix_cache: stats.prefix_cache.to_string(),
        max_req_input_len: context.saturating_sub(1),
        max_running_requests: stats.max_running_requests,
        max_queued_requests: stats.max_queued_requests,
        compiled: info.config.clone(),
        internal_states: [internal_state(&app, stats)],
    })
}

fn internal_state(app: &App, stats: Stats) -> InternalState {
    let info = &app.model.info;
    let gigabytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    InternalState {
        last_gen_throughput: stats.gen_throughput,
        num_running_reqs: stats.running,
        num_queue_reqs: stats.waiting,
        memory_usage: MemoryUsage {
            weight: gigabytes(info.weights_bytes),
            kvcache: gigabytes(info.state_bytes),
            token_capacity: stats.total_blocks * stats.block_tokens,
            graph: gigabytes(info.arena_bytes),
        },
        buckets: stats
            .buckets
            .into_iter()
            .map(|bucket| BucketBody {
                phase: bucket.phase.to_string(),
                rows: bucket.rows,
                context_tokens: bucket.context_tokens,
                replays: bucket.replays,
                padded_rows: bucket.padded_rows,
            })
            .collect(),
    }
}
