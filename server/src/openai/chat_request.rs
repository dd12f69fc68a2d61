//! What a client of `/v1/chat/completions` asks for.

use super::{
    UNSUPPORTED,
    completions::{refuse_response_format, stream_usage},
    types::StreamUsage,
};
use crate::{
    ApiError,
    app::App,
    fields::Fields,
    params::{CHAT_NAMES, Params, check_top_logprobs},
    text::RenderOptions,
};
use serde_json::{Map, Value};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What the client asks for.
pub(super) struct ChatRequest {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    /// As the template wants them: every content is a string, every argument list an object.
    pub(super) messages: Value,
    pub(super) render: RenderOptions,
    pub(super) params: Params,
    /// Alternatives to report; `None` reports no log-probabilities.
    pub(super) logprobs: Option<usize>,
    pub(super) stream: bool,
    pub(super) usage: StreamUsage,
}

impl ChatRequest {
    pub(super) fn take(mut fields: Fields, app: &App) -> Result<Self, ApiError> {
        fields.refuse(UNSUPPORTED)?;
        refuse_response_format(&mut fields)?;
        let params = Params::take(&mut fields, &CHAT_NAMES, &app.sampling_defaults())?;
        let logprobs: bool = fields.get_or("logprobs", false)?;
        let top_logprobs = fields.get::<usize>("top_logprobs")?;
        if top_logprobs.is_some_and(|n| n > 0) && !logprobs {
            return Err(ApiError::field("top_logprobs", "needs `logprobs` to be true"));
        }
        let top_logprobs = check_top_logprobs("top_logprobs", top_logprobs.unwrap_or(0))?;
        Ok(Self {
            id: fields.get("rid")?,
            model: fields.get("model")?,
            render: render_options(&mut fields)?,
            messages: messages(&mut fields)?,
            params,
            logprobs: logprobs.then_some(top_logprobs),
            stream: fields.get_or("stream", false)?,
            usage: stream_usage(&mut fields)?,
        })
    }
}

fn render_options(fields: &mut Fields) -> Result<RenderOptions, ApiError> {
    let continue_final_message = fields.get_or("continue_final_message", false)?;
    let add_generation_prompt = fields.get("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let problem = "cannot be combined with `continue_final_message`";
        return Err(ApiError::field("add_generation_prompt", problem));
    }
    let mut variables: Map<String, Value> = Map::new();
    if let Some(effort) = fields.get::<String>("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    variables.extend(fields.get_or::<Map<String, Value>>("chat_template_kwargs", Map::new())?);
    let tools: Option<Vec<Value>> = fields.get("tools")?;
    let offers_tools = match fields.take("tool_choice") {
        None => true,
        Some(Value::String(choice)) if choice == "auto" => true,
        Some(Value::String(choice)) if choice == "none" => false,
        Some(_) => {
            let problem = "must be \"auto\" or \"none\": forcing a tool is not supported";
            return Err(ApiError::field("tool_choice", problem));
        }
    };
    Ok(RenderOptions {
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        tools: tools.filter(|tools| offers_tools && !tools.is_empty()).map(Value::Array),
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
    message.retain(|_, value| !value.is_null());
    Ok(message)
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
    let parsed: Map<String, Value> = serde_json::from_str(text).map_err(|e| {
        let field = format!("{path}.function.arguments");
        ApiError::field(field, format!("must be a JSON object: {e}"))
    })?;
    *arguments = Value::Object(parsed);
    Ok(())
}
