//! Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {..}}</tool_call>`.

use super::{
    Machine,
    envelope::{Envelope, Progress},
    event::Out,
    tools::ToolSet,
};
use std::sync::Arc;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) struct Hermes {
    tools: Arc<ToolSet>,
    state: State,
}

enum State {
    Text,
    Object(Envelope),
    /// After an object, before the closing tag.
    Complete,
}

impl Hermes {
    pub(super) fn new(tools: Arc<ToolSet>) -> Self {
        Self { tools, state: State::Text }
    }

    /// The object does not go on.
    fn give_up(&mut self, out: &mut Out) {
        if let State::Object(envelope) = &mut self.state {
            if let Progress::Failed(source) = envelope.give_up(out) {
                out.texts(&source);
                self.state = State::Text;
            } else {
                self.state = State::Complete;
            }
        }
    }
}

impl Machine for Hermes {
    fn tags(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE]
    }

    fn text(&mut self, c: char, out: &mut Out) {
        match &mut self.state {
            State::Text => out.text(c),
            State::Object(envelope) => match envelope.push(c, &self.tools, out) {
                Progress::More => {}
                Progress::Done => self.state = State::Complete,
                Progress::Failed(source) => {
                    out.texts(&source);
                    out.text(c);
                    self.state = State::Text;
                }
                Progress::Cut => {
                    self.state = State::Complete;
                    self.text(c, out);
                }
            },
            State::Complete if c.is_whitespace() || c == '}' => {}
            State::Complete if c == '{' => {
                self.state = State::Object(Envelope::new("", true));
                self.text(c, out);
            }
            State::Complete => {
                self.state = State::Text;
                out.text(c);
            }
        }
    }

    fn tag(&mut self, tag: &'static str, out: &mut Out) {
        if let State::Object(envelope) = &self.state
            && envelope.in_string()
        {
            return tag.chars().for_each(|c| self.text(c, out));
        }
        self.give_up(out);
        match (tag, &self.state) {
            (OPEN, _) => self.state = State::Object(Envelope::new(OPEN, true)),
            (_, State::Complete) => self.state = State::Text,
            _ => out.texts(tag),
        }
    }

    fn finish(&mut self, out: &mut Out) {
        self.give_up(out);
    }
}
