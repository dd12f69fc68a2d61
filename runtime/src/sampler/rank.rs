//! Tokens by rank without sorting the vocabulary. A larger logit ranks first; of equal ones, the
//! smaller id.

use super::{
    exp::exp_neg,
    scan::{any_above, mass_above, weights},
};
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

    pub(crate) fn new(logit: f32, token: u32) -> Self {
        // `total_cmp` tells the zeros apart, equality does not: one zero will do.
        Self { logit: logit + 0.0, token }
    }

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

/// Logits that are passed over together when none of them is among the best.
const SKIPPED: usize = 128;

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
    for (values, block) in logits.chunks(SKIPPED).zip(0u32..) {
        // Nearly all of them after a while.
        if !any_above(values, threshold) {
            continue;
        }
        for (&logit, token) in values.iter().zip(block * SKIPPED as u32..) {
            // Ids ascend, so an equal logit ranks after those that are already in.
            if logit > threshold {
                out.push(Ranked::new(logit, token));
                if out.len() >= full && out.len() > count {
                    out.select_nth_unstable_by(count - 1, Ranked::order);
                    out.truncate(count);
                    threshold = out[count - 1].logit;
                }
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

/// Finds the fewest tokens that have a share of the probability by narrowing a range of logits until
/// few tokens are left to sort.
pub(crate) struct Nucleus {
    weights: Vec<f32>,
}

impl Nucleus {
    /// Sorting this many is cheaper than passing over the vocabulary again.
    const FEW: usize = 512;
    /// Halvings after which tokens are sorted however many there are: those that are left differ by
    /// less than matters, or not at all.
    const PASSES: usize = 20;
    /// Distance from which on [`exp_neg`] is 0.
    const FARTHEST: f32 = 88.0;

    pub(crate) fn new(vocab_size: usize) -> Self {
        Self { weights: vec![0.0; vocab_size] }
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
        weights(logits, max, rate, &mut self.weights);
        let all = self.above(0.0);
        let target = share * all.weight;
        // Tokens above the weight of `near` do not reach the target, those above that of `far` do.
        let (mut near, mut far) = (0.0, Self::FARTHEST);
        let (mut inside, mut outside) = (Mass::of_none(), all);
        for _ in 0..Self::PASSES {
            if outside.count - inside.count <= Self::FEW {
                break;
            }
            let middle = (near + far) / 2.0;
            let mass = self.above(exp_neg(middle));
            if mass.weight >= target {
                (far, outside) = (middle, mass);
            } else {
                (near, inside) = (middle, mass);
            }
        }
        scratch.clear();
        for (token, (&weight, &logit)) in self.weights.iter().zip(logits).enumerate() {
            if weight > outside.limit && weight <= inside.limit {
                scratch.push(Ranked::new(logit, token as u32));
            }
        }
        scratch.sort_unstable_by(Ranked::order);
        let weight = |logit| f64::from(exp_neg((max - logit) * rate));
        reach(scratch, inside.weight, target, weight)
    }

    /// The tokens whose weight is above `limit`.
    fn above(&self, limit: f32) -> Mass {
        let (weight, count) = mass_above(&self.weights, limit);
        Mass { limit, weight, count }
    }
}

/// The tokens above a limit, taken together.
#[derive(Clone, Copy)]
struct Mass {
    limit: f32,
    weight: f64,
    count: usize,
}

impl Mass {
    fn of_none() -> Self {
        Self { limit: f32::INFINITY, weight: 0.0, count: 0 }
    }
}
