//! `POST /v1/chat/completions`.

use super::{
    chat_request::ChatRequest,
    chat_stream::ChatWriter,
    completions::Header,
    logprobs::ChatLogprobs,
    reader::Reader,
    types::{ChatChoice, ChatMessage, Envelope, FunctionCall, ToolCall, Usage},
};
use crate::{
    ApiError,
    app::{App, AppState},
    fields::Fields,
    generation::{Generation, Job, Matched, Step},
    grammar::Grammar,
    output::{Output, collect_with},
    parse::{Call, Formats, Message, Opening, Reading, ReasoningFormat, ToolFormat, Tools},
    sse,
    text::{ChatTemplate, RenderOptions, Tokenizer},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use runtime::LogprobOptions;
use serde_json::Value;
use std::sync::Arc;

/// `POST /v1/chat/completions`.
pub(crate) async fn chat_completions(
    State(AppState(app)): State<AppState>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let mut request = ChatRequest::take(fields, &app)?;
    let header = Header::new(&app, "chatcmpl", request.id.clone(), request.model.clone());
    let (prompt, opening) = prompt(&app, &request).await?;
    let reading = reading(&app, &request, opening);
    request.params.grammar = grammar(request.params.grammar.take(), &request.tools, &reading)?;
    let n = request.params.n;
    let logprobs = LogprobOptions {
        output: request.logprobs.is_some(),
        prompt_from: None,
        top_n: request.logprobs.unwrap_or(0),
    };
    let jobs = (0..n).map(|answer| Job {
        name: header.id.clone(),
        prompt: prompt.clone(),
        params: request.params.of_answer(answer),
        default_max_tokens: None,
        logprobs,
    });
    let generation = Generation::start(&app, jobs.collect()).await?;
    let is_parallel = request.tools.is_parallel;
    let mut readers: Vec<Reader> =
        std::iter::repeat_with(|| Reader::new(&reading, is_parallel)).take(n).collect();
    if request.stream {
        let interval = app.options.stream_interval.get();
        let writer = ChatWriter::new(app, header, readers, &request);
        return Ok(sse::stream(generation, writer, interval));
    }
    let look = |step: &Step| drop(readers[step.choice].step(&app, step));
    let outputs = collect_with(generation, n, look).await?;
    Ok(respond(&app, &request, &header, &outputs, &readers))
}

/// How the answers are read.
fn reading(app: &App, request: &ChatRequest, opening: Opening) -> Reading {
    let Formats { tools, reasoning, .. } = app.formats;
    let tools = request.tools.format(tools);
    // A forced call is an answer without channels where those are not JSON.
    let has_channels = tools == Some(ToolFormat::GptOss) || !request.tools.are_forced();
    Reading {
        tools,
        reasoning: reasoning.filter(|format| has_channels || *format != ReasoningFormat::GptOss),
        opening,
        separates_reasoning: request.separates_reasoning,
        offered: Arc::clone(&request.tools.set),
    }
}

/// What the answers must be texts of. What the client gives or the tools need is for what follows
/// the reasoning.
fn grammar(
    given: Option<Grammar>,
    tools: &Tools,
    reading: &Reading,
) -> Result<Option<Grammar>, ApiError> {
    let grammar = match given {
        Some(given) => Some(given),
        None => tools.grammar(reading.tools)?,
    };
    match (grammar, reading.reasoning_end()) {
        (Some(grammar), Some(end)) => grammar.behind(end).map(Some),
        (grammar, _) => Ok(grammar),
    }
}

/// The prompt, and what it says about reasoning.
async fn prompt(app: &App, request: &ChatRequest) -> Result<(Vec<u32>, Opening), ApiError> {
    let template = app.model.template(request.render.tools.is_some()).ok_or_else(|| {
        ApiError::Prompt(
            "the model has no chat template; use /v1/completions, or add chat_template.jinja to \
             the checkpoint and compile again"
                .into(),
        )
    })?;
    let text = render(template, &request.messages, &request.render)
        .map_err(|e| ApiError::field("messages", format!("cannot be rendered: {e}")))?;
    let opening = if request.render.continue_final_message {
        let last = request.messages.as_array().and_then(|messages| messages.last());
        Opening::of_answer(last.and_then(|last| last["content"].as_str()).unwrap_or_default())
    } else {
        Opening::of_prompt(&text)
    };
    Ok((app.tokenize(text, Tokenizer::encode_rendered).await?, opening))
}

/// Renders `messages`. Templates disagree on what an answer that has calls looks like, so what the
/// first of these cannot render is tried as the next: arguments are an object or a string, content
/// is none or empty.
fn render(
    template: &ChatTemplate,
    messages: &Value,
    options: &RenderOptions,
) -> Result<String, String> {
    template.render(messages, options).or_else(|e| {
        let ways = [(true, false), (false, true), (true, true)];
        let others = ways.into_iter().filter_map(|(quotes_arguments, has_content)| {
            respelled(messages, quotes_arguments, has_content)
        });
        others
            .map(|messages| template.render(&messages, options))
            .find(Result::is_ok)
            .unwrap_or(Err(e))
    })
}

/// The messages with their calls spelled otherwise; nothing when there are no calls.
fn respelled(messages: &Value, quotes_arguments: bool, has_content: bool) -> Option<Value> {
    let mut messages = messages.clone();
    let mut has_calls = false;
    for message in messages.as_array_mut()?.iter_mut().filter_map(Value::as_object_mut) {
        let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { continue };
        has_calls |= !calls.is_empty();
        let arguments = calls.iter_mut().filter_map(|call| call.pointer_mut("/function/arguments"));
        arguments.filter(|_| quotes_arguments).for_each(|arguments| {
            *arguments = Value::String(arguments.to_string());
        });
        if has_content && message.get("content").is_some_and(Value::is_null) {
            message.insert("content".into(), "".into());
        }
    }
    has_calls.then_some(messages)
}

fn respond(
    app: &App,
    request: &ChatRequest,
    header: &Header,
    outputs: &[Output],
    readers: &[Reader],
) -> Response {
    let choices: Vec<ChatChoice<'_>> = outputs
        .iter()
        .zip(readers)
        .enumerate()
        .map(|(index, (output, reader))| ChatChoice {
            index,
            message: message(reader),
            logprobs: request.logprobs.map(|_| logprobs(app, output)),
            finish_reason: reader.finish_reason(&output.end),
            matched_stop: Matched::of(&output.end),
        })
        .collect();
    let usage = Usage::sum(outputs.iter().map(|output| output.counts), outputs.len())
        .with_reasoning(readers.iter().map(|reader| reader.reasoning_tokens).sum());
    let Header { id, created, model } = header;
    let body = Envelope {
        id,
        object: "chat.completion",
        created: *created,
        model,
        choices,
        usage: Some(usage),
    };
    Json(body).into_response()
}

fn message(reader: &Reader) -> ChatMessage<'_> {
    let Message { reasoning, content, calls } = &reader.message;
    let tool_calls: Vec<ToolCall<'_>> = calls
        .iter()
        .zip(&reader.ids)
        .map(|(Call { name, arguments }, id)| ToolCall {
            index: None,
            id: Some(id),
            kind: Some("function"),
            function: FunctionCall { name: Some(name), arguments },
        })
        .collect();
    let has_else = !reasoning.is_empty() || !calls.is_empty();
    ChatMessage {
        role: "assistant",
        content: Some(content.as_str()).filter(|text| !(has_else && text.is_empty())),
        reasoning_content: Some(reasoning.as_str()).filter(|text| !text.is_empty()),
        tool_calls: Some(tool_calls).filter(|calls| !calls.is_empty()),
    }
}

fn logprobs(app: &App, output: &Output) -> ChatLogprobs {
    let mut logprobs = ChatLogprobs::default();
    for entry in &output.logprobs {
        logprobs.push(&app.model.tokenizer, entry);
    }
    logprobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    #[test]
    fn calls_are_spelled_as_the_template_wants_them() {
        let call = json!({"function": {"name": "f", "arguments": {"x": 1}}});
        let messages = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
        ]);
        let rendered = |answer: &str| {
            let source = format!(
                "{{% for m in messages %}}{{% if m.tool_calls %}}{answer}{{% else %}}{{{{ m.content }}}} \
                 {{% endif %}}{{% endfor %}}"
            );
            let template = ChatTemplate::new(&source, Map::new()).unwrap();
            render(&template, &messages, &RenderOptions::default())
        };
        let calls = "{% set f = m.tool_calls[0].function %}";
        let (object, string) = ("{{ f.arguments | tojson }}", "{{ f.name + f.arguments }}");
        let is_none = "{{ m.content is none }}";
        let added = "{{ m.content + ':' }}";
        for (answer, expected) in [
            (format!("{calls}{object}{is_none}"), "Hi {\"x\": 1}True"),
            (format!("{calls}{string}{is_none}"), "Hi f{\"x\":1}True"),
            (format!("{calls}{object}{added}"), "Hi {\"x\": 1}:"),
            (format!("{calls}{string}{added}"), "Hi f{\"x\":1}:"),
        ] {
            assert_eq!(rendered(&answer).as_deref(), Ok(expected), "{answer}");
        }
        assert!(rendered("{{ raise_exception('no calls') }}").is_err_and(|e| e == "no calls"));
    }
}
