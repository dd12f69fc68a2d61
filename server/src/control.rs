//! Endpoints that change what the engine does.

use crate::{ApiError, app::AppState, error::GenerateError, fields::Fields};
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use runtime::FlushError;
use std::{sync::Arc, time::Duration};

/// How long a flush waits for the engine's step to end.
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

/// `/start_profile` and `/stop_profile`.
pub(crate) async fn no_profile() -> GenerateError {
    let why = "there is no profiler in the server; `precast bench` and /metrics show times";
    ApiError::NotOffered(why.into()).into()
}
