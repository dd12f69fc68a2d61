//! Grammars that leave a model free to call or not, and hold the arguments of calls to their schema, in
//! formats whose calls are not a JSON text between tags.

use super::{
    ToolFormat,
    force::{FIELD, around, between, literal, quoted, schema},
    tools::{Function, Kind, ToolSet, kind},
};
use crate::{
    ApiError,
    grammar::{Grammar, checked_schema},
};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Free text with calls in `format`; `None` where calls cannot be told from text.
///
/// # Errors
/// When a schema cannot be used.
pub(super) fn grammar(set: &ToolSet, format: ToolFormat) -> Result<Option<Grammar>, ApiError> {
    let lark = match format {
        ToolFormat::Qwen3Coder => markup(set, &CODER)?,
        ToolFormat::DeepSeekV32 => markup(set, &DSML)?,
        ToolFormat::GptOss => harmony(set)?,
        ToolFormat::Llama3 => objects(set)?,
        _ => return Ok(None),
    };
    Grammar::lark(FIELD, &lark).map(Some)
}

/// Any text. It has no special tokens, which are no text.
const TEXT: &str = "TEXT: /(.|\\n)*/\n";

/// How a format writes calls whose parameters have tags of their own.
struct Style {
    /// Begins a call; the name follows.
    begin: &'static str,
    behind_name: &'static str,
    close_call: &'static str,
    /// Begins a parameter, whose key follows.
    parameter: &'static str,
    /// Behind the key of a text, and of a value that is JSON.
    behind_key: [&'static str; 2],
    close_parameter: &'static str,
    /// Stands between a value and what closes its parameter.
    before_close: &'static str,
    /// A string may be written as JSON too.
    has_json_strings: bool,
}

static CODER: Style = Style {
    begin: "<function=",
    behind_name: ">\n",
    close_call: "</function>",
    parameter: "<parameter=",
    behind_key: [">\n"; 2],
    close_parameter: "</parameter>",
    before_close: "\n",
    has_json_strings: false,
};

static DSML: Style = Style {
    begin: "<｜DSML｜invoke name=\"",
    behind_name: "\">\n",
    close_call: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=\"",
    behind_key: ["\" string=\"true\">", "\" string=\"false\">"],
    close_parameter: "</｜DSML｜parameter>",
    before_close: "",
    has_json_strings: true,
};

fn markup(set: &ToolSet, style: &Style) -> Result<String, ApiError> {
    let mut lark = format!("start: call* TEXT\n{TEXT}head[lazy]: TEXT {}\n", quoted(style.begin));
    let mut calls = Vec::new();
    for (i, function) in set.iter().enumerate() {
        let name = quoted(&format!("{}{}", function.name, style.behind_name));
        if function.is_strict {
            let mut parameters = String::new();
            for (j, (rule, is_required)) in parameters_of(function, style)?.iter().enumerate() {
                let _ = writeln!(lark, "p{i}_{j}: {}", rule.main);
                if let Some(text) = &rule.text {
                    let _ = writeln!(lark, "t{i}_{j}[lazy]: {text}");
                    lark = lark.replace("@TEXT@", &format!("t{i}_{j}"));
                }
                let _ = write!(parameters, "p{i}_{j}{} ", if *is_required { "" } else { "?" });
            }
            calls.push(format!("{name} {parameters}{}", quoted(style.close_call)));
        } else {
            let _ = writeln!(lark, "rest{i}[lazy]: TEXT {}", quoted(style.close_call));
            calls.push(format!("{name} rest{i}"));
        }
    }
    let _ = writeln!(lark, "call: head ({})", calls.join(" | "));
    Ok(lark)
}

/// How a parameter is written.
struct Rule {
    /// Has `@TEXT@` where its text stands, if it is one.
    main: String,
    /// What the text and its end look like.
    text: Option<String>,
}

/// The parameters of a strict function in the order of its schema, and whether they are required.
fn parameters_of(function: &Function, style: &Style) -> Result<Vec<(Rule, bool)>, ApiError> {
    let refused = |what: &str| {
        let name = &function.name;
        let problem = format!(
            "has the strict function {name} with {what}, which cannot be enforced in the way this \
             model writes calls; leave it out, or force the call with `tool_choice`"
        );
        ApiError::field(FIELD, problem)
    };
    const KNOWN: [&str; 10] = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "title",
        "description",
        "$defs",
        "definitions",
        "$schema",
        "default",
    ];
    let whole = schema(function);
    let empty = Map::new();
    let object = whole.as_object().unwrap_or(&empty);
    if let Some(other) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(refused(&format!("`{other}` beside its properties")));
    }
    let required: Vec<&str> = object
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let properties = object.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
        return Err(refused(&format!("the required parameter `{name}`, which has no schema")));
    }
    let mut rules = Vec::with_capacity(properties.len());
    for (key, schema) in properties {
        if key.contains(['<', '>', '"', '\n']) {
            return Err(refused(&format!("a parameter `{key}`")));
        }
        let rule = parameter(key, schema, object, style)?
            .ok_or_else(|| refused(&format!("what the schema of `{key}` says of a string")))?;
        rules.push((rule, required.contains(&key.as_str())));
    }
    Ok(rules)
}

/// A parameter; `None` when its schema says of a string what cannot be enforced.
fn parameter(
    key: &str,
    schema: &Value,
    whole: &Map<String, Value>,
    style: &Style,
) -> Result<Option<Rule>, ApiError> {
    let open = |way: usize| quoted(&format!("{}{key}{}", style.parameter, style.behind_key[way]));
    let close = quoted(&format!("{}{}\n", style.before_close, style.close_parameter));
    let text = |text: &str| {
        let main = format!("{} @TEXT@ \"\\n\"", open(0));
        Rule { main, text: Some(format!("{text} {}", quoted(style.close_parameter))) }
    };
    let as_json = || {
        let mut schema = schema.clone();
        if let Some(schema) = schema.as_object_mut() {
            let shared = ["$defs", "definitions"].into_iter();
            let shared = shared.filter_map(|name| Some((name, whole.get(name)?)));
            schema.extend(shared.map(|(name, value)| (name.to_owned(), value.clone())));
        }
        let schema = checked_schema(FIELD, &schema)?;
        Ok(Rule { main: format!("{} %json {schema} {close}", open(1)), text: None })
    };
    let kind = kind(schema);
    if kind == Kind::Text
        && let Some(values) = choices(schema)
    {
        // What the reader takes for a tag cannot be written as text.
        if values.iter().all(|value| !value.contains(['<', '\n']) && value.trim() == *value) {
            let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            let main = format!("{} ({}) {close}", open(0), values.join(" | "));
            return Ok(Some(Rule { main, text: None }));
        }
    } else if kind == Kind::Text && is_any_string(schema) {
        return Ok(Some(text("TEXT")));
    }
    if kind == Kind::Json || style.has_json_strings {
        return as_json().map(Some);
    }
    // Texts that are no JSON object or list are read as strings, but for `null`.
    let has_null = schema["type"].as_array().is_some_and(|names| {
        names.len() == 2 && names.iter().any(|name| name == "null") && is_any_string(schema)
    });
    Ok(has_null.then(|| text(r"/\s*[^\s{\[](.|\n)*/")))
}

/// The strings that a schema lists.
fn choices(schema: &Value) -> Option<Vec<&str>> {
    match (&schema["enum"], &schema["const"]) {
        (Value::Array(values), _) => values.iter().map(Value::as_str).collect(),
        (_, Value::String(value)) => Some(vec![value]),
        _ => None,
    }
}

/// Whether a schema allows any string, if it allows one.
fn is_any_string(schema: &Value) -> bool {
    const SAYS_NOTHING: [&str; 5] = ["type", "title", "description", "default", "examples"];
    schema.as_object().is_some_and(|s| s.keys().all(|key| SAYS_NOTHING.contains(&key.as_str())))
}

/// The schema of arguments, strict or not.
fn arguments(function: &Function) -> Result<Value, ApiError> {
    let any = json!({"type": "object"});
    checked_schema(FIELD, &if function.is_strict { schema(function) } else { any })
}

/// Messages with a channel each. One to a function has arguments, others have text.
fn harmony(set: &ToolSet) -> Result<String, ApiError> {
    let mut calls = Vec::new();
    for function in set.iter() {
        let name = quoted(&function.name);
        calls.push(format!("{name} header <|message|> %json {}", arguments(function)?));
    }
    Ok(format!(
        "start: message (<|end|> <|start|> \"assistant\" message)*\n\
         message: WORDS? channel <|message|> TEXT | TO call | WORDS? <|channel|> TO call\n\
         channel: (<|channel|> WORDS)? (<|constrain|> WORDS)?\n\
         header: BEHIND? channel\n\
         call: {}\n\
         TO: /[^=\\n]{{0,64}}to=functions\\./\nWORDS: /[^=\\n]{{1,64}}/\nBEHIND: / [^=\\n]{{0,64}}/\n{TEXT}",
        calls.join(" | ")
    ))
}

/// Calls instead of text: what begins with a brace is one.
fn objects(set: &ToolSet) -> Result<String, ApiError> {
    let mut calls = Vec::new();
    for function in set.iter() {
        let Some((begin, end)) = around(&function.name, ToolFormat::Llama3) else { continue };
        let arguments = arguments(function)?;
        calls.push(format!("{} %json {arguments} {}", quoted(&begin), quoted(end)));
    }
    let (_, separator, _) = between(ToolFormat::Llama3);
    Ok(format!(
        "start: call ({} call)* | TEXT?\ncall: {}\nTEXT: /\\s*[^\\s{{](.|\\n)*/\n",
        literal(separator),
        calls.join(" | ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        grammar::tests::{has_text, has_text_of},
        parse::{Message, Opening, Parser, Reading},
    };
    use std::sync::Arc;

    fn set(parameters: Value) -> ToolSet {
        let tools = json!([
            {"function": {"name": "plan", "parameters": parameters, "strict": true}},
            {"function": {"name": "plan_more", "parameters": {"properties": {"n": {"type": "integer"}}}}},
        ]);
        ToolSet::parse(tools.as_array().unwrap()).unwrap()
    }

    fn trip() -> Value {
        json!({
            "type": "object", "required": ["city", "days"], "additionalProperties": false,
            "$defs": {"count": {"type": "integer", "minimum": 1}},
            "properties": {
                "city": {"type": "string"},
                "days": {"$ref": "#/$defs/count", "type": "integer"},
                "by": {"enum": ["train", "bus"]},
                "note": {"type": ["string", "null"]},
            },
        })
    }

    /// The arguments of the calls that a text is read as.
    fn read(set: ToolSet, format: ToolFormat, text: &str) -> Vec<(String, String)> {
        let reading = Reading {
            tools: Some(format),
            reasoning: None,
            opening: Opening::Free,
            separates_reasoning: true,
            offered: Arc::new(set),
        };
        let message = Message::of_text(Parser::new(&reading), text);
        message.calls.into_iter().map(|call| (call.name, call.arguments)).collect()
    }

    #[test]
    fn parameters_with_tags_are_of_their_schemas() {
        let coder = |fields: &[(&str, &str)]| {
            let field =
                |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
            let fields: String = fields.iter().map(field).collect();
            format!("Well.\n<tool_call>\n<function=plan>\n{fields}</function>\n</tool_call>")
        };
        let dsml = |fields: &[(&str, &str)]| {
            let field = |(key, value): &(&str, &str)| {
                let is_text = matches!(*key, "city" | "by");
                let tag = "｜DSML｜parameter";
                format!("<{tag} name=\"{key}\" string=\"{is_text}\">{value}</{tag}>\n")
            };
            let fields: String = fields.iter().map(field).collect();
            let (block, call) = ("｜DSML｜function_calls", "｜DSML｜invoke");
            format!("Well.\n<{block}>\n<{call} name=\"plan\">\n{fields}</{call}>\n</{block}>")
        };
        type Write<'a> = &'a dyn Fn(&[(&str, &str)]) -> String;
        let formats: [(ToolFormat, Write<'_>, &str); 2] =
            [(ToolFormat::Qwen3Coder, &coder, "so"), (ToolFormat::DeepSeekV32, &dsml, "\"so\"")];
        for (format, write, note) in formats {
            let grammar = grammar(&set(trip()), format).unwrap().unwrap();
            assert!(has_text(&grammar, "No call: a < b."));
            for fields in [
                &[("city", "Rome"), ("days", "3")] as &[(&str, &str)],
                &[("city", "Rome\nor 2"), ("days", "3"), ("by", "bus")],
                &[("city", "{x}"), ("days", "12"), ("note", note)],
                &[("city", "x"), ("days", "12"), ("by", "train"), ("note", "null")],
            ] {
                let text = write(fields);
                assert!(has_text(&grammar, &text), "{format:?} {text}");
                let [(name, arguments)] = &read(set(trip()), format, &text)[..] else {
                    panic!("{text}")
                };
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert_eq!(name, "plan");
                assert!(arguments["city"].is_string() && arguments["days"].is_u64(), "{arguments}");
                assert_eq!(arguments.as_object().unwrap().len(), fields.len());
            }
            for fields in [
                &[("city", "Rome")] as &[(&str, &str)],
                &[("days", "3"), ("city", "Rome")],
                &[("city", "Rome"), ("days", "three")],
                &[("city", "Rome"), ("days", "0")],
                &[("city", "Rome"), ("days", "3"), ("by", "plane")],
                &[("city", "Rome"), ("days", "3"), ("more", "x")],
                &[("city", "Rome"), ("days", "3"), ("note", "[1]")],
            ] {
                let text = write(fields);
                assert!(!has_text(&grammar, &text), "{format:?} {text}");
            }
            let lax = write(&[("n", "x")]).replace("plan", "plan_more");
            assert!(has_text(&grammar, &lax), "{lax}");
            assert!(!has_text(&grammar, &lax.replace("plan_more", "nope")));
            let two = format!("{0}\n{0}", write(&[("city", "Rome"), ("days", "3")]));
            assert!(has_text(&grammar, &two));
            assert_eq!(read(set(trip()), format, &two).len(), 2);
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_by_name() {
        for (parameters, what) in [
            (json!({"properties": {"a": {"type": "string", "pattern": "x"}}}), "`a`"),
            (json!({"properties": {"a": {"type": ["string", "integer"]}}}), "`a`"),
            (json!({"properties": {"a>": {"type": "string"}}}), "`a>`"),
            (json!({"anyOf": [{"properties": {}}]}), "`anyOf`"),
            (json!({"required": ["b"]}), "`b`"),
        ] {
            let refused = grammar(&set(parameters.clone()), ToolFormat::Qwen3Coder);
            let why = refused.unwrap_err().to_string();
            assert!(why.starts_with("`tools` has the strict function plan"), "{why}");
            assert!(why.contains(what), "{why}");
        }
        let pattern = json!({"properties": {"a": {"type": "string", "pattern": "^x+$"}}});
        let grammar = grammar(&set(pattern), ToolFormat::DeepSeekV32).unwrap().unwrap();
        let text = |value: &str| {
            let tag = "｜DSML｜parameter";
            let field = format!("<{tag} name=\"a\" string=\"false\">{value}</{tag}>\n");
            format!("<｜DSML｜invoke name=\"plan\">\n{field}</｜DSML｜invoke>")
        };
        assert!(has_text(&grammar, &text("\"xx\"")) && !has_text(&grammar, &text("\"xy\"")));
    }

    #[test]
    fn an_object_instead_of_text_is_a_call() {
        let grammar = grammar(&set(trip()), ToolFormat::Llama3).unwrap().unwrap();
        let call = |name: &str, arguments: &str| {
            format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}")
        };
        let good = call("plan", "{\"city\": \"Rome\", \"days\": 3}");
        let two = format!("{good}; {}", call("plan_more", "{\"n\": \"x\"}"));
        for text in ["", "Hello {x}", good.as_str(), two.as_str()] {
            assert!(has_text(&grammar, text), "{text}");
        }
        assert_eq!(read(set(trip()), ToolFormat::Llama3, &two).len(), 2);
        for text in [call("plan", "{\"city\": \"Rome\"}"), call("nope", "{}"), "{x}".into()] {
            assert!(!has_text(&grammar, &text), "{text}");
        }
    }

    #[test]
    fn messages_to_functions_have_arguments_of_their_schemas() {
        const TOKENIZER: &[u8] = include_bytes!("../../tests/data/gpt_oss/tokenizer.json");
        let grammar = grammar(&set(trip()), ToolFormat::GptOss).unwrap().unwrap();
        let has = |text: &str| has_text_of(TOKENIZER, &grammar, text);
        let think = "<|channel|>analysis<|message|>Rome = {nice}.<|end|><|start|>assistant";
        let good = "{\"city\": \"Rome\", \"days\": 3}";
        assert!(has(&format!("{think}<|channel|>final<|message|>It is to=functions.")));
        for header in [
            "<|channel|>commentary to=functions.plan <|constrain|>json",
            " to=functions.plan<|channel|>commentary <|constrain|>json",
            "<|channel|>commentary to=functions.plan",
        ] {
            let text = |arguments: &str| format!("{think}{header}<|message|>{arguments}");
            assert!(has(&text(good)), "{header}");
            assert!(!has(&text("{\"city\": \"Rome\"}")), "{header}");
            assert!(!has(&text("Rome")), "{header}");
            let lax = text("{\"n\": \"x\"}");
            assert!(!has(&lax));
            assert!(has(&lax.replace("functions.plan", "functions.plan_more")), "{header}");
            assert_eq!(read(set(trip()), ToolFormat::GptOss, &text(good)).len(), 1);
        }
        assert!(!has("<|channel|>commentary to=functions.nope<|message|>{}"));
    }
}
