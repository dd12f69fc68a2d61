//! Choosing a token from a row of logits.
//!
//! The order is: bias, penalties and what may not be chosen ([`adjust`]), temperature, `top_k`,
//! `top_p` over what `top_k` left, `min_p` relative to the most probable token, then one draw by
//! inverting the cumulative distribution in order of token ids. Of equal logits the smaller id
//! ranks first.

mod adjust;
mod exp;
pub(crate) mod logprob;
mod rank;
mod rng;

pub(crate) use adjust::{Choice, History, is_needed as adjusts};
pub(crate) use rank::Ranked;

use crate::Sampling;
use adjust::Adjuster;
use exp::{exp_neg, largest};
use rank::{Nucleus, best, reach};

/// Chooses tokens; holds the scratch memory, so that choosing allocates nothing.
pub(crate) struct Sampler {
    adjuster: Adjuster,
    nucleus: Nucleus,
    adjusted: Vec<f32>,
    ranked: Vec<Ranked>,
    block_sums: Vec<f64>,
}

/// Which random number to use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) seed: u64,
    /// How many tokens the request has chosen before.
    pub(crate) count: u64,
}

impl Sampler {
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self {
            adjuster: Adjuster::new(vocab_size),
            nucleus: Nucleus::new(vocab_size),
            adjusted: vec![0.0; vocab_size],
            ranked: Vec::with_capacity(vocab_size),
            block_sums: Vec::with_capacity(vocab_size.div_ceil(BLOCK)),
        }
    }

    /// Chooses the next token of a request from its row of logits; `None` when no logit is a
    /// number.
    pub(crate) fn choose(
        &mut self,
        sampling: &Sampling,
        history: &History<'_>,
        draw: Draw,
        logits: &[f32],
    ) -> Option<u32> {
        let logits = if adjust::is_needed(sampling, &history.choice) {
            self.adjusted.copy_from_slice(logits);
            self.adjuster.apply(sampling, history, &mut self.adjusted);
            &self.adjusted
        } else {
            logits
        };
        let max = largest(logits);
        let first = || logits.iter().position(|&x| x == max).map(|i| i as u32);
        if sampling.is_greedy() || !max.is_finite() {
            return first();
        }
        // A temperature near 0 must not turn the distance 0 of the best token into a NaN.
        let rate = (1.0 / sampling.temperature).min(f32::MAX);
        let cut = cut(sampling, (max, rate), logits, &mut self.ranked, &mut self.nucleus);
        let kept = Kept { cut, min_weight: sampling.min_p, max, rate };
        let u = rng::uniform(draw.seed, draw.count);
        kept.draw(u, logits, &mut self.block_sums).or_else(first)
    }

    /// Room for candidates that log-probabilities are chosen from.
    pub(crate) fn scratch(&mut self) -> &mut Vec<Ranked> {
        &mut self.ranked
    }
}

/// The lowest-ranked token that `top_k` and `top_p` leave.
fn cut(
    sampling: &Sampling,
    (max, rate): (f32, f32),
    logits: &[f32],
    ranked: &mut Vec<Ranked>,
    nucleus: &mut Nucleus,
) -> Ranked {
    let weight = |logit: f32| f64::from(exp_neg((max - logit) * rate));
    let share = f64::from(sampling.top_p);
    match sampling.top_k {
        Some(k) if (k as usize) < logits.len() => {
            best(logits, k as usize, ranked);
            ranked.sort_unstable_by(Ranked::order);
            let last = if share == 1.0 {
                ranked.last().copied()
            } else {
                let total: f64 = ranked.iter().map(|r| weight(r.logit)).sum();
                reach(ranked, 0.0, share * total, weight)
            };
            last.unwrap_or(Ranked::LAST)
        }
        _ if sampling.top_p < 1.0 => {
            nucleus.reach(logits, (max, rate), share, ranked).unwrap_or(Ranked::LAST)
        }
        _ => Ranked::LAST,
    }
}

/// Logits that are summed together before a draw.
const BLOCK: usize = 512;

/// The tokens that may be drawn, and their weights.
struct Kept {
    cut: Ranked,
    /// Relative to the most probable token, whose weight is 1.
    min_weight: f32,
    max: f32,
    rate: f32,
}

impl Kept {
    #[inline(always)]
    fn weight(&self, logit: f32, token: u32) -> f32 {
        let weight = exp_neg((self.max - logit) * self.rate);
        let kept = self.cut.admits(logit, token) & (weight >= self.min_weight);
        if kept { weight } else { 0.0 }
    }

    /// The token at which the cumulative weight passes `u` of the whole.
    fn draw(&self, u: f64, logits: &[f32], block_sums: &mut Vec<f64>) -> Option<u32> {
        block_sums.clear();
        for (block, values) in logits.chunks(BLOCK).enumerate() {
            block_sums.push(self.block_sum(values, (block * BLOCK) as u32));
        }
        let mut left = u * block_sums.iter().sum::<f64>();
        let mut last = None;
        for (block, &sum) in block_sums.iter().enumerate() {
            if sum == 0.0 {
                continue;
            }
            let start = block * BLOCK;
            let values = &logits[start..(start + BLOCK).min(logits.len())];
            if left >= sum {
                left -= sum;
                last = Some((start, values));
                continue;
            }
            return self.draw_in_block(left, start as u32, values);
        }
        // Rounding used up the whole sum: the last token that has weight.
        last.and_then(|(start, values)| self.draw_in_block(f64::INFINITY, start as u32, values))
    }

    fn block_sum(&self, values: &[f32], start: u32) -> f64 {
        const LANES: usize = 16;
        if values.iter().fold(true, |below, &x| below & (x < self.cut.logit)) {
            return 0.0;
        }
        let mut sums = [0.0f64; LANES];
        for (row, chunk) in values.chunks(LANES).enumerate() {
            let first = start + (row * LANES) as u32;
            for ((sum, &x), lane) in sums.iter_mut().zip(chunk).zip(0u32..) {
                *sum += f64::from(self.weight(x, first + lane));
            }
        }
        sums.iter().sum()
    }

    fn draw_in_block(&self, target: f64, start: u32, values: &[f32]) -> Option<u32> {
        let mut sum = 0.0;
        let mut last = None;
        for (&x, token) in values.iter().zip(start..) {
            let weight = f64::from(self.weight(x, token));
            if weight > 0.0 {
                sum += weight;
                last = Some(token);
                if sum > target {
                    break;
                }
            }
        }
        last
    }
}

#[cfg(test)]
mod tests;
