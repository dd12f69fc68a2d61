//! `POST /generate`, the endpoint that speaks in token ids and cumulative text.

mod chunk;
mod request;
mod stream;

use crate::{
    ApiError, app::AppState, error::GenerateError, fields::Fields, generation::Generation,
    output::collect, sse,
};
use axum::{
    extract::State,
    http::{HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use chunk::Chunk;
use request::GenerateRequest;
use stream::GenerateWriter;

/// `POST /generate`.
pub(crate) async fn generate(
    State(AppState(app)): State<AppState>,
    fields: Result<Fields, ApiError>,
) -> Result<Response, GenerateError> {
    let request = GenerateRequest::take(fields?)?;
    let (names, jobs, shapes) = request.jobs(&app).await?;
    let count = jobs.len();
    let generation = Generation::start(&app, jobs).await?;
    let chunks = shapes.into_iter().zip(names).map(|(shape, name)| Chunk::new(name, shape));
    let mut chunks: Vec<Chunk> = chunks.collect();
    let is_list = request.prompts.is_list || count > 1;
    if request.stream {
        let interval = app.options.stream_interval.get();
        let writer = GenerateWriter::new(app, chunks, is_list);
        return Ok(sse::stream(generation, writer, interval));
    }
    let outputs = collect(generation, count).await?;
    let mut body = Vec::new();
    for (chunk, output) in chunks.iter_mut().zip(&outputs) {
        chunk.add_output(&app.model.tokenizer, output);
        body.push(if body.is_empty() { b'[' } else { b',' });
        chunk.write(&mut body, output.counts, Some((&output.end, output.latency)), None);
    }
    if is_list {
        body.push(b']');
    } else {
        body.remove(0);
    }
    let json = HeaderValue::from_static("application/json");
    Ok(([(CONTENT_TYPE, json)], body).into_response())
}
