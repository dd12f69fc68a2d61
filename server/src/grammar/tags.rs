//! Free text with pieces of JSON between tags, such as calls of tools.

use super::checked_schema;
use crate::ApiError;
use serde_json::Value;
use std::fmt::Write;

/// A piece of JSON and what stands around it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tag {
    /// Stands before the JSON.
    pub(crate) begin: String,
    /// What the JSON is valid under.
    pub(crate) schema: Value,
    /// Stands behind the JSON.
    pub(crate) end: String,
}

/// Free text in which certain words begin a piece of JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tagged {
    /// The pieces.
    pub(crate) tags: Vec<Tag>,
    /// Beginnings of tags: once the text has one, one of the tags that begin so has to follow.
    /// When there are none, a whole beginning triggers its tag.
    pub(crate) triggers: Vec<String>,
    /// Whether the text may not end before a tag was used.
    pub(crate) at_least_one: bool,
    /// Whether the text ends behind the first tag.
    pub(crate) at_most_one: bool,
}

/// The tags in llguidance's variant of Lark. A trigger is matched lazily, so it ends the free text
/// where it first occurs.
pub(super) fn to_lark(field: &str, tagged: &Tagged) -> Result<String, ApiError> {
    if tagged.tags.is_empty() {
        return Err(ApiError::field(field, "has no `structures`; give at least one"));
    }
    let mut triggers: Vec<&str> = tagged.triggers.iter().map(String::as_str).collect();
    if triggers.is_empty() {
        triggers = tagged.tags.iter().map(|tag| tag.begin.as_str()).collect();
    }
    triggers.sort_unstable();
    triggers.dedup();
    if triggers.iter().any(|trigger| trigger.is_empty()) {
        return Err(ApiError::field(field, "has an empty trigger"));
    }
    let mut pieces = vec![Vec::new(); triggers.len()];
    for tag in &tagged.tags {
        let trigger = triggers.iter().position(|trigger| tag.begin.starts_with(trigger));
        let Some(trigger) = trigger else {
            let problem = format!("has no trigger that `{}` begins with", tag.begin);
            return Err(ApiError::field(field, problem));
        };
        let rest = &tag.begin[triggers[trigger].len()..];
        let schema = checked_schema(field, &tag.schema)?;
        pieces[trigger].push(format!("{} %json {schema} {}", quoted(rest), quoted(&tag.end)));
    }
    let used = || pieces.iter().enumerate().filter(|(_, pieces)| !pieces.is_empty());
    let any = used().map(|(i, _)| format!("piece{i}")).collect::<Vec<_>>().join(" | ");
    let mut lark = match (tagged.at_least_one, tagged.at_most_one) {
        (true, true) => format!("start: {any}\n"),
        (true, false) => format!("start: ({any})+ text\n"),
        (false, true) => format!("start: {any} | text\n"),
        (false, false) => format!("start: ({any})* text\n"),
    };
    lark.push_str("text: TEXT\nTEXT: /(.|\\n)*/\n");
    for (i, pieces) in used() {
        let alternatives = pieces.join(" | ");
        // Writing to a string does not fail.
        let _ = write!(
            lark,
            "head{i}[lazy]: TEXT {}\npiece{i}: head{i} ({alternatives})\n",
            quoted(triggers[i])
        );
    }
    Ok(lark)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
