//! `POST /v1/chat/completions`.

use super::{
    chat_request::ChatRequest,
    chat_stream::ChatWriter,
    completions::Header,
    logprobs::ChatLogprobs,
    types::{ChatChoice, ChatMessage, Envelope, Usage, finish_reason},
};
use crate::{
    ApiError,
    app::{App, AppState},
    fields::Fields,
    generation::{Generation, Job, Matched},
    output::{Output, collect},
    sse,
    text::Tokenizer,
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use runtime::LogprobOptions;

/// `POST /v1/chat/completions`.
pub(crate) async fn chat_completions(
    State(AppState(app)): State<AppState>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let request = ChatRequest::take(fields, &app)?;
    let header = Header::new(&app, "chatcmpl", request.id.clone(), request.model.clone());
    let prompt = prompt(&app, &request).await?;
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
    let generation = Generation::start(&app, jobs.collect())?;
    if request.stream {
        let interval = app.options.stream_interval.get();
        let writer = ChatWriter::new(app, header, n, request.logprobs.is_some(), request.usage);
        return Ok(sse::stream(generation, writer, interval));
    }
    let outputs = collect(generation, n).await?;
    Ok(respond(&app, &request, &header, &outputs))
}

async fn prompt(app: &App, request: &ChatRequest) -> Result<Vec<u32>, ApiError> {
    let template = app.model.template(request.render.tools.is_some()).ok_or_else(|| {
        ApiError::Prompt(
            "the model has no chat template; use /v1/completions, or add chat_template.jinja to \
             the checkpoint and compile again"
                .into(),
        )
    })?;
    let text = template
        .render(&request.messages, &request.render)
        .map_err(|e| ApiError::field("messages", format!("cannot be rendered: {e}")))?;
    app.tokenize(text, Tokenizer::encode_rendered).await
}

fn respond(app: &App, request: &ChatRequest, header: &Header, outputs: &[Output]) -> Response {
    let choices: Vec<ChatChoice<'_>> = outputs
        .iter()
        .enumerate()
        .map(|(index, output)| ChatChoice {
            index,
            message: ChatMessage {
                role: "assistant",
                content: &output.text,
                reasoning_content: None,
                tool_calls: None,
            },
            logprobs: request.logprobs.map(|_| logprobs(app, output)),
            finish_reason: finish_reason(&output.end),
            matched_stop: Matched::of(&output.end),
        })
        .collect();
    let usage = Usage::sum(outputs.iter().map(|output| output.counts), outputs.len());
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

fn logprobs(app: &App, output: &Output) -> ChatLogprobs {
    let mut logprobs = ChatLogprobs::default();
    for entry in &output.logprobs {
        logprobs.push(&app.model.tokenizer, entry);
    }
    logprobs
}
