//! The functions of a request, and which of them the model may or must call.

use crate::{ApiError, fields::Fields};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The longest name of a function.
const MAX_NAME: usize = 128;

/// Functions with the schemas of their parameters.
#[derive(Debug, Default)]
pub(crate) struct ToolSet(Vec<Function>);

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON schema; an object.
    pub(crate) parameters: Value,
    /// Whether arguments must be valid under the schema.
    pub(crate) is_strict: bool,
}

/// Which calls are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// No calls.
    None,
    /// As the model likes.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// One of this function.
    Function(String),
}

/// What a request says about tools.
pub(crate) struct Tools {
    /// As the client gave them, for the template; none when no call is wanted.
    pub(crate) given: Option<Value>,
    pub(crate) set: Arc<ToolSet>,
    pub(crate) choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub(crate) is_parallel: bool,
}

/// How the text of a parameter is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As a string.
    Text,
    /// As JSON where it is JSON.
    Json,
    /// As JSON where it is JSON and no string is meant.
    Either,
}

impl Kind {
    /// Whether a text that is JSON is read as such.
    pub(super) fn takes(self, json: &str) -> bool {
        match self {
            Self::Text => false,
            Self::Json => true,
            Self::Either => json == "null" || json.starts_with(['{', '[']),
        }
    }
}

impl ToolSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Function> {
        self.0.iter()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Function> {
        self.0.iter().find(|function| function.name == name)
    }

    /// How the parameter `key` of `function` is written where values have no quotes.
    pub(super) fn kind(&self, function: &str, key: &str) -> Kind {
        let schema = self.get(function).map(|function| &function.parameters["properties"][key]);
        schema.filter(|schema| schema.is_object()).map_or(Kind::Text, kind)
    }

    /// Reads `tools`.
    pub(crate) fn parse(tools: &[Value]) -> Result<Self, ApiError> {
        let mut set = Self::default();
        for (i, tool) in tools.iter().enumerate() {
            let function = function(tool, &format!("tools[{i}]"))?;
            if set.has(&function.name) {
                let field = format!("tools[{i}].function.name");
                let problem = format!("{} is given twice; rename one", function.name);
                return Err(ApiError::field(field, problem));
            }
            set.0.push(function);
        }
        Ok(set)
    }
}

fn function(tool: &Value, path: &str) -> Result<Function, ApiError> {
    let mut tool = Fields::nested(tool.clone(), path)?;
    let kind = tool.get::<String>("type")?;
    if kind.as_deref().is_some_and(|kind| kind != "function") {
        return Err(ApiError::field(tool.path_of("type"), "must be \"function\""));
    }
    let field = tool.path_of("function");
    let mut function = tool
        .object("function")?
        .ok_or_else(|| ApiError::field(field, "is missing; give the function's name"))?;
    let field = function.path_of("name");
    let name = function
        .get::<String>("name")?
        .ok_or_else(|| ApiError::field(field.clone(), "is missing"))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        let problem = format!("must be 1 to {MAX_NAME} letters, digits, `_`, `-`, `.` or `:`");
        return Err(ApiError::field(field, problem));
    }
    let parameters = function.get_or::<Map<String, Value>>("parameters", Map::new())?;
    let is_strict = function.get_or("strict", false)?;
    Ok(Function { name, parameters: Value::Object(parameters), is_strict })
}

impl Tools {
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let given: Vec<Value> = fields.get_or("tools", Vec::new())?;
        let set = ToolSet::parse(&given)?;
        let choice = choice(fields, &set)?;
        let is_parallel = fields.get_or("parallel_tool_calls", true)?;
        let wanted = choice != ToolChoice::None && !set.is_empty();
        Ok(Self {
            given: wanted.then_some(Value::Array(given)),
            set: Arc::new(if wanted { set } else { ToolSet::default() }),
            choice,
            is_parallel,
        })
    }
}

fn choice(fields: &mut Fields, set: &ToolSet) -> Result<ToolChoice, ApiError> {
    const FIELD: &str = "tool_choice";
    let needs_tools = |choice| match set.is_empty() {
        true => Err(ApiError::field(FIELD, "needs `tools`; give the functions to choose from")),
        false => Ok(choice),
    };
    match fields.take(FIELD) {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" | "any" => needs_tools(ToolChoice::Required),
            _ => {
                let problem = "must be \"none\", \"auto\", \"required\" or a function";
                Err(ApiError::field(FIELD, problem))
            }
        },
        Some(value) => {
            let mut choice = Fields::nested(value, FIELD)?;
            let function = choice.object("function")?;
            let name = match function {
                Some(mut function) => function.get::<String>("name")?,
                None => choice.get::<String>("name")?,
            };
            let field = format!("{FIELD}.function.name");
            let Some(name) = name else { return Err(ApiError::field(field, "is missing")) };
            if !set.has(&name) {
                let problem = format!("is {name}, which is none of `tools`");
                return Err(ApiError::field(field, problem));
            }
            needs_tools(ToolChoice::Function(name))
        }
    }
}

/// Whether a schema allows strings, other values, or both.
pub(super) fn kind(schema: &Value) -> Kind {
    let kinds: Vec<Kind> = match (&schema["type"], schema.get("anyOf").or(schema.get("oneOf"))) {
        (Value::String(name), _) => vec![kind_of_type(name)],
        (Value::Array(names), _) => {
            names.iter().filter_map(Value::as_str).map(kind_of_type).collect()
        }
        (_, Some(Value::Array(schemas))) => schemas.iter().map(kind).collect(),
        _ => match (&schema["enum"], &schema["const"]) {
            (Value::Array(values), _) => values.iter().map(kind_of_value).collect(),
            (_, Value::Null) if schema.get("properties").is_some() => vec![Kind::Json],
            (_, Value::Null) => vec![Kind::Either],
            (_, value) => vec![kind_of_value(value)],
        },
    };
    let first = kinds.first().copied().unwrap_or(Kind::Either);
    if kinds.iter().all(|kind| *kind == first) { first } else { Kind::Either }
}

fn kind_of_type(name: &str) -> Kind {
    if name == "string" { Kind::Text } else { Kind::Json }
}

fn kind_of_value(value: &Value) -> Kind {
    if value.is_string() { Kind::Text } else { Kind::Json }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(tools: Value) -> String {
        ToolSet::parse(tools.as_array().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_with_a_tool_is_told_by_its_path() {
        let named = |name: &str| json!([{"type": "function", "function": {"name": name}}]);
        for name in ["", "a b", "<x>", "é", &"n".repeat(129)] {
            let e = error(named(name));
            assert!(e.starts_with("`tools[0].function.name` must be 1 to 128 letters"), "{e}");
        }
        assert_eq!(error(json!(["x"])), "`tools[0]` must be an object");
        assert_eq!(error(json!([{"type": "retrieval"}])), "`tools[0].type` must be \"function\"");
        assert_eq!(error(json!([{"function": {}}])), "`tools[0].function.name` is missing");
        let e = error(json!([{"function": {"name": "f", "parameters": "x"}}]));
        assert!(e.starts_with("`tools[0].function.parameters` is wrong"), "{e}");
        let twice = json!([{"function": {"name": "f"}}, {"function": {"name": "f"}}]);
        assert_eq!(error(twice), "`tools[1].function.name` f is given twice; rename one");
    }

    #[test]
    fn a_choice_is_one_of_the_tools() {
        let take = |choice: Value| {
            let body = json!({"tools": [{"function": {"name": "f"}}], "tool_choice": choice});
            let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
            Tools::take(&mut fields).map(|tools| (tools.choice, tools.set.is_empty()))
        };
        assert_eq!(take(json!("none")), Ok((ToolChoice::None, true)));
        assert_eq!(take(json!(null)), Ok((ToolChoice::Auto, false)));
        assert_eq!(take(json!("required")), Ok((ToolChoice::Required, false)));
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(take(named), Ok((ToolChoice::Function("f".into()), false)));
        let e = take(json!({"type": "function", "function": {"name": "g"}})).unwrap_err();
        assert_eq!(e.to_string(), "`tool_choice.function.name` is g, which is none of `tools`");
        assert!(take(json!("maybe")).unwrap_err().to_string().starts_with("`tool_choice` must"));
    }

    #[test]
    fn a_schema_says_how_a_value_is_written() {
        for (schema, expected) in [
            (json!({"type": "string"}), Kind::Text),
            (json!({"type": "integer"}), Kind::Json),
            (json!({"type": ["string", "null"]}), Kind::Either),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), Kind::Either),
            (json!({"anyOf": [{"type": "number"}, {"type": "null"}]}), Kind::Json),
            (json!({"enum": ["a", "b"]}), Kind::Text),
            (json!({"const": 3}), Kind::Json),
            (json!({"properties": {}}), Kind::Json),
            (json!({"$ref": "#/x"}), Kind::Either),
        ] {
            assert_eq!(kind(&schema), expected, "{schema}");
        }
    }
}
