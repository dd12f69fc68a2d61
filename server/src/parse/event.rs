//! What the parsers say.

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Reasoning goes on.
    Reasoning(String),
    /// Content goes on.
    Content(String),
    /// A call of the named function begins.
    Start(String),
    /// The arguments of the call that began last go on, as JSON.
    Arguments(String),
    /// The call that began last is complete.
    End,
}

/// Events on their way, neighbours of a kind joined.
///
/// White space around calls belongs to the format, not to the content: it is held back and given
/// out only between two pieces of content.
pub(super) struct Out {
    events: Vec<Event>,
    space: String,
    may_call: bool,
    has_text: bool,
    /// Something that is no content came last.
    is_after_markup: bool,
}

impl Out {
    /// Unless `may_call`, white space is not held back.
    pub(super) fn new(may_call: bool) -> Self {
        Self {
            events: Vec::new(),
            space: String::new(),
            may_call,
            has_text: false,
            is_after_markup: false,
        }
    }

    pub(super) fn text(&mut self, c: char) {
        let starts_nothing = self.is_after_markup && !self.has_text;
        if c.is_whitespace() && (self.may_call || starts_nothing) {
            self.space.push(c);
            return;
        }
        if !starts_nothing {
            let space = std::mem::take(&mut self.space);
            self.content(&space);
        }
        self.space.clear();
        self.is_after_markup = false;
        self.has_text = true;
        self.content(c.encode_utf8(&mut [0; 4]));
    }

    pub(super) fn texts(&mut self, text: &str) {
        text.chars().for_each(|c| self.text(c));
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(Event::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.events.push(Event::Reasoning(text.into())),
        }
    }

    /// Reasoning is over.
    pub(super) fn end_reasoning(&mut self) {
        self.is_after_markup = true;
    }

    pub(super) fn start(&mut self, name: &str) {
        self.is_after_markup = true;
        self.events.push(Event::Start(name.into()));
    }

    pub(super) fn arguments(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(Event::Arguments(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.events.push(Event::Arguments(text.into())),
        }
    }

    pub(super) fn argument(&mut self, c: char) {
        self.arguments(c.encode_utf8(&mut [0; 4]));
    }

    pub(super) fn end(&mut self) {
        self.is_after_markup = true;
        self.events.push(Event::End);
    }

    pub(super) fn finish(&mut self) {
        let space = std::mem::take(&mut self.space);
        if !self.is_after_markup {
            self.content(&space);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn content(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(Event::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.events.push(Event::Content(text.into())),
        }
    }
}
