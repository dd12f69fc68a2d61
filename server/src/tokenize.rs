//! `/tokenize` and `/detokenize`.

use crate::{
    ApiError,
    app::AppState,
    fields::Fields,
    prompt::{Prompt, Prompts},
    text::Tokenizer,
};
use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::Value;

/// What one prompt or several become.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// What `/tokenize` says.
#[derive(Serialize)]
pub(crate) struct Tokenized {
    tokens: OneOrMany<Vec<u32>>,
    count: OneOrMany<usize>,
    max_model_len: usize,
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(AppState(app)): State<AppState>,
    mut fields: Fields,
) -> Result<Json<Tokenized>, ApiError> {
    let encode = if fields.get_or("add_special_tokens", true)? {
        Tokenizer::encode_prompt
    } else {
        Tokenizer::encode_rendered
    };
    let prompt = fields.take("prompt").or_else(|| fields.take("text"));
    let prompt = prompt.ok_or_else(|| ApiError::field("prompt", "is missing; give a text"))?;
    let prompts = Prompts::parse(prompt, "prompt")?;
    let mut tokens = Vec::with_capacity(prompts.items.len());
    for item in prompts.items {
        let Prompt::Text(text) = item else {
            return Err(ApiError::field("prompt", "must be a string or a list of strings"));
        };
        tokens.push(app.tokenize(text, encode).await?);
    }
    let max_model_len = app.context_tokens();
    let counts = tokens.iter().map(Vec::len).collect();
    let (tokens, count) = if prompts.is_list {
        (OneOrMany::Many(tokens), OneOrMany::Many(counts))
    } else {
        let tokens = tokens.pop().unwrap_or_default();
        (OneOrMany::One(tokens), OneOrMany::One(counts[0]))
    };
    Ok(Json(Tokenized { tokens, count, max_model_len }))
}

/// What `/detokenize` says: the same under both names that clients look for.
#[derive(Serialize)]
pub(crate) struct Detokenized {
    text: OneOrMany<String>,
    prompt: OneOrMany<String>,
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(AppState(app)): State<AppState>,
    mut fields: Fields,
) -> Result<Json<Detokenized>, ApiError> {
    let skip_special_tokens = fields.get_or("skip_special_tokens", true)?;
    let tokens = fields.take("tokens");
    let tokens = tokens.ok_or_else(|| ApiError::field("tokens", "is missing; give token ids"))?;
    let prompts = match tokens {
        Value::Array(items) if items.is_empty() => {
            Prompts { items: vec![Prompt::Ids(Vec::new())], is_list: false }
        }
        other => Prompts::parse(other, "tokens")?,
    };
    let mut texts = Vec::with_capacity(prompts.items.len());
    for item in prompts.items {
        let Prompt::Ids(ids) = item else {
            return Err(ApiError::field("tokens", "must be token ids or lists of token ids"));
        };
        let vocab_size = app.model.info.vocab_size;
        if let Some(id) = ids.iter().find(|id| **id >= vocab_size) {
            let problem = format!("has {id}, but the vocabulary has {vocab_size} tokens");
            return Err(ApiError::field("tokens", problem));
        }
        texts.push(app.model.tokenizer.decode(&ids, skip_special_tokens));
    }
    let one_or_many = || {
        if prompts.is_list {
            OneOrMany::Many(texts.clone())
        } else {
            OneOrMany::One(texts.concat())
        }
    };
    Ok(Json(Detokenized { text: one_or_many(), prompt: one_or_many() }))
}
