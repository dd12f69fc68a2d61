//! What a client of `/v1/chat/completions` asks for.

use super::{UNSUPPORTED, completions::stream_usage, types::StreamUsage};
use crate::{
    ApiError,
    app::App,
    fields::Fields,
    params::{CHAT_NAMES, Params, check_top_logprobs},
    parse::Tools,
    text::RenderOptions,
};
use serde_json::{Map, Value};
use std::sync::Arc;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What the client asks for.
pub(super) struct ChatRequest {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    /// As the template wants them: every content is a string, or none beside calls; every argument
    /// list is an object.
    pub(super) messages: Value,
    pub(super) render: RenderOptions,
    pub(super) tools: Tools,
    pub(super) params: Params,
    /// Whether reasoning is a part of the answer by itself.
    pub(super) separates_reasoning: bool,
    /// Whether it is sent as it comes and not at its end.
    pub(super) streams_reasoning: bool,
    /// Alternatives to report; `None` reports no log-probabilities.
    pub(super) logprobs: Option<usize>,
    pub(super) stream: bool,
    pub(super) usage: StreamUsage,
}

impl ChatRequest {
    pub(super) fn take(mut fields: Fields, app: &App) -> Result<Self, ApiError> {
        fields.refuse(UNSUPPORTED)?;
        let mut params = Params::take(&mut fields, &CHAT_NAMES, &app.sampling_defaults())?;
        params.shown_tokens = Arc::clone(&app.formats.shown_tokens);
        let logprobs: bool = fields.get_or("logprobs", false)?;
        let top_logprobs = fields.get::<usize>("top_logprobs")?;
        if top_logprobs.is_some_and(|n| n > 0) && !logprobs {
            return Err(ApiError::field("top_logprobs", "needs `logprobs` to be true"));
        }
        let top_logprobs = check_top_logprobs("top_logprobs", top_logprobs.unwrap_or(0))?;
        let tools = Tools::take(&mut fields)?;
        if let Some(grammar) = params.grammar.as_ref().filter(|_| tools.are_forced()) {
            let problem = format!("cannot force a call together with `{}`", grammar.field());
            return Err(ApiError::field("tool_choice", problem));
        }
        Ok(Self {
            id: fields.get("rid")?,
            model: fields.get("model")?,
            render: render_options(&mut fields, tools.given.clone())?,
            tools,
            separates_reasoning: fields.get_or("separate_reasoning", true)?,
            streams_reasoning: fields.get_or("stream_reasoning", true)?,
            messages: messages(&mut fields)?,
            params,
            logprobs: logprobs.then_some(top_logprobs),
            stream: fields.get_or("stream", false)?,
            usage: stream_usage(&mut fields)?,
        })
    }
}

fn render_options(fields: &mut Fields, tools: Option<Value>) -> Result<RenderOptions, ApiError> {
    let continue_final_message = fields.get_or("continue_final_message", false)?;
    let add_generation_prompt = fields.get("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let problem = "cannot be combined with `continue_final_message`";
        return Err(ApiError::field("add_generation_prompt", problem));
    }
    let mut variables: Map<String, Value> = Map::new();
    if let Some(effort) = fields.get::<String>("reasoning_effort")? {
        if effort == "none" {
            // Templates know it under either name.
            variables.insert("enable_thinking".into(), false.into());
            variables.insert("thinking".into(), false.into());
        }
        variables.insert("reasoning_effort".into(), effort.into());
    }
    variables.extend(fields.get_or::<Map<String, Value>>("chat_template_kwargs", Map::new())?);
    Ok(RenderOptions {
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        tools,
        variables,
    })
}

fn messages(fields: &mut Fields) -> Result<Value, ApiError> {
    let Some(value) = fields.take("messages") else {
        return Err(ApiError::field("messages", "is missing; give a list of messages"));
    };
    let Value::Array(messages) = value else {
        return Err(ApiError::field("messages", "must be a list of messages"));
    };
    if messages.is_empty() {
        return Err(ApiError::field("messages", "is empty; give at least one message"));
    }
    let messages = messages.into_iter().enumerate().map(|(i, message)| {
        let path = format!("messages[{i}]");
        let Value::Object(message) = message else {
            return Err(ApiError::field(path, "must be an object"));
        };
        normalised(message, &path).map(Value::Object)
    });
    Ok(Value::Array(messages.collect::<Result<_, _>>()?))
}

fn normalised(mut message: Map<String, Value>, path: &str) -> Result<Map<String, Value>, ApiError> {
    let role = message.get("role").and_then(Value::as_str);
    if !role.is_some_and(|role| ROLES.contains(&role)) {
        let problem = format!("must be one of {}", ROLES.join(", "));
        return Err(ApiError::field(format!("{path}.role"), problem));
    }
    let content = message.get("content").cloned().unwrap_or(Value::Null);
    let is_assistant = role == Some("assistant");
    message.insert("content".into(), text_of(content, is_assistant, &format!("{path}.content"))?);
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for (i, call) in calls.iter_mut().enumerate() {
            parse_arguments(call, &format!("{path}.tool_calls[{i}]"))?;
        }
    }
    if is_assistant {
        share_reasoning(&mut message);
    }
    message.retain(|_, value| !value.is_null());
    let has_calls = message.get("tool_calls").is_some_and(|calls| *calls != Value::Array(vec![]));
    if has_calls && message["content"] == "" {
        // Templates find calls where the content is none.
        message.insert("content".into(), Value::Null);
    }
    Ok(message)
}

/// Clients send the reasoning of an earlier answer back under several names, and templates look for
/// it under two.
fn share_reasoning(message: &mut Map<String, Value>) {
    let text = ["reasoning_content", "reasoning", "thinking"]
        .into_iter()
        .find_map(|name| message.get(name).filter(|text| text.is_string()).cloned());
    if let Some(text) = text {
        message.insert("reasoning_content".into(), text.clone());
        message.insert("thinking".into(), text);
    }
}

/// A string, or the texts of a list of parts, a line each.
fn text_of(content: Value, may_be_absent: bool, path: &str) -> Result<Value, ApiError> {
    match content {
        Value::String(_) => Ok(content),
        Value::Null if may_be_absent => Ok("".into()),
        Value::Array(parts) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (i, part) in parts.into_iter().enumerate() {
                let path = format!("{path}[{i}]");
                let mut part = Fields::nested(part, &path)?;
                let kind: Option<String> = part.get("type")?;
                if kind.as_deref().is_some_and(|kind| kind != "text") {
                    let problem = "must be \"text\": this model takes nothing else";
                    return Err(ApiError::field(format!("{path}.type"), problem));
                }
                texts.push(
                    part.get::<String>("text")?
                        .ok_or_else(|| ApiError::field(format!("{path}.text"), "is missing"))?,
                );
            }
            Ok(texts.join("\n").into())
        }
        _ => Err(ApiError::field(path, "must be a string or a list of text parts")),
    }
}

/// Clients send the arguments of a call as a string of JSON; templates expect the object.
fn parse_arguments(call: &mut Value, path: &str) -> Result<(), ApiError> {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return Ok(()) };
    let Some(text) = arguments.as_str() else { return Ok(()) };
    let text = if text.trim().is_empty() { "{}" } else { text };
    let parsed: Map<String, Value> = serde_json::from_str(text).map_err(|e| {
        let field = format!("{path}.function.arguments");
        ApiError::field(field, format!("must be a JSON object: {e}"))
    })?;
    *arguments = Value::Object(parsed);
    Ok(())
}
