//! Rows that are sampled from the tokens that the device finds, among rows that need all logits.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use precast_runtime::testing::FakeModel;
use precast_runtime::{
    Allowed, Constraint, EngineError, EngineOptions, Finish, LogprobOptions, Request, Sampling,
    TokenEvent,
};
use proptest::prelude::*;
use std::time::Duration;
use support::{engine, finish, greedy, prompt, request};

/// Allows every second token.
struct Halves(Vec<u32>);

impl Constraint for Halves {
    fn advance(&mut self, _token: u32) {}

    fn allowed(&mut self, _patience: Duration) -> Allowed<'_> {
        Allowed::Tokens(&self.0)
    }
}

#[derive(Clone, Debug)]
struct Wish {
    sampling: Sampling,
    logprobs: bool,
    scored: bool,
    min_tokens: usize,
    constrained: bool,
}

impl Wish {
    fn of(sampling: Sampling) -> Self {
        Self { sampling, logprobs: false, scored: false, min_tokens: 0, constrained: false }
    }

    fn request(&self, id: u64) -> (Request, precast_runtime::testing::Collected) {
        let (mut request, collected) = request(id, &prompt(id as u32, 9, 256), 12);
        request.sampling = self.sampling.clone();
        let prompt_from = self.scored.then_some(0);
        request.logprobs = LogprobOptions { output: self.logprobs, prompt_from, top_n: 2 };
        request.min_tokens = self.min_tokens;
        request.stop_token_ids = vec![7, 8];
        if self.constrained {
            request.constraint = Some(Box::new(Halves(vec![0x5555_5555; 8])));
        }
        (request, collected)
    }
}

/// The events of every wish, all served together.
fn run(model: &FakeModel, wishes: &[Wish]) -> Vec<Vec<TokenEvent>> {
    let mut engine = engine(model);
    let mut all = Vec::new();
    for (wish, id) in wishes.iter().zip(0..) {
        let (request, collected) = wish.request(id);
        engine.add(request).unwrap();
        all.push(collected);
    }
    finish(&mut engine);
    all.iter().map(|collected| collected.events()).collect()
}

fn top(k: u32) -> Sampling {
    Sampling { top_k: Some(k), seed: Some(5), ..Sampling::default() }
}

/// Logits that are read as a whole are not numbers here: what comes out all the same was chosen from
/// what the device found.
#[test]
fn all_logits_are_read_only_where_they_are_needed() {
    let blind = FakeModel { hides_logits: true, ..FakeModel::default() };
    let seeing = FakeModel { head_top_k: 0, ..FakeModel::default() };
    let found = [
        Wish::of(greedy()),
        Wish::of(top(1)),
        Wish::of(top(16)),
        Wish::of(Sampling { top_p: 0.6, temperature: 3.0, ..top(9) }),
        Wish::of(Sampling { min_p: 0.3, temperature: 0.4, ..top(16) }),
        Wish { scored: true, ..Wish::of(top(5)) },
    ];
    let tokens = |events: &[TokenEvent]| {
        let token = |event: &TokenEvent| match event {
            TokenEvent::Token { token, .. } => Some(*token),
            _ => None,
        };
        events.iter().filter_map(token).collect::<Vec<_>>()
    };
    for (wish, (got, want)) in
        found.iter().zip(run(&blind, &found).iter().zip(run(&seeing, &found)))
    {
        assert_eq!(tokens(got), tokens(&want), "{wish:?}");
        assert!(!tokens(got).is_empty());
    }
    let needed = [
        Wish::of(top(17)),
        Wish::of(Sampling { top_k: None, ..top(1) }),
        Wish::of(Sampling { presence_penalty: 0.1, ..top(4) }),
        Wish::of(Sampling { logit_bias: vec![(3, 0.5)], ..top(4) }),
        Wish { logprobs: true, ..Wish::of(top(4)) },
    ];
    for (wish, events) in needed.iter().zip(run(&blind, &needed)) {
        let aborted = matches!(&events[..], [TokenEvent::Ended { finish: Finish::Abort(_) }]);
        assert!(aborted, "{wish:?} {events:?}");
    }
}

fn wish() -> impl Strategy<Value = Wish> {
    let sampling = (
        prop_oneof![1 => Just(0.0f32), 5 => 0.1f32..4.0],
        prop_oneof![1 => Just(None), 4 => (1u32..30).prop_map(Some), 1 => Just(Some(256))],
        prop_oneof![Just(1.0f32), 0.1f32..1.0],
        prop_oneof![Just(0.0f32), 0.01f32..0.6],
        prop_oneof![4 => Just(0.0f32), 1 => Just(0.4)],
        prop_oneof![4 => Just(vec![]), 1 => Just(vec![(9u32, 3.0f32)])],
        any::<Option<u64>>(),
    );
    let sampling = sampling.prop_map(
        |(temperature, top_k, top_p, min_p, presence_penalty, logit_bias, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            presence_penalty,
            logit_bias,
            seed,
            ..Sampling::default()
        },
    );
    let rare = || prop::bool::weighted(0.15);
    let min_tokens = prop_oneof![4 => Just(0usize), 1 => 1usize..5];
    (sampling, rare(), rare(), min_tokens, rare()).prop_map(
        |(sampling, logprobs, scored, min_tokens, constrained)| Wish {
            sampling,
            logprobs,
            scored,
            min_tokens,
            constrained,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..Default::default() })]

    /// The same events, whatever the device finds.
    #[test]
    fn what_the_device_finds_changes_nothing(
        wishes in prop::collection::vec(wish(), 1..9),
        head_top_k in 1u32..40,
        beside in any::<bool>(),
    ) {
        let model = FakeModel { head_top_k, runs_beside_host: beside, ..FakeModel::default() };
        let without = FakeModel { head_top_k: 0, ..model.clone() };
        let events = |model| format!("{:?}", run(model, &wishes));
        prop_assert_eq!(events(&model), events(&without));
    }
}

#[test]
fn plans_with_other_ports_are_refused() {
    let model = FakeModel::default();
    let why = |change: &dyn Fn(&mut artifact::Plan)| {
        let mut plans = model.plans();
        change(&mut plans[0]);
        let options = EngineOptions::default();
        let loaded =
            precast_runtime::Engine::from_parts(model.device(), &model.manifest(), &plans, options);
        match loaded.err() {
            Some(EngineError::Plan { why, .. }) => why,
            other => panic!("{:?}", other.map(|e| e.to_string())),
        }
    };
    let outputs = |plan: &artifact::Plan| plan.outputs.clone();
    assert_eq!(why(&|plan| plan.outputs.truncate(3)), "it has no port `top_ids`");
    assert_eq!(
        why(&|plan| {
            plan.outputs = outputs(plan).into_iter().filter(|p| p.name != "top_logits").collect()
        }),
        "it has no port `top_logits`"
    );
    assert_eq!(
        why(&|plan| plan.outputs[3].dims = vec![1, 15]),
        "port `top_ids` is i32[1, 15], expected i32[1, 16]"
    );
    assert_eq!(
        why(&|plan| plan.outputs[2].dims = vec![1, 257]),
        "port `top_logits` has [1, 257], not 1 to 256 of each row"
    );
    assert_eq!(
        why(&|plan| plan.outputs[2].dims = vec![1]),
        "port `top_logits` has [1], not 1 to 256 of each row"
    );
}
