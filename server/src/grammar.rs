//! Structured output: answers that are texts of a grammar.
//!
//! A [`Grammar`] is what a request asks for. [`Grammars`] compiles it away from the threads that
//! serve connections and keeps what it compiled; a [`Compiled`] grammar gives each answer a
//! constraint whose token sets are worked out by threads of their own, while the device computes.

mod compile;
mod constraint;
mod ebnf;
mod fields;
mod limits;
mod tags;
#[cfg(test)]
pub(crate) mod tests;
mod vocabulary;
mod workers;

pub(crate) use compile::Grammars;
pub(crate) use fields::take;
pub(crate) use tags::{Tag, Tagged};
pub(crate) use workers::MaskTimes;

use crate::ApiError;
use llguidance::{api::TopLevelGrammar, regex_to_lark};
use serde_json::{Value, json};
use std::sync::Arc;

/// What an answer must be a text of, and which field of the request says so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grammar {
    field: String,
    source: Source,
}

/// A grammar as text; equal texts are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// A JSON schema.
    Json(Arc<str>),
    /// llguidance's variant of Lark.
    Lark(Arc<str>),
}

impl Source {
    fn text(&self) -> &str {
        match self {
            Self::Json(text) | Self::Lark(text) => text,
        }
    }

    fn to_llguidance(&self) -> Result<TopLevelGrammar, String> {
        match self {
            Self::Json(text) => serde_json::from_str(text)
                .map(TopLevelGrammar::from_json_schema)
                .map_err(|e| e.to_string()),
            Self::Lark(text) => Ok(TopLevelGrammar::from_lark(text.to_string())),
        }
    }
}

impl Grammar {
    /// Any JSON object.
    pub(crate) fn json_object(field: impl Into<String>) -> Self {
        let schema = with_whitespace(&json!({"type": "object"}));
        Self { field: field.into(), source: Source::Json(schema.to_string().into()) }
    }

    /// JSON that is valid under `schema`.
    ///
    /// # Errors
    /// When `schema` is not one that something is valid under, or is too large.
    pub(crate) fn json_schema(field: impl Into<String>, schema: &Value) -> Result<Self, ApiError> {
        let field = field.into();
        let schema = checked_schema(&field, schema)?;
        Self::checked(field, Source::Json(schema.to_string().into()))
    }

    /// Text that as a whole matches `regex`, in the syntax of the Rust crate `regex`.
    ///
    /// # Errors
    /// When it is too large.
    pub(crate) fn regex(field: impl Into<String>, regex: &str) -> Result<Self, ApiError> {
        let regex = regex_to_lark(without_anchors(regex), "");
        Self::lark(field, &format!("start: /{regex}/"))
    }

    /// Text of the rule `root` of a GBNF grammar, or of `start` of a Lark grammar.
    ///
    /// # Errors
    /// When GBNF cannot be read, or is too large.
    pub(crate) fn ebnf(field: impl Into<String>, grammar: &str) -> Result<Self, ApiError> {
        let field = field.into();
        limits::check_text(grammar).map_err(|why| ApiError::field(&field, why))?;
        if !ebnf::is_gbnf(grammar) {
            return Self::lark(field, grammar);
        }
        let lark = ebnf::to_lark(grammar).map_err(|why| ApiError::field(&field, why))?;
        Self::lark(field, &lark)
    }

    /// Text of the rule `start` of a grammar in llguidance's variant of Lark.
    ///
    /// # Errors
    /// When it is too large.
    pub(crate) fn lark(field: impl Into<String>, grammar: &str) -> Result<Self, ApiError> {
        Self::checked(field.into(), Source::Lark(grammar.into()))
    }

    /// Free text with pieces between tags that are valid under a schema.
    ///
    /// # Errors
    /// When a tag or a schema cannot be used, or all together are too large.
    pub(crate) fn tagged(field: impl Into<String>, tagged: &Tagged) -> Result<Self, ApiError> {
        let field = field.into();
        let lark = tags::to_lark(&field, tagged)?;
        Self::lark(field, &lark)
    }

    /// Any text up to the first `tag`, and then what `self` describes.
    ///
    /// # Errors
    /// When it is too large.
    pub(crate) fn behind(self, tag: &str) -> Result<Self, ApiError> {
        let answer = match &self.source {
            Source::Json(schema) => format!("%json {schema}"),
            Source::Lark(grammar) => format!("%lark {{\n{grammar}\n}}"),
        };
        let tag = Value::from(tag);
        let lark = format!(
            "start: head gap? answer\nhead[lazy]: /(.|\\n)*/ {tag}\ngap: /[ \\n]{{1,8}}/\n\
             answer: {answer}\n"
        );
        Self::lark(self.field, &lark)
    }

    /// The field that complaints name.
    pub(crate) fn field(&self) -> &str {
        &self.field
    }

    fn checked(field: String, source: Source) -> Result<Self, ApiError> {
        match limits::check_text(source.text()) {
            Ok(()) => Ok(Self { field, source }),
            Err(why) => Err(ApiError::field(field, why)),
        }
    }

    /// That the grammar is not one, and why.
    fn refused(&self, why: &str) -> ApiError {
        ApiError::field(&self.field, format!("cannot be used: {why}"))
    }
}

/// Whitespace between the parts of a JSON text: a space, or a new line with its indentation. With more
/// freedom, a model that has nothing to say fills its answer with it.
const WHITESPACE: &str = r"\x20|\x0D?\x0A[\x20\x09]{0,40}";

/// `schema` with the limit on whitespace, unless it has its own.
fn with_whitespace(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        let options = object.entry("x-guidance").or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut()
            && !options.contains_key("whitespace_flexible")
        {
            options.entry("whitespace_pattern").or_insert_with(|| WHITESPACE.into());
        }
    }
    schema
}

/// A schema as the compiler wants it.
pub(crate) fn checked_schema(field: &str, schema: &Value) -> Result<Value, ApiError> {
    match schema {
        Value::Bool(true) => Ok(with_whitespace(&json!({}))),
        Value::Object(_) => Ok(with_whitespace(schema)),
        Value::Bool(false) => {
            Err(ApiError::field(field, "is a schema that nothing is valid under"))
        }
        _ => Err(ApiError::field(field, "must be a JSON schema, which is an object")),
    }
}

/// The whole answer has to match anyway, and the matcher knows no anchors.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if rest.chars().rev().take_while(|c| *c == '\\').count() % 2 == 0 => rest,
        _ => regex,
    }
}
