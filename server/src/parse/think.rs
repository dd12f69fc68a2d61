//! Reasoning between `<think>` and `</think>`.

use super::{detect::ReasoningFormat, event::Out};

const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

pub(super) const TAGS: &[&str] = &[OPEN, CLOSE];

/// What the end of the prompt says about reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Nothing: the model opens it, or does not.
    #[default]
    Free,
    /// It is open.
    Open,
    /// It is closed: an answer without reasoning is wanted.
    Closed,
}

impl Opening {
    /// Reads the end of a rendered prompt.
    pub(crate) fn of_prompt(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        if prompt.ends_with(OPEN) {
            Self::Open
        } else if prompt.ends_with(CLOSE) {
            Self::Closed
        } else {
            Self::Free
        }
    }

    /// Reads the beginning of an answer that is to be continued.
    pub(crate) fn of_answer(text: &str) -> Self {
        match (text.rfind(OPEN), text.rfind(CLOSE)) {
            (Some(open), Some(close)) if open < close => Self::Closed,
            (Some(_), _) => Self::Open,
            (None, _) => Self::Closed,
        }
    }
}

/// Tells reasoning from the rest. White space around it belongs to neither.
pub(super) struct Think {
    state: State,
    /// White space that is reasoning only if more of it follows.
    space: String,
    /// The beginning of a tag, or nothing.
    held: String,
    has_text: bool,
    separates: bool,
}

#[derive(PartialEq, Eq)]
enum State {
    /// The answer may still begin with reasoning.
    Before,
    Inside,
    After,
}

impl Think {
    pub(super) fn new(format: ReasoningFormat, opening: Opening, separates: bool) -> Self {
        let state = match (opening, format) {
            (Opening::Closed, _) => State::After,
            (Opening::Open, _) | (_, ReasoningFormat::DeepSeekR1) => State::Inside,
            (Opening::Free, _) => State::Before,
        };
        let (space, held) = (String::new(), String::new());
        Self { state, space, held, has_text: false, separates }
    }

    pub(super) fn is_inside(&self) -> bool {
        self.state == State::Inside
    }

    /// Whether what follows is no reasoning.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::After
    }

    /// Takes a character; what is certainly no reasoning is appended to `rest`.
    pub(super) fn push(&mut self, c: char, out: &mut Out, rest: &mut String) {
        match self.state {
            State::Before => self.push_before(c, out, rest),
            State::Inside => self.push_inside(c, out),
            State::After => rest.push(c),
        }
    }

    pub(super) fn finish(&mut self, out: &mut Out, rest: &mut String) {
        let held = std::mem::take(&mut self.held);
        if self.state == State::Inside {
            held.chars().for_each(|c| self.reasoning(c, out));
            if !self.separates {
                out.texts(&std::mem::take(&mut self.space));
            }
        } else {
            rest.push_str(&std::mem::take(&mut self.space));
            rest.push_str(&held);
        }
    }

    fn push_before(&mut self, c: char, out: &mut Out, rest: &mut String) {
        if self.held.is_empty() && c.is_whitespace() {
            self.space.push(c);
            return;
        }
        self.held.push(c);
        if self.held == OPEN {
            self.state = State::Inside;
            self.markup(out);
        } else if !OPEN.starts_with(&self.held) {
            self.state = State::After;
            rest.push_str(&std::mem::take(&mut self.space));
            rest.push_str(&std::mem::take(&mut self.held));
        }
    }

    fn push_inside(&mut self, c: char, out: &mut Out) {
        self.held.push(c);
        while !self.held.is_empty() {
            // A model may open what the prompt has opened already.
            let may_open = !self.has_text;
            if self.held == CLOSE {
                self.state = State::After;
                self.markup(out);
                if self.separates {
                    out.end_reasoning();
                }
                return;
            }
            if may_open && self.held == OPEN {
                return self.markup(out);
            }
            if CLOSE.starts_with(&self.held) || (may_open && OPEN.starts_with(&self.held)) {
                return;
            }
            let c = self.held.remove(0);
            self.reasoning(c, out);
        }
    }

    fn reasoning(&mut self, c: char, out: &mut Out) {
        if c.is_whitespace() {
            self.space.push(c);
            return;
        }
        let space = std::mem::take(&mut self.space);
        if !self.separates {
            out.texts(&space);
            out.text(c);
        } else {
            if self.has_text {
                out.reasoning(&space);
            }
            out.reasoning(c.encode_utf8(&mut [0; 4]));
        }
        self.has_text = true;
    }

    /// What is held is a tag with white space before it.
    fn markup(&mut self, out: &mut Out) {
        let (space, held) = (std::mem::take(&mut self.space), std::mem::take(&mut self.held));
        if !self.separates {
            out.texts(&space);
            out.texts(&held);
        }
    }
}
