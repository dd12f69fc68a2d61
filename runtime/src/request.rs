//! What a request asks for and what comes back.

use crate::Constraint;
use std::time::{Duration, Instant};

/// Identifies a request for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Keeps the `top_k` most probable tokens; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keeps the fewest tokens whose probability reaches `top_p`.
    pub top_p: f32,
    /// Drops tokens less probable than `min_p` times the most probable one.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred in prompt or output;
    /// 1 means off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token that occurred in the output.
    pub presence_penalty: f32,
    /// Subtracted from the logit of each token for every time it occurred in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the request's own random numbers; the same seed gives the same tokens whatever else
    /// runs. `None` draws one from the request id.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// A sampling parameter out of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{field}` must be {must_be}, found {found}")]
pub struct SamplingError {
    /// Field as clients spell it.
    pub field: &'static str,
    /// The permitted range.
    pub must_be: &'static str,
    /// What was given.
    pub found: String,
}

impl Sampling {
    /// Checks every range.
    ///
    /// # Errors
    /// [`SamplingError`] names the first field that is out of range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let check = |holds: bool, field, must_be, found: String| {
            if holds { Ok(()) } else { Err(SamplingError { field, must_be, found }) }
        };
        let t = self.temperature;
        check(t >= 0.0 && t.is_finite(), "temperature", "0 or more", t.to_string())?;
        let p = self.top_p;
        check(p > 0.0 && p <= 1.0, "top_p", "above 0 and at most 1", p.to_string())?;
        let k = self.top_k;
        check(k != Some(0), "top_k", "-1 (off) or at least 1", "0".into())?;
        let m = self.min_p;
        check((0.0..=1.0).contains(&m), "min_p", "between 0 and 1", m.to_string())?;
        let r = self.repetition_penalty;
        check(r > 0.0 && r <= 2.0, "repetition_penalty", "above 0 and at most 2", r.to_string())?;
        for (field, v) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check((-2.0..=2.0).contains(&v), field, "between -2 and 2", v.to_string())?;
        }
        let finite = self.logit_bias.iter().all(|(_, b)| (-100.0..=100.0).contains(b));
        check(finite, "logit_bias", "between -100 and 100", "a value outside".into())
    }

    /// Whether the most probable token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == Some(1)
    }
}

/// Which log-probabilities to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogprobOptions {
    /// Report the chosen token of every output position.
    pub output: bool,
    /// Report prompt tokens from this position on; `None` reports none. Position 0 has nothing
    /// before it and is reported without a value.
    pub prompt_from: Option<usize>,
    /// How many of the most probable tokens to report beside the chosen one.
    pub top_n: usize,
}

/// A request as the engine sees it: token ids in, token ids out.
pub struct Request {
    /// Chosen by the caller, unique.
    pub id: RequestId,
    /// At least one token, all below the vocabulary size.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The most output tokens.
    pub max_tokens: usize,
    /// Ids that end the output are not chosen before this many tokens.
    pub min_tokens: usize,
    /// Ids that end the output, beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's end-of-sequence ids do not end the output. (`stop_token_ids` still do.)
    pub ignore_eos: bool,
    /// Which log-probabilities to report.
    pub logprobs: LogprobOptions,
    /// What restricts its tokens to those of a grammar.
    pub constraint: Option<Box<dyn Constraint>>,
    /// When it arrived; requests of one priority are served in this order.
    pub arrival: Instant,
    /// Requests of a higher one start first where [`crate::EngineOptions::priority_scheduling`] is
    /// on; 0 is usual.
    pub priority: i32,
    /// Where its tokens go.
    pub sink: Box<dyn TokenSink>,
}

impl Request {
    /// Asks for the most probable tokens after `prompt` up to the end of the sequence, at most
    /// `max_tokens`, and for nothing else; arrived now.
    pub fn greedy(id: u64, prompt: Vec<u32>, max_tokens: usize, sink: Box<dyn TokenSink>) -> Self {
        Self {
            id: RequestId(id),
            prompt,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: LogprobOptions::default(),
            constraint: None,
            arrival: Instant::now(),
            priority: 0,
            sink,
        }
    }
}

/// The log-probability of one token at one position, and of the best alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token at the position.
    pub token: u32,
    /// Its natural log-probability under the model (before temperature and penalties); `None` for
    /// the first prompt token.
    pub logprob: Option<f32>,
    /// The most probable tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// Why an output ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence or stop id was chosen; it is the last token of the output.
    Stop {
        /// The id.
        token: u32,
    },
    /// `max_tokens` or the model's context was reached.
    Length,
    /// The request's [`crate::Constraint`] lets nothing follow.
    Complete,
    /// The request's [`crate::Constraint`] failed; the text says why.
    Constraint(String),
    /// It could not be served or was cancelled; the text says why.
    Abort(String),
}

/// One thing that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenEvent {
    /// It got memory for the first time; always the first event of a request that does.
    Started {
        /// From its arrival until now.
        queued: Duration,
    },
    /// It gave its memory back to others and waits again; nothing that was sent is lost.
    Retracted,
    /// The prompt's log-probabilities, before the first token, when they were asked for.
    Prompt {
        /// From `prompt_from` to the end of the prompt.
        logprobs: Vec<TokenLogprob>,
    },
    /// A token was chosen.
    Token {
        /// The token.
        token: u32,
        /// Its log-probability, when asked for.
        logprob: Option<TokenLogprob>,
        /// Prompt tokens that were taken from a cache.
        cached_tokens: usize,
        /// Set on the last token.
        finish: Option<Finish>,
    },
    /// The output ended without a further token.
    Ended {
        /// Why.
        finish: Finish,
    },
}

/// Where the tokens of one request go. Implemented by whoever submits; called on the engine thread,
/// so it must not block.
pub trait TokenSink: Send {
    /// Takes an event. `false` means that nobody reads any more: the engine drops the request and
    /// frees its blocks.
    fn push(&mut self, event: TokenEvent) -> bool;

    /// Whether somebody still reads. Asked once a step, also while the request waits.
    fn is_open(&self) -> bool;
}
