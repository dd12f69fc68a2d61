//! One request on its way through the engine.

use crate::{
    Finish, Request, TokenEvent, TokenLogprob,
    limits::Checked,
    memory::{Held, Memories},
    park::Parked,
    sampler::Draw,
};

/// A request with its tokens and what it holds of the device's memories.
pub(crate) struct Sequence {
    pub(crate) request: Request,
    /// Prompt, then output. Never reallocates: room for the longest answer is reserved.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Tokens that the device was fed, or that were in cached blocks.
    pub(crate) fed: usize,
    /// Prompt tokens that were in cached blocks when it first ran.
    pub(crate) cached: usize,
    pub(crate) held: Held,
    /// `max_tokens`, cut where the context ends.
    pub(crate) max_output: usize,
    /// Ids that end the output.
    pub(crate) terminators: Vec<u32>,
    /// The prompt's log-probabilities as far as they are known, until they are sent.
    pub(crate) prompt_logprobs: Option<Vec<TokenLogprob>>,
    /// How often it gave everything it held back.
    pub(crate) preemptions: u32,
    /// Prefill steps that passed it over since it was fed last.
    pub(crate) passed: u32,
    /// Set while nobody knows which tokens its constraint allows.
    pub(crate) parked: Option<Parked>,
    /// How its output ended, once it has.
    pub(crate) ended: Option<Finish>,
}

/// Facts of the engine that a new sequence is sized by.
pub(crate) struct Sizing<'a> {
    pub(crate) context_tokens: usize,
    pub(crate) block_tokens: usize,
    /// Whether there are layers with a sliding window.
    pub(crate) has_window: bool,
    pub(crate) eos: &'a [u32],
}

impl Sequence {
    pub(crate) fn new(Checked(mut request): Checked, sizing: &Sizing<'_>) -> Self {
        let prompt = std::mem::take(&mut request.prompt);
        let prompt_len = prompt.len();
        let max_output = request.max_tokens.min(sizing.context_tokens - prompt_len);
        let mut tokens = prompt;
        tokens.reserve_exact(max_output);
        let mut terminators = request.stop_token_ids.clone();
        if !request.ignore_eos {
            terminators.extend_from_slice(sizing.eos);
        }
        let prompt_logprobs = request.logprobs.prompt_from.map(|_| Vec::new());
        Self {
            held: Held::with_room(prompt_len + max_output, sizing.block_tokens, sizing.has_window),
            tokens,
            prompt_len,
            fed: 0,
            cached: 0,
            max_output,
            terminators,
            prompt_logprobs,
            preemptions: 0,
            passed: 0,
            parked: None,
            ended: None,
            request,
        }
    }

    pub(crate) fn output_len(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// The most tokens it can have.
    pub(crate) fn most_tokens(&self) -> usize {
        self.prompt_len + self.max_output
    }

    /// Tokens that prefill feeds: the prompt, or after a preemption all but the last token, which
    /// is the next to decode.
    pub(crate) fn prefill_end(&self) -> usize {
        if self.output_len() == 0 { self.prompt_len } else { self.tokens.len() - 1 }
    }

    /// Tokens that prefill has still to feed.
    pub(crate) fn prefill_left(&self) -> usize {
        self.prefill_end().saturating_sub(self.fed)
    }

    pub(crate) fn is_prefilling(&self) -> bool {
        self.fed < self.prefill_end()
    }

    /// Whether a decode step feeds it.
    pub(crate) fn is_decoding(&self) -> bool {
        !self.is_prefilling() && self.parked.is_none()
    }

    pub(crate) fn was_preempted(&self) -> bool {
        self.preemptions > 0
    }

    /// The tokens that need not be fed when memory holds them: not the last of prefill when a token
    /// is chosen after it, and none whose log-probabilities are still to be computed.
    pub(crate) fn reusable(&self) -> &[u32] {
        let end = if self.output_len() == 0 { self.prompt_len - 1 } else { self.prefill_end() };
        let end = match (self.request.logprobs.prompt_from, &self.prompt_logprobs) {
            // The token before gives the log-probability.
            (Some(from), Some(_)) => end.min(from.saturating_sub(1)),
            _ => end,
        };
        &self.tokens[..end]
    }

    /// Skips what cached blocks hold; returns the prompt tokens that this saves a new request.
    pub(crate) fn reuse(&mut self, memories: &mut Memories) -> u64 {
        let end = self.reusable().len();
        let found = memories.reuse(&mut self.held, &self.tokens[..end]);
        let saved = found.saturating_sub(self.fed);
        self.fed += saved;
        if self.was_preempted() {
            return 0;
        }
        self.cached += saved;
        saved as u64
    }

    /// Whether `token`, just chosen and already among the tokens, ends the output, and how.
    pub(crate) fn finish_after(&self, token: u32) -> Option<Finish> {
        if self.terminators.contains(&token) && self.output_len() >= self.request.min_tokens {
            Some(Finish::Stop { token })
        } else if self.output_len() >= self.max_output {
            Some(Finish::Length)
        } else {
            None
        }
    }

    /// The random number that its next token is drawn with.
    pub(crate) fn draw(&self) -> Draw {
        let Request { id, sampling, .. } = &self.request;
        Draw { seed: sampling.seed.unwrap_or(id.0), count: self.output_len() as u64 }
    }

    /// Whether ids that end the output may not be chosen yet.
    pub(crate) fn holds_back_terminators(&self) -> bool {
        self.output_len() < self.request.min_tokens && !self.terminators.is_empty()
    }

    /// Forgets what is in memory; what it held was given back.
    pub(crate) fn restart(&mut self) {
        self.fed = 0;
        self.preemptions += 1;
        self.passed = 0;
        // The logits come again with the last token.
        self.parked = None;
        if let Some(entries) = &mut self.prompt_logprobs {
            entries.clear();
        }
    }

    /// Tells the client that the output ended without a further token.
    pub(crate) fn end(&mut self, finish: Finish) {
        self.ended = Some(finish.clone());
        self.request.sink.push(TokenEvent::Ended { finish });
    }

    pub(crate) fn is_open(&self) -> bool {
        self.request.sink.is_open()
    }
}
