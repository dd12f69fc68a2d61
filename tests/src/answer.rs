//! Answers of `/generate`, with log-probabilities for every position.

use crate::http::Server;
use serde_json::{Value, json};

/// The most alternatives the server reports for a position.
pub const TOP: usize = 128;

/// A log-probability and its token.
pub type Entry = (f32, usize);

/// What the server answered to one prompt.
pub struct Answer {
    json: Value,
    prompt: Vec<u32>,
}

impl Answer {
    /// The greedy continuation of `prompt` by `tokens` tokens, with the `top` best alternatives of
    /// every position.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn greedy(server: &Server, prompt: &[u32], tokens: usize, top: usize) -> Self {
        let body = json!({
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true},
            "return_logprob": true,
            "logprob_start_len": 0,
            "top_logprobs_num": top,
        });
        Self { json: server.ask("/generate", &body), prompt: prompt.to_vec() }
    }

    /// The prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The tokens of the continuation.
    pub fn ids(&self) -> Vec<u32> {
        let ids = self.json["output_ids"].as_array().expect("a list of ids");
        ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    }

    /// The alternatives after prompt position `i`, best first.
    ///
    /// # Panics
    /// When there are not [`TOP`].
    pub fn after_position(&self, i: usize) -> Vec<Entry> {
        let list = match i + 1 {
            next if next < self.prompt.len() => &self.field("input_top_logprobs")[next],
            _ => &self.field("output_top_logprobs")[0],
        };
        let list = entries(list);
        assert_eq!(list.len(), TOP);
        list
    }

    /// The alternatives of step `i` of the continuation, best first.
    pub fn at_step(&self, i: usize) -> Vec<Entry> {
        entries(&self.field("output_top_logprobs")[i])
    }

    /// The prompt's own tokens from the second on; the first has nothing before it.
    ///
    /// # Panics
    /// When they are others.
    pub fn of_prompt(&self) -> Vec<Entry> {
        let list = self.field("input_token_logprobs").as_array().expect("a list");
        assert!(list[0][0].is_null(), "nothing comes before the first token");
        let list = entries(&Value::Array(list[1..].to_vec()));
        let tokens = list.iter().map(|&(_, token)| token as u32);
        assert!(tokens.eq(self.prompt[1..].iter().copied()), "these are the prompt's tokens");
        list
    }

    /// Everything that must not depend on the batch.
    pub fn results(&self) -> Vec<&Value> {
        let fields = ["output_token_logprobs", "input_token_logprobs", "output_top_logprobs"];
        let lists = fields.iter().map(|field| self.field(field));
        std::iter::once(&self.json["output_ids"]).chain(lists).collect()
    }

    fn field(&self, name: &str) -> &Value {
        &self.json["meta_info"][name]
    }
}

/// `[logprob, token, text]` triples.
fn entries(list: &Value) -> Vec<Entry> {
    let entry = |t: &Value| {
        let logprob = t[0].as_f64().expect("a log-probability");
        (logprob as f32, t[1].as_u64().expect("an id") as usize)
    };
    list.as_array().expect("a list of triples").iter().map(entry).collect()
}
