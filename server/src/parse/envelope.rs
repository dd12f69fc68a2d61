//! A call as one JSON object: `{"name": "f", "arguments": {..}}`, also with `parameters`.

use super::{
    event::Out,
    json::{Scan, Value, is_value},
    tools::ToolSet,
};

/// Reads the object. Arguments that are an object are given out as they come.
pub(super) struct Envelope {
    state: State,
    /// All text so far while no call has begun.
    source: String,
    name: Option<String>,
    /// Arguments that came before the name, or that are no object.
    arguments: Option<String>,
    has_begun: bool,
    /// Whether an object without arguments is a call.
    may_lack_arguments: bool,
}

enum State {
    Open,
    KeyOrClose,
    Key(Value, String),
    Colon(Field),
    BeforeValue(Field),
    Value(Field, Value, String),
    Streamed(Value),
    CommaOrClose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// How far an envelope is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    /// The character was the last of a complete call.
    Done,
    /// There is no call. The text before the character is content.
    Failed(String),
    /// A call ended before the character, though its object did not.
    Cut,
}

impl Envelope {
    pub(super) fn new(source: &str, may_lack_arguments: bool) -> Self {
        Self {
            state: State::Open,
            source: source.into(),
            name: None,
            arguments: None,
            has_begun: false,
            may_lack_arguments,
        }
    }

    /// Whether a tag would be text here.
    pub(super) fn in_string(&self) -> bool {
        match &self.state {
            State::Key(value, _) | State::Value(_, value, _) | State::Streamed(value) => {
                value.in_string()
            }
            _ => false,
        }
    }

    pub(super) fn push(&mut self, c: char, tools: &ToolSet, out: &mut Out) -> Progress {
        match self.step(c, tools, out) {
            Step::More => {
                if !self.has_begun {
                    self.source.push(c);
                }
                Progress::More
            }
            Step::Again => self.push(c, tools, out),
            Step::Close => match self.close(out) {
                true => Progress::Done,
                false => self.give_up(out),
            },
            Step::Bad => self.give_up(out),
        }
    }

    /// The object ends here, complete or not.
    pub(super) fn give_up(&mut self, out: &mut Out) -> Progress {
        if self.has_begun {
            out.end();
            return Progress::Cut;
        }
        Progress::Failed(std::mem::take(&mut self.source))
    }

    fn step(&mut self, c: char, tools: &ToolSet, out: &mut Out) -> Step {
        let is_space = c.is_ascii_whitespace();
        match &mut self.state {
            State::Open
            | State::KeyOrClose
            | State::CommaOrClose
            | State::Colon(_)
            | State::BeforeValue(_)
                if is_space => {}
            State::Open if c == '{' => self.state = State::KeyOrClose,
            State::KeyOrClose if c == '}' => return Step::Close,
            State::CommaOrClose if c == '}' => return Step::Close,
            State::CommaOrClose if c == ',' => self.state = State::KeyOrClose,
            State::KeyOrClose if c == '"' => {
                let mut value = Value::default();
                value.push(c);
                self.state = State::Key(value, c.into());
            }
            State::Key(value, text) => {
                text.push(c);
                if value.push(c) == Scan::Last {
                    self.state = State::Colon(field(text));
                }
            }
            State::Colon(field) if c == ':' => self.state = State::BeforeValue(*field),
            State::BeforeValue(Field::Arguments) if c == '{' && self.name.is_some() => {
                let mut value = Value::default();
                value.push(c);
                self.state = State::Streamed(value);
                self.begin(out);
                out.argument(c);
            }
            State::BeforeValue(field) => {
                self.state = State::Value(*field, Value::default(), String::new());
                return Step::Again;
            }
            State::Value(field, value, text) => {
                let (scan, field) = (value.push(c), *field);
                if scan == Scan::Bad {
                    return Step::Bad;
                }
                if scan != Scan::Past {
                    text.push(c);
                }
                if scan == Scan::Part {
                    return Step::More;
                }
                let text = std::mem::take(text);
                self.state = State::CommaOrClose;
                if !self.take(field, text, tools) {
                    return Step::Bad;
                }
                if scan == Scan::Past {
                    return Step::Again;
                }
            }
            State::Streamed(value) => {
                let scan = value.push(c);
                if scan == Scan::Bad {
                    return Step::Bad;
                }
                out.argument(c);
                if scan == Scan::Last {
                    self.state = State::CommaOrClose;
                }
            }
            _ => return Step::Bad,
        }
        Step::More
    }

    /// Whether the field may have that value.
    fn take(&mut self, field: Field, text: String, tools: &ToolSet) -> bool {
        match field {
            Field::Name => {
                self.name = serde_json::from_str(&text).ok();
                self.name.as_ref().is_some_and(|name| tools.has(name))
            }
            Field::Arguments => {
                self.arguments = Some(text);
                true
            }
            Field::Other => true,
        }
    }

    fn begin(&mut self, out: &mut Out) {
        out.start(self.name.as_deref().unwrap_or_default());
        self.has_begun = true;
        self.source.clear();
    }

    /// Whether the object is a call.
    fn close(&mut self, out: &mut Out) -> bool {
        if !self.has_begun {
            if self.name.is_none() || (self.arguments.is_none() && !self.may_lack_arguments) {
                return false;
            }
            let arguments = self.arguments.take();
            self.begin(out);
            out.arguments(&plain(arguments));
        }
        out.end();
        true
    }
}

enum Step {
    More,
    /// The character belongs to the new state.
    Again,
    Close,
    Bad,
}

fn field(key: &str) -> Field {
    match key {
        "\"name\"" => Field::Name,
        "\"arguments\"" | "\"parameters\"" => Field::Arguments,
        _ => Field::Other,
    }
}

/// Arguments as an object, where a model left them out or quoted them.
fn plain(arguments: Option<String>) -> String {
    match arguments.as_deref() {
        None | Some("null") => "{}".into(),
        Some(text) => match serde_json::from_str::<String>(text) {
            Ok(quoted) if quoted.trim().is_empty() => "{}".into(),
            Ok(quoted) if is_value(&quoted) => quoted,
            _ => text.into(),
        },
    }
}
