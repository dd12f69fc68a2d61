//! Grammars that hold calls to their format and to the schemas of their functions.

use super::{
    ToolChoice, ToolFormat, Tools,
    tools::{Function, ToolSet},
};
use crate::{
    ApiError,
    grammar::{Grammar, Tag, Tagged, checked_schema},
};
use serde_json::{Value, json};

/// The field that complaints name.
pub(super) const FIELD: &str = "tools";

impl Tools {
    /// Whether an answer has to be calls.
    pub(crate) fn are_forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Function(_))
    }

    /// How calls are written: as the model does, unless they are forced and its way is not JSON.
    pub(crate) fn format(&self, model: Option<ToolFormat>) -> Option<ToolFormat> {
        if !self.are_forced() {
            return model;
        }
        model.filter(|format| around("", *format).is_some()).or(Some(ToolFormat::Json))
    }

    /// What answers must be texts of, if calls are forced or a function is strict.
    ///
    /// # Errors
    /// When a schema cannot be used.
    pub(crate) fn grammar(&self, format: Option<ToolFormat>) -> Result<Option<Grammar>, ApiError> {
        let Some(format) = format else { return Ok(None) };
        match &self.choice {
            ToolChoice::None => Ok(None),
            ToolChoice::Auto => strict(&self.set, format),
            ToolChoice::Required => {
                let functions: Vec<&Function> = self.set.iter().collect();
                calls(&functions, self.is_parallel, format).map(Some)
            }
            ToolChoice::Function(name) => {
                let functions: Vec<&Function> = self.set.get(name).into_iter().collect();
                calls(&functions, false, format).map(Some)
            }
        }
    }
}

/// What stands before and behind the arguments of a call of `name`.
pub(super) fn around(name: &str, format: ToolFormat) -> Option<(String, &'static str)> {
    match format {
        ToolFormat::Hermes => Some((
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": "),
            "}\n</tool_call>",
        )),
        ToolFormat::DeepSeekV3 => Some((
            format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"),
            "\n```<｜tool▁call▁end｜>",
        )),
        ToolFormat::DeepSeekV31 => {
            Some((format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"), "<｜tool▁call▁end｜>"))
        }
        ToolFormat::Llama3 => Some((format!("{{\"name\": \"{name}\", \"parameters\": "), "}")),
        ToolFormat::Json => Some((format!("{{\"name\": \"{name}\", \"arguments\": "), "}")),
        ToolFormat::Qwen3Coder | ToolFormat::DeepSeekV32 | ToolFormat::GptOss => None,
    }
}

/// What stands before, between and behind calls.
pub(super) fn between(format: ToolFormat) -> (&'static str, &'static str, &'static str) {
    match format {
        ToolFormat::DeepSeekV3 => ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
        ToolFormat::DeepSeekV31 => ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        ToolFormat::Llama3 | ToolFormat::Json => ("", "; ", ""),
        _ => ("", "\n", ""),
    }
}

/// What begins a call whose arguments are JSON, where that is no ordinary text.
fn trigger(format: ToolFormat) -> Option<&'static str> {
    match format {
        ToolFormat::Hermes => Some("<tool_call>"),
        ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31 => Some("<｜tool▁call▁begin｜>"),
        _ => None,
    }
}

/// The schema of the arguments, which are always an object.
pub(super) fn schema(function: &Function) -> Value {
    let mut schema = function.parameters.clone();
    if let Some(object) = schema.as_object_mut() {
        object.entry("type").or_insert_with(|| "object".into());
    }
    schema
}

/// One call or several, and nothing else.
fn calls(
    functions: &[&Function],
    is_parallel: bool,
    format: ToolFormat,
) -> Result<Grammar, ApiError> {
    let mut rules = Vec::with_capacity(functions.len());
    for function in functions {
        let Some((begin, end)) = around(&function.name, format) else { continue };
        let schema = checked_schema(FIELD, &schema(function))?;
        rules.push(format!("{} %json {schema} {}", quoted(&begin), quoted(end)));
    }
    let (before, separator, behind) = between(format);
    let more = match is_parallel {
        true => format!("({} call)*", literal(separator)),
        false => String::new(),
    };
    let (before, behind) = (literal(before), literal(behind));
    let lark = format!("start: {before} call {more} {behind}\ncall: {}\n", rules.join(" | "));
    Grammar::lark(FIELD, &lark)
}

/// Free text in which every call has arguments of its function's schema, if that is strict.
fn strict(set: &ToolSet, format: ToolFormat) -> Result<Option<Grammar>, ApiError> {
    if !set.iter().any(|function| function.is_strict) {
        return Ok(None);
    }
    let Some(trigger) = trigger(format) else { return super::strict::grammar(set, format) };
    let tags = set.iter().filter_map(|function| {
        let (begin, end) = around(&function.name, format)?;
        let any = json!({"type": "object"});
        let schema = if function.is_strict { schema(function) } else { any };
        Some(Tag { begin, schema, end: end.into() })
    });
    let tagged =
        Tagged { tags: tags.collect(), triggers: vec![trigger.into()], ..Tagged::default() };
    Grammar::tagged(FIELD, &tagged).map(Some)
}

pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// `text` in a rule, where nothing is written as nothing.
pub(super) fn literal(text: &str) -> String {
    if text.is_empty() { String::new() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fields::Fields,
        grammar::tests::has_text,
        parse::{Message, Opening, Parser, Reading, ReasoningFormat},
    };
    use std::sync::Arc;

    const FORMATS: [ToolFormat; 8] = [
        ToolFormat::Hermes,
        ToolFormat::Qwen3Coder,
        ToolFormat::DeepSeekV3,
        ToolFormat::DeepSeekV31,
        ToolFormat::DeepSeekV32,
        ToolFormat::GptOss,
        ToolFormat::Llama3,
        ToolFormat::Json,
    ];

    fn tools(choice: Value) -> Tools {
        let city = json!({"type": "object", "properties": {"city": {"type": "string"}},
            "required": ["city"], "additionalProperties": false});
        let strict = json!({"name": "get_weather", "parameters": city, "strict": true});
        let tools = json!([{"function": strict}, {"function": {"name": "get_time"}}]);
        let body = json!({"tools": tools, "tool_choice": choice});
        Tools::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap()).unwrap()
    }

    fn call(name: &str, arguments: &str, format: ToolFormat) -> String {
        let (begin, end) = around(name, format).unwrap();
        format!("{begin}{arguments}{end}")
    }

    #[test]
    fn a_forced_call_is_read_as_a_call() {
        let rome = "{\"city\": \"Rome\"}";
        for model in FORMATS {
            let required = tools(json!("required"));
            let format = required.format(Some(model)).unwrap();
            let grammar = required.grammar(Some(format)).unwrap().unwrap();
            let (before, separator, behind) = between(format);
            let (weather, time) =
                (call("get_weather", rome, format), call("get_time", "{}", format));
            let one = format!("{before}{weather}{behind}");
            let two = format!("{before}{weather}{separator}{time}{behind}");
            assert!(has_text(&grammar, &one), "{model:?}");
            assert!(has_text(&grammar, &two), "{model:?}");
            let reading = Reading {
                tools: Some(format),
                reasoning: None,
                opening: Opening::Free,
                separates_reasoning: true,
                offered: Arc::clone(&required.set),
            };
            let message = Message::of_text(Parser::new(&reading), &two);
            let names: Vec<&str> = message.calls.iter().map(|call| call.name.as_str()).collect();
            assert_eq!(
                (names, message.calls[0].arguments.as_str()),
                (vec!["get_weather", "get_time"], rome)
            );
            assert_eq!(message.content, "");

            let other = format!("{before}{}{behind}", call("get_weather", "{}", format));
            for wrong in ["", "No.", &other] {
                assert!(!has_text(&grammar, wrong), "{model:?}: {wrong}");
            }
            let named = tools(json!({"type": "function", "function": {"name": "get_time"}}));
            let grammar = named.grammar(Some(format)).unwrap().unwrap();
            assert!(has_text(&grammar, &format!("{before}{time}{behind}")));
            assert!(!has_text(&grammar, &one) && !has_text(&grammar, &two));
        }
    }

    #[test]
    fn strict_functions_get_arguments_of_their_schema() {
        let auto = tools(json!("auto"));
        for format in [ToolFormat::Hermes, ToolFormat::DeepSeekV31] {
            let grammar = auto.grammar(Some(format)).unwrap().unwrap();
            let text =
                |name: &str, arguments: &str| format!("Well. {}", call(name, arguments, format));
            assert!(has_text(&grammar, "No call."));
            assert!(has_text(&grammar, &text("get_weather", "{\"city\": \"Rome\"}")));
            assert!(!has_text(&grammar, &text("get_weather", "{}")));
            assert!(has_text(&grammar, &text("get_time", "{\"any\": 1}")));
            assert!(!has_text(&grammar, &text("nope", "{}")));
        }
        assert_eq!(auto.grammar(Some(ToolFormat::Json)), Ok(None));
        assert_eq!(tools(json!("none")).grammar(Some(ToolFormat::Hermes)), Ok(None));
    }

    #[test]
    fn a_grammar_is_for_what_follows_the_reasoning() {
        let reading = |reasoning, opening| Reading {
            tools: None,
            reasoning: Some(reasoning),
            opening,
            separates_reasoning: true,
            offered: Arc::default(),
        };
        let end = |reasoning, opening| reading(reasoning, opening).reasoning_end();
        assert_eq!(end(ReasoningFormat::Qwen3, Opening::Open), Some("</think>"));
        assert_eq!(end(ReasoningFormat::DeepSeekR1, Opening::Free), Some("</think>"));
        assert_eq!(end(ReasoningFormat::Qwen3, Opening::Free), None);
        assert_eq!(end(ReasoningFormat::DeepSeekR1, Opening::Closed), None);

        let named = tools(json!({"type": "function", "function": {"name": "get_time"}}));
        let call = call("get_time", "{}", ToolFormat::Hermes);
        let forced = named.grammar(Some(ToolFormat::Hermes)).unwrap().unwrap();
        let schema = Grammar::json_schema("f", &json!({"type": "integer"})).unwrap();
        for (grammar, answer) in [(forced, call.as_str()), (schema, "7")] {
            let grammar = grammar.behind("</think>").unwrap();
            assert!(has_text(&grammar, &format!("a <b> c\n</think>\n\n{answer}")));
            assert!(has_text(&grammar, &format!("</think>{answer}")));
            assert!(!has_text(&grammar, answer));
            assert!(!has_text(&grammar, &format!("a</think>b{answer}")));
        }
    }
}
