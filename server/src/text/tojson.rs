//! JSON spelled as chat templates were written against: the way Python's `json.dumps` does.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};
use std::io;

/// How to spell JSON.
pub(super) struct JsonStyle {
    /// Spaces per level; `None` writes one line.
    pub(super) indent: Option<usize>,
    /// Between items; the default is `", "`, or `","` when indented.
    pub(super) item_separator: Option<String>,
    /// Between key and value.
    pub(super) key_separator: String,
    /// Whether characters beyond ASCII are escaped.
    pub(super) ensure_ascii: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self { indent: None, item_separator: None, key_separator: ": ".into(), ensure_ascii: false }
    }
}

/// `value` as JSON in `style`.
pub(super) fn to_json(value: &impl Serialize, style: &JsonStyle) -> serde_json::Result<String> {
    let indent = " ".repeat(style.indent.unwrap_or(0));
    let formatter = PythonFormatter {
        style,
        pretty: style.indent.map(|_| PrettyFormatter::with_indent(indent.as_bytes())),
    };
    let mut bytes = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))?;
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}

struct PythonFormatter<'a> {
    style: &'a JsonStyle,
    pretty: Option<PrettyFormatter<'a>>,
}

impl PythonFormatter<'_> {
    fn separate<W: ?Sized + io::Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        match &self.style.item_separator {
            _ if first => Ok(()),
            Some(separator) => out.write_all(separator.as_bytes()),
            None => out.write_all(b", "),
        }
    }
}

impl Formatter for PythonFormatter<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.begin_array(out),
            None => CompactFormatter.begin_array(out),
        }
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.end_array(out),
            None => CompactFormatter.end_array(out),
        }
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.begin_array_value(out, first),
            None => self.separate(out, first),
        }
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.end_array_value(out),
            None => Ok(()),
        }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.begin_object(out),
            None => CompactFormatter.begin_object(out),
        }
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.end_object(out),
            None => CompactFormatter.end_object(out),
        }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.begin_object_key(out, first),
            None => self.separate(out, first),
        }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.style.key_separator.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match &mut self.pretty {
            Some(pretty) => pretty.end_object_value(out),
            None => Ok(()),
        }
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.style.ensure_ascii || fragment.is_ascii() {
            return out.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => out.write_all(&[byte])?,
                _ => write!(out, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}

/// The shortest digits that read back as `value`, with an exponent where Python uses one.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').expect("the format has an exponent");
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compact(value: serde_json::Value) -> String {
        to_json(&value, &JsonStyle::default()).unwrap()
    }

    #[test]
    fn one_line_has_spaces_after_separators_and_keeps_the_key_order() {
        let value = json!({"b": [1, 2.5, null], "a": {"é": true}, "e": [], "o": {}});
        assert_eq!(compact(value), r#"{"b": [1, 2.5, null], "a": {"é": true}, "e": [], "o": {}}"#);
    }

    #[test]
    fn an_indent_breaks_lines() {
        let style = JsonStyle { indent: Some(4), ..JsonStyle::default() };
        let text = to_json(&json!({"a": [1, {}], "b": []}), &style).unwrap();
        assert_eq!(text, "{\n    \"a\": [\n        1,\n        {}\n    ],\n    \"b\": []\n}");
    }

    #[test]
    fn escapes_are_those_of_python() {
        assert_eq!(compact(json!("\"\\\n\t\u{1}/<>&'")), r#""\"\\\n\t\u0001/<>&'""#);
        let style = JsonStyle { ensure_ascii: true, ..JsonStyle::default() };
        assert_eq!(to_json(&"é😀a", &style).unwrap(), r#""\u00e9\ud83d\ude00a""#);
    }

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        for (value, text) in [
            (1.0, "1.0"),
            (21.5, "21.5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(python_float(value), text);
        }
    }
}
