//! Llama 3: `{"name": "f", "parameters": {..}}` instead of an answer, or after `<|python_tag|>`;
//! several are separated by semicolons.

use super::{
    Machine,
    envelope::{Envelope, Progress},
    event::Out,
    tools::ToolSet,
};
use std::sync::Arc;

const PYTHON: &str = "<|python_tag|>";

pub(super) struct Llama {
    tools: Arc<ToolSet>,
    state: State,
}

enum State {
    /// Nothing but white space so far.
    Start,
    Tagged,
    Text,
    Object(Envelope),
    Complete,
}

impl Llama {
    pub(super) fn new(tools: Arc<ToolSet>) -> Self {
        Self { tools, state: State::Start }
    }

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

    fn open(&mut self, source: &str, out: &mut Out) {
        self.state = State::Object(Envelope::new(source, false));
        self.text('{', out);
    }
}

impl Machine for Llama {
    fn tags(&self) -> &'static [&'static str] {
        &[PYTHON]
    }

    fn text(&mut self, c: char, out: &mut Out) {
        match &mut self.state {
            State::Start if c == '{' => self.open("", out),
            State::Start if c.is_whitespace() => out.text(c),
            State::Tagged if c == '{' => self.open(PYTHON, out),
            State::Tagged if c.is_whitespace() => {}
            State::Complete if c == '{' => self.open("", out),
            State::Complete if c.is_whitespace() || c == ';' => {}
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
            State::Tagged => {
                out.texts(PYTHON);
                out.text(c);
                self.state = State::Text;
            }
            State::Start | State::Text | State::Complete => {
                out.text(c);
                self.state = State::Text;
            }
        }
    }

    fn tag(&mut self, tag: &'static str, out: &mut Out) {
        if let State::Object(envelope) = &self.state
            && envelope.in_string()
        {
            return tag.chars().for_each(|c| self.text(c, out));
        }
        self.finish(out);
        self.state = State::Tagged;
    }

    fn finish(&mut self, out: &mut Out) {
        self.give_up(out);
        if matches!(self.state, State::Tagged) {
            out.texts(PYTHON);
        }
    }
}
