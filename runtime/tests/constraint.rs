//! Requests whose tokens are restricted, among others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use precast_runtime::testing::FakeModel;
use precast_runtime::{Allowed, Constraint, Finish, LogprobOptions, Sampling, TokenEvent};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use support::{engine, finish, logged, prompt, request};

/// Tells what may come after the tokens so far.
type Rule = fn(&[u32]) -> Next;

enum Next {
    Only(Vec<u32>),
    Pending,
    Complete,
    Failed,
}

struct Ruled {
    rule: Rule,
    taken: Taken,
    bits: Vec<u32>,
}

/// The tokens that a constraint was told of.
type Taken = Arc<Mutex<Vec<u32>>>;

fn ruled(rule: Rule) -> (Option<Box<dyn Constraint>>, Taken) {
    let taken = Arc::new(Mutex::new(Vec::new()));
    (Some(Box::new(Ruled { rule, taken: Arc::clone(&taken), bits: vec![0; 8] })), taken)
}

impl Constraint for Ruled {
    fn advance(&mut self, token: u32) {
        self.taken.lock().unwrap().push(token);
    }

    fn allowed(&mut self, patience: Duration) -> Allowed<'_> {
        match (self.rule)(&self.taken.lock().unwrap()) {
            Next::Only(tokens) => {
                self.bits.fill(0);
                for token in tokens {
                    self.bits[token as usize / 32] |= 1 << (token % 32);
                }
                Allowed::Tokens(&self.bits)
            }
            Next::Pending => {
                std::thread::sleep(patience);
                Allowed::Pending
            }
            Next::Complete => Allowed::Complete,
            Next::Failed => Allowed::Failed("it does not fit"),
        }
    }
}

/// 7, 3 or 5, and so on, ten tokens long.
fn ten_odd(taken: &[u32]) -> Next {
    match taken.len() {
        10 => Next::Complete,
        n if n % 2 == 0 => Next::Only(vec![7]),
        _ => Next::Only(vec![3, 5]),
    }
}

fn sampled() -> Sampling {
    Sampling { seed: Some(9), ..Sampling::default() }
}

#[test]
fn only_allowed_tokens_are_chosen_and_completion_ends_the_output() {
    for sampling in [support::greedy(), sampled()] {
        let mut engine = engine(&FakeModel::default());
        let (mut one, collected) = request(1, &[1, 2, 3], 50);
        let (constraint, taken) = ruled(ten_odd);
        (one.constraint, one.sampling) = (constraint, sampling);
        engine.add(one).unwrap();
        finish(&mut engine);
        let tokens = collected.tokens();
        assert_eq!(tokens.len(), 10);
        assert!(tokens.iter().step_by(2).all(|&t| t == 7), "{tokens:?}");
        assert!(tokens.iter().skip(1).step_by(2).all(|t| [3, 5].contains(t)), "{tokens:?}");
        assert_eq!(*taken.lock().unwrap(), tokens, "the constraint hears of every token");
        assert_eq!(collected.finish(), Some(Finish::Complete));
        assert_eq!(engine.stats().requests_finished_total, 1);
    }
}

#[test]
fn a_last_token_is_not_waited_for() {
    let mut engine = engine(&FakeModel::default());
    let (mut one, collected) = request(1, &[1], 10);
    one.constraint = ruled(ten_odd).0;
    engine.add(one).unwrap();
    finish(&mut engine);
    assert_eq!((collected.tokens().len(), collected.finish()), (10, Some(Finish::Length)));
}

#[test]
fn terminators_alone_complete_an_output_that_may_not_end() {
    let mut engine = engine(&FakeModel::default());
    let (mut one, collected) = request(1, &[1], 50);
    one.constraint = ruled(|taken| Next::Only(vec![if taken.len() < 3 { 8 } else { 9 }])).0;
    one.stop_token_ids = vec![9];
    one.min_tokens = 20;
    engine.add(one).unwrap();
    finish(&mut engine);
    assert_eq!(collected.tokens(), [8; 3]);
    assert_eq!(collected.finish(), Some(Finish::Complete));
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let run = |constraint| {
        let mut engine = engine(&FakeModel::default());
        let (mut one, collected) = request(1, &[1, 2], 1);
        one.constraint = constraint;
        one.logprobs = LogprobOptions { output: true, prompt_from: None, top_n: 3 };
        engine.add(one).unwrap();
        finish(&mut engine);
        let events = collected.events();
        let [TokenEvent::Token { logprob: Some(logprob), .. }] = &events[..] else {
            panic!("{events:?}");
        };
        logprob.clone()
    };
    let (free, bound) = (run(None), run(ruled(ten_odd).0));
    assert_eq!(bound.token, 7);
    assert_ne!(free.token, 7);
    assert_eq!(free.top, bound.top);
    assert!(bound.logprob.unwrap() < free.logprob.unwrap());
}

#[test]
fn what_fails_or_is_never_known_ends_alone() {
    let mut engine = engine(&FakeModel::default());
    let (free, whole) = request(1, &[1, 2, 3], 30);
    let (mut failing, failed) = request(2, &[1, 2, 3], 30);
    let (mut stuck, late) = request(3, &[1, 2, 3], 30);
    let after_four: [Rule; 2] = [
        |taken| if taken.len() < 4 { ten_odd(taken) } else { Next::Failed },
        |taken| if taken.len() < 4 { ten_odd(taken) } else { Next::Pending },
    ];
    failing.constraint = ruled(after_four[0]).0;
    stuck.constraint = ruled(after_four[1]).0;
    for request in [free, failing, stuck] {
        engine.add(request).unwrap();
    }
    let start = Instant::now();
    finish(&mut engine);
    assert!((5..9).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!((whole.tokens().len(), whole.finish()), (30, Some(Finish::Length)));
    assert_eq!(failed.tokens().len(), 4);
    assert_eq!(failed.finish(), Some(Finish::Constraint("it does not fit".into())));
    assert_eq!(late.tokens().len(), 4);
    assert!(
        matches!(late.finish(), Some(Finish::Constraint(why)) if why.contains("within five seconds"))
    );
    let stats = engine.stats();
    assert_eq!((stats.constraint_waits_total, stats.constraint_parks_total), (1, 1));
}

/// Knows what may come at each position only when it was asked so often.
struct Slow {
    inner: Ruled,
    asked: usize,
    most: usize,
}

impl Constraint for Slow {
    fn advance(&mut self, token: u32) {
        self.asked = 0;
        self.inner.advance(token);
    }

    fn allowed(&mut self, _patience: Duration) -> Allowed<'_> {
        if self.asked < self.most {
            self.asked += 1;
            return Allowed::Pending;
        }
        self.inner.allowed(Duration::ZERO)
    }
}

fn slow(most: usize) -> Option<Box<dyn Constraint>> {
    let inner = Ruled { rule: ten_odd, taken: Arc::default(), bits: vec![0; 8] };
    Some(Box::new(Slow { inner, asked: 0, most }))
}

/// The others get a token in every step meanwhile, and the same tokens as without it; so does it.
#[test]
fn what_is_late_waits_alone() {
    let recurrent = FakeModel {
        sliding_window: Some(20),
        sequence_slots: Some(4),
        max_running_requests: 4,
        ..FakeModel::default()
    };
    for model in [FakeModel::default(), recurrent] {
        let alone = |constraint, sampling: Sampling| {
            let mut engine = engine(&model);
            let (mut one, collected) = request(7, &[1, 2, 3], 50);
            (one.constraint, one.sampling) = (constraint, sampling);
            engine.add(one).unwrap();
            finish(&mut engine);
            collected.tokens()
        };
        let mut engine = engine(&model);
        let others: Vec<_> = (0..2)
            .map(|id| {
                let (one, collected) = request(id, &[id as u32 + 1], 90);
                engine.add(one).unwrap();
                collected
            })
            .collect();
        let (mut one, collected) = request(7, &[1, 2, 3], 50);
        (one.constraint, one.sampling) = (slow(20), sampled());
        engine.add(one).unwrap();
        while engine.stats().constraint_parks_total == 0 {
            engine.step().unwrap();
        }
        while others[0].finish().is_none() {
            let tokens = others[0].tokens().len();
            engine.step().unwrap();
            assert_eq!(others[0].tokens().len(), tokens + 1, "every step is one of the others");
        }
        assert!(collected.tokens().len() < 10, "it is late");
        assert!(engine.stats().constraint_parks_total >= 3);
        finish(&mut engine);
        assert_eq!(collected.finish(), Some(Finish::Complete));
        assert_eq!(collected.tokens(), alone(ruled(ten_odd).0, sampled()));
        for (id, other) in others.iter().enumerate() {
            assert_eq!(other.tokens(), model.greedy(&[id as u32 + 1], 90));
        }
        let stats = engine.stats();
        assert_eq!((stats.free_blocks, stats.running), (stats.total_blocks, 0));
    }
}

#[test]
fn that_a_grammar_is_late_is_logged_once() {
    let (parks, log) = logged(|| {
        let mut engine = engine(&FakeModel::default());
        let (other, _collected) = request(1, &[1], 60);
        let (mut one, _late) = request(7, &[1, 2, 3], 50);
        (one.constraint, one.sampling) = (slow(20), sampled());
        engine.add(other).unwrap();
        engine.add(one).unwrap();
        finish(&mut engine);
        engine.stats().constraint_parks_total
    });
    assert!(parks >= 3, "{parks}");
    let lines: Vec<_> = log.iter().filter(|line| line.contains("a grammar allows")).collect();
    assert_eq!(lines.len(), 1, "{log:#?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("`--threads`"), "{}", lines[0]);
}

/// A sequence that is parked may have to give its memory back, and its client may leave.
#[test]
fn who_is_parked_is_preempted_and_dropped_like_others() {
    let model = FakeModel { blocks: 12, ..FakeModel::default() };
    let mut engine = engine(&model);
    let (old, whole) = request(1, &prompt(1, 10, 90), 70);
    engine.add(old).unwrap();
    let (mut late, collected) = request(2, &prompt(2, 20, 90), 12);
    (late.constraint, late.sampling) = (slow(20), sampled());
    let (mut leaving, left) = request(3, &prompt(3, 5, 90), 12);
    leaving.constraint = slow(usize::MAX);
    engine.add(leaving).unwrap();
    engine.add(late).unwrap();
    while engine.stats().constraint_parks_total < 2 {
        engine.step().unwrap();
    }
    left.close();
    finish(&mut engine);
    assert_eq!(whole.tokens(), model.greedy(&prompt(1, 10, 90), 70));
    assert_eq!(collected.finish(), Some(Finish::Complete));
    assert!(collected.retractions() > 0, "the memory is too small for all");
    assert!(left.tokens().is_empty());
    let free = engine.stats();
    assert_eq!(free.free_blocks, free.total_blocks);
}

#[test]
fn preemption_does_not_disturb_a_constraint() {
    /// A different pair of tokens at every position.
    fn pairs(taken: &[u32]) -> Next {
        let first = 2 * (taken.len() as u32 % 50);
        Next::Only(vec![first, first + 1])
    }
    let roomy = FakeModel { blocks: 64, ..FakeModel::default() };
    let tight = FakeModel { blocks: 12, ..FakeModel::default() };
    let run = |model: &FakeModel| {
        let mut engine = engine(model);
        let all: Vec<_> = (0..4)
            .map(|id| {
                let (mut one, collected) = request(id, &prompt(id as u32, 10, 90), 40);
                let (constraint, taken) = ruled(pairs);
                (one.constraint, one.sampling) = (constraint, sampled());
                engine.add(one).unwrap();
                (collected, taken)
            })
            .collect();
        finish(&mut engine);
        let tokens: Vec<_> = all.iter().map(|(collected, _)| collected.tokens()).collect();
        for ((_, taken), tokens) in all.iter().zip(&tokens) {
            // The last token ends the output.
            assert_eq!(*taken.lock().unwrap(), tokens[..39]);
        }
        (tokens, engine.stats().preemptions_total)
    };
    let (want, none) = run(&roomy);
    let (got, some) = run(&tight);
    assert_eq!(none, 0);
    assert!(some > 0, "the memory is too small for all");
    assert_eq!(got, want);
}
