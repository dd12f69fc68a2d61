//! Chunks of a chat completion.

use super::{
    chat_request::ChatRequest,
    completion_stream::FailedChunk,
    completions::Header,
    logprobs::ChatLogprobs,
    reader::Reader,
    types::{ChatChunkChoice, Delta, Envelope, FunctionCall, StreamUsage, ToolCall, Usage},
};
use crate::{
    app::App,
    generation::{End, Generation, Matched, Step},
    parse::Event,
    sse::{ChunkWriter, Events},
};
use std::sync::Arc;

/// Writes the chunks of a chat completion.
pub(super) struct ChatWriter {
    app: Arc<App>,
    header: Header,
    choices: Vec<Pending>,
    has_logprobs: bool,
    streams_reasoning: bool,
    usage: StreamUsage,
}

/// A choice, and what of it was not sent yet.
struct Pending {
    reader: Reader,
    has_begun: bool,
    events: Vec<Event>,
    logprobs: ChatLogprobs,
    /// Calls whose beginning was sent.
    calls: usize,
}

impl ChatWriter {
    pub(super) fn new(
        app: Arc<App>,
        header: Header,
        readers: Vec<Reader>,
        request: &ChatRequest,
    ) -> Self {
        let choice = |reader| Pending {
            reader,
            has_begun: false,
            events: Vec::new(),
            logprobs: ChatLogprobs::default(),
            calls: 0,
        };
        Self {
            app,
            header,
            choices: readers.into_iter().map(choice).collect(),
            has_logprobs: request.logprobs.is_some(),
            streams_reasoning: request.streams_reasoning,
            usage: request.usage,
        }
    }

    fn envelope<C>(&self, choices: C, usage: Option<Usage>) -> Envelope<'_, C> {
        let Header { id, created, model } = &self.header;
        Envelope { id, object: "chat.completion.chunk", created: *created, model, choices, usage }
    }
}

impl ChunkWriter for ChatWriter {
    fn step(&mut self, generation: &Generation, step: Step, is_due: bool, out: &mut Events) {
        if let Some(End::Failed(error)) = step.end {
            out.push(&FailedChunk { error: error.openai_body() });
            return;
        }
        let counts = generation.counts(step.choice);
        let choice = &mut self.choices[step.choice];
        let begins = !std::mem::replace(&mut choice.has_begun, true);
        for event in choice.reader.step(&self.app, &step) {
            join(&mut choice.events, event);
        }
        if let Some(entry) = step.logprob.as_ref().filter(|_| self.has_logprobs) {
            choice.logprobs.push(&self.app.model.tokenizer, entry);
        }
        let usage = self.usage.continuous.then(|| {
            Usage::sum([counts].into_iter(), 1).with_reasoning(choice.reader.reasoning_tokens)
        });
        let waits = !self.streams_reasoning && choice.reader.in_reasoning();
        let is_due = step.end.is_some() || (is_due && !waits && !choice.events.is_empty());
        let (events, mut logprobs) = if is_due {
            (std::mem::take(&mut choice.events), std::mem::take(&mut choice.logprobs))
        } else {
            (Vec::new(), ChatLogprobs::default())
        };
        let mut calls = choice.calls;

        let piece = |delta, logprobs| ChatChunkChoice {
            index: step.choice,
            delta,
            logprobs,
            finish_reason: None,
            matched_stop: None,
        };
        if begins {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            out.push(&self.envelope([piece(delta, None)], usage));
        }
        let ids = &self.choices[step.choice].reader.ids;
        for event in &events {
            if let Some(delta) = delta(event, &mut calls, ids) {
                let logprobs = std::mem::take(&mut logprobs);
                let logprobs = Some(logprobs).filter(|logprobs| !logprobs.is_empty());
                out.push(&self.envelope([piece(delta, logprobs)], usage));
            }
        }
        if !logprobs.is_empty() {
            let delta = Delta { content: Some(""), ..Delta::default() };
            out.push(&self.envelope([piece(delta, Some(logprobs))], usage));
        }
        if let Some(end) = &step.end {
            let last = ChatChunkChoice {
                finish_reason: Some(self.choices[step.choice].reader.finish_reason(end)),
                matched_stop: Matched::of(end),
                ..piece(Delta::default(), None)
            };
            out.push(&self.envelope([last], usage));
        }
        self.choices[step.choice].calls = calls;
    }

    fn finish(&mut self, generation: &Generation, out: &mut Events) {
        if self.usage.at_end {
            let counts = (0..self.choices.len()).map(|choice| generation.counts(choice));
            let none: [ChatChunkChoice<'_>; 0] = [];
            let reasoning = self.choices.iter().map(|choice| choice.reader.reasoning_tokens).sum();
            let usage = Usage::sum(counts, self.choices.len()).with_reasoning(reasoning);
            out.push(&self.envelope(none, Some(usage)));
        }
    }
}

/// Adds an event to those that wait.
fn join(events: &mut Vec<Event>, event: Event) {
    match (events.last_mut(), &event) {
        (Some(Event::Reasoning(last)), Event::Reasoning(text))
        | (Some(Event::Content(last)), Event::Content(text))
        | (Some(Event::Arguments(last)), Event::Arguments(text)) => last.push_str(text),
        _ => events.push(event),
    }
}

/// What an event adds to the message; `calls` counts those that have begun.
fn delta<'a>(event: &'a Event, calls: &mut usize, ids: &'a [String]) -> Option<Delta<'a>> {
    let call = |index: usize, name: Option<&'a str>, arguments: &'a str| ToolCall {
        index: Some(index),
        id: name.and(ids.get(index).map(String::as_str)),
        kind: name.map(|_| "function"),
        function: FunctionCall { name, arguments },
    };
    match event {
        Event::Reasoning(text) => Some(Delta { reasoning_content: Some(text), ..Delta::default() }),
        Event::Content(text) => Some(Delta { content: Some(text), ..Delta::default() }),
        Event::Start(name) => {
            *calls += 1;
            let call = call(*calls - 1, Some(name), "");
            Some(Delta { tool_calls: Some([call]), ..Delta::default() })
        }
        Event::Arguments(text) => {
            let call = call(calls.saturating_sub(1), None, text);
            Some(Delta { tool_calls: Some([call]), ..Delta::default() })
        }
        Event::End => None,
    }
}
