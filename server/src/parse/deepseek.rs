//! DeepSeek V3, R1 and V3.1. A block of calls has tags of its own, and so has each call:
//! `function`, a separator, the name and the arguments in a code fence; from V3.1 on the name, a
//! separator and the arguments.

use super::{
    Machine,
    event::Out,
    json::{Scan, Value},
    tools::ToolSet,
};
use std::sync::Arc;

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(super) struct DeepSeek {
    tools: Arc<ToolSet>,
    state: State,
    /// Text since the first tag while no call has begun.
    source: String,
}

enum State {
    Text,
    /// In a block, outside calls.
    Between,
    /// Before the separator.
    Header(String),
    /// After it, before the arguments: text before and after the separator.
    Name(String, String),
    Arguments(Value),
    /// After the arguments, in a call.
    Complete,
}

impl DeepSeek {
    pub(super) fn new(tools: Arc<ToolSet>) -> Self {
        Self { tools, state: State::Text, source: String::new() }
    }

    /// What looked like a call is content.
    fn fail(&mut self, out: &mut Out) {
        out.texts(&std::mem::take(&mut self.source));
        self.state = State::Text;
    }

    /// Begins the call; without such a function it is content.
    fn begin(&mut self, out: &mut Out) -> bool {
        let State::Name(before, after) = &self.state else { return false };
        let after = after.trim();
        let after = after.strip_suffix("json").map_or(after, str::trim_end);
        let after = after.strip_suffix("```").map_or(after, str::trim_end);
        let name = if after.is_empty() { before.trim() } else { after };
        if !self.tools.has(name) {
            return false;
        }
        out.start(name);
        self.source.clear();
        true
    }

    /// The call does not go on.
    fn give_up(&mut self, out: &mut Out) {
        match self.state {
            State::Header(_) | State::Name(..) => self.fail(out),
            State::Arguments(_) => {
                out.end();
                self.state = State::Complete;
            }
            State::Between if !self.source.is_empty() => self.fail(out),
            State::Text | State::Between | State::Complete => {}
        }
    }
}

impl Machine for DeepSeek {
    fn tags(&self) -> &'static [&'static str] {
        &[CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR]
    }

    fn text(&mut self, c: char, out: &mut Out) {
        match &mut self.state {
            State::Text => return out.text(c),
            State::Between if c.is_whitespace() => {}
            State::Between => {
                self.fail(out);
                return out.text(c);
            }
            State::Header(text) => text.push(c),
            State::Name(..) if c == '{' => {
                if !self.begin(out) {
                    self.fail(out);
                    return out.text(c);
                }
                let mut value = Value::default();
                value.push(c);
                self.state = State::Arguments(value);
                return out.argument(c);
            }
            State::Name(_, after) => after.push(c),
            State::Arguments(value) => {
                let scan = value.push(c);
                if scan == Scan::Bad {
                    self.give_up(out);
                    return self.text(c, out);
                }
                out.argument(c);
                if scan == Scan::Last {
                    out.end();
                    self.state = State::Complete;
                }
                return;
            }
            State::Complete if c.is_whitespace() || matches!(c, '`' | '}') => return,
            State::Complete => {
                self.state = State::Text;
                return out.text(c);
            }
        }
        self.source.push(c);
    }

    fn tag(&mut self, tag: &'static str, out: &mut Out) {
        if let State::Arguments(value) = &self.state
            && value.in_string()
        {
            return tag.chars().for_each(|c| self.text(c, out));
        }
        if tag == CALL_END && self.begin(out) {
            out.arguments("{}");
            out.end();
            self.state = State::Between;
            return;
        }
        match (tag, &mut self.state) {
            (SEPARATOR, State::Header(text)) => {
                let before = std::mem::take(text);
                self.state = State::Name(before, String::new());
            }
            (CALL_BEGIN, State::Between) => self.state = State::Header(String::new()),
            (CALL_END, State::Complete) => {
                self.state = State::Between;
                return;
            }
            (CALLS_END, State::Complete) => {
                self.state = State::Text;
                return;
            }
            (CALLS_END, State::Between) if self.source.is_empty() => {
                self.state = State::Text;
                return;
            }
            (CALLS_BEGIN, State::Text) => self.state = State::Between,
            (CALL_BEGIN, State::Text | State::Complete) => {
                self.state = State::Header(String::new());
            }
            (_, State::Text) => return out.texts(tag),
            (_, State::Complete) => {
                self.state = State::Text;
                return self.tag(tag, out);
            }
            (_, State::Between) => {
                self.fail(out);
                return self.tag(tag, out);
            }
            _ => {
                self.give_up(out);
                return self.tag(tag, out);
            }
        }
        self.source.push_str(tag);
    }

    fn finish(&mut self, out: &mut Out) {
        self.give_up(out);
    }
}
