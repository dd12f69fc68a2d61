//! Requests whose tokens are restricted, among others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use precast_runtime::testing::FakeModel;
use precast_runtime::{Allowed, Constraint, Finish, LogprobOptions, Sampling, TokenEvent};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use support::{engine, finish, prompt, request};

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

    fn allowed(&mut self, _patience: Duration) -> Allowed<'_> {
        match (self.rule)(&self.taken.lock().unwrap()) {
            Next::Only(tokens) => {
                self.bits.fill(0);
                for token in tokens {
                    self.bits[token as usize / 32] |= 1 << (token % 32);
                }
                Allowed::Tokens(&self.bits)
            }
            Next::Pending => Allowed::Pending,
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
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!((whole.tokens().len(), whole.finish()), (30, Some(Finish::Length)));
    assert_eq!(failed.tokens().len(), 4);
    assert_eq!(failed.finish(), Some(Finish::Constraint("it does not fit".into())));
    assert_eq!(late.tokens().len(), 4);
    assert!(
        matches!(late.finish(), Some(Finish::Constraint(why)) if why.contains("within five seconds"))
    );
    let stats = engine.stats();
    assert_eq!(stats.constraint_waits_total, 1);
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
