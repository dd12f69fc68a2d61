//! The sampler against one that sorts everything and works in `f64`.

use super::*;
use proptest::prelude::*;

/// How close a decision may come to a boundary before rounding may turn it.
const MARGIN: f64 = 1e-5;

/// The token by the definition; `None` when a boundary is too close to call.
fn naive(sampling: &Sampling, history: &History<'_>, u: f64, logits: &[f32]) -> Option<u32> {
    let mut x: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    for &(token, bias) in &sampling.logit_bias {
        x[token as usize] += f64::from(bias);
    }
    for (token, x) in x.iter_mut().enumerate() {
        let count = |tokens: &[u32]| tokens.iter().filter(|&&t| t as usize == token).count();
        let (in_prompt, in_output) = (count(history.prompt), count(history.output));
        let penalty = f64::from(sampling.repetition_penalty);
        if in_prompt + in_output > 0 {
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
        *x -= in_output as f64 * f64::from(sampling.frequency_penalty);
        *x -= f64::from(u8::from(in_output > 0)) * f64::from(sampling.presence_penalty);
    }
    let Choice { allowed, forbidden } = history.choice;
    let allowed = |token: &usize| {
        let in_mask = allowed.is_none_or(|bits| bits[token / 32] >> (token % 32) & 1 == 1);
        in_mask && !forbidden.contains(&(*token as u32))
    };
    let mut order: Vec<usize> = (0..x.len()).filter(allowed).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    if sampling.is_greedy() {
        return order.first().map(|&t| t as u32);
    }
    let best = x[*order.first()?];
    let weight = |t: usize| ((x[t] - best) / f64::from(sampling.temperature)).exp();
    order.truncate(sampling.top_k.map_or(order.len(), |k| k as usize));

    let total: f64 = order.iter().map(|&t| weight(t)).sum();
    let target = total * f64::from(sampling.top_p);
    let mut sum = 0.0;
    if sampling.top_p < 1.0 {
        let mut kept = 0;
        for &t in &order {
            if (sum - target).abs() < MARGIN * total {
                return None;
            }
            if sum >= target {
                break;
            }
            sum += weight(t);
            kept += 1;
        }
        order.truncate(kept);
    }
    let min_p = f64::from(sampling.min_p);
    if order.iter().any(|&t| (weight(t) - min_p).abs() < MARGIN * min_p) {
        return None;
    }
    order.retain(|&t| weight(t) >= min_p);

    order.sort_unstable();
    let total: f64 = order.iter().map(|&t| weight(t)).sum();
    let mut sum = 0.0;
    for &t in &order {
        sum += weight(t);
        if (sum - u * total).abs() < MARGIN * total {
            return None;
        }
        if sum > u * total {
            return Some(t as u32);
        }
    }
    None
}

fn sampling(vocab: u32) -> impl Strategy<Value = Sampling> {
    let filters = (
        // The last are nearly flat: then the nucleus is large.
        prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0, 20.0f32..200.0],
        prop_oneof![Just(None), (1..vocab + 3).prop_map(Some), (1..4u32).prop_map(Some)],
        prop_oneof![Just(1.0f32), 0.01f32..1.0],
        prop_oneof![Just(0.0f32), 0.001f32..0.9],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop::collection::vec((0..vocab, -9.0f32..9.0), 0..3),
    );
    (filters, penalties).prop_map(
        |((temperature, top_k, top_p, min_p), (repetition, presence, frequency, logit_bias))| {
            Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: repetition,
                presence_penalty: presence,
                frequency_penalty: frequency,
                logit_bias,
                seed: None,
            }
        },
    )
}

#[derive(Debug)]
struct Case {
    logits: Vec<f32>,
    sampling: Sampling,
    prompt: Vec<u32>,
    output: Vec<u32>,
    allowed: Option<Vec<u32>>,
    forbidden: Vec<u32>,
    seed: u64,
}

/// Half of the rows hold few distinct values, so that ties decide.
fn case() -> impl Strategy<Value = Case> {
    prop_oneof![2u32..1500, 3000u32..4000].prop_flat_map(|vocab| {
        let smooth = prop::collection::vec(-12.0f32..12.0, vocab as usize);
        let tied = prop::collection::vec(-6i8..6, vocab as usize)
            .prop_map(|row| row.into_iter().map(f32::from).collect::<Vec<_>>());
        let tokens = || prop::collection::vec(0..vocab, 0..8);
        let mask = prop::collection::vec(any::<u32>(), vocab.div_ceil(32) as usize);
        let allowed = prop::option::weighted(0.3, mask);
        let forbidden = prop::collection::vec(0..vocab, 0..2);
        let tokens_left = (allowed, forbidden);
        let row = prop_oneof![smooth, tied];
        (row, sampling(vocab), tokens(), tokens(), tokens_left, any::<u64>()).prop_map(
            |(logits, sampling, prompt, output, (allowed, forbidden), seed)| Case {
                logits,
                sampling,
                prompt,
                output,
                allowed,
                forbidden,
                seed,
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..Default::default() })]

    #[test]
    fn agrees_with_the_definition(case in case()) {
        let Case { logits, sampling, prompt, output, allowed, forbidden, seed } = case;
        let choice = Choice { allowed: allowed.as_deref(), forbidden: &forbidden };
        let history = History { prompt: &prompt, output: &output, choice };
        let mut sampler = Sampler::new(logits.len());
        for count in 0..8 {
            let want = naive(&sampling, &history, rng::uniform(seed, count), &logits);
            let got = sampler.choose(&sampling, &history, Draw { seed, count }, &logits);
            if let Some(want) = want {
                prop_assert_eq!(got, Some(want), "draw {}", count);
            }
        }
    }
}

/// Logits of all kinds, many of them equal.
fn odd_logits() -> impl Strategy<Value = Vec<f32>> {
    const ODD: [f32; 7] = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0, 1e-40, 3.0];
    let weights = prop_oneof![9 => -9.0f32..9.0, 1 => prop::sample::select(&ODD[..])];
    let few = prop::sample::select(&ODD[..]);
    prop_oneof![
        3 => prop::collection::vec(weights, 2..300),
        1 => prop::collection::vec(few, 2..9),
        1 => prop::collection::vec((-3i8..3).prop_map(f32::from), 2..300),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..Default::default() })]

    /// The best tokens, found elsewhere, give the token that all logits give.
    #[test]
    fn the_best_decide_as_all_logits_do(
        logits in odd_logits(),
        mut sampling in sampling(300),
        seed in any::<u64>(),
    ) {
        (sampling.repetition_penalty, sampling.frequency_penalty) = (1.0, 0.0);
        (sampling.presence_penalty, sampling.logit_bias) = (0.0, Vec::new());
        let Some(count) = top_k(&sampling, logits.len()) else { return Ok(()) };
        let mut best: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |token: u32| logits[token as usize];
        best.retain(|&token| logit(token) > f32::NEG_INFINITY);
        best.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap().then(a.cmp(&b)));
        best.truncate(count as usize);
        let mut sampler = Sampler::new(logits.len());
        for count in 0..4 {
            let draw = Draw { seed, count };
            let want = sampler.choose(&sampling, &NO_HISTORY, draw, &logits);
            sampler.scratch().clear();
            sampler.scratch().extend(best.iter().map(|&token| Ranked::new(logit(token), token)));
            let got = sampler.choose_of_best(&sampling, draw);
            let is_finite = best.first().is_some_and(|&token| logit(token).is_finite());
            prop_assert_eq!(got, want.filter(|_| is_finite));
        }
    }
}

const NO_HISTORY: History<'static> =
    History { prompt: &[], output: &[], choice: Choice { allowed: None, forbidden: &[] } };

fn draw_counts(sampling: &Sampling, logits: &[f32], draws: u64) -> Vec<u64> {
    let mut sampler = Sampler::new(logits.len());
    let mut counts = vec![0; logits.len()];
    for count in 0..draws {
        let token = sampler.choose(sampling, &NO_HISTORY, Draw { seed: 7, count }, logits);
        counts[token.unwrap() as usize] += 1;
    }
    counts
}

#[test]
fn tokens_are_drawn_in_proportion() {
    let logits = [0.0f32, 2.0f32.ln(), 3.0f32.ln(), 4.0f32.ln()];
    let counts = draw_counts(&Sampling::default(), &logits, 20_000);
    for (count, share) in counts.iter().zip([0.1, 0.2, 0.3, 0.4]) {
        // The standard deviation of each share is at most 0.0035.
        let got = *count as f64 / 20_000.0;
        assert!((got - share).abs() < 0.015, "{counts:?}");
    }
}

#[test]
fn filters_apply_to_what_the_one_before_left() {
    let logits = [0.0f32, 2.0f32.ln(), 3.0f32.ln(), 4.0f32.ln()];
    let drawn = |sampling: Sampling| {
        let counts = draw_counts(&sampling, &logits, 2000);
        counts.iter().map(|&n| n > 0).collect::<Vec<_>>()
    };
    let base = Sampling::default();
    assert_eq!(drawn(Sampling { top_k: Some(2), ..base.clone() }), [false, false, true, true]);
    assert_eq!(drawn(Sampling { top_p: 0.65, ..base.clone() }), [false, false, true, true]);
    // 4/7 of what is left after top_k, but 0.4 of the whole.
    let both = Sampling { top_k: Some(2), top_p: 0.5, ..base.clone() };
    assert_eq!(drawn(both), [false, false, false, true]);
    assert_eq!(drawn(Sampling { min_p: 0.4, ..base.clone() }), [false, true, true, true]);
    let tied = Sampling { top_k: Some(1), ..base };
    assert_eq!(draw_counts(&tied, &[1.0, 5.0, 5.0], 10), [0, 10, 0], "the smaller id of a tie");
}

#[test]
fn rows_without_numbers_choose_nothing_and_odd_ones_something() {
    let mut sampler = Sampler::new(3);
    let draw = Draw { seed: 1, count: 0 };
    let sampling = Sampling::default();
    let mut choose = |logits: &[f32]| sampler.choose(&sampling, &NO_HISTORY, draw, logits);
    assert_eq!(choose(&[f32::NAN; 3]), None);
    assert_eq!(choose(&[f32::NAN, 1.0, f32::NAN]), Some(1));
    assert_eq!(choose(&[0.0, f32::INFINITY, 3.0]), Some(1));
    assert_eq!(choose(&[f32::NEG_INFINITY; 3]), Some(0));
    let cold = Sampling { temperature: 1e-40, ..Default::default() };
    assert_eq!(sampler.choose(&cold, &NO_HISTORY, draw, &[1.0, 3.0, 2.0]), Some(1));
}
