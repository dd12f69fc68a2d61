//! Sampling and length parameters, the same for every endpoint but for a few names.

use crate::{
    ApiError,
    fields::Fields,
    grammar::{self, Grammar},
    model::GenerationDefaults,
    text::{StopPatterns, Stops},
};
use runtime::Sampling;
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// The most stop strings, and the most stop patterns.
const MAX_STOP_STRINGS: usize = 16;
/// The most answers to one prompt.
pub(crate) const MAX_N: usize = 128;
/// The most alternatives to report for a position.
const MAX_TOP_LOGPROBS: usize = 128;

/// Temperatures below this are greedy: logits divided by them would not be finite.
const MIN_TEMPERATURE: f32 = 1e-6;

/// How the answers to a prompt are generated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Params {
    pub(crate) sampling: Sampling,
    /// `None` when the client did not say.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) min_tokens: usize,
    /// Texts that end an answer.
    pub(crate) stop: Stops,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special_tokens: bool,
    /// Special tokens that are in the text even so.
    pub(crate) shown_tokens: Arc<[u32]>,
    /// What the answers must be texts of.
    pub(crate) grammar: Option<Grammar>,
    /// Requests of a higher one start first, where the server is told to go by it.
    pub(crate) priority: i32,
    /// Answers to each prompt.
    pub(crate) n: usize,
    /// Where a complaint about the length points.
    pub(crate) max_tokens_field: String,
}

/// The names under which endpoints know what differs.
pub(crate) struct ParamNames {
    /// The first that is given counts.
    pub(crate) max_tokens: &'static [&'static str],
    pub(crate) min_tokens: &'static str,
    pub(crate) seed: &'static str,
}

/// Names of `/v1/completions`.
pub(crate) const COMPLETION_NAMES: ParamNames =
    ParamNames { max_tokens: &["max_tokens"], min_tokens: "min_tokens", seed: "seed" };
/// Names of `/v1/chat/completions`.
pub(crate) const CHAT_NAMES: ParamNames = ParamNames {
    max_tokens: &["max_completion_tokens", "max_tokens"],
    min_tokens: "min_tokens",
    seed: "seed",
};
/// Names in `sampling_params` of `/generate`.
pub(crate) const GENERATE_NAMES: ParamNames = ParamNames {
    max_tokens: &["max_new_tokens"],
    min_tokens: "min_new_tokens",
    seed: "sampling_seed",
};

impl Params {
    /// Reads the parameters. What is absent comes from `defaults`, then from the API's own.
    pub(crate) fn take(
        fields: &mut Fields,
        names: &ParamNames,
        defaults: &GenerationDefaults,
    ) -> Result<Self, ApiError> {
        let sampling = sampling(fields, names, defaults)?;
        sampling.validate().map_err(|e| {
            let problem = format!("must be {}, found {}", e.must_be, e.found);
            ApiError::field(fields.path_of(e.field), problem)
        })?;
        let name = names.max_tokens.iter().find(|name| fields.has(name));
        let max_tokens_field = fields.path_of(name.unwrap_or(&names.max_tokens[0]));
        let max_tokens: Option<usize> = name.map(|name| fields.get(name)).transpose()?.flatten();
        let min_tokens: usize = fields.get_or(names.min_tokens, 0)?;
        if max_tokens.is_some_and(|max| min_tokens > max) {
            let field = fields.path_of(names.min_tokens);
            return Err(ApiError::field(field, format!("must not be above `{max_tokens_field}`")));
        }
        let n: usize = fields.get_or("n", 1)?;
        if !(1..=MAX_N).contains(&n) {
            let problem = format!("must be between 1 and {MAX_N}, found {n}");
            return Err(ApiError::field(fields.path_of("n"), problem));
        }
        Ok(Self {
            sampling,
            max_tokens,
            min_tokens,
            stop: stops(fields)?,
            stop_token_ids: fields.get_or("stop_token_ids", Vec::new())?,
            ignore_eos: fields.get_or("ignore_eos", false)?,
            skip_special_tokens: fields.get_or("skip_special_tokens", true)?,
            shown_tokens: Arc::default(),
            grammar: grammar::take(fields)?,
            priority: fields.get_or("priority", 0)?,
            n,
            max_tokens_field,
        })
    }

    /// The parameters of the answer `index`: with a seed, each answer has its own.
    pub(crate) fn of_answer(&self, index: usize) -> Self {
        let mut params = self.clone();
        params.sampling.seed = self.sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        params
    }
}

fn sampling(
    fields: &mut Fields,
    names: &ParamNames,
    defaults: &GenerationDefaults,
) -> Result<Sampling, ApiError> {
    let top_k = match fields.get::<i64>("top_k")? {
        Some(-1) => None,
        Some(k) => Some(u32::try_from(k).map_err(|_| {
            let problem = format!("must be -1 (off) or at least 1, found {k}");
            ApiError::field(fields.path_of("top_k"), problem)
        })?),
        None => defaults.top_k.filter(|k| *k > 0).and_then(|k| u32::try_from(k).ok()),
    };
    let base = Sampling::default();
    let penalty = defaults.repetition_penalty.unwrap_or(base.repetition_penalty);
    let temperature: f32 =
        fields.get_or("temperature", defaults.temperature.unwrap_or(base.temperature))?;
    Ok(Sampling {
        temperature: if (0.0..MIN_TEMPERATURE).contains(&temperature) { 0.0 } else { temperature },
        top_k,
        top_p: fields.get_or("top_p", defaults.top_p.unwrap_or(base.top_p))?,
        min_p: fields.get_or("min_p", defaults.min_p.unwrap_or(base.min_p))?,
        repetition_penalty: fields.get_or("repetition_penalty", penalty)?,
        presence_penalty: fields.get_or("presence_penalty", base.presence_penalty)?,
        frequency_penalty: fields.get_or("frequency_penalty", base.frequency_penalty)?,
        logit_bias: logit_bias(fields)?,
        seed: fields.get::<i64>(names.seed)?.map(i64::cast_unsigned),
    })
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let map: BTreeMap<String, f32> = fields.get_or("logit_bias", BTreeMap::new())?;
    map.into_iter()
        .map(|(token, bias)| {
            let id = token.parse().map_err(|_| {
                let problem = format!("has a key that is no token id: {token}");
                ApiError::field(fields.path_of("logit_bias"), problem)
            })?;
            Ok((id, bias))
        })
        .collect()
}

fn stops(fields: &mut Fields) -> Result<Stops, ApiError> {
    // Tokenizers of this kind put no spaces between special tokens, whatever is asked for.
    let _: Option<bool> = fields.get("spaces_between_special_tokens")?;
    let is_list = fields.is_list("stop_regex");
    let sources = strings(fields, "stop_regex")?;
    let patterns = (!sources.is_empty()).then(|| StopPatterns::new(sources)).transpose();
    let patterns = patterns.map_err(|(index, why)| {
        let field = fields.path_of("stop_regex");
        let index = index.filter(|_| is_list).map_or(String::new(), |i| format!("[{i}]"));
        ApiError::field(format!("{field}{index}"), why)
    })?;
    let are_kept = fields.get_or("no_stop_trim", false)?;
    Ok(Stops { strings: strings(fields, "stop")?, patterns, are_kept })
}

/// Reads a field that is a string or a list of strings.
fn strings(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let strings: Vec<String> = match fields.take(name) {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                _ => Err(ApiError::field(fields.path_of(name), "must contain strings only")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => {
            let problem = "must be a string or a list of strings";
            return Err(ApiError::field(fields.path_of(name), problem));
        }
    };
    if strings.len() > MAX_STOP_STRINGS {
        let problem = format!("must have at most {MAX_STOP_STRINGS} strings");
        return Err(ApiError::field(fields.path_of(name), problem));
    }
    Ok(strings)
}

/// Checks how many alternatives are asked for.
pub(crate) fn check_top_logprobs(field: &str, n: usize) -> Result<usize, ApiError> {
    if n > MAX_TOP_LOGPROBS {
        return Err(ApiError::field(
            field,
            format!("must be at most {MAX_TOP_LOGPROBS}, found {n}"),
        ));
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(json: &str) -> Result<Params, ApiError> {
        let mut fields = Fields::parse(json.as_bytes()).unwrap();
        Params::take(&mut fields, &CHAT_NAMES, &GenerationDefaults::default())
    }

    #[test]
    fn out_of_range_names_the_field() {
        for (json, text) in [
            (r#"{"temperature": -1}"#, "`temperature` must be 0 or more, found -1"),
            (r#"{"top_k": 0}"#, "`top_k` must be -1 (off) or at least 1, found 0"),
            (r#"{"top_k": -2}"#, "`top_k` must be -1 (off) or at least 1, found -2"),
            (r#"{"n": 0}"#, "`n` must be between 1 and 128, found 0"),
            (r#"{"n": 129}"#, "`n` must be between 1 and 128, found 129"),
            (
                r#"{"max_tokens": 2, "min_tokens": 3}"#,
                "`min_tokens` must not be above `max_tokens`",
            ),
            (r#"{"stop": [1]}"#, "`stop` must contain strings only"),
            (r#"{"logit_bias": {"a": 1}}"#, "`logit_bias` has a key that is no token id: a"),
        ] {
            assert_eq!(take(json).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn hardly_any_temperature_is_greedy() {
        assert_eq!(take(r#"{"temperature": 1e-30}"#).unwrap().sampling.temperature, 0.0);
        assert_eq!(take(r#"{"temperature": 0.01}"#).unwrap().sampling.temperature, 0.01);
    }

    #[test]
    fn the_newer_name_of_the_length_counts() {
        let params = take(r#"{"max_tokens": 3, "max_completion_tokens": 5}"#).unwrap();
        assert_eq!(params.max_tokens, Some(5));
        assert_eq!(params.max_tokens_field, "max_completion_tokens");
    }

    #[test]
    fn defaults_of_the_model_give_way_to_the_request() {
        let defaults = GenerationDefaults {
            temperature: Some(0.6),
            top_k: Some(20),
            ..GenerationDefaults::default()
        };
        let mut fields = Fields::parse(br#"{"top_k": -1}"#).unwrap();
        let params = Params::take(&mut fields, &COMPLETION_NAMES, &defaults).unwrap();
        assert_eq!(params.sampling.temperature, 0.6);
        assert_eq!(params.sampling.top_k, None);
    }

    #[test]
    fn answers_have_distinct_seeds() {
        let params = take(r#"{"seed": -1, "n": 2}"#).unwrap();
        assert_eq!(params.of_answer(0).sampling.seed, Some(u64::MAX));
        assert_eq!(params.of_answer(1).sampling.seed, Some(0));
    }
}
