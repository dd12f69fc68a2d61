//! JSON that arrives a character at a time.

use std::fmt::Write;

/// Follows one value to its end. It checks what could be outside strings, not the grammar: what a
/// model gets wrong within a value is the client's to see.
#[derive(Debug, Default)]
pub(super) struct Value {
    depth: usize,
    has_begun: bool,
    is_scalar: bool,
    in_string: bool,
    is_escaped: bool,
}

/// How a character relates to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// It belongs to the value.
    Part,
    /// It is the value's last.
    Last,
    /// The value was complete before it.
    Past,
    /// It can be no part of JSON here.
    Bad,
}

impl Value {
    pub(super) fn in_string(&self) -> bool {
        self.in_string
    }

    pub(super) fn push(&mut self, c: char) -> Scan {
        if self.in_string {
            return self.push_in_string(c);
        }
        if !self.has_begun {
            self.has_begun = true;
            match c {
                '{' | '[' => self.depth = 1,
                '"' => self.in_string = true,
                '-' | '0'..='9' | 'a'..='z' | 'A'..='Z' => self.is_scalar = true,
                _ => return Scan::Bad,
            }
            return Scan::Part;
        }
        let is_word = c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if self.is_scalar {
            return if is_word { Scan::Part } else { Scan::Past };
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Scan::Last;
                }
            }
            ':' | ',' => {}
            _ if is_word || c.is_ascii_whitespace() => {}
            _ => return Scan::Bad,
        }
        Scan::Part
    }

    fn push_in_string(&mut self, c: char) -> Scan {
        if self.is_escaped {
            self.is_escaped = false;
        } else if c == '\\' {
            self.is_escaped = true;
        } else if c == '"' {
            self.in_string = false;
            if self.depth == 0 {
                return Scan::Last;
            }
        }
        Scan::Part
    }
}

/// Appends `c` as it stands in a JSON string.
pub(super) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\x1F' => {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        _ => out.push(c),
    }
}

/// `text` as a JSON string.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    text.chars().for_each(|c| escape(c, &mut out));
    out.push('"');
    out
}

/// Whether `text` is one JSON value.
pub(super) fn is_value(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}
