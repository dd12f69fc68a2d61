//! The steps of one answer as the parts of a message.

use super::types::finish_reason;
use crate::{
    app::App,
    generation::{End, Step},
    parse::{Event, Message, Parser, Reading},
};

/// Reads one answer.
pub(super) struct Reader {
    parser: Parser,
    /// Everything so far.
    pub(super) message: Message,
    /// Names of the calls, as many as there are.
    pub(super) ids: Vec<String>,
    /// Tokens between the tags of reasoning, and the tags.
    pub(super) reasoning_tokens: usize,
    is_parallel: bool,
    has_call: bool,
    /// A call is left out because one was asked for.
    skips: bool,
}

impl Reader {
    pub(super) fn new(reading: &Reading, is_parallel: bool) -> Self {
        Self {
            parser: Parser::new(reading),
            message: Message::default(),
            ids: Vec::new(),
            reasoning_tokens: 0,
            is_parallel,
            has_call: false,
            skips: false,
        }
    }

    /// Whether the answer is reasoning at present.
    pub(super) fn in_reasoning(&self) -> bool {
        self.parser.in_reasoning()
    }

    /// Takes a step and says what it adds.
    pub(super) fn step(&mut self, app: &App, step: &Step) -> Vec<Event> {
        let reasoned = self.in_reasoning();
        let mut events = self.parser.push(&step.text);
        if step.token.is_some() && (reasoned || self.in_reasoning()) {
            self.reasoning_tokens += 1;
        }
        if step.end.is_some() {
            events.extend(self.parser.finish());
        }
        events.retain(|event| self.keeps(event));
        for event in &events {
            if matches!(event, Event::Start(_)) {
                self.ids.push(format!("call_{}", &app.unique_name()[..24]));
            }
            self.message.add(event.clone());
        }
        events
    }

    /// Why the answer ended, as clients are told.
    pub(super) fn finish_reason(&self, end: &End) -> &'static str {
        match finish_reason(end) {
            "stop" if !self.ids.is_empty() => "tool_calls",
            reason => reason,
        }
    }

    fn keeps(&mut self, event: &Event) -> bool {
        match event {
            Event::Start(_) => {
                self.skips = !self.is_parallel && self.has_call;
                self.has_call = true;
                !self.skips
            }
            Event::Arguments(_) | Event::End => !self.skips,
            Event::Reasoning(_) | Event::Content(_) => true,
        }
    }
}
