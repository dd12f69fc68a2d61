//! Characters to characters and tags.

use super::{Machine, event::Out};

/// Finds tags. No tag may contain another one or be the beginning of one.
pub(super) struct Lexer {
    tags: &'static [&'static str],
    /// The beginning of a tag, or nothing.
    held: String,
}

impl Lexer {
    pub(super) fn new(tags: &'static [&'static str]) -> Self {
        Self { tags, held: String::new() }
    }

    pub(super) fn push(&mut self, c: char, machine: &mut dyn Machine, out: &mut Out) {
        self.held.push(c);
        while !self.held.is_empty() {
            if let Some(tag) = self.tags.iter().find(|tag| **tag == self.held) {
                self.held.clear();
                return machine.tag(tag, out);
            }
            if self.tags.iter().any(|tag| tag.starts_with(&self.held)) {
                return;
            }
            machine.text(self.held.remove(0), out);
        }
    }

    /// What is held back is no tag.
    pub(super) fn finish(&mut self, machine: &mut dyn Machine, out: &mut Out) {
        for c in std::mem::take(&mut self.held).chars() {
            machine.text(c, out);
        }
    }
}
