//! Tokens by rank without sorting the vocabulary. A larger logit ranks first; of equal ones, the
//! smaller id.

use super::exp::exp_neg;
use std::cmp::Ordering;

/// A token with its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) logit: f32,
    pub(crate) token: u32,
}

impl Ranked {
    /// Ranks after every token, whatever its logit.
    pub(crate) const LAST: Ranked = Ranked { logit: f32::NEG_INFINITY, token: u32::MAX };

    /// `Less` when `self` ranks first. Logits are numbers.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }

    /// Whether `logit` of `token` ranks at or before `self`.
    #[inline(always)]
    pub(crate) fn admits(&self, logit: f32, token: u32) -> bool {
        (logit > self.logit) | ((logit == self.logit) & (token <= self.token))
    }
}

/// Fills `out` with the best `count` tokens of `logits`, in no order. Allocates nothing when `out`
/// has room for as many entries as there are logits.
pub(crate) fn best(logits: &[f32], count: usize, out: &mut Vec<Ranked>) {
    out.clear();
    if count == 0 {
        return;
    }
    // Twice the count: each cut then drops as many as it keeps, so cuts cost a constant per entry.
    let full = count.saturating_mul(2).min(logits.len());
    let mut threshold = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        // Ids ascend, so an equal logit ranks after those that are already in.
        if logit > threshold {
            // `total_cmp` tells the zeros apart, equality does not: one zero will do.
            out.push(Ranked { logit: logit + 0.0, token: token as u32 });
            if out.len() >= full && out.len() > count {
                out.select_nth_unstable_by(count - 1, Ranked::order);
                out.truncate(count);
                threshold = out[count - 1].logit;
            }
        }
    }
    if out.len() > count {
        out.select_nth_unstable_by(count - 1, Ranked::order);
        out.truncate(count);
    }
}

/// The first token of `sorted` at which `before` and the weights up to it reach `target`; the last
/// when rounding leaves the sum below.
pub(crate) fn reach(
    sorted: &[Ranked],
    before: f64,
    target: f64,
    weight: impl Fn(f32) -> f64,
) -> Option<Ranked> {
    let mut sum = before;
    let reached = sorted.iter().find(|entry| {
        sum += weight(entry.logit);
        sum >= target
    });
    reached.or(sorted.last()).copied()
}

/// Bands of equal width in the logit's distance to the largest, each with the weight of its tokens:
/// finds the token at which a share of the weight is reached by sorting one band.
pub(crate) struct Bands {
    weights: Vec<f64>,
}

impl Bands {
    const COUNT: usize = 512;
    /// Bands for each factor of e. 64 of them reach below what `exp_neg` tells from 0 often enough
    /// that the last band, which takes all the rest, is hardly ever sorted.
    const PER_NAT: f32 = 8.0;

    pub(crate) fn new() -> Self {
        Self { weights: vec![0.0; Self::COUNT] }
    }

    #[inline(always)]
    fn of(distance: f32) -> usize {
        ((distance * Self::PER_NAT) as usize).min(Self::COUNT - 1)
    }

    /// The lowest-ranked token of the fewest whose probabilities reach `share`; probabilities are
    /// `e^((logit - max) * rate)` over their sum. `scratch` needs room for every token.
    pub(crate) fn reach(
        &mut self,
        logits: &[f32],
        (max, rate): (f32, f32),
        share: f64,
        scratch: &mut Vec<Ranked>,
    ) -> Option<Ranked> {
        self.weights.fill(0.0);
        let mut total = 0.0;
        for &logit in logits {
            let distance = (max - logit) * rate;
            let weight = f64::from(exp_neg(distance));
            self.weights[Self::of(distance)] += weight;
            total += weight;
        }
        let target = share * total;
        let mut before = 0.0;
        let edge = self.weights.iter().position(|weight| {
            let reached = before + weight >= target;
            before += if reached { 0.0 } else { *weight };
            reached
        });
        // Rounding may leave the sum a hair below the target: then every token is needed.
        let edge = edge?;
        scratch.clear();
        for (token, &logit) in logits.iter().enumerate() {
            let distance = (max - logit) * rate;
            if distance <= 87.0 && Self::of(distance) == edge {
                scratch.push(Ranked { logit: logit + 0.0, token: token as u32 });
            }
        }
        scratch.sort_unstable_by(Ranked::order);
        reach(scratch, before, target, |logit| f64::from(exp_neg((max - logit) * rate)))
    }
}
