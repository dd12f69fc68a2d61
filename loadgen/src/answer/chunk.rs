//! What a chunk of each API says.

use crate::{
    options::Api,
    output::{Failure, FailureKind, Usage},
};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// A chunk, or a whole answer.
pub(super) struct Chunk<'a> {
    /// All text so far (`/generate`), or what is new.
    pub(super) text: Cow<'a, str>,
    pub(super) usage: Usage,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Generated<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    meta_info: Option<Meta>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Meta {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    finish_reason: Option<Value>,
}

#[derive(Deserialize)]
struct OpenAi<'a> {
    #[serde(borrow, default = "Vec::new")]
    choices: Vec<Choice<'a>>,
    usage: Option<Counts>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow, alias = "message")]
    delta: Option<Delta<'a>>,
    finish_reason: Option<Value>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl<'a> Chunk<'a> {
    /// Reads the JSON of a chunk.
    ///
    /// # Errors
    /// When it is something else, or tells of an error.
    pub(super) fn read(api: Api, json: &'a [u8]) -> Result<Self, Failure> {
        let unreadable = |e: serde_json::Error| {
            let line: String = String::from_utf8_lossy(json).chars().take(200).collect();
            Failure::new(FailureKind::Stream, format!("a line is no chunk ({e}): {line}"))
        };
        let (text, usage, finish, error) = if api == Api::Generate {
            let Generated { text, meta_info, error } =
                serde_json::from_slice(json).map_err(unreadable)?;
            let (mut usage, mut finish) = (Usage::default(), None);
            if let Some(meta) = meta_info {
                usage = Usage {
                    prompt: meta.prompt_tokens,
                    cached: meta.cached_tokens,
                    completion: meta.completion_tokens,
                };
                finish = meta.finish_reason;
            }
            (text, usage, finish, error)
        } else {
            let OpenAi { choices, usage, error } =
                serde_json::from_slice(json).map_err(unreadable)?;
            let usage = usage.map_or_else(Usage::default, |counts| Usage {
                prompt: counts.prompt_tokens,
                cached: counts.prompt_tokens_details.and_then(|d| d.cached_tokens),
                completion: counts.completion_tokens,
            });
            let choice = choices.into_iter().next();
            let (text, finish) = choice.map_or((None, None), |choice| {
                let delta = choice.delta.map(|delta| {
                    let content = delta.content.filter(|text| !text.0.is_empty());
                    content.or(delta.reasoning_content)
                });
                (choice.text.or(delta.flatten()), choice.finish_reason)
            });
            (text, usage, finish, error)
        };
        if let Some(error) = error {
            let message = error["message"].as_str().map_or_else(|| error.to_string(), Into::into);
            return Err(Failure::new(FailureKind::Stream, message));
        }
        let is_abort = |f: &Value| f == "abort" || f["type"] == "abort";
        if let Some(finish) = finish.filter(is_abort) {
            let why = finish["message"].as_str().unwrap_or("the server gave the request up");
            return Err(Failure::new(FailureKind::Stream, why));
        }
        Ok(Self { text: text.map_or(Cow::Borrowed(""), |text| text.0), usage })
    }
}
