//! The list of models, which has one.

use crate::{
    ApiError,
    app::{App, AppState},
};
use axum::{
    Json,
    extract::{Path, State},
};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

#[derive(Serialize)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: String,
    parent: Option<String>,
    max_model_len: usize,
}

impl ModelCard {
    fn new(app: &App) -> Self {
        Self {
            id: app.model.name.clone(),
            object: "model",
            created: app.started_unix,
            owned_by: "precast",
            root: app.model.name.clone(),
            parent: None,
            max_model_len: app.context_tokens(),
        }
    }
}

/// `GET /v1/models`.
pub(crate) async fn models(State(AppState(app)): State<AppState>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: vec![ModelCard::new(&app)] })
}

/// `GET /v1/models/{id}`. The id may contain slashes.
pub(crate) async fn model(
    State(AppState(app)): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    if id == app.model.name { Ok(Json(ModelCard::new(&app))) } else { Err(ApiError::NoModel(id)) }
}
