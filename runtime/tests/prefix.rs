//! A prefix that is in memory is not computed again, and nobody can tell but by the time it takes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use precast_runtime::testing::{Collected, FakeDevice, FakeModel};
use precast_runtime::{
    Engine, EngineOptions, Finish, FlushError, Flushed, PrefixCaching, StepOutcome, TokenEvent,
};
use proptest::prelude::*;
use support::{engine, finish, prompt, request, unmixed};

/// Blocks of 8 tokens, chunks of 4 and 16.
fn model() -> FakeModel {
    FakeModel { max_running_requests: 8, ..FakeModel::default() }
}

fn add(engine: &mut Engine<FakeDevice>, id: u64, prompt: &[u32], tokens: usize) -> Collected {
    let (request, collected) = request(id, prompt, tokens);
    engine.add(request).unwrap();
    collected
}

fn cached(collected: &Collected) -> usize {
    let of = |event: &TokenEvent| match event {
        TokenEvent::Token { cached_tokens, .. } => Some(*cached_tokens),
        _ => None,
    };
    let all: Vec<usize> = collected.events().iter().filter_map(of).collect();
    assert!(all.iter().all(|&n| n == all[0]), "every event says the same: {all:?}");
    all[0]
}

fn run(engine: &mut Engine<FakeDevice>, model: &FakeModel, prompt: &[u32], tokens: usize) -> usize {
    let collected = add(engine, 0, prompt, tokens);
    finish(engine);
    assert_eq!(collected.tokens(), model.greedy(prompt, tokens));
    cached(&collected)
}

#[test]
fn whole_blocks_of_a_prompt_are_found_again_but_its_last_token_is_always_fed() {
    let model = model();
    let mut engine = unmixed(&model);
    let tokens = prompt(1, 40, 256);
    assert_eq!(run(&mut engine, &model, &tokens, 1), 0);
    let prefilled = engine.stats().prefill_steps_total;
    for (len, found) in [(40, 32), (39, 32), (33, 32), (32, 24), (9, 8), (8, 0), (1, 0)] {
        assert_eq!(run(&mut engine, &model, &tokens[..len], 3), found, "of {len} tokens");
    }
    assert_eq!(engine.stats().prefill_steps_total - prefilled, 7, "a chunk each");
    let mut other = tokens.clone();
    other[20] ^= 1;
    assert_eq!(run(&mut engine, &model, &other, 3), 16);
    let stats = engine.stats();
    assert_eq!(stats.prefix_cache, PrefixCaching::On);
    assert_eq!(stats.prefix_queried_tokens_total, stats.prompt_tokens_total);
    assert_eq!(stats.prefix_hit_tokens_total, 32 * 3 + 24 + 8 + 16);
    assert_eq!(stats.free_blocks, stats.total_blocks);
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    let model = model();
    let mut engine = engine(&model);
    let mut talk = prompt(2, 19, 256);
    let mut before = 0;
    for turn in 0..4 {
        let found = run(&mut engine, &model, &talk, 10);
        // The answer's last token was never fed.
        assert_eq!(found, before / 8 * 8, "turn {turn}");
        talk.extend(model.greedy(&talk, 10));
        before = talk.len() - 1;
        talk.extend(prompt(turn, 7, 256));
    }
}

#[test]
fn requests_that_come_together_compute_what_they_share_once() {
    let model = model();
    let mut engine = engine(&model);
    let system = prompt(3, 64, 256);
    let prompts: Vec<Vec<u32>> =
        (0..8).map(|i| [&system[..], &prompt(10 + i, 5, 256)].concat()).collect();
    let all: Vec<Collected> =
        prompts.iter().zip(0..).map(|(p, id)| add(&mut engine, id, p, 20)).collect();
    finish(&mut engine);
    for (index, (prompt, collected)) in prompts.iter().zip(&all).enumerate() {
        assert_eq!(collected.tokens(), model.greedy(prompt, 20));
        assert_eq!(cached(collected), if index == 0 { 0 } else { 64 });
    }
    let stats = engine.stats();
    // 4 chunks of 16 for the system prompt, and two for each of the eight ends.
    assert!(stats.prefill_steps_total <= 4 + 8 * 2, "{}", stats.prefill_steps_total);
    assert_eq!(stats.cached_blocks, 8 + 8 * 3, "the system prompt's, and 24 tokens of each");
}

#[test]
fn a_preempted_request_resumes_from_what_is_left() {
    // Two answers of 60 tokens need 16 blocks; there are 10.
    let model = FakeModel { blocks: 10, max_context: 80, ..model() };
    let prompts = [prompt(1, 4, 256), prompt(2, 4, 256)];
    let run = |prefix_cache| {
        let options = EngineOptions { prefix_cache, ..EngineOptions::default() };
        let mut engine = model.engine(options);
        let all = [0, 1].map(|i| add(&mut engine, i as u64, &prompts[i], 60));
        finish(&mut engine);
        for (prompt, collected) in prompts.iter().zip(&all) {
            assert_eq!(collected.tokens(), model.greedy(prompt, 60));
            assert_eq!(cached(collected), 0, "what it computed itself does not count");
        }
        engine.stats()
    };
    let (with, without) = (run(true), run(false));
    assert!(with.preemptions_total > 0 && without.preemptions_total > 0);
    assert!(with.prefill_steps_total < without.prefill_steps_total);
    assert_eq!((with.free_blocks, with.prefix_hit_tokens_total), (10, 0));
    assert!(with.evicted_blocks_total > 0);
    assert_eq!((without.cached_blocks, without.prefix_queried_tokens_total), (0, 0));
}

#[test]
fn positions_whose_logits_are_needed_are_computed() {
    let model = model();
    let tokens = prompt(4, 40, 256);
    let logprobs = |engine: &mut Engine<FakeDevice>, from| {
        let (mut request, collected) = request(0, &tokens, 2);
        request.logprobs.prompt_from = Some(from);
        request.logprobs.top_n = 2;
        engine.add(request).unwrap();
        finish(engine);
        let of = |event| match event {
            TokenEvent::Prompt { logprobs } => Some(logprobs),
            _ => None,
        };
        (collected.events().into_iter().find_map(of).unwrap(), cached(&collected))
    };
    let mut warm = engine(&model);
    run(&mut warm, &model, &tokens, 1);
    for (from, found) in [(0, 0), (1, 0), (8, 0), (9, 8), (20, 16), (39, 32), (40, 32), (70, 32)] {
        let (got, cached) = logprobs(&mut warm, from);
        let (want, _) = logprobs(&mut engine(&model), from);
        assert_eq!((got, cached), (want, found), "from {from}");
    }
}

#[test]
fn a_flush_forgets_everything_once_nothing_runs() {
    let model = model();
    let mut engine = unmixed(&model);
    let tokens = prompt(5, 33, 256);
    let running = add(&mut engine, 0, &tokens, 100);
    engine.step().unwrap();
    assert_eq!(engine.flush_cache(), Err(FlushError::Busy { requests: 1 }));
    running.close();
    assert_eq!(engine.flush_cache(), Ok(Flushed { blocks: 2 }), "of one chunk; nobody reads");
    assert_eq!(run(&mut engine, &model, &tokens, 1), 0);
    assert_eq!(engine.stats().cached_blocks, 4);
    assert_eq!(engine.flush_cache(), Ok(Flushed { blocks: 4 }));
    let stats = engine.stats();
    assert_eq!((stats.cached_blocks, stats.free_blocks), (0, stats.total_blocks));
    assert_eq!(stats.evicted_blocks_total, 0, "nobody needed them");
    assert_eq!(run(&mut engine, &model, &tokens, 1), 0);
}

#[test]
fn it_is_off_where_blocks_are_not_all_that_a_prefix_needs() {
    let window = FakeModel { sliding_window: Some(20), ..model() };
    let recurrent = FakeModel { sequence_slots: Some(4), ..model() };
    let disabled = EngineOptions { prefix_cache: false, ..EngineOptions::default() };
    for (model, options, why) in [
        (&window, EngineOptions::default(), "off: the model has layers with a sliding window"),
        (&recurrent, EngineOptions::default(), "off: the model has recurrent layers"),
        (&model(), disabled, "off: disabled"),
    ] {
        let mut engine = model.engine(options);
        let tokens = prompt(6, 30, 256);
        for _ in 0..2 {
            assert_eq!(run(&mut engine, model, &tokens, 5), 0);
        }
        let stats = engine.stats();
        assert_eq!(stats.prefix_cache.to_string(), why);
        assert_eq!((stats.cached_blocks, stats.prefix_queried_tokens_total), (0, 0));
    }
}

#[test]
fn the_memory_can_be_capped() {
    let model = model();
    let limited = |max_total_tokens| {
        let options = EngineOptions { max_total_tokens, ..EngineOptions::default() };
        Engine::from_parts(model.device(), &model.manifest(), &model.plans(), options)
    };
    let mut engine = limited(Some(47)).unwrap();
    assert_eq!(engine.stats().total_blocks, 5);
    let tokens = prompt(7, 20, 256);
    let collected = add(&mut engine, 0, &tokens, 100);
    finish(&mut engine);
    assert_eq!(collected.finish(), Some(Finish::Length));
    assert_eq!(collected.tokens(), model.greedy(&tokens, 20), "40 tokens fit");
    assert_eq!(limited(Some(1024)).unwrap().stats().total_blocks, 128);
    for wrong in [0, 7, 1025] {
        let message = limited(Some(wrong)).err().unwrap().to_string();
        let want = format!("`--max-total-tokens` is {wrong}, but must be at least 8");
        assert!(message.starts_with(&want) && message.contains("at most 1024"), "{message}");
    }
}

#[derive(Clone, Debug)]
struct Plan {
    /// Tokens in common with every other prompt, then tokens of one of three kinds.
    common: usize,
    kind: u32,
    len: usize,
    max_tokens: usize,
    after: usize,
    leaves_at: Option<usize>,
    prompt_from: Option<usize>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let leaves = prop_oneof![4 => Just(None), 1 => (0usize..12).prop_map(Some)];
    let from = prop_oneof![5 => Just(None), 1 => (0usize..50).prop_map(Some)];
    (0usize..50, 0u32..3, 1usize..60, 1usize..30, 0usize..8, leaves, from).prop_map(
        |(common, kind, len, max_tokens, after, leaves_at, prompt_from)| Plan {
            common,
            kind,
            len,
            max_tokens,
            after,
            leaves_at,
            prompt_from,
        },
    )
}

impl Plan {
    fn prompt(&self) -> Vec<u32> {
        let mut tokens = prompt(0, self.len, 256);
        let own = prompt(self.kind + 1, self.len, 256);
        let common = self.common.min(self.len);
        tokens[common..].copy_from_slice(&own[common..]);
        tokens
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..Default::default() })]

    #[test]
    fn nobody_can_tell_that_blocks_are_shared(
        blocks in 12u32..40,
        block_tokens in prop_oneof![Just(4u32), Just(8)],
        runs_beside_host in any::<bool>(),
        plans in prop::collection::vec(plan(), 1..20),
    ) {
        let context_tiers = vec![32, 64, 96];
        let blocks = blocks * 8 / block_tokens;
        let model = FakeModel {
            blocks,
            block_tokens,
            max_context: 96,
            context_tiers,
            runs_beside_host,
            ..model()
        };
        let mut engine = engine(&model);
        let (mut all, mut step, mut due) = (Vec::new(), 0, plans[0].after);
        loop {
            while all.len() < plans.len() && step >= due {
                let plan: &Plan = &plans[all.len()];
                let (mut request, collected) =
                    request(all.len() as u64, &plan.prompt(), plan.max_tokens);
                request.logprobs.prompt_from = plan.prompt_from;
                engine.add(request).unwrap();
                all.push(collected);
                due = step + plans.get(all.len()).map_or(0, |p| p.after);
            }
            let outcome = engine.step().expect("the fake device finds nothing wrong");
            step += 1;
            prop_assert!(step < 20_000, "no end in sight");
            for (collected, plan) in all.iter().zip(&plans) {
                if plan.leaves_at.is_some_and(|at| collected.tokens().len() >= at) {
                    collected.close();
                }
            }
            let stats = engine.stats();
            prop_assert!(stats.cached_blocks <= stats.free_blocks);
            if outcome == StepOutcome::Idle && all.len() == plans.len() {
                break;
            }
        }
        let stats = engine.stats();
        prop_assert_eq!(stats.free_blocks, u64::from(blocks));
        for (collected, plan) in all.iter().zip(&plans) {
            let prompt = plan.prompt();
            let got = collected.tokens();
            let count = plan.max_tokens.min(96 - plan.len);
            let want = model.greedy(&prompt, count);
            prop_assert!(want.starts_with(&got));
            prop_assert!(plan.leaves_at.is_some() || got.len() == count);
            for event in collected.events() {
                if let TokenEvent::Prompt { logprobs } = event {
                    let from = plan.prompt_from.unwrap().min(plan.len);
                    prop_assert_eq!(logprobs.len(), plan.len - from);
                    prop_assert!(logprobs.iter().zip(&prompt[from..]).all(|(l, &t)| l.token == t));
                }
            }
        }
        let cached = stats.cached_blocks;
        prop_assert_eq!(engine.flush_cache(), Ok(Flushed { blocks: cached }));
        prop_assert_eq!(engine.stats().cached_blocks, 0);
    }
}
