//! A position in the text, and the tokens that can be read there.

use super::is_name_char;

/// Reads tokens and knows where it is. Offsets are bytes at character boundaries.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Line and column of byte `offset`, both from 1; columns count characters.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..offset];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Where the next token begins: past spaces, newlines and comments.
    pub(super) fn next_offset(&mut self) -> usize {
        loop {
            self.at += self.rest().len() - self.rest().trim_start().len();
            if !self.rest().starts_with(';') {
                return self.at;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.next_offset() == self.text.len()
    }

    /// The next character, to name it in an error.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.next_offset();
        self.rest().chars().next()
    }

    /// Takes `token` if it is next.
    pub(super) fn take(&mut self, token: char) -> bool {
        self.next_offset();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len_utf8();
        }
        found
    }

    /// Takes the word `word` if it is next and no longer word begins there.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let mut ahead = self.clone();
        let found = ahead.name() == word;
        if found {
            *self = ahead;
        }
        found
    }

    /// Takes the longest run of name characters, which may be empty.
    pub(super) fn name(&mut self) -> &'a str {
        self.next_offset();
        self.run(is_name_char)
    }

    /// Where the next token of this line is, and the name there, which may be empty.
    pub(super) fn name_on_this_line(&mut self) -> (usize, &'a str) {
        self.run(|c| c == ' ' || c == '\t');
        (self.at, self.run(is_name_char))
    }

    fn run(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Takes an attribute value: up to `,` or `}` outside brackets, or the end of the line.
    pub(super) fn attribute_value(&mut self) -> &'a str {
        self.next_offset();
        let rest = self.rest();
        let mut depth = 0usize;
        let end = rest.find(|c| {
            match c {
                '[' | '(' => depth += 1,
                ']' | ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == '\n' || depth == 0 && matches!(c, ',' | '}')
        });
        let len = end.unwrap_or(rest.len());
        self.at += len;
        rest[..len].trim_end()
    }

    /// Takes everything through `last`, which must be on this line.
    pub(super) fn through(&mut self, last: char) -> &'a str {
        let rest = self.rest();
        let line = rest.split('\n').next().unwrap_or_default();
        let len = line.find(last).map_or(line.len(), |i| i + last.len_utf8());
        self.at += len;
        &rest[..len]
    }
}
