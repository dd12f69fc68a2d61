//! gpt-oss: messages with a channel each. `analysis` is reasoning, `final` and `commentary` are
//! content, and a message to `functions.NAME` is a call.

use super::{Machine, event::Out, tools::ToolSet};
use std::sync::Arc;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";

/// Longer text before `<|message|>` is no header.
const MAX_HEADER: usize = 256;

pub(super) struct Harmony {
    tools: Arc<ToolSet>,
    separates_reasoning: bool,
    state: State,
}

enum State {
    /// Outside messages.
    Text,
    /// Tags and text before `<|message|>`.
    Header(String),
    Reasoning,
    Content,
    /// Whether arguments have come.
    Call(bool),
}

impl Harmony {
    pub(super) fn new(tools: Arc<ToolSet>, separates_reasoning: bool) -> Self {
        Self { tools, separates_reasoning, state: State::Text }
    }

    fn begin(&mut self, header: &str, out: &mut Out) {
        let recipient = header.split_once("to=").map(|(_, rest)| {
            rest.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default()
        });
        let channel = header.split_once(CHANNEL).map_or("", |(_, rest)| rest.trim_start());
        let function = recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name));
        self.state = match function {
            Some(name) if self.tools.has(name) => {
                out.start(name);
                State::Call(false)
            }
            // A call of something else is shown as it is.
            Some(_) => {
                out.texts(header);
                out.texts(MESSAGE);
                State::Content
            }
            None if channel.starts_with("analysis") && self.separates_reasoning => State::Reasoning,
            None => State::Content,
        };
    }

    fn end(&mut self, out: &mut Out) {
        match &self.state {
            State::Call(has_arguments) => {
                if !has_arguments {
                    out.arguments("{}");
                }
                out.end();
            }
            State::Reasoning => out.end_reasoning(),
            State::Header(header) if !is_cut_header(header) => out.texts(header),
            State::Header(_) | State::Text | State::Content => {}
        }
        self.state = State::Text;
    }
}

impl Machine for Harmony {
    fn tags(&self) -> &'static [&'static str] {
        &[START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN]
    }

    fn text(&mut self, c: char, out: &mut Out) {
        match &mut self.state {
            State::Header(header) if header.len() >= MAX_HEADER => {
                let header = std::mem::take(header);
                out.texts(&header);
                out.text(c);
                self.state = State::Content;
            }
            State::Header(header) => header.push(c),
            State::Reasoning => out.reasoning(c.encode_utf8(&mut [0; 4])),
            State::Text | State::Content => out.text(c),
            State::Call(has_arguments) if !*has_arguments && c.is_whitespace() => {}
            State::Call(has_arguments) => {
                *has_arguments = true;
                out.argument(c);
            }
        }
    }

    fn tag(&mut self, tag: &'static str, out: &mut Out) {
        match (tag, &mut self.state) {
            (CHANNEL | CONSTRAIN, State::Header(header)) => header.push_str(tag),
            (MESSAGE, State::Header(header)) => {
                let header = std::mem::take(header);
                self.begin(&header, out);
            }
            (START | CHANNEL, _) => {
                self.end(out);
                self.state = State::Header(tag.into());
            }
            (MESSAGE | CONSTRAIN, _) => tag.chars().for_each(|c| self.text(c, out)),
            _ => self.end(out),
        }
    }

    fn finish(&mut self, out: &mut Out) {
        self.end(out);
    }

    fn in_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning)
    }
}

/// Whether an answer that ends in `header` was cut off within a header, which is nobody's text.
fn is_cut_header(header: &str) -> bool {
    let words = header.replace(START, " ").replace(CHANNEL, " ").replace(CONSTRAIN, " ");
    let known = ["assistant", "analysis", "commentary", "final", "json"];
    words.split_whitespace().all(|word| {
        word.starts_with("to=")
            || word.starts_with("<|")
            || known.iter().any(|known| known.starts_with(word))
            || "to=".starts_with(word)
    })
}
