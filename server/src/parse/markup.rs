//! Calls whose parameters have tags of their own.
//!
//! Qwen3-Coder: `<tool_call><function=f><parameter=x>..</parameter></function></tool_call>`, with
//! values of the types that the function's schema says. DeepSeek V3.2: the same with other tags,
//! where each parameter says whether it is a string.

use super::{
    Machine,
    event::Out,
    json::{Scan, Value, escape, is_value, quote},
    tools::{Kind, ToolSet},
};
use std::sync::Arc;

/// The tags of a format.
pub(super) struct Tags {
    all: &'static [&'static str],
    open_blocks: &'static [&'static str],
    close_blocks: &'static [&'static str],
    /// What follows up to `>` names the function; so it does for parameters.
    open_call: &'static str,
    close_call: &'static str,
    open_parameter: &'static str,
    close_parameter: &'static str,
    /// Whether a value stands on lines of its own.
    has_lines: bool,
}

pub(super) static QWEN3_CODER: Tags = Tags {
    all: &[
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "</function>",
        "<parameter=",
        "</parameter>",
    ],
    open_blocks: &["<tool_call>"],
    close_blocks: &["</tool_call>"],
    open_call: "<function=",
    close_call: "</function>",
    open_parameter: "<parameter=",
    close_parameter: "</parameter>",
    has_lines: true,
};

pub(super) static DSML: Tags = Tags {
    all: &[
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "<｜DSML｜invoke name=",
        "</｜DSML｜invoke>",
        "<｜DSML｜parameter name=",
        "</｜DSML｜parameter>",
    ],
    open_blocks: &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
    close_blocks: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    open_call: "<｜DSML｜invoke name=",
    close_call: "</｜DSML｜invoke>",
    open_parameter: "<｜DSML｜parameter name=",
    close_parameter: "</｜DSML｜parameter>",
    has_lines: false,
};

/// The longest name of a function or parameter with its attributes.
const MAX_HEADER: usize = 256;

pub(super) struct Markup {
    tags: &'static Tags,
    tools: Arc<ToolSet>,
    state: State,
    /// Text since the first tag while no call has begun.
    source: String,
    in_block: bool,
    function: String,
    /// Parameters of the open call.
    parameters: usize,
    /// The open call has all arguments in one object.
    has_object: bool,
}

enum State {
    Text,
    /// In a block, outside calls.
    Between,
    Header(String),
    /// In a call, outside parameters.
    Call,
    Object(Value),
    Parameter(String),
    Value(Parameter),
}

/// A value on its way.
enum Parameter {
    /// A string, given out as it comes but for a line break that may be the last.
    Text { has_begun: bool, holds_break: bool },
    /// Decided at its end.
    Whole { kind: Kind, text: String },
}

impl Markup {
    pub(super) fn new(tags: &'static Tags, tools: Arc<ToolSet>) -> Self {
        Self {
            tags,
            tools,
            state: State::Text,
            source: String::new(),
            in_block: false,
            function: String::new(),
            parameters: 0,
            has_object: false,
        }
    }

    fn fail(&mut self, out: &mut Out) {
        out.texts(&std::mem::take(&mut self.source));
        self.in_block = false;
        self.state = State::Text;
    }

    fn begin(&mut self, header: &str, out: &mut Out) -> bool {
        let name = unquoted(header);
        if !self.tools.has(name) {
            return false;
        }
        out.start(name);
        self.function = name.into();
        self.source.clear();
        self.parameters = 0;
        self.has_object = false;
        self.state = State::Call;
        true
    }

    /// Begins a value: its key, and how it is to be read.
    fn open_value(&mut self, header: &str, out: &mut Out) {
        let (key, attributes) = match header.trim_start().strip_prefix('"') {
            Some(rest) => rest.split_once('"').unwrap_or((rest, "")),
            None => (header.trim(), ""),
        };
        let kind = match attributes.split_once("string=") {
            Some((_, value)) if unquoted(value) == "true" => Kind::Text,
            Some(_) => Kind::Json,
            None => self.tools.kind(&self.function, key),
        };
        out.arguments(if self.parameters == 0 { "{" } else { ", " });
        out.arguments(&quote(key));
        out.arguments(": ");
        self.parameters += 1;
        self.state = State::Value(match kind {
            Kind::Text => {
                out.arguments("\"");
                Parameter::Text { has_begun: false, holds_break: false }
            }
            kind => Parameter::Whole { kind, text: String::new() },
        });
    }

    fn close_value(&mut self, is_cut: bool, out: &mut Out) {
        let State::Value(parameter) = std::mem::replace(&mut self.state, State::Call) else {
            return;
        };
        match parameter {
            // What is cut off stays open, as it would in a format that is JSON.
            Parameter::Text { holds_break, .. } => {
                if is_cut && holds_break {
                    out.arguments("\\n");
                }
                out.arguments(if is_cut { "" } else { "\"" });
            }
            Parameter::Whole { text, .. } if is_cut => out.arguments(text.trim()),
            Parameter::Whole { kind, text } => {
                let whole = if self.tags.has_lines { without_lines(&text) } else { &text };
                let trimmed = whole.trim();
                if is_value(trimmed) && kind.takes(trimmed) {
                    out.arguments(trimmed);
                } else {
                    out.arguments(&quote(whole));
                }
            }
        }
    }

    fn close_call(&mut self, out: &mut Out) {
        if !self.has_object {
            out.arguments(if self.parameters == 0 { "{}" } else { "}" });
        }
        out.end();
        self.state = if self.in_block { State::Between } else { State::Text };
    }

    /// A tag within a call; whether it has one there.
    fn tag_in_call(&mut self, tag: &'static str, out: &mut Out) {
        let tags = self.tags;
        if tag == tags.open_parameter {
            self.state = State::Parameter(String::new());
        } else if tag == tags.close_call {
            self.close_call(out);
        } else if tag == tags.open_call || tags.close_blocks.contains(&tag) {
            self.close_call(out);
            self.tag(tag, out);
        } else if tag != tags.close_parameter {
            out.texts(tag);
        }
    }
}

impl Machine for Markup {
    fn tags(&self) -> &'static [&'static str] {
        self.tags.all
    }

    fn text(&mut self, c: char, out: &mut Out) {
        match &mut self.state {
            State::Text => out.text(c),
            State::Between if c.is_whitespace() => {
                if !self.source.is_empty() {
                    self.source.push(c);
                }
            }
            State::Between => {
                self.fail(out);
                out.text(c);
            }
            State::Header(text) if c == '>' => {
                let header = std::mem::take(text);
                if !self.begin(&header, out) {
                    self.fail(out);
                    out.text(c);
                }
            }
            State::Header(text) if c == '\n' || text.len() >= MAX_HEADER => {
                self.fail(out);
                out.text(c);
            }
            State::Header(text) => {
                text.push(c);
                self.source.push(c);
            }
            State::Call if c.is_whitespace() => {}
            State::Call if c == '{' && self.parameters == 0 && !self.has_object => {
                let mut value = Value::default();
                value.push(c);
                out.argument(c);
                self.has_object = true;
                self.state = State::Object(value);
            }
            State::Call => out.text(c),
            State::Object(value) => {
                let scan = value.push(c);
                if scan == Scan::Bad {
                    self.state = State::Call;
                    return self.text(c, out);
                }
                out.argument(c);
                if scan == Scan::Last {
                    self.state = State::Call;
                }
            }
            State::Parameter(text) if c == '>' => {
                let header = std::mem::take(text);
                self.open_value(&header, out);
            }
            State::Parameter(text) if c == '\n' || text.len() >= MAX_HEADER => {
                let header = std::mem::take(text);
                self.state = State::Call;
                out.texts(self.tags.open_parameter);
                out.texts(&header);
                out.text(c);
            }
            State::Parameter(text) => text.push(c),
            State::Value(Parameter::Text { has_begun, holds_break }) => {
                let is_first = !std::mem::replace(has_begun, true);
                if std::mem::take(holds_break) {
                    out.arguments("\\n");
                }
                if self.tags.has_lines && c == '\n' {
                    *holds_break = !is_first;
                } else {
                    let mut escaped = String::new();
                    escape(c, &mut escaped);
                    out.arguments(&escaped);
                }
            }
            State::Value(Parameter::Whole { text, .. }) => text.push(c),
        }
    }

    fn tag(&mut self, tag: &'static str, out: &mut Out) {
        let tags = self.tags;
        let opens_block = tags.open_blocks.contains(&tag);
        let closes_block = tags.close_blocks.contains(&tag);
        match &mut self.state {
            State::Text if opens_block => {
                self.in_block = true;
                self.state = State::Between;
                self.source.push_str(tag);
            }
            State::Text | State::Between if tag == tags.open_call => {
                self.state = State::Header(String::new());
                self.source.push_str(tag);
            }
            State::Text => out.texts(tag),
            State::Between if closes_block && self.source.is_empty() => {
                self.in_block = false;
                self.state = State::Text;
            }
            State::Between if opens_block && self.source.is_empty() => self.source.push_str(tag),
            State::Between | State::Header(_) => {
                self.fail(out);
                self.tag(tag, out);
            }
            State::Call => self.tag_in_call(tag, out),
            State::Object(value) if value.in_string() => {
                tag.chars().for_each(|c| self.text(c, out));
            }
            State::Object(_) => {
                self.state = State::Call;
                self.tag_in_call(tag, out);
            }
            State::Parameter(text) => {
                let header = std::mem::take(text);
                self.state = State::Call;
                out.texts(tags.open_parameter);
                out.texts(&header);
                self.tag_in_call(tag, out);
            }
            State::Value(_) if opens_block || tag == tags.open_call => {
                tag.chars().for_each(|c| self.text(c, out));
            }
            State::Value(_) => {
                self.close_value(false, out);
                self.tag_in_call(tag, out);
            }
        }
    }

    fn finish(&mut self, out: &mut Out) {
        match &mut self.state {
            State::Text => {}
            State::Between | State::Header(_) => self.fail(out),
            State::Value(_) => {
                self.close_value(true, out);
                out.end();
            }
            State::Parameter(header) => {
                let header = std::mem::take(header);
                out.texts(self.tags.open_parameter);
                out.texts(&header);
                out.end();
            }
            State::Call | State::Object(_) => out.end(),
        }
    }
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches('"')
}

/// A value without the line breaks that set it apart.
fn without_lines(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}
