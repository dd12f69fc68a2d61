//! Endpoints that change what the engine does.

use crate::{ApiError, app::AppState, error::GenerateError, fields::Fields};
use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use runtime::{FlushError, Pause};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// How long a flush or a pause waits for the engine's step to end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(20);

/// `GET` and `POST /flush_cache`.
pub(crate) async fn flush_cache(
    State(AppState(app)): State<AppState>,
) -> Result<Response, GenerateError> {
    let engine = Arc::clone(&app.engine);
    // The engine answers between two steps.
    let answer = tokio::task::spawn_blocking(move || engine.flush_cache());
    let answer = tokio::time::timeout(FLUSH_TIMEOUT, answer).await.map_err(|_| {
        let seconds = FLUSH_TIMEOUT.as_secs();
        ApiError::Unavailable(format!("the engine's step did not end within {seconds} seconds"))
    })?;
    match answer.map_err(|e| ApiError::Failed(format!("flushing failed: {e}")))? {
        Ok(flushed) => {
            Ok(format!("Cache flushed: {} blocks were freed.\n", flushed.blocks).into_response())
        }
        Err(e @ FlushError::Busy { .. }) => {
            Ok((StatusCode::BAD_REQUEST, format!("Cache not flushed: {e}.\n")).into_response())
        }
        Err(e @ FlushError::Stopped) => Err(ApiError::Unavailable(e.to_string()).into()),
    }
}

/// `POST /abort_request`: `{"rid": NAME}` or `{"abort_all": true}`. A name that is not known is no
/// error, for the response may have ended just before.
pub(crate) async fn abort_request(
    State(AppState(app)): State<AppState>,
    fields: Result<Fields, ApiError>,
) -> Result<(), GenerateError> {
    let mut fields = fields?;
    let name = fields.get::<String>("rid")?;
    if fields.get_or("abort_all", false)? {
        app.requests.abort(None);
    } else if let Some(name) = name.filter(|name| !name.is_empty()) {
        app.requests.abort(Some(&name));
    } else {
        let problem = "is missing; give a name, or set `abort_all` to true";
        return Err(ApiError::field("rid", problem).into());
    }
    Ok(())
}

/// What `/pause_generation` and `/continue_generation` answer.
#[derive(Serialize)]
pub(crate) struct ControlBody {
    status: &'static str,
    message: &'static str,
}

/// What becomes of requests during a pause.
#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PauseMode {
    #[default]
    Abort,
    InPlace,
    Retract,
}

/// `POST /pause_generation`. Requests that come during the pause wait for its end.
pub(crate) async fn pause_generation(
    State(AppState(app)): State<AppState>,
    fields: Result<Fields, ApiError>,
) -> Result<Json<ControlBody>, GenerateError> {
    let mode = fields?.get_or("mode", PauseMode::default())?;
    let what = if matches!(mode, PauseMode::Retract) { Pause::Retract } else { Pause::InPlace };
    let engine = Arc::clone(&app.engine);
    let paused = tokio::task::spawn_blocking(move || engine.pause(what));
    let paused = tokio::time::timeout(FLUSH_TIMEOUT, paused).await.map_err(|_| {
        let seconds = FLUSH_TIMEOUT.as_secs();
        ApiError::Unavailable(format!("the engine's step did not end within {seconds} seconds"))
    })?;
    paused.map_err(|e| ApiError::Failed(format!("pausing failed: {e}")))?;
    if matches!(mode, PauseMode::Abort) {
        app.requests.abort(None);
    }
    tracing::info!("generation is paused");
    Ok(Json(ControlBody { status: "ok", message: "Generation paused successfully." }))
}

/// `POST /continue_generation`. No error when there was no pause.
pub(crate) async fn continue_generation(
    State(AppState(app)): State<AppState>,
) -> Json<ControlBody> {
    app.engine.resume();
    tracing::info!("generation continues");
    Json(ControlBody { status: "ok", message: "Generation continued successfully." })
}

/// `/start_profile` and `/stop_profile`.
pub(crate) async fn no_profile() -> GenerateError {
    let why = "there is no profiler in the server; `precast bench` and /metrics show times";
    ApiError::NotOffered(why.into()).into()
}
