//! What a client of `/generate` asks for.

use super::chunk::LogprobShape;
use crate::{
    ApiError,
    app::App,
    fields::Fields,
    generation::Job,
    model::GenerationDefaults,
    params::{GENERATE_NAMES, Params, check_top_logprobs},
    prompt::{Prompt, Prompts},
};
use runtime::LogprobOptions;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Tokens of an answer when the client does not say.
const DEFAULT_MAX_TOKENS: usize = 128;

/// Fields of features that this build does not have.
const UNSUPPORTED: &[&str] = &[
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "session_params",
    "return_hidden_states",
    "token_ids_logprob",
    "custom_logit_processor",
    "bootstrap_host",
    "bootstrap_room",
];

/// What the client asks for. Lists have one entry for each prompt.
pub(super) struct GenerateRequest {
    pub(super) prompts: Prompts,
    pub(super) stream: bool,
    params: Vec<Params>,
    logprobs: Vec<LogprobRequest>,
    names: Option<Vec<String>>,
    with_texts: bool,
}

#[derive(Clone, Copy, Debug)]
struct LogprobRequest {
    is_on: bool,
    /// Negative: none of the prompt.
    start: i64,
    top_n: usize,
}

impl GenerateRequest {
    pub(super) fn take(mut fields: Fields) -> Result<Self, ApiError> {
        fields.refuse(UNSUPPORTED)?;
        let prompts = prompts(&mut fields)?;
        let count = prompts.items.len();
        let is_on = each(&mut fields, "return_logprob", count, false)?;
        let start = each(&mut fields, "logprob_start_len", count, -1)?;
        let top_n = each(&mut fields, "top_logprobs_num", count, 0)?;
        let mut logprobs = Vec::with_capacity(count);
        for ((is_on, start), top_n) in is_on.into_iter().zip(start).zip(top_n) {
            let top_n = check_top_logprobs("top_logprobs_num", top_n)?;
            logprobs.push(LogprobRequest { is_on, start, top_n });
        }
        let mut params = params(&mut fields, count)?;
        if let Some(priority) = fields.get("priority")? {
            params.iter_mut().for_each(|params| params.priority = priority);
        }
        Ok(Self {
            params,
            logprobs,
            names: names(&mut fields, &prompts)?,
            with_texts: fields.get_or("return_text_in_logprobs", false)?,
            stream: fields.get_or("stream", false)?,
            prompts,
        })
    }

    /// The names of all answers, the answers to generate, and how to report log-probabilities.
    pub(super) async fn jobs(
        &self,
        app: &App,
    ) -> Result<(Vec<String>, Vec<Job>, Vec<Option<LogprobShape>>), ApiError> {
        let (mut names, mut jobs, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for (i, prompt) in self.prompts.items.iter().enumerate() {
            let tokens = prompt.tokens(app).await?;
            let LogprobRequest { is_on, start, top_n } = self.logprobs[i];
            let prompt_from = usize::try_from(start).ok().filter(|_| is_on);
            if prompt_from.is_some_and(|from| from > tokens.len()) {
                let problem = format!("is {start}, but the prompt has {} tokens", tokens.len());
                return Err(ApiError::field("logprob_start_len", problem));
            }
            let logprobs = LogprobOptions {
                output: is_on,
                prompt_from: prompt_from.filter(|from| *from < tokens.len()),
                top_n: if is_on { top_n } else { 0 },
            };
            for answer in 0..self.params[i].n {
                let name = match &self.names {
                    Some(names) => names[i].clone(),
                    None => app.unique_name(),
                };
                names.push(name.clone());
                shapes.push(
                    is_on.then_some(LogprobShape {
                        with_texts: self.with_texts,
                        has_top: top_n > 0,
                    }),
                );
                jobs.push(Job {
                    name,
                    prompt: tokens.clone(),
                    params: self.params[i].of_answer(answer),
                    default_max_tokens: Some(DEFAULT_MAX_TOKENS),
                    logprobs,
                });
            }
        }
        Ok((names, jobs, shapes))
    }
}

fn prompts(fields: &mut Fields) -> Result<Prompts, ApiError> {
    match (fields.take("text"), fields.take("input_ids")) {
        (Some(_), Some(_)) => Err(ApiError::field("input_ids", "cannot be combined with `text`")),
        (Some(text), None) => {
            let prompts = Prompts::parse(text, "text")?;
            if prompts.items.iter().any(|prompt| matches!(prompt, Prompt::Ids(_))) {
                return Err(ApiError::field("text", "must be a string or a list of strings"));
            }
            Ok(prompts)
        }
        (None, Some(ids)) => {
            let prompts = Prompts::parse(ids, "input_ids")?;
            if prompts.items.iter().any(|prompt| matches!(prompt, Prompt::Text(_))) {
                let problem = "must be a list of token ids or a list of such lists";
                return Err(ApiError::field("input_ids", problem));
            }
            Ok(prompts)
        }
        (None, None) => Err(ApiError::field("text", "is missing; give `text` or `input_ids`")),
    }
}

/// Reads a field that has one value for all prompts, or a list with one for each.
fn each<T: DeserializeOwned + Clone>(
    fields: &mut Fields,
    name: &str,
    count: usize,
    default: T,
) -> Result<Vec<T>, ApiError> {
    if !fields.is_list(name) {
        return Ok(vec![fields.get_or(name, default)?; count]);
    }
    let values: Vec<T> = fields.get_or(name, Vec::new())?;
    check_count(name, values.len(), count)?;
    Ok(values)
}

fn check_count(name: &str, found: usize, count: usize) -> Result<(), ApiError> {
    if found == count {
        return Ok(());
    }
    Err(ApiError::field(name, format!("has {found} entries for {count} prompts")))
}

fn params(fields: &mut Fields, count: usize) -> Result<Vec<Params>, ApiError> {
    const NAME: &str = "sampling_params";
    let one = |mut fields: Fields| {
        Params::take(&mut fields, &GENERATE_NAMES, &GenerationDefaults::default())
    };
    if !fields.is_list(NAME) {
        let fields = match fields.object(NAME)? {
            Some(fields) => fields,
            None => Fields::nested(Value::Object(serde_json::Map::new()), NAME)?,
        };
        return Ok(vec![one(fields)?; count]);
    }
    let values: Vec<Value> = fields.get_or(NAME, Vec::new())?;
    check_count(NAME, values.len(), count)?;
    let each = values.into_iter().enumerate();
    each.map(|(i, value)| one(Fields::nested(value, &format!("{NAME}[{i}]"))?)).collect()
}

/// `rid` is a name, which several prompts share with a number appended, or a list of names.
fn names(fields: &mut Fields, prompts: &Prompts) -> Result<Option<Vec<String>>, ApiError> {
    let count = prompts.items.len();
    match fields.take("rid") {
        None => Ok(None),
        Some(Value::String(name)) if !prompts.is_list => Ok(Some(vec![name])),
        Some(Value::String(name)) => Ok(Some((0..count).map(|i| format!("{name}_{i}")).collect())),
        Some(Value::Array(names)) => {
            check_count("rid", names.len(), count)?;
            let name = |value: Value| value.as_str().map(str::to_owned);
            let names: Option<Vec<String>> = names.into_iter().map(name).collect();
            names.map(Some).ok_or_else(|| ApiError::field("rid", "must contain strings only"))
        }
        Some(_) => Err(ApiError::field("rid", "must be a string or a list of strings")),
    }
}
