//! A whole answer.

use super::{Event, Parser};

/// A message as its parts arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// JSON, as far as the model wrote JSON.
    pub(crate) arguments: String,
}

impl Message {
    pub(crate) fn add(&mut self, event: Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::Content(text) => self.content.push_str(&text),
            Event::Start(name) => self.calls.push(Call { name, arguments: String::new() }),
            Event::Arguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
            Event::End => {}
        }
    }

    /// Reads a whole text.
    pub(crate) fn of_text(mut parser: Parser, text: &str) -> Self {
        let mut message = Self::default();
        parser.push(text).into_iter().for_each(|event| message.add(event));
        parser.finish().into_iter().for_each(|event| message.add(event));
        message
    }
}
