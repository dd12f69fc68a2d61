//! Requests of every kind and length, and what is compared of their answers.

use precast_tests::random::Random;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const WORDS: &[&str] = &[
    "add", "the", "numbers", "17", "and", "25", "reverse", "word", "bucket", "what", "is", "a",
    "plan", "count", "letters", "of", "précis", "sort", "3", "9", "1", "compile", "then", "serve",
    "in", "order", "日本", "say", "hello", "twice",
];

/// Which endpoint answers, and so in which shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Api {
    /// `/generate`.
    Generate,
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// A request that is answered the same whatever else goes on: greedy, or with a seed.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Endpoint.
    pub(crate) api: Api,
    /// The request, without `stream`.
    pub(crate) body: Value,
    /// Answers that it asks for.
    pub(crate) choices: usize,
}

/// What must not change: for each choice, its parts by name.
pub(crate) type Answer = BTreeMap<u64, BTreeMap<&'static str, Value>>;

/// `count` requests to `apis` in turn, the same for the same `seed`; the longest answers have
/// `longest` tokens, the longest prompts half as many words.
pub(crate) fn cases(count: usize, seed: u64, longest: usize, apis: &[Api]) -> Vec<Case> {
    let mut random = Random::new(seed);
    let system = words(&mut random, 30);
    (0..count).map(|i| case(&mut random, (i, apis[i % apis.len()]), longest, &system)).collect()
}

fn case(random: &mut Random, (i, api): (usize, Api), longest: usize, system: &str) -> Case {
    // Most are short, as everywhere; a few are long.
    let reach = [8, 30, 30, longest / 2][random.below(4)];
    let prompt = match random.below(2) {
        0 => words(random, reach),
        _ => format!("{system} {}", words(random, reach / 2 + 1)),
    };
    let reach = [8, 30, 60, longest][random.below(4)];
    let tokens = random.within(1, reach + 2);
    let is_greedy = random.below(3) == 0;
    let temperature = if is_greedy { 0.0 } else { 0.9 };
    let seed = random.below(1000);
    let choices = [1, 1, 1, 1, 2, 3][random.below(6)];
    let logprobs = random.below(4) == 0;
    let stop = (random.below(4) == 0).then(|| *random.pick(&["e", "17", " the", "\n", "or"]));
    let ignore_eos = random.below(2) == 0;
    let mut body = match api {
        Api::Generate => json!({
            "text": prompt,
            "sampling_params": {
                "temperature": temperature, "max_new_tokens": tokens, "sampling_seed": seed,
                "n": choices, "ignore_eos": ignore_eos, "stop": stop,
            },
            "return_logprob": logprobs,
            "top_logprobs_num": if logprobs { 2 } else { 0 },
        }),
        Api::Completions => json!({
            "prompt": prompt, "temperature": temperature, "max_tokens": tokens, "seed": seed,
            "n": choices, "ignore_eos": ignore_eos, "stop": stop,
            "logprobs": logprobs.then_some(2),
        }),
        Api::Chat => json!({
            "messages": [
                {"role": "system", "content": system}, {"role": "user", "content": prompt},
            ],
            "temperature": temperature, "max_tokens": tokens, "seed": seed,
            "n": choices, "ignore_eos": ignore_eos, "stop": stop,
            "logprobs": logprobs, "top_logprobs": logprobs.then_some(2),
        }),
    };
    if api == Api::Chat && i % 12 == 2 {
        body["response_format"] = schema();
        body["ignore_eos"] = false.into();
        body["stop"] = Value::Null;
    }
    Case { api, body, choices }
}

fn schema() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "sum", "strict": true, "schema": {
        "type": "object",
        "properties": {
            "left": {"type": "integer"},
            "right": {"type": "integer"},
            "note": {"type": "string", "maxLength": 12},
        },
        "required": ["left", "right", "note"],
        "additionalProperties": false,
    }}})
}

fn words(random: &mut Random, most: usize) -> String {
    let count = random.within(1, most.max(2));
    let words: Vec<&str> = (0..count).map(|_| *random.pick(WORDS)).collect();
    words.join(" ")
}

impl Case {
    /// Path of the endpoint.
    pub(crate) fn path(&self) -> &'static str {
        match self.api {
            Api::Generate => "/generate",
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        }
    }

    /// The request as it is sent.
    pub(crate) fn body(&self, stream: bool) -> Value {
        let mut body = self.body.clone();
        body["stream"] = stream.into();
        body
    }

    /// What a complete answer says.
    ///
    /// # Errors
    /// When there are not as many choices as asked for, or one has not ended.
    pub(crate) fn whole(&self, json: &Value) -> Result<Answer, String> {
        let mut answer = Answer::new();
        match self.api {
            Api::Generate => {
                let list = json.as_array().cloned().unwrap_or_else(|| vec![json.clone()]);
                for (index, item) in list.iter().enumerate() {
                    answer.insert(index as u64, generated(item));
                }
            }
            Api::Completions | Api::Chat => {
                for choice in json["choices"].as_array().ok_or("no choices")? {
                    self.add_choice(&mut answer, choice, "message")?;
                }
            }
        }
        self.check(answer)
    }

    /// What a stream says. Its last event must be `[DONE]`, which must be the only one, and every
    /// choice must end once.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn streamed(&self, bytes: &[u8]) -> Result<Answer, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let body = text.strip_suffix("\n\n").ok_or("the last event does not end")?;
        let mut events: Vec<&str> = body.split("\n\n").collect();
        if events.pop() != Some("data: [DONE]") {
            return Err("the last event is not [DONE]".into());
        }
        let mut answer = Answer::new();
        let mut ended = Vec::new();
        for event in events {
            let data = event.strip_prefix("data: ").ok_or_else(|| format!("event {event:?}"))?;
            let json: Value = serde_json::from_str(data).map_err(|e| format!("{data}: {e}"))?;
            if json.get("error").is_some() {
                return Err(data.to_owned());
            }
            let index = match self.api {
                Api::Generate => json["index"].as_u64().unwrap_or(0),
                _ => json["choices"][0]["index"].as_u64().ok_or("no index")?,
            };
            if ended.contains(&index) {
                return Err(format!("choice {index} goes on after its end: {data}"));
            }
            let reason = match self.api {
                Api::Generate => {
                    answer.insert(index, generated(&json));
                    &json["meta_info"]["finish_reason"]
                }
                _ => {
                    self.add_choice(&mut answer, &json["choices"][0], "delta")?;
                    &json["choices"][0]["finish_reason"]
                }
            };
            if !reason.is_null() {
                ended.push(index);
            }
        }
        self.check(answer)
    }

    fn add_choice(&self, answer: &mut Answer, choice: &Value, part: &str) -> Result<(), String> {
        let index = choice["index"].as_u64().ok_or("no index")?;
        let parts = answer.entry(index).or_default();
        let text = match self.api {
            Api::Chat => &choice[part]["content"],
            _ => &choice["text"],
        };
        append(parts, "text", text);
        let logprobs = &choice["logprobs"];
        append(parts, "tokens", &logprobs["tokens"]);
        append(parts, "token_logprobs", &logprobs["token_logprobs"]);
        append(parts, "content", &logprobs["content"]);
        if !choice["finish_reason"].is_null() {
            parts.insert("finish", choice["finish_reason"].clone());
        }
        Ok(())
    }

    fn check(&self, answer: Answer) -> Result<Answer, String> {
        if answer.len() != self.choices {
            return Err(format!("{} answers instead of {}", answer.len(), self.choices));
        }
        if let Some((index, _)) = answer.iter().find(|(_, parts)| !parts.contains_key("finish")) {
            return Err(format!("choice {index} has no end"));
        }
        Ok(answer)
    }
}

fn generated(json: &Value) -> BTreeMap<&'static str, Value> {
    let meta = &json["meta_info"];
    let mut parts = BTreeMap::from([
        ("text", json["text"].clone()),
        ("ids", json["output_ids"].clone()),
        ("tokens", meta["completion_tokens"].clone()),
        ("logprobs", meta["output_token_logprobs"].clone()),
        ("top", meta["output_top_logprobs"].clone()),
    ]);
    if !meta["finish_reason"].is_null() {
        parts.insert("finish", meta["finish_reason"].clone());
    }
    parts
}

/// Joins texts and lists; what is absent adds nothing.
fn append(parts: &mut BTreeMap<&'static str, Value>, name: &'static str, piece: &Value) {
    let so_far = match piece {
        Value::String(_) => parts.entry(name).or_insert_with(|| "".into()),
        Value::Array(_) => parts.entry(name).or_insert_with(|| json!([])),
        _ => return,
    };
    match (so_far, piece) {
        (Value::String(all), Value::String(more)) => all.push_str(more),
        (Value::Array(all), Value::Array(more)) => all.extend_from_slice(more),
        (all, more) => panic!("{name} is {all} and goes on with {more}"),
    }
}
