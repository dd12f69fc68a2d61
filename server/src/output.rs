//! Whole answers, for responses that are not streamed.

use crate::{
    ApiError,
    generation::{Counts, End, Generation, Step},
};
use runtime::TokenLogprob;
use std::time::Duration;

/// One whole answer.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    /// One for each token, when asked for.
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) prompt_logprobs: Vec<TokenLogprob>,
    pub(crate) end: End,
    pub(crate) counts: Counts,
    /// From the request to the last token.
    pub(crate) latency: Duration,
}

impl Output {
    /// Mean log-probability of the tokens; the least possible without any.
    pub(crate) fn mean_logprob(&self) -> f32 {
        let logprobs = || self.logprobs.iter().filter_map(|l| l.logprob);
        match logprobs().count() {
            0 => f32::NEG_INFINITY,
            n => logprobs().sum::<f32>() / n as f32,
        }
    }
}

/// Waits for all `count` answers, in the order of their jobs.
///
/// # Errors
/// [`ApiError::Failed`] when the engine gave up on one.
pub(crate) async fn collect(generation: Generation, count: usize) -> Result<Vec<Output>, ApiError> {
    collect_with(generation, count, |_| {}).await
}

/// The same, with a look at every step.
pub(crate) async fn collect_with(
    mut generation: Generation,
    count: usize,
    mut look: impl FnMut(&Step),
) -> Result<Vec<Output>, ApiError> {
    let empty = || Output {
        text: String::new(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: Vec::new(),
        end: End::Length,
        counts: Counts::default(),
        latency: Duration::ZERO,
    };
    let mut outputs: Vec<Output> = std::iter::repeat_with(empty).take(count).collect();
    while let Some(step) = generation.next().await {
        look(&step);
        let output = &mut outputs[step.choice];
        output.text.push_str(&step.text);
        output.tokens.extend(step.token);
        output.logprobs.extend(step.logprob);
        output.prompt_logprobs.extend(step.prompt_logprobs.into_iter().flatten());
        match step.end {
            Some(End::Failed(error)) => return Err(error),
            Some(end) => {
                output.end = end;
                output.counts = generation.counts(step.choice);
                output.latency = generation.elapsed();
            }
            None => {}
        }
    }
    Ok(outputs)
}
