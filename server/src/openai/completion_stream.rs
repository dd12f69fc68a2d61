//! Chunks of a text completion.

use super::{
    completions::Header,
    logprobs::CompletionLogprobs,
    types::{CompletionChoice, Envelope, StreamUsage, Usage, finish_reason},
};
use crate::{
    app::App,
    generation::{End, Generation, Matched, Step},
    sse::{ChunkWriter, Events},
};
use std::sync::Arc;

/// Writes the chunks of a text completion.
pub(super) struct CompletionWriter {
    app: Arc<App>,
    header: Header,
    choices: Vec<Pending>,
    has_logprobs: bool,
    usage: StreamUsage,
    /// Choices that share a prompt.
    per_prompt: usize,
}

/// What a choice has not sent yet.
#[derive(Default)]
struct Pending {
    text: String,
    logprobs: Option<CompletionLogprobs>,
    /// Characters of the tokens that were reported.
    offset: usize,
}

impl CompletionWriter {
    /// `echoes` has the text that each choice begins with.
    pub(super) fn new(
        app: Arc<App>,
        header: Header,
        echoes: Vec<String>,
        has_logprobs: bool,
        usage: StreamUsage,
        per_prompt: usize,
    ) -> Self {
        let choices =
            echoes.into_iter().map(|text| Pending { text, ..Pending::default() }).collect();
        Self { app, header, choices, has_logprobs, usage, per_prompt }
    }

    fn envelope<C>(&self, choices: C, usage: Option<Usage>) -> Envelope<'_, C> {
        let Header { id, created, model } = &self.header;
        Envelope { id, object: "text_completion", created: *created, model, choices, usage }
    }
}

impl ChunkWriter for CompletionWriter {
    fn step(&mut self, generation: &Generation, step: Step, is_due: bool, out: &mut Events) {
        if let Some(End::Failed(error)) = step.end {
            out.push(&FailedChunk { error: error.openai_body() });
            return;
        }
        let pending = &mut self.choices[step.choice];
        pending.text.push_str(&step.text);
        if self.has_logprobs {
            let entries = step.prompt_logprobs.iter().flatten().chain(&step.logprob);
            for entry in entries {
                let logprobs = pending.logprobs.get_or_insert_default();
                logprobs.push(&self.app.model.tokenizer, entry, &mut pending.offset);
            }
        }
        if !is_due || (pending.text.is_empty() && step.end.is_none()) {
            return;
        }
        let text = std::mem::take(&mut pending.text);
        let choice = CompletionChoice {
            index: step.choice,
            text: &text,
            logprobs: pending.logprobs.take(),
            finish_reason: step.end.as_ref().map(finish_reason),
            matched_stop: step.end.as_ref().and_then(Matched::of),
        };
        let counts = generation.counts(step.choice);
        let usage = self.usage.continuous.then(|| Usage::sum([counts].into_iter(), 1));
        out.push(&self.envelope([choice], usage));
    }

    fn finish(&mut self, generation: &Generation, out: &mut Events) {
        if self.usage.at_end {
            let counts = (0..self.choices.len()).map(|choice| generation.counts(choice));
            let none: [CompletionChoice<'_>; 0] = [];
            out.push(&self.envelope(none, Some(Usage::sum(counts, self.per_prompt))));
        }
    }
}

/// An error in a stream that has begun.
#[derive(serde::Serialize)]
pub(super) struct FailedChunk {
    pub(super) error: crate::error::OpenAiError,
}
