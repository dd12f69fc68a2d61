//! What changes logits before a token is chosen.

use crate::Sampling;

/// Marks a token of the prompt; the rest of the word counts occurrences in the output.
const IN_PROMPT: u32 = 1 << 31;

/// A request's tokens so far, and those that it may not choose yet.
pub(crate) struct History<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) output: &'a [u32],
    pub(crate) forbidden: &'a [u32],
}

/// Whether [`Adjuster::apply`] would change anything.
pub(crate) fn is_needed(sampling: &Sampling, forbidden: &[u32]) -> bool {
    has_penalties(sampling) || !sampling.logit_bias.is_empty() || !forbidden.is_empty()
}

fn has_penalties(sampling: &Sampling) -> bool {
    sampling.repetition_penalty != 1.0
        || sampling.presence_penalty != 0.0
        || sampling.frequency_penalty != 0.0
}

/// Applies biases, penalties and bans.
pub(crate) struct Adjuster {
    /// Occurrences by token; all zero between calls.
    seen: Vec<u32>,
}

impl Adjuster {
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self { seen: vec![0; vocab_size] }
    }

    /// Changes `logits` in this order: bias, repetition, frequency and presence penalty, forbidden
    /// tokens to `-inf`.
    pub(crate) fn apply(&mut self, sampling: &Sampling, history: &History<'_>, logits: &mut [f32]) {
        for &(token, bias) in &sampling.logit_bias {
            logits[token as usize] += bias;
        }
        if has_penalties(sampling) {
            self.penalise(sampling, history, logits);
        }
        for &token in history.forbidden {
            // The model's own ids may lie past the logits.
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn penalise(&mut self, sampling: &Sampling, history: &History<'_>, logits: &mut [f32]) {
        for &token in history.prompt {
            self.seen[token as usize] |= IN_PROMPT;
        }
        for &token in history.output {
            self.seen[token as usize] += 1;
        }
        for &token in history.prompt.iter().chain(history.output) {
            let seen = std::mem::take(&mut self.seen[token as usize]);
            if seen == 0 {
                continue;
            }
            let logit = &mut logits[token as usize];
            let penalty = sampling.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            let count = seen & !IN_PROMPT;
            if count > 0 {
                *logit -= count as f32 * sampling.frequency_penalty;
                *logit -= sampling.presence_penalty;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_adjustment_is_applied_once_and_in_order() {
        let sampling = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(0, 1.0), (3, -4.0)],
            ..Default::default()
        };
        let history = History { prompt: &[0, 0, 1], output: &[1, 2, 2], forbidden: &[4, 99] };
        let mut adjuster = Adjuster::new(6);
        for _ in 0..2 {
            let mut logits = [3.0, -1.0, 2.0, 3.0, 9.0, 7.0];
            adjuster.apply(&sampling, &history, &mut logits);
            let want = [
                (3.0 + 1.0) / 2.0,
                -2.0 - 0.25 - 0.5,
                2.0 / 2.0 - 2.0 * 0.25 - 0.5,
                3.0 - 4.0,
                f32::NEG_INFINITY,
                7.0,
            ];
            assert_eq!(logits, want, "and nothing is left over for the next call");
        }
    }
}
