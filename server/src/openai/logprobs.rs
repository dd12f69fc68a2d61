//! Log-probabilities as the OpenAI endpoints report them.

use crate::text::Tokenizer;
use runtime::TokenLogprob;
use serde::{Serialize, Serializer, ser::SerializeMap};

/// The shape of text completions: parallel lists.
#[derive(Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Alternatives>>,
    text_offset: Vec<usize>,
}

/// Tokens and their log-probabilities, best first.
#[derive(Debug)]
struct Alternatives(Vec<(String, f32)>);

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, logprob) in &self.0 {
            map.serialize_entry(token, logprob)?;
        }
        map.end()
    }
}

impl CompletionLogprobs {
    /// Adds a position. `offset` counts the characters before it and is moved past it.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, entry: &TokenLogprob, offset: &mut usize) {
        let text = tokenizer.token_text(entry.token);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(entry.logprob);
        // Different tokens may have the same text; the better one stands.
        let mut alternatives: Vec<(String, f32)> = Vec::with_capacity(entry.top.len());
        for &(token, logprob) in &entry.top {
            let text = tokenizer.token_text(token);
            if alternatives.iter().all(|(other, _)| *other != text) {
                alternatives.push((text, logprob));
            }
        }
        self.top_logprobs.push(entry.logprob.map(|_| Alternatives(alternatives)));
    }
}

/// The shape of chats: one object for each position.
#[derive(Debug, Default, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
}

#[derive(Debug, Serialize)]
struct ChatLogprob {
    #[serde(flatten)]
    chosen: ChatToken,
    top_logprobs: Vec<ChatToken>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatToken {
    fn new(tokenizer: &Tokenizer, token: u32, logprob: f32) -> Self {
        let text = tokenizer.token_text(token);
        let bytes = tokenizer.token_bytes(token).unwrap_or_else(|| text.clone().into_bytes());
        Self { token: text, logprob, bytes }
    }
}

impl ChatLogprobs {
    /// Adds a position.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, entry: &TokenLogprob) {
        let top = entry.top.iter().map(|&(token, p)| ChatToken::new(tokenizer, token, p));
        self.content.push(ChatLogprob {
            chosen: ChatToken::new(tokenizer, entry.token, entry.logprob.unwrap_or(f32::MIN)),
            top_logprobs: top.collect(),
        });
    }

    /// Whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.content.is_empty()
    }
}
