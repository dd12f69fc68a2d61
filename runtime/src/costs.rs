//! How long a replay of each plan takes: what the choice of a step goes by.

use crate::stats::BucketCounters;
use artifact::Phase;
use std::time::Duration;

/// The time of one replay of every plan, measured while they run.
pub(crate) struct Costs {
    /// In the order of the manifest.
    plans: Vec<PlanCost>,
    /// Indices of the plans of a phase, by context tier, then rows.
    decode: Vec<usize>,
    prefill: Vec<usize>,
    head: Vec<usize>,
    /// Times were given and stay as they are.
    fixed: bool,
}

struct PlanCost {
    phase: Phase,
    tier: u32,
    rows: u32,
    recent: Recent,
    /// Nanoseconds that a replay is expected to take.
    ns: f64,
}

/// A size of a plan, and the nanoseconds that its replay takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Priced {
    /// Context tier and rows.
    pub(crate) size: (u32, u32),
    pub(crate) ns: f64,
}

impl Costs {
    /// Measurements after which a plan's own times are believed. (The first replays of a plan fault
    /// its weights in.)
    const ENOUGH: usize = 3;

    /// Plans that never ran are expected to take what [`shape`] says.
    pub(crate) fn new(plans: &[BucketCounters], given: Option<&[Duration]>) -> Self {
        let cost = |(i, p): (usize, &BucketCounters)| {
            let ns = shape(p.phase, p.rows);
            let given = given.and_then(|times| times.get(i));
            PlanCost {
                phase: p.phase,
                tier: p.context_tokens,
                rows: p.rows,
                recent: Recent::default(),
                ns: given.map_or(ns, |time| time.as_nanos() as f64),
            }
        };
        let plans: Vec<PlanCost> = plans.iter().enumerate().map(cost).collect();
        let of = |phase| {
            let mut all: Vec<usize> =
                (0..plans.len()).filter(|&i| plans[i].phase == phase).collect();
            all.sort_unstable_by_key(|&i| (plans[i].tier, plans[i].rows));
            all
        };
        let (decode, prefill, head) = (of(Phase::Decode), of(Phase::Prefill), of(Phase::Head));
        Self { plans, decode, prefill, head, fixed: given.is_some() }
    }

    /// Leaves prefill plans of more than `tokens` rows out of consideration, but for the smallest of
    /// each tier.
    pub(crate) fn limit_prefill(&mut self, tokens: u32) {
        let mut tier = None;
        self.prefill.retain(|&i| {
            let plan = &self.plans[i];
            let smallest = tier.replace(plan.tier) != Some(plan.tier);
            smallest || plan.rows <= tokens
        });
    }

    /// A replay of the plan `index` took `ns` nanoseconds.
    pub(crate) fn record(&mut self, index: usize, ns: u64) {
        if self.fixed {
            return;
        }
        let plan = &mut self.plans[index];
        let samples = plan.recent.push(ns);
        if samples >= Self::ENOUGH {
            plan.ns = plan.recent.median();
        }
        if samples == Self::ENOUGH || samples == Recent::KEPT {
            self.refresh();
        } else if samples < Self::ENOUGH {
            plan.ns = plan.ns.min(ns as f64);
        }
    }

    /// Scales the time of plans that have not run often enough from that of the most similar one
    /// that has.
    fn refresh(&mut self) {
        for i in 0..self.plans.len() {
            let plan = &self.plans[i];
            if plan.recent.samples >= Self::ENOUGH {
                continue;
            }
            let known = self.plans.iter().filter(|p| p.recent.samples >= Self::ENOUGH);
            let apart = |p: &PlanCost| {
                let rows = f64::from(p.rows.max(plan.rows)) / f64::from(p.rows.min(plan.rows));
                (p.phase != plan.phase, rows, p.tier.abs_diff(plan.tier))
            };
            let nearest = known.min_by(|a, b| {
                let ((ap, ar, at), (bp, br, bt)) = (apart(a), apart(b));
                ap.cmp(&bp).then(ar.total_cmp(&br)).then(at.cmp(&bt))
            });
            let Some(nearest) = nearest else { return };
            let scaled =
                nearest.ns * shape(plan.phase, plan.rows) / shape(nearest.phase, nearest.rows);
            let least = plan.recent.least().map_or(scaled, |least| scaled.min(least));
            self.plans[i].ns = least;
        }
    }

    fn priced(&self, index: usize) -> Priced {
        let PlanCost { tier, rows, ns, .. } = self.plans[index];
        Priced { size: (tier, rows), ns }
    }

    /// The decode plan that `rows` rows take at a context of `context` tokens.
    pub(crate) fn decode(&self, context: u32, rows: u32) -> Option<Priced> {
        let mut all = self.decode.iter().map(|&i| self.priced(i));
        all.find(|p| p.size.0 >= context && p.size.1 >= rows)
    }

    /// The most rows that one decode plan takes at a context of `context` tokens.
    pub(crate) fn most_decode_rows(&self, context: u32) -> u32 {
        let all = self.decode.iter().map(|&i| &self.plans[i]);
        all.filter(|p| p.tier >= context).map(|p| p.rows).max().unwrap_or(0)
    }

    /// Every size of a decode batch.
    pub(crate) fn decode_rows(&self) -> impl Iterator<Item = u32> + '_ {
        let longest = self.decode.last().map_or(0, |&i| self.plans[i].tier);
        let all = self.decode.iter().map(|&i| &self.plans[i]);
        all.filter(move |p| p.tier == longest).map(|p| p.rows)
    }

    /// The most tokens that one prefill plan takes.
    pub(crate) fn max_chunk(&self) -> u32 {
        self.prefill.iter().map(|&i| self.plans[i].rows).max().unwrap_or(0)
    }

    /// Nanoseconds for the logits of one row after a prefill.
    pub(crate) fn head(&self) -> f64 {
        self.head.first().map_or(0.0, |&i| self.plans[i].ns)
    }

    /// The cheapest way to prefill `left` tokens of a context that ends at `end`: its first replay,
    /// and the nanoseconds of them all.
    ///
    /// Either one replay takes all tokens with padding, or as many as possible fill the largest plan
    /// that they can and the same is asked of the rest.
    pub(crate) fn prefill(&self, end: u32, left: u32) -> (Option<(u32, u32)>, f64) {
        let Some(tier) = self.prefill.iter().map(|&i| self.plans[i].tier).find(|&t| t >= end)
        else {
            return (None, 0.0);
        };
        let sizes = || {
            let all = self.prefill.iter().map(|&i| self.priced(i));
            all.filter(move |p| p.size.0 == tier)
        };
        let (mut first, mut best) = (None, f64::INFINITY);
        let (mut filled, mut spent, mut rest) = (None, 0.0, left);
        while rest > 0 {
            if let Some(padded) = sizes().find(|p| p.size.1 >= rest)
                && spent + padded.ns < best
            {
                best = spent + padded.ns;
                first = filled.or(Some(padded.size));
            }
            let Some(plan) = sizes().rfind(|p| p.size.1 <= rest) else { break };
            let rows = plan.size.1;
            spent += f64::from(rest / rows) * plan.ns;
            rest %= rows;
            filled = filled.or(Some(plan.size));
        }
        if rest == 0 && spent < best {
            (first, best) = (filled, spent);
        }
        (first, best)
    }
}

/// Relative time of a replay before anything was measured: every replay reads all weights, and 16
/// rows more take that long again; the head is an eighth of a model.
fn shape(phase: Phase, rows: u32) -> f64 {
    const NS: f64 = 1e6;
    let rows = 1.0 + f64::from(rows) / 16.0;
    NS * match phase {
        Phase::Prefill => rows,
        Phase::Decode => rows * 1.125,
        Phase::Head => rows * 0.125,
    }
}

/// The last few times of a plan.
#[derive(Clone, Copy, Default)]
struct Recent {
    ns: [u64; Recent::KEPT],
    /// Up to [`Recent::KEPT`].
    samples: usize,
    next: usize,
}

impl Recent {
    const KEPT: usize = 7;

    /// Returns how many are kept now; once more than [`Recent::KEPT`] when it was full before.
    fn push(&mut self, ns: u64) -> usize {
        self.ns[self.next] = ns;
        self.next = (self.next + 1) % Self::KEPT;
        let before = self.samples;
        self.samples = (before + 1).min(Self::KEPT);
        before + 1
    }

    fn median(&self) -> f64 {
        let mut sorted = self.ns;
        let sorted = &mut sorted[..self.samples];
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(0.0, |&ns| ns as f64)
    }

    fn least(&self) -> Option<f64> {
        self.ns[..self.samples].iter().min().map(|&ns| ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(phase: Phase, rows: u32, context_tokens: u32) -> BucketCounters {
        BucketCounters::new(phase, rows, context_tokens)
    }

    fn costs(prefill: &[(u32, u64)]) -> Costs {
        let plans: Vec<_> = prefill.iter().map(|&(r, _)| plan(Phase::Prefill, r, 1024)).collect();
        let times: Vec<_> = prefill.iter().map(|&(_, ns)| Duration::from_nanos(ns)).collect();
        Costs::new(&plans, Some(&times))
    }

    #[test]
    fn prompts_are_cut_where_it_is_cheapest() {
        let costs = costs(&[(4, 100), (16, 160), (64, 400)]);
        let cut = |left| {
            let (first, ns) = costs.prefill(left, left);
            (first.unwrap().1, ns)
        };
        assert_eq!(cut(3), (4, 100.0));
        assert_eq!(cut(5), (16, 160.0), "one padded replay is cheaper than two small ones");
        assert_eq!(cut(18), (16, 260.0), "two small ones are cheaper than 46 rows of padding");
        assert_eq!(cut(40), (64, 400.0));
        assert_eq!(cut(64 * 3 + 20), (64, 3.0 * 400.0 + 160.0 + 100.0));
        assert_eq!(costs.prefill(64, 0), (None, 0.0), "nothing is left");
    }

    #[test]
    fn a_limit_leaves_smaller_plans() {
        let mut costs = costs(&[(4, 100), (16, 160), (64, 400)]);
        costs.limit_prefill(20);
        assert_eq!((costs.max_chunk(), costs.prefill(64, 64).1), (16, 640.0));
        costs.limit_prefill(1);
        assert_eq!(costs.max_chunk(), 4, "there is always one");
    }

    #[test]
    fn an_outlier_changes_nothing_and_a_trend_does() {
        let mut costs = Costs::new(&[plan(Phase::Decode, 1, 64), plan(Phase::Decode, 8, 64)], None);
        let time = |costs: &Costs, rows| costs.decode(1, rows).unwrap().ns;
        assert!(time(&costs, 1) < time(&costs, 8));
        for ns in [9_000_000, 1000, 1000, 1000, 1000, 50_000_000] {
            costs.record(0, ns);
        }
        assert_eq!(time(&costs, 1), 1000.0);
        let scaled = time(&costs, 8);
        assert!(scaled > 1000.0 && scaled < 2000.0, "scaled from the one that ran: {scaled}");
        costs.record(1, 80_000_000);
        assert_eq!(time(&costs, 8), scaled, "the first replay faults weights in");
        for _ in 0..4 {
            costs.record(0, 3000);
        }
        assert_eq!(time(&costs, 1), 3000.0);
    }
}
