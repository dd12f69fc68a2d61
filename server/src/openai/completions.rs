//! `POST /v1/completions`.

use super::{
    UNSUPPORTED,
    completion_stream::CompletionWriter,
    logprobs::CompletionLogprobs,
    types::{CompletionChoice, Envelope, StreamUsage, Usage, finish_reason},
};
use crate::{
    ApiError,
    app::{App, AppState, unix_seconds},
    fields::Fields,
    generation::{Generation, Job, Matched},
    output::{Output, collect},
    params::{COMPLETION_NAMES, MAX_N, Params, check_top_logprobs},
    prompt::Prompts,
    sse,
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use runtime::LogprobOptions;

/// Tokens of an answer when the client does not say.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What the client asks for.
struct CompletionRequest {
    id: Option<String>,
    model: Option<String>,
    prompts: Prompts,
    params: Params,
    /// Answers generated for each prompt, of which the best `n` are returned.
    best_of: usize,
    echo: bool,
    /// Alternatives to report; `None` reports no log-probabilities.
    logprobs: Option<usize>,
    stream: bool,
    usage: StreamUsage,
}

/// What does not change from chunk to chunk.
pub(super) struct Header {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Header {
    pub(super) fn new(app: &App, prefix: &str, id: Option<String>, model: Option<String>) -> Self {
        Self {
            id: id.unwrap_or_else(|| format!("{prefix}-{}", app.unique_name())),
            created: unix_seconds(),
            model: model.unwrap_or_else(|| app.model.name.clone()),
        }
    }
}

/// Reads `stream_options`.
pub(super) fn stream_usage(fields: &mut Fields) -> Result<StreamUsage, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(StreamUsage::default());
    };
    Ok(StreamUsage {
        at_end: options.get_or("include_usage", false)?,
        continuous: options.get_or("continuous_usage_stats", false)?,
    })
}

impl CompletionRequest {
    fn take(mut fields: Fields, app: &App) -> Result<Self, ApiError> {
        fields.refuse(UNSUPPORTED)?;
        fields.refuse(&["suffix"])?;
        let prompt = fields.take("prompt").ok_or_else(|| {
            ApiError::field("prompt", "is missing; give a text or a list of token ids")
        })?;
        let params = Params::take(&mut fields, &COMPLETION_NAMES, &app.sampling_defaults())?;
        let stream = fields.get_or("stream", false)?;
        let best_of = fields.get_or("best_of", params.n)?;
        if !(params.n..=MAX_N).contains(&best_of) {
            let problem =
                format!("must be between `n` = {} and {MAX_N}, found {best_of}", params.n);
            return Err(ApiError::field("best_of", problem));
        }
        if stream && best_of > params.n {
            let problem = "must equal `n` in a stream, because the best is known only at the end";
            return Err(ApiError::field("best_of", problem));
        }
        let logprobs = fields.get::<usize>("logprobs")?;
        Ok(Self {
            id: fields.get("rid")?,
            model: fields.get("model")?,
            prompts: Prompts::parse(prompt, "prompt")?,
            best_of,
            echo: fields.get_or("echo", false)?,
            logprobs: logprobs.map(|n| check_top_logprobs("logprobs", n)).transpose()?,
            stream,
            usage: stream_usage(&mut fields)?,
            params,
        })
    }

    async fn jobs(&self, app: &App, id: &str) -> Result<Vec<Job>, ApiError> {
        let mut jobs = Vec::new();
        let logprobs = LogprobOptions {
            output: self.logprobs.is_some() || self.best_of > self.params.n,
            prompt_from: (self.echo && self.logprobs.is_some()).then_some(0),
            top_n: self.logprobs.unwrap_or(0),
        };
        for prompt in &self.prompts.items {
            let tokens = prompt.tokens(app).await?;
            jobs.extend((0..self.best_of).map(|answer| Job {
                name: id.to_owned(),
                prompt: tokens.clone(),
                params: self.params.of_answer(answer),
                default_max_tokens: Some(DEFAULT_MAX_TOKENS),
                logprobs,
            }));
        }
        Ok(jobs)
    }

    /// For each choice, the text that goes before its answer.
    fn echoes(&self, app: &App) -> Vec<String> {
        let echo = |prompt: &crate::prompt::Prompt| {
            if self.echo { prompt.text(&app.model.tokenizer) } else { String::new() }
        };
        let echoes = self.prompts.items.iter().map(echo);
        echoes.flat_map(|echo| vec![echo; self.params.n]).collect()
    }
}

/// `POST /v1/completions`.
pub(crate) async fn completions(
    State(AppState(app)): State<AppState>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let request = CompletionRequest::take(fields, &app)?;
    let header = Header::new(&app, "cmpl", request.id.clone(), request.model.clone());
    let jobs = request.jobs(&app, &header.id).await?;
    let count = jobs.len();
    let generation = Generation::start(&app, jobs).await?;
    let echoes = request.echoes(&app);
    if request.stream {
        let interval = app.options.stream_interval.get();
        let (usage, per_prompt) = (request.usage, request.params.n);
        let has_logprobs = request.logprobs.is_some();
        let writer = CompletionWriter::new(app, header, echoes, has_logprobs, usage, per_prompt);
        return Ok(sse::stream(generation, writer, interval));
    }
    let outputs = collect(generation, count).await?;
    Ok(respond(&app, &request, &header, &echoes, outputs))
}

fn respond(
    app: &App,
    request: &CompletionRequest,
    header: &Header,
    echoes: &[String],
    mut outputs: Vec<Output>,
) -> Response {
    let usage = Usage::sum(outputs.iter().map(|output| output.counts), request.best_of);
    if request.best_of > request.params.n {
        outputs = best(outputs, request.best_of, request.params.n);
    }
    let texts: Vec<String> =
        outputs.iter().zip(echoes).map(|(output, echo)| format!("{echo}{}", output.text)).collect();
    let choices: Vec<CompletionChoice<'_>> = outputs
        .iter()
        .zip(&texts)
        .enumerate()
        .map(|(index, (output, text))| CompletionChoice {
            index,
            text,
            logprobs: request.logprobs.map(|_| logprobs(app, output)),
            finish_reason: Some(finish_reason(&output.end)),
            matched_stop: Matched::of(&output.end),
        })
        .collect();
    let Header { id, created, model } = header;
    let body = Envelope {
        id,
        object: "text_completion",
        created: *created,
        model,
        choices,
        usage: Some(usage),
    };
    Json(body).into_response()
}

fn logprobs(app: &App, output: &Output) -> CompletionLogprobs {
    let mut logprobs = CompletionLogprobs::default();
    let mut offset = 0;
    for entry in output.prompt_logprobs.iter().chain(&output.logprobs) {
        logprobs.push(&app.model.tokenizer, entry, &mut offset);
    }
    logprobs
}

/// Of each `of` outputs the `n` with the best mean log-probability, best first.
fn best(outputs: Vec<Output>, of: usize, n: usize) -> Vec<Output> {
    let mut rest = outputs.into_iter();
    let mut kept = Vec::new();
    loop {
        let mut group: Vec<Output> = rest.by_ref().take(of).collect();
        if group.is_empty() {
            return kept;
        }
        group.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        kept.extend(group.into_iter().take(n));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{Counts, End};
    use runtime::TokenLogprob;

    fn output(text: &str, logprobs: &[f32]) -> Output {
        let entry = |p: &f32| TokenLogprob { token: 0, logprob: Some(*p), top: Vec::new() };
        Output {
            text: text.into(),
            tokens: Vec::new(),
            logprobs: logprobs.iter().map(entry).collect(),
            prompt_logprobs: Vec::new(),
            end: End::Length,
            counts: Counts::default(),
            latency: std::time::Duration::ZERO,
        }
    }

    #[test]
    fn the_best_of_each_prompt_are_kept_in_order() {
        let outputs = vec![
            output("a", &[-3.0]),
            output("b", &[-1.0, -2.0]),
            output("c", &[-1.0]),
            output("d", &[]),
            output("e", &[-9.0]),
            output("f", &[-8.0]),
        ];
        let texts: Vec<String> = best(outputs, 3, 2).into_iter().map(|o| o.text).collect();
        assert_eq!(texts, ["c", "b", "f", "e"]);
    }
}
