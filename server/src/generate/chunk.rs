//! The object that `/generate` answers with, complete or so far.
//!
//! A stream repeats everything so far in every chunk. What was said before is kept as JSON, so a
//! chunk costs a copy and not another encoding.

use crate::{
    generation::{Counts, End, Matched},
    output::Output,
    text::Tokenizer,
};
use runtime::TokenLogprob;
use serde::Serialize;
use std::time::Duration;

/// How log-probabilities are reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogprobShape {
    /// Whether each has its token's text.
    pub(super) with_texts: bool,
    /// Whether alternatives are reported.
    pub(super) has_top: bool,
}

/// An answer so far.
pub(super) struct Chunk {
    name: String,
    shape: Option<LogprobShape>,
    /// The text as the inside of a JSON string.
    text: Vec<u8>,
    /// The ids as the inside of a JSON list; so are the others.
    tokens: Vec<u8>,
    input_logprobs: Vec<u8>,
    input_top: Vec<u8>,
    output_logprobs: Vec<u8>,
    output_top: Vec<u8>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum FinishReason {
    Length { length: usize },
    Stop { matched: Option<Matched> },
    Abort { message: String },
}

impl FinishReason {
    fn new(end: &End, counts: Counts) -> Self {
        match (Matched::of(end), end) {
            (Some(matched), _) => Self::Stop { matched: Some(matched) },
            (None, End::Complete) => Self::Stop { matched: None },
            (None, End::Failed(error)) => Self::Abort { message: error.to_string() },
            (None, End::Cancelled) => Self::Abort { message: "the request was aborted".into() },
            (None, _) => Self::Length { length: counts.completion_tokens },
        }
    }
}

impl Chunk {
    pub(super) fn new(name: String, shape: Option<LogprobShape>) -> Self {
        Self {
            name,
            shape,
            text: Vec::new(),
            tokens: Vec::new(),
            input_logprobs: Vec::new(),
            input_top: Vec::new(),
            output_logprobs: Vec::new(),
            output_top: Vec::new(),
        }
    }

    /// Adds text.
    pub(super) fn add_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut quoted = Vec::with_capacity(text.len() + 2);
        write_json(&mut quoted, text);
        self.text.extend_from_slice(&quoted[1..quoted.len() - 1]);
    }

    /// Adds a token.
    pub(super) fn add_token(&mut self, token: u32) {
        push_item(&mut self.tokens, &token);
    }

    /// Adds a position of the prompt.
    pub(super) fn add_input(&mut self, tokenizer: &Tokenizer, entry: &TokenLogprob) {
        let Some(shape) = self.shape else { return };
        push_logprob(tokenizer, shape, entry, &mut self.input_logprobs, &mut self.input_top);
    }

    /// Adds a position of the answer.
    pub(super) fn add_logprob(&mut self, tokenizer: &Tokenizer, entry: &TokenLogprob) {
        let Some(shape) = self.shape else { return };
        push_logprob(tokenizer, shape, entry, &mut self.output_logprobs, &mut self.output_top);
    }

    /// Adds a whole answer.
    pub(super) fn add_output(&mut self, tokenizer: &Tokenizer, output: &Output) {
        self.add_text(&output.text);
        output.tokens.iter().for_each(|token| self.add_token(*token));
        output.prompt_logprobs.iter().for_each(|entry| self.add_input(tokenizer, entry));
        output.logprobs.iter().for_each(|entry| self.add_logprob(tokenizer, entry));
    }

    /// Writes the object. `end` is set on the last one, with the time since the request; `index`
    /// in a stream of several answers.
    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        counts: Counts,
        end: Option<(&End, Duration)>,
        index: Option<usize>,
    ) {
        out.extend_from_slice(b"{\"text\":\"");
        out.extend_from_slice(&self.text);
        out.extend_from_slice(b"\",\"output_ids\":[");
        out.extend_from_slice(&self.tokens);
        out.extend_from_slice(b"],\"meta_info\":{\"id\":");
        write_json(out, &self.name);
        out.extend_from_slice(b",\"finish_reason\":");
        write_json(out, &end.map(|(end, _)| FinishReason::new(end, counts)));
        for (name, count) in [
            ("prompt_tokens", counts.prompt_tokens),
            ("completion_tokens", counts.completion_tokens),
            ("cached_tokens", counts.cached_tokens),
            ("total_retractions", counts.retractions),
        ] {
            write_member(out, name, &count);
        }
        write_member(out, "weight_version", "default");
        if let Some(shape) = self.shape {
            write_list(out, "input_token_logprobs", &self.input_logprobs);
            write_list(out, "output_token_logprobs", &self.output_logprobs);
            if shape.has_top {
                write_list(out, "input_top_logprobs", &self.input_top);
                write_list(out, "output_top_logprobs", &self.output_top);
            }
        }
        if let Some((_, latency)) = end {
            write_member(out, "e2e_latency", &latency.as_secs_f64());
        }
        out.push(b'}');
        if let Some(index) = index {
            write_member(out, "index", &index);
        }
        out.push(b'}');
    }
}

fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("writing to memory cannot fail");
}

fn write_member<T: Serialize + ?Sized>(out: &mut Vec<u8>, name: &str, value: &T) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    write_json(out, value);
}

fn write_list(out: &mut Vec<u8>, name: &str, items: &[u8]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":[");
    out.extend_from_slice(items);
    out.push(b']');
}

fn push_item<T: Serialize>(items: &mut Vec<u8>, value: &T) {
    if !items.is_empty() {
        items.push(b',');
    }
    write_json(items, value);
}

/// A position is `[logprob, id, text]`; its alternatives are a list of such, or `null` where
/// nothing goes before the token.
fn push_logprob(
    tokenizer: &Tokenizer,
    shape: LogprobShape,
    entry: &TokenLogprob,
    logprobs: &mut Vec<u8>,
    top: &mut Vec<u8>,
) {
    let text = |token| shape.with_texts.then(|| tokenizer.token_text(token));
    push_item(logprobs, &(entry.logprob, entry.token, text(entry.token)));
    if shape.has_top {
        let alternatives = entry.logprob.map(|_| {
            let triple = |&(token, logprob): &(u32, f32)| (logprob, token, text(token));
            entry.top.iter().map(triple).collect::<Vec<_>>()
        });
        push_item(top, &alternatives);
    }
}
