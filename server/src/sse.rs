//! Server-sent events as the field's benchmark clients read them: lines `data: JSON`, each followed
//! by an empty line, and `data: [DONE]` at once after the last. No comments, no other fields.

use crate::generation::{Generation, Step};
use axum::{
    body::{Body, Bytes},
    http::{
        HeaderValue,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::Response,
};
use serde::Serialize;
use std::convert::Infallible;

/// Writes the chunks of one kind of response.
pub(crate) trait ChunkWriter: Send + 'static {
    /// Takes a step and writes the chunks that are due to `out`. Unless `is_due`, it should keep
    /// what the step brought for later.
    fn step(&mut self, generation: &Generation, step: Step, is_due: bool, out: &mut Events);

    /// Writes what follows the last step.
    fn finish(&mut self, generation: &Generation, out: &mut Events);
}

/// Events that are sent together.
#[derive(Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Adds an event.
    pub(crate) fn push(&mut self, data: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, data).expect("writing to memory cannot fail");
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an event that `write` spells as one line of JSON.
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(b"data: ");
        write(&mut self.0);
        self.0.extend_from_slice(b"\n\n");
    }

    fn push_done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// Streams `generation` as `writer` spells it, a chunk every `interval` tokens of a choice; fewer
/// and longer ones for a client that reads slowly.
pub(crate) fn stream(
    generation: Generation,
    writer: impl ChunkWriter,
    interval: usize,
) -> Response {
    let start = Some((generation, writer));
    let chunks = futures_util::stream::unfold(start, move |state| async move {
        let (mut generation, mut writer) = state?;
        let mut events = Events::default();
        while let Some(step) = generation.next().await {
            let tokens = generation.counts(step.choice).completion_tokens;
            let is_regular = tokens.is_multiple_of(interval) && !generation.is_behind();
            let is_due = tokens == 1 || is_regular || step.end.is_some();
            writer.step(&generation, step, is_due, &mut events);
            if generation.is_finished() {
                break;
            }
            if !events.0.is_empty() {
                return Some((
                    Ok::<_, Infallible>(Bytes::from(events.0)),
                    Some((generation, writer)),
                ));
            }
        }
        writer.finish(&generation, &mut events);
        events.push_done();
        Some((Ok(Bytes::from(events.0)), None))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
