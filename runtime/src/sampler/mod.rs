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
mod scan;

pub(crate) use adjust::{Choice, History, is_needed as adjusts};
pub(crate) use rank::Ranked;

use crate::Sampling;
use adjust::Adjuster;
use exp::exp_neg;
use multiversion::multiversion;
use rank::{Nucleus, best, reach};
use scan::largest;

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
        let u = rng::uniform(draw.seed, draw.count);
        if let Some(k) = top_k(sampling, logits.len()) {
            best(logits, k as usize, &mut self.ranked);
            self.ranked.sort_unstable_by(Ranked::order);
            if let Some(token) = draw_of_ranked(sampling, u, &mut self.ranked) {
                return Some(token);
            }
        }
        let max = largest(logits);
        let first = || logits.iter().position(|&x| x == max).map(|i| i as u32);
        if sampling.is_greedy() || !max.is_finite() {
            return first();
        }
        let rate = rate(sampling);
        let share = f64::from(sampling.top_p);
        let cut = if sampling.top_p < 1.0 {
            self.nucleus.reach(logits, (max, rate), share, &mut self.ranked)
        } else {
            None
        };
        let cut = cut.unwrap_or(Ranked::LAST);
        let kept = Kept { cut, min_weight: sampling.min_p, max, rate };
        kept.draw(u, logits, &mut self.block_sums).or_else(first)
    }

    /// As [`Sampler::choose`] where nothing changes logits, given the best tokens in
    /// [`Sampler::scratch`]: as many as [`top_k`] says, in order. `None` when all logits are needed after
    /// all.
    pub(crate) fn choose_of_best(&mut self, sampling: &Sampling, draw: Draw) -> Option<u32> {
        draw_of_ranked(sampling, rng::uniform(draw.seed, draw.count), &mut self.ranked)
    }

    /// Room for candidates that log-probabilities are chosen from.
    pub(crate) fn scratch(&mut self) -> &mut Vec<Ranked> {
        &mut self.ranked
    }
}

/// What multiplies distances from the best logit.
fn rate(sampling: &Sampling) -> f32 {
    // A temperature near 0 must not turn the distance 0 of the best token into a NaN.
    (1.0 / sampling.temperature).min(f32::MAX)
}

/// How many of the best tokens are drawn from, when that is not all.
pub(crate) fn top_k(sampling: &Sampling, vocab_size: usize) -> Option<u32> {
    sampling.top_k.filter(|&k| (k as usize) < vocab_size && !sampling.is_greedy())
}

/// Draws from the best tokens after `top_p` and `min_p`; looks at none of the other logits. `None`
/// without a token whose logit is finite.
fn draw_of_ranked(sampling: &Sampling, u: f64, ranked: &mut Vec<Ranked>) -> Option<u32> {
    let best = ranked.first().copied().filter(|best| best.logit.is_finite())?;
    let rate = rate(sampling);
    let weight = |logit: f32| exp_neg((best.logit - logit) * rate);
    let share = f64::from(sampling.top_p);
    if share < 1.0 {
        let total: f64 = ranked.iter().map(|r| f64::from(weight(r.logit))).sum();
        let cut = reach(ranked, 0.0, share * total, |logit| f64::from(weight(logit)))?;
        ranked.retain(|r| cut.admits(r.logit, r.token));
    }
    ranked.retain(|r| weight(r.logit) >= sampling.min_p);
    ranked.sort_unstable_by_key(|r| r.token);
    let mut left = u * ranked.iter().map(|r| f64::from(weight(r.logit))).sum::<f64>();
    let drawn = ranked.iter().find(|r| {
        left -= f64::from(weight(r.logit));
        left < 0.0
    });
    // Rounding may use up the whole sum: the last token that has weight.
    let last = || ranked.iter().rfind(|r| weight(r.logit) > 0.0);
    Some(drawn.or_else(last).map_or(best.token, |r| r.token))
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
            block_sums.push(block_sum(self, values, (block * BLOCK) as u32));
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

/// Sum of the weights of at most [`BLOCK`] values, the first of which belongs to the token `start`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn block_sum(kept: &Kept, values: &[f32], start: u32) -> f64 {
    const LANES: usize = 16;
    if values.iter().fold(true, |below, &x| below & (x < kept.cut.logit)) {
        return 0.0;
    }
    // Apart from their sum, which is in doubles, they become better vector code.
    let mut weights = [0.0; BLOCK];
    for ((weight, &x), token) in weights.iter_mut().zip(values).zip(start..) {
        *weight = kept.weight(x, token);
    }
    let mut sums = [0.0f64; LANES];
    for chunk in weights.as_chunks::<LANES>().0 {
        for (sum, &weight) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(weight);
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests;
