//! Chunks of a chat completion.

use super::{
    completion_stream::FailedChunk,
    completions::Header,
    logprobs::ChatLogprobs,
    types::{ChatChunkChoice, Delta, Envelope, StreamUsage, Usage, finish_reason},
};
use crate::{
    ApiError,
    app::App,
    generation::{End, Generation, Matched, Step},
    sse::{ChunkWriter, Events},
};
use std::sync::Arc;

/// Writes the chunks of a chat completion.
pub(super) struct ChatWriter {
    app: Arc<App>,
    header: Header,
    choices: Vec<Pending>,
    has_logprobs: bool,
    usage: StreamUsage,
}

/// What a choice has not sent yet.
#[derive(Default)]
struct Pending {
    has_begun: bool,
    text: String,
    logprobs: ChatLogprobs,
}

impl ChatWriter {
    pub(super) fn new(
        app: Arc<App>,
        header: Header,
        choices: usize,
        has_logprobs: bool,
        usage: StreamUsage,
    ) -> Self {
        let choices = std::iter::repeat_with(Pending::default).take(choices).collect();
        Self { app, header, choices, has_logprobs, usage }
    }

    fn envelope<C>(&self, choices: C, usage: Option<Usage>) -> Envelope<'_, C> {
        let Header { id, created, model } = &self.header;
        Envelope { id, object: "chat.completion.chunk", created: *created, model, choices, usage }
    }
}

impl ChunkWriter for ChatWriter {
    fn step(&mut self, generation: &Generation, step: Step, is_due: bool, out: &mut Events) {
        if let Some(End::Failed(why)) = step.end {
            out.push(&FailedChunk { error: ApiError::Failed(why).openai_body() });
            return;
        }
        let counts = generation.counts(step.choice);
        let usage = self.usage.continuous.then(|| Usage::sum([counts].into_iter(), 1));
        let pending = &mut self.choices[step.choice];
        let begins = !std::mem::replace(&mut pending.has_begun, true);
        pending.text.push_str(&step.text);
        if let Some(entry) = step.logprob.as_ref().filter(|_| self.has_logprobs) {
            pending.logprobs.push(&self.app.model.tokenizer, entry);
        }
        let is_due = is_due && !(pending.text.is_empty() && step.end.is_none());
        let text = if is_due { std::mem::take(&mut pending.text) } else { String::new() };
        let logprobs =
            if is_due { std::mem::take(&mut pending.logprobs) } else { ChatLogprobs::default() };

        let piece = |delta, logprobs| ChatChunkChoice {
            index: step.choice,
            delta,
            logprobs,
            finish_reason: None,
            matched_stop: None,
        };
        if begins {
            let delta = Delta { role: Some("assistant"), content: Some("") };
            out.push(&self.envelope([piece(delta, None)], usage));
        }
        if !text.is_empty() || !logprobs.is_empty() {
            let delta = Delta { role: None, content: Some(&text) };
            let logprobs = Some(logprobs).filter(|logprobs| !logprobs.is_empty());
            out.push(&self.envelope([piece(delta, logprobs)], usage));
        }
        if let Some(end) = &step.end {
            let last = ChatChunkChoice {
                finish_reason: Some(finish_reason(end)),
                matched_stop: Matched::of(end),
                ..piece(Delta { role: None, content: None }, None)
            };
            out.push(&self.envelope([last], usage));
        }
    }

    fn finish(&mut self, generation: &Generation, out: &mut Events) {
        if self.usage.at_end {
            let counts = (0..self.choices.len()).map(|choice| generation.counts(choice));
            let none: [ChatChunkChoice<'_>; 0] = [];
            out.push(&self.envelope(none, Some(Usage::sum(counts, self.choices.len()))));
        }
    }
}
