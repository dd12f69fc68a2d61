//! What a step does: the cheapest way to bring prompts and decoding sequences forward.
//!
//! A decode plan takes rows of any sequences, so tokens of prompts may stand in the rows that would
//! be padding, or in those of a larger plan. What that is worth is what prefilling those tokens
//! would have taken. `docs/scheduling.md` tells the whole.

use crate::costs::Costs;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    /// A chunk of the running sequence with this index.
    Prefill(usize),
    /// Every running sequence that decodes, and as many tokens of prompts as the last replay has
    /// room for when it has this many rows.
    Decode {
        rows: u32,
    },
}

/// A running sequence whose prompt is not fed, as far as the choice goes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Among the running.
    pub(crate) index: usize,
    /// Tokens that the device was fed.
    pub(crate) fed: u32,
    /// Tokens that prefill feeds, from the first on.
    pub(crate) prefill_end: u32,
    /// Tokens there are: one more than prefill feeds where an output goes on.
    pub(crate) tokens: u32,
    /// The most tokens that one step may feed.
    pub(crate) most: u32,
    /// Prefill steps that passed it over.
    pub(crate) passed: u32,
}

impl Prompt {
    /// Nanoseconds of the prefill replays that it needs when `more` tokens of it were fed.
    fn left(&self, costs: &Costs, more: u32) -> f64 {
        let fed = self.fed + more;
        if fed >= self.tokens {
            return 0.0;
        }
        let head = if self.tokens == self.prefill_end { costs.head() } else { 0.0 };
        costs.prefill(self.prefill_end, self.prefill_end - fed).1 + head
    }

    /// How many of its tokens go into `rows` rows.
    pub(crate) fn takes(&self, rows: u32) -> u32 {
        rows.min(self.tokens - self.fed).min(self.most)
    }
}

/// Prefill steps that may pass a prompt over before it goes first.
pub(crate) const MOST_PASSED: u32 = 8;

/// Brings prompts into the order in which they are served: those that were passed over too often,
/// the most neglected first; then the one with the fewest tokens left, the oldest among equals.
pub(crate) fn order(prompts: &mut [Prompt]) {
    prompts.sort_unstable_by_key(|p| {
        let neglected = p.passed.saturating_sub(MOST_PASSED - 1);
        let left = if neglected > 0 { 0 } else { p.prefill_end - p.fed };
        (u32::MAX - neglected, left, p.index)
    });
}

/// A decode replay that may take prompts.
struct Mix {
    rows: u32,
    /// Its nanoseconds.
    ns: f64,
    /// Those, and of the prefill replays that the prompts still need after it.
    total: f64,
}

/// The best decode replay for `decoding` rows, at most as many as a plan has, of up to `context`
/// tokens, and `prompts` in the order in which they are served; `None` when it is best to have none.
fn mix(
    costs: &Costs,
    (decoding, context): (u32, u32),
    prompts: &[Prompt],
    most_tokens: u32,
) -> Option<Mix> {
    let mut best: Option<Mix> = None;
    let least = costs.decode(context, decoding).map_or(0, |p| p.size.1);
    let needed: f64 = prompts.iter().map(|p| p.left(costs, 0)).sum();
    for rows in costs.decode_rows().filter(|&rows| rows >= least) {
        let (mut spare, mut context) = ((rows - decoding).min(most_tokens), context);
        let mut saved = 0.0;
        for prompt in prompts {
            let takes = prompt.takes(spare);
            if takes == 0 {
                continue;
            }
            spare -= takes;
            context = context.max(prompt.fed + takes);
            saved += prompt.left(costs, 0) - prompt.left(costs, takes);
        }
        let Some(plan) = costs.decode(context, rows) else { continue };
        let total = plan.ns + needed - saved;
        // Without rows that decode there need not be a replay at all.
        let bound = best.as_ref().map(|b| b.total).or((decoding == 0).then_some(needed));
        if bound.is_none_or(|bound| total < bound) {
            best = Some(Mix { rows, ns: plan.ns, total });
        }
    }
    best
}

/// Chooses a step for `decoding` sequences of up to `context` tokens and for `prompts`, in the order
/// in which they are served. `most_tokens` tokens of prompts may be fed in a step; `mixes` says
/// whether decode replays take them. After a prefill (`prefilled_last`), those who decode are next.
pub(crate) fn choose(
    costs: &Costs,
    (decoding, context): (u32, u32),
    prompts: &[Prompt],
    (most_tokens, mixes): (u32, bool),
    prefilled_last: bool,
) -> Work {
    let Some(first) = prompts.first() else {
        return if decoding == 0 { Work::Nothing } else { Work::Decode { rows: 0 } };
    };
    let may_prefill = decoding == 0 || !prefilled_last;
    if !mixes {
        let index = first.index;
        return if may_prefill { Work::Prefill(index) } else { Work::Decode { rows: 0 } };
    }
    // What is left for the last replay of a batch that takes several.
    let largest = costs.most_decode_rows(context).max(1);
    let last = if decoding == 0 { 0 } else { (decoding - 1) % largest + 1 };
    let Some(mix) = mix(costs, (last, context), prompts, most_tokens) else {
        return Work::Prefill(first.index);
    };
    let takes = first.takes((mix.rows - last).min(most_tokens));
    if decoding == 0 || !may_prefill {
        return Work::Decode { rows: mix.rows };
    }
    // Prefilling first is faster for the prompt and slower for all others; it goes first when decode
    // replays alone would make it wait for more than that prefill takes.
    let waits = |takes| f64::from((first.tokens - first.fed).div_ceil(takes) - 1) * mix.ns;
    if takes > 0 && waits(takes) <= first.left(costs, 0) {
        Work::Decode { rows: mix.rows }
    } else {
        Work::Prefill(first.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::BucketCounters;
    use artifact::Phase;
    use std::time::Duration;

    /// Decode plans of 4, 8 and 16 rows, prefill plans of 16 and 64, times in microseconds.
    fn costs(decode: [u64; 3], prefill: [u64; 2]) -> Costs {
        let plans = [
            (Phase::Decode, 4, 256),
            (Phase::Decode, 8, 256),
            (Phase::Decode, 16, 256),
            (Phase::Prefill, 16, 256),
            (Phase::Prefill, 64, 256),
            (Phase::Head, 1, 0),
        ];
        let plans = plans.map(|(phase, rows, context)| BucketCounters::new(phase, rows, context));
        let times = [&decode[..], &prefill, &[10]].concat();
        let times: Vec<_> = times.into_iter().map(Duration::from_micros).collect();
        Costs::new(&plans, Some(&times))
    }

    fn prompt(index: usize, left: u32) -> Prompt {
        let tokens = 100 + left;
        Prompt { index, fed: 100, prefill_end: tokens, tokens, most: u32::MAX, passed: 0 }
    }

    fn step(costs: &Costs, decoding: u32, prompts: &[Prompt], prefilled_last: bool) -> Work {
        choose(costs, (decoding, 200), prompts, (u32::MAX, true), prefilled_last)
    }

    #[test]
    fn spare_rows_are_free() {
        let costs = costs([100, 200, 400], [110, 300]);
        assert_eq!(step(&costs, 3, &[prompt(7, 1)], false), Work::Decode { rows: 4 });
        assert_eq!(step(&costs, 6, &[prompt(7, 2)], false), Work::Decode { rows: 8 });
        assert_eq!(step(&costs, 4, &[], false), Work::Decode { rows: 0 });
        assert_eq!(step(&costs, 0, &[], false), Work::Nothing);
        // Several short ones in one replay.
        let two = [prompt(6, 1), prompt(7, 2)];
        assert_eq!(step(&costs, 5, &two, false), Work::Decode { rows: 8 });
    }

    #[test]
    fn a_larger_batch_is_taken_when_it_costs_less_than_the_prefill_it_saves() {
        let cheap = costs([100, 120, 150], [110, 300]);
        assert_eq!(step(&cheap, 4, &[prompt(7, 4)], false), Work::Decode { rows: 8 });
        assert_eq!(step(&cheap, 4, &[prompt(7, 12)], false), Work::Decode { rows: 16 });
        let dear = costs([100, 300, 900], [110, 300]);
        assert_eq!(step(&dear, 4, &[prompt(7, 4)], false), Work::Prefill(7));
        assert_eq!(step(&dear, 4, &[prompt(7, 4)], true), Work::Decode { rows: 4 });
    }

    #[test]
    fn a_long_prompt_is_prefilled_and_helped_by_decode_steps() {
        let costs = costs([100, 101, 102], [110, 300]);
        assert_eq!(step(&costs, 3, &[prompt(7, 150)], false), Work::Prefill(7));
        // 150 = 2 * 64 + 16 + 6: with 13 rows more, the rest of 9 needs one small prefill less.
        assert_eq!(step(&costs, 3, &[prompt(7, 150)], true), Work::Decode { rows: 16 });
        // 64 tokens are one replay, however many of the first are fed elsewhere.
        assert_eq!(step(&costs, 3, &[prompt(7, 64)], true), Work::Decode { rows: 4 });
    }

    #[test]
    fn short_prompts_share_a_replay_when_nobody_decodes() {
        let costs = costs([100, 150, 200], [110, 300]);
        let prompts: Vec<Prompt> = (0..4).map(|i| prompt(i, 4)).collect();
        assert_eq!(step(&costs, 0, &prompts, false), Work::Decode { rows: 16 });
        assert_eq!(step(&costs, 0, &[prompt(0, 64)], false), Work::Prefill(0));
        let not_mixed = choose(&costs, (0, 0), &prompts, (u32::MAX, false), false);
        assert_eq!(not_mixed, Work::Prefill(0));
    }

    #[test]
    fn a_sequence_that_takes_one_row_a_step_does_not_wait_long() {
        let costs = costs([100, 101, 102], [110, 300]);
        let one = |left| Prompt { most: 1, ..prompt(7, left) };
        assert_eq!(step(&costs, 3, &[one(2)], false), Work::Decode { rows: 4 });
        assert_eq!(step(&costs, 3, &[one(9)], false), Work::Prefill(7));
    }

    #[test]
    fn what_a_full_batch_leaves_of_its_last_replay_is_free() {
        let costs = costs([100, 200, 400], [110, 300]);
        assert_eq!(step(&costs, 16 + 3, &[prompt(7, 1)], false), Work::Decode { rows: 4 });
        assert_eq!(step(&costs, 16, &[prompt(7, 1)], false), Work::Prefill(7));
        assert_eq!(step(&costs, 16, &[prompt(7, 1)], true), Work::Decode { rows: 16 });
    }

    #[test]
    fn the_shortest_goes_first_until_another_was_passed_over_too_often() {
        let passed = |index, left, passed| Prompt { passed, ..prompt(index, left) };
        let order_of = |mut prompts: Vec<Prompt>| {
            order(&mut prompts);
            prompts.iter().map(|p| p.index).collect::<Vec<_>>()
        };
        let fresh = vec![passed(0, 90, 7), passed(1, 5, 0), passed(2, 50, 3), passed(3, 5, 0)];
        assert_eq!(order_of(fresh), [1, 3, 2, 0]);
        let late = vec![passed(0, 90, 8), passed(1, 5, 0), passed(2, 50, 10), passed(3, 5, 8)];
        assert_eq!(order_of(late), [2, 0, 3, 1]);
    }
}
