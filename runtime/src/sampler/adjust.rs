//! What changes logits before a token is chosen.

use crate::Sampling;

/// Marks a token of the prompt; the rest of the word counts occurrences in the output.
const IN_PROMPT: u32 = 1 << 31;

/// A request's tokens so far, and what may come next.
pub(crate) struct History<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) output: &'a [u32],
    pub(crate) choice: Choice<'a>,
}

/// Which tokens may be chosen.
#[derive(Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    /// The only ones, as bits; `None` allows all.
    pub(crate) allowed: Option<&'a [u32]>,
    /// Not these.
    pub(crate) forbidden: &'a [u32],
}

impl Choice<'_> {
    /// Whether there is any token of the first `vocab_size` left.
    pub(crate) fn is_empty(&self, vocab_size: usize) -> bool {
        let Some(allowed) = self.allowed else { return false };
        let words = allowed.iter().take(vocab_size.div_ceil(WORD)).enumerate();
        words.filter(|(_, bits)| **bits != 0).all(|(word, &bits)| {
            let in_word = |token: u32| (token as usize / WORD == word).then_some(token % 32);
            let forbidden = self.forbidden.iter().filter_map(|&token| in_word(token));
            let left = forbidden.fold(bits, |bits, bit| bits & !(1 << bit));
            left & below(vocab_size - word * WORD) == 0
        })
    }
}

/// Tokens to a word of [`Choice::allowed`].
const WORD: usize = u32::BITS as usize;

/// The lowest `count` bits.
fn below(count: usize) -> u32 {
    if count < WORD { (1 << count) - 1 } else { u32::MAX }
}

/// Whether [`Adjuster::apply`] would change anything.
pub(crate) fn is_needed(sampling: &Sampling, choice: &Choice<'_>) -> bool {
    let is_restricted = choice.allowed.is_some() || !choice.forbidden.is_empty();
    has_penalties(sampling) || !sampling.logit_bias.is_empty() || is_restricted
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

    /// Changes `logits` in this order: bias, repetition, frequency and presence penalty, tokens
    /// that may not be chosen to `-inf`.
    pub(crate) fn apply(&mut self, sampling: &Sampling, history: &History<'_>, logits: &mut [f32]) {
        for &(token, bias) in &sampling.logit_bias {
            logits[token as usize] += bias;
        }
        if has_penalties(sampling) {
            self.penalise(sampling, history, logits);
        }
        if let Some(allowed) = history.choice.allowed {
            forbid_all_but(allowed, logits);
        }
        for &token in history.choice.forbidden {
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

/// Sets the logits of tokens whose bit is not set to `-inf`.
fn forbid_all_but(allowed: &[u32], logits: &mut [f32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, bits) in logits.chunks_mut(WORD).zip(words) {
        match bits {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            bits => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if bits >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
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
        let choice = Choice { allowed: None, forbidden: &[4, 99] };
        let history = History { prompt: &[0, 0, 1], output: &[1, 2, 2], choice };
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

    #[test]
    fn only_allowed_tokens_are_left() {
        let allowed = [1 << 31 | 1, u32::MAX, 0, 1 << 3];
        let choice = Choice { allowed: Some(&allowed), forbidden: &[0, 40] };
        for vocab_size in [70, 100, 128, 200] {
            let mut logits = vec![1.0; vocab_size];
            let history = History { prompt: &[], output: &[], choice };
            Adjuster::new(vocab_size).apply(&Sampling::default(), &history, &mut logits);
            let left: Vec<usize> = (0..vocab_size).filter(|&t| logits[t] == 1.0).collect();
            let mut want: Vec<usize> = (31..64).filter(|&t| t != 40).collect();
            want.extend((vocab_size > 99).then_some(99));
            assert_eq!(left, want);
        }
    }

    #[test]
    fn a_choice_of_nothing_is_found() {
        let empty = |allowed: &[u32], forbidden: &[u32], vocab_size| {
            Choice { allowed: Some(allowed), forbidden }.is_empty(vocab_size)
        };
        assert!(empty(&[0, 0], &[], 64));
        assert!(!empty(&[0, 6], &[33], 64));
        assert!(empty(&[0, 6], &[33, 7, 34], 64));
        assert!(empty(&[0, 6], &[], 33), "the model has no such token");
        assert!(!empty(&[0, 6], &[], 34));
        assert!(!Choice::default().is_empty(64), "without a constraint all tokens are left");
    }
}
