//! How busy the server is, for routers that balance by it.

use crate::app::{App, AppState, unix_seconds};
use axum::{Json, extract::State};
use serde::Serialize;

/// An element of `/get_load`: one for each data-parallel rank, of which there is one.
#[derive(Serialize)]
pub(crate) struct LoadBody {
    dp_rank: u32,
    num_reqs: u64,
    num_waiting_reqs: u64,
    num_tokens: u64,
}

/// `GET /get_load`.
pub(crate) async fn load(State(AppState(app)): State<AppState>) -> Json<[LoadBody; 1]> {
    let load = rank(&app);
    Json([LoadBody {
        dp_rank: 0,
        num_reqs: load.num_running_reqs + load.num_waiting_reqs,
        num_waiting_reqs: load.num_waiting_reqs,
        num_tokens: load.num_used_tokens,
    }])
}

/// What `/v1/loads` says.
#[derive(Serialize)]
pub(crate) struct LoadsBody {
    /// Seconds since 1970.
    timestamp: u64,
    version: &'static str,
    accelerator: String,
    num_accelerators: u32,
    loads: [RankLoad; 1],
}

#[derive(Serialize)]
struct RankLoad {
    dp_rank: u32,
    num_running_reqs: u64,
    num_waiting_reqs: u64,
    num_used_tokens: u64,
    max_total_num_tokens: u64,
    token_usage: f64,
    gen_throughput: f64,
    /// Share of `max_running_requests` that runs.
    utilization: f64,
    max_running_requests: u64,
    queues: Queues,
}

#[derive(Serialize)]
struct Queues {
    waiting: u64,
    retracted: u64,
}

/// `GET /v1/loads`.
pub(crate) async fn loads(State(AppState(app)): State<AppState>) -> Json<LoadsBody> {
    Json(LoadsBody {
        timestamp: unix_seconds(),
        version: env!("CARGO_PKG_VERSION"),
        accelerator: app.engine.device_name(),
        num_accelerators: 1,
        loads: [rank(&app)],
    })
}

fn rank(app: &App) -> RankLoad {
    let stats = app.engine.stats();
    let used_blocks = stats.total_blocks.saturating_sub(stats.free_blocks);
    RankLoad {
        dp_rank: 0,
        num_running_reqs: stats.running,
        num_waiting_reqs: stats.waiting,
        num_used_tokens: used_blocks * stats.block_tokens,
        max_total_num_tokens: stats.total_blocks * stats.block_tokens,
        token_usage: used_blocks as f64 / stats.total_blocks.max(1) as f64,
        gen_throughput: stats.gen_throughput,
        utilization: stats.running as f64 / stats.max_running_requests.max(1) as f64,
        max_running_requests: stats.max_running_requests,
        queues: Queues {
            waiting: stats.waiting.saturating_sub(stats.preempted),
            retracted: stats.preempted,
        },
    }
}
