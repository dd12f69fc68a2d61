//! Chunks of `/generate`.

use super::chunk::Chunk;
use crate::{
    app::App,
    generation::{End, Generation, Step},
    sse::{ChunkWriter, Events},
};
use std::sync::Arc;

/// Writes the chunks of `/generate`, one for each token.
pub(super) struct GenerateWriter {
    app: Arc<App>,
    chunks: Vec<Chunk>,
    /// Whether chunks say which answer they belong to.
    has_index: bool,
}

impl GenerateWriter {
    pub(super) fn new(app: Arc<App>, chunks: Vec<Chunk>, has_index: bool) -> Self {
        Self { app, chunks, has_index }
    }
}

impl ChunkWriter for GenerateWriter {
    fn step(&mut self, generation: &Generation, step: Step, is_due: bool, out: &mut Events) {
        if let Some(End::Failed(error)) = step.end {
            out.push(&error.generate_body());
            return;
        }
        let tokenizer = &self.app.model.tokenizer;
        let chunk = &mut self.chunks[step.choice];
        chunk.add_text(&step.text);
        step.token.iter().for_each(|token| chunk.add_token(*token));
        let inputs = step.prompt_logprobs.iter().flatten();
        inputs.for_each(|entry| chunk.add_input(tokenizer, entry));
        step.logprob.iter().for_each(|entry| chunk.add_logprob(tokenizer, entry));
        if !is_due || (step.token.is_none() && step.end.is_none()) {
            return;
        }
        let counts = generation.counts(step.choice);
        let end = step.end.as_ref().map(|end| (end, generation.elapsed()));
        let index = self.has_index.then_some(step.choice);
        out.push_with(|out| chunk.write(out, counts, end, index));
    }

    fn finish(&mut self, _generation: &Generation, _out: &mut Events) {}
}
