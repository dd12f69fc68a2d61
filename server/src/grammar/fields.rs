//! The fields of a request that ask for structured output.

use super::{Grammar, Tag, Tagged};
use crate::{ApiError, fields::Fields};
use serde_json::Value;

/// What `json_schema` says when it means any JSON object.
const ANY: &str = "$$ANY$$";

/// Reads the fields that ask for structured output, of which at most one may be there.
///
/// # Errors
/// [`ApiError::Field`] names the field that is wrong or one too many.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    let mut found: Option<Grammar> = None;
    for (name, read) in [
        ("response_format", response_format as Read),
        ("json_schema", json_schema),
        ("regex", |value, field| Grammar::regex(&field, &text(value, &field)?).map(Some)),
        ("ebnf", |value, field| Grammar::ebnf(&field, &text(value, &field)?).map(Some)),
        ("structural_tag", structural_tag),
    ] {
        let value = fields.take(name).filter(|value| value.as_str() != Some(""));
        let Some(value) = value else { continue };
        let field = fields.path_of(name);
        let Some(grammar) = read(value, field.clone())? else { continue };
        if let Some(other) = &found {
            let problem = format!("cannot be combined with `{}`", other.field());
            return Err(ApiError::field(field, problem));
        }
        found = Some(grammar);
    }
    Ok(found)
}

/// Reads the value of a field, whose path is given.
type Read = fn(Value, String) -> Result<Option<Grammar>, ApiError>;

fn text(value: Value, field: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(ApiError::field(field, "must be a string")),
    }
}

/// A schema, or a text that is one.
fn json_schema(value: Value, field: String) -> Result<Option<Grammar>, ApiError> {
    match value {
        Value::String(text) if text == ANY => Ok(Some(Grammar::json_object(field))),
        value => Grammar::json_schema(&field, &parsed(value, &field)?).map(Some),
    }
}

/// A text stands for the JSON that it is.
fn parsed(value: Value, field: &str) -> Result<Value, ApiError> {
    match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|e| ApiError::field(field, format!("is not JSON: {e}"))),
        value => Ok(value),
    }
}

fn response_format(value: Value, field: String) -> Result<Option<Grammar>, ApiError> {
    let mut format = Fields::nested(value.clone(), &field)?;
    match format.get::<String>("type")?.as_deref() {
        None | Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::json_object(field))),
        Some("json_schema") => {
            let path = format.path_of("json_schema");
            let mut format =
                format.object("json_schema")?.ok_or_else(|| ApiError::field(path, "is missing"))?;
            let path = format.path_of("schema");
            let schema = format.take("schema").ok_or_else(|| {
                ApiError::field(&path, "is missing; give the JSON schema of the answer")
            })?;
            Grammar::json_schema(&path, &schema).map(Some)
        }
        Some("structural_tag") => structural_tag(value, field),
        Some(_) => {
            let problem =
                "must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"";
            Err(ApiError::field(format.path_of("type"), problem))
        }
    }
}

/// `structures` are pieces between tags, `triggers` the texts that begin them.
fn structural_tag(value: Value, field: String) -> Result<Option<Grammar>, ApiError> {
    let mut format = Fields::nested(parsed(value, &field)?, &field)?;
    let structures = format.get_or::<Vec<Value>>("structures", Vec::new())?;
    let path = format.path_of("structures");
    let mut tags = Vec::with_capacity(structures.len());
    for (i, structure) in structures.into_iter().enumerate() {
        let mut structure = Fields::nested(structure, &format!("{path}[{i}]"))?;
        let begin_path = structure.path_of("begin");
        tags.push(Tag {
            begin: structure
                .get("begin")?
                .ok_or_else(|| ApiError::field(begin_path, "is missing"))?,
            schema: structure.take("schema").unwrap_or(Value::Bool(true)),
            end: structure.get_or("end", String::new())?,
        });
    }
    let tagged = Tagged {
        tags,
        triggers: format.get_or("triggers", Vec::new())?,
        at_least_one: false,
        at_most_one: false,
    };
    Grammar::tagged(field, &tagged).map(Some)
}
