//! Decoding tokens one at a time without ever splitting a character.

use super::Tokenizer;
use std::sync::Arc;

/// Tokens that may be held back in a row because they end in an incomplete character. Longer runs
/// are no character, whatever follows.
const MAX_HELD_TOKENS: usize = 16;

const REPLACEMENT: char = '\u{FFFD}';

/// Turns a growing sequence of tokens into a growing text. The pieces, with what
/// [`Detokenizer::finish`] adds, are the text of all tokens decoded at once.
pub(crate) struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    /// Special tokens that are not skipped.
    shown: Arc<[u32]>,
    state: State,
}

enum State {
    /// The text is the concatenation of the tokens' bytes; these are not yet complete.
    Bytes(Vec<u8>),
    Window(Window),
}

/// How a token decodes depends on its neighbours, so a few tokens before the new ones are decoded
/// with them and their own text is taken off.
#[derive(Default)]
struct Window {
    /// Context, then tokens whose text was not given out.
    ids: Vec<u32>,
    /// Length of the context.
    context: usize,
    /// Text of the context.
    context_text: String,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, skip_special_tokens: bool) -> Self {
        let state = if tokenizer.is_byte_level() {
            State::Bytes(Vec::new())
        } else {
            State::Window(Window::default())
        };
        Self { tokenizer, skip_special_tokens, shown: Arc::default(), state }
    }

    /// Never skips `tokens`.
    pub(crate) fn showing(self, tokens: Arc<[u32]>) -> Self {
        Self { shown: tokens, ..self }
    }

    /// Takes the next token and appends the text that is complete with it to `out`.
    pub(crate) fn push(&mut self, token: u32, out: &mut String) {
        let is_skipped = self.skip_special_tokens && !self.shown.contains(&token);
        if is_skipped && self.tokenizer.is_special(token) {
            return;
        }
        match &mut self.state {
            State::Bytes(held) => {
                held.extend(self.tokenizer.token_bytes(token).unwrap_or_default());
                release_characters(held, out);
            }
            State::Window(window) => window.push(token, &self.tokenizer, out),
        }
    }

    /// There are no more tokens: an incomplete character becomes U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        match &mut self.state {
            State::Bytes(held) => {
                out.push_str(&String::from_utf8_lossy(held));
                held.clear();
            }
            State::Window(window) => window.release(&self.tokenizer, out),
        }
    }
}

/// Moves all complete characters of `held` to `out`. Bytes that can never be part of one become
/// U+FFFD, the same number as when the whole text is converted at once.
fn release_characters(held: &mut Vec<u8>, out: &mut String) {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&held[done..]) {
            Ok(text) => {
                out.push_str(text);
                held.clear();
                return;
            }
            Err(e) => {
                let valid = &held[done..done + e.valid_up_to()];
                out.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                done += e.valid_up_to();
                let Some(invalid) = e.error_len() else { break };
                out.push(REPLACEMENT);
                done += invalid;
            }
        }
    }
    held.drain(..done);
}

impl Window {
    fn push(&mut self, token: u32, tokenizer: &Tokenizer, out: &mut String) {
        self.ids.push(token);
        let text = tokenizer.decode(&self.ids, false);
        let is_incomplete = text.ends_with(REPLACEMENT) || text.len() <= self.context_text.len();
        if is_incomplete && self.ids.len() - self.context < MAX_HELD_TOKENS {
            return;
        }
        self.release_text(&text, tokenizer, out);
    }

    fn release(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        let text = tokenizer.decode(&self.ids, false);
        self.release_text(&text, tokenizer, out);
    }

    fn release_text(&mut self, text: &str, tokenizer: &Tokenizer, out: &mut String) {
        // A decoder may rewrite the end of the context; what was given out stays.
        out.push_str(text.get(self.context_text.len()..).unwrap_or_default());
        self.ids.drain(..self.context);
        self.context = self.ids.len();
        self.context_text = tokenizer.decode(&self.ids, false);
    }
}
