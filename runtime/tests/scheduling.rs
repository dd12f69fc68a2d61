//! Whatever else runs, a request gets the tokens it would get alone, and all memory comes back.

mod support;

use precast_runtime::testing::{Collected, Failure, FakeModel};
use precast_runtime::{EngineOptions, Finish, Request, Sampling, StepOutcome};
use proptest::prelude::*;
use std::time::Duration;
use support::{engine, finish, greedy, prompt, request, unmixed};

#[derive(Clone, Debug)]
struct Plan {
    prompt_len: usize,
    max_tokens: usize,
    min_tokens: usize,
    sampling: Sampling,
    /// Steps between the request before and this one.
    after: usize,
    /// The client leaves when it has this many tokens.
    leaves_at: Option<usize>,
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let top_k = prop_oneof![Just(None), (1u32..40).prop_map(Some)];
    let sampled = (any::<u64>(), top_k, 0.3f32..=1.0, any::<bool>()).prop_map(
        |(seed, top_k, top_p, is_penalised)| Sampling {
            top_k,
            top_p,
            repetition_penalty: if is_penalised { 1.2 } else { 1.0 },
            frequency_penalty: if is_penalised { 0.1 } else { 0.0 },
            seed: Some(seed),
            ..Sampling::default()
        },
    );
    prop_oneof![3 => Just(greedy()), 1 => sampled]
}

fn plan() -> impl Strategy<Value = Plan> {
    let leaves = prop_oneof![4 => Just(None), 1 => (0usize..12).prop_map(Some)];
    (1usize..60, 1usize..30, 0usize..6, sampling(), 0usize..6, leaves).prop_map(
        |(prompt_len, max_tokens, min_tokens, sampling, after, leaves_at)| Plan {
            prompt_len,
            max_tokens,
            min_tokens,
            sampling,
            after,
            leaves_at,
        },
    )
}

/// A window, with blocks for exactly so many sequences.
fn window() -> impl Strategy<Value = Option<(u32, u32)>> {
    prop_oneof![1 => Just(None), 2 => (1u32..40, 1u32..6).prop_map(Some)]
}

fn slots() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![1 => Just(None), 2 => (1u32..6).prop_map(Some)]
}

/// `model` with a sliding window whose memory suffices for `sequences` sequences and not one block
/// more: `n` places in a row touch at most `(n + block_tokens - 2) / block_tokens + 1` blocks.
fn with_window(model: FakeModel, tokens: u32, sequences: u32) -> FakeModel {
    let bt = model.block_tokens;
    let spanned = |places: u32| ((places + bt - 2) / bt + 1).min(96 / bt);
    let chunk = model.prefill_rows.iter().max().expect("there are chunks");
    let blocks = spanned(tokens - 1 + chunk) + (sequences - 1) * spanned(tokens);
    FakeModel { sliding_window: Some(tokens), window_blocks: Some(blocks), ..model }
}

/// Small enough that several requests do not fit, large enough for any single one.
fn model() -> impl Strategy<Value = FakeModel> {
    let found = prop_oneof![Just(0u32), 1u32..60];
    let parts = (paged_model(), window(), slots(), any::<bool>(), found);
    parts.prop_map(|(model, window, sequence_slots, runs_beside_host, head_top_k)| {
        let model = FakeModel { sequence_slots, runs_beside_host, head_top_k, ..model };
        match window {
            Some((tokens, sequences)) => with_window(model, tokens, sequences),
            None => model,
        }
    })
}

fn paged_model() -> impl Strategy<Value = FakeModel> {
    let decode = prop_oneof![Just(vec![1, 2, 4]), Just(vec![3]), Just(vec![1, 8])];
    let prefill = prop_oneof![Just(vec![4, 16]), Just(vec![8]), Just(vec![1, 5, 32])];
    (decode, prefill, 1u32..8, 12u32..40, prop_oneof![Just(4u32), Just(8)]).prop_map(
        |(decode_rows, prefill_rows, max_running_requests, blocks, block_tokens)| FakeModel {
            vocab_size: 97,
            max_context: 96,
            block_tokens,
            blocks: blocks * 8 / block_tokens,
            decode_rows,
            prefill_rows,
            context_tiers: vec![32, 64, 96],
            eos_token_ids: vec![0, 1, 2],
            max_running_requests,
            ..FakeModel::default()
        },
    )
}

/// Anything that may decide what a step does.
fn options() -> impl Strategy<Value = EngineOptions> {
    let times = prop::collection::vec((1u64..1000).prop_map(Duration::from_micros), 0..40);
    let chunk = prop_oneof![Just(None), (1u32..20).prop_map(Some)];
    let prefill = prop_oneof![Just(None), (1u32..60).prop_map(Some)];
    (times, chunk, prefill, prop::bool::weighted(0.2), any::<bool>()).prop_map(
        |(times, chunked_prefill_size, max_prefill_tokens, disable_mixed_chunk, prefix_cache)| {
            EngineOptions {
                plan_times: Some(times),
                chunked_prefill_size,
                max_prefill_tokens,
                disable_mixed_chunk,
                prefix_cache,
                ..EngineOptions::default()
            }
        },
    )
}

fn make(index: usize, plan: &Plan) -> (Request, Collected) {
    let prompt = prompt(index as u32, plan.prompt_len, 97);
    let (mut request, collected) = request(index as u64, &prompt, plan.max_tokens);
    request.sampling = plan.sampling.clone();
    request.min_tokens = plan.min_tokens;
    (request, collected)
}

/// What the request gets when nothing else runs and memory is plenty.
fn alone(model: &FakeModel, index: usize, plan: &Plan) -> (Vec<u32>, Finish) {
    let roomy = FakeModel {
        blocks: 1000,
        decode_rows: vec![1],
        prefill_rows: vec![1],
        max_running_requests: 1,
        window_blocks: None,
        head_top_k: 0,
        ..model.clone()
    };
    let mut engine = unmixed(&roomy);
    let (request, collected) = make(index, plan);
    engine.add(request).expect("it fits");
    finish(&mut engine);
    (collected.tokens(), collected.finish().expect("it ended"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..Default::default() })]

    #[test]
    fn every_request_gets_the_tokens_it_would_get_alone(
        model in model(),
        options in options(),
        plans in prop::collection::vec(plan(), 1..14),
    ) {
        let chunk = options.chunked_prefill_size.unwrap_or(u32::MAX);
        let mut engine = model.engine(options);
        let start = engine.stats();
        let total = start.total_blocks;
        let window_blocks = u64::from(model.window_blocks.unwrap_or(0));
        let slots = u64::from(model.sequence_slots.unwrap_or(0));
        let mut all = Vec::new();
        let mut started: Vec<Option<usize>> = vec![None; plans.len()];
        let mut step = 0;
        let mut due = plans[0].after;
        loop {
            while all.len() < plans.len() && step >= due {
                let (request, collected) = make(all.len(), &plans[all.len()]);
                engine.add(request).unwrap();
                all.push(collected);
                due = step + plans.get(all.len()).map_or(0, |p| p.after);
            }
            let outcome = engine.step().expect("the fake device finds nothing wrong");
            step += 1;
            match outcome {
                StepOutcome::Prefill { tokens } | StepOutcome::Mixed { tokens, .. } => {
                    prop_assert!((1..=chunk).contains(&tokens), "{tokens} of {chunk}");
                }
                _ => {}
            }
            prop_assert!(step < 20_000, "no end in sight");
            for (i, (collected, plan)) in all.iter().zip(&plans).enumerate() {
                let tokens = collected.tokens().len();
                if collected.queued().is_some() {
                    started[i].get_or_insert(step);
                }
                if plan.leaves_at.is_some_and(|at| tokens >= at) {
                    collected.close();
                }
            }
            let stats = engine.stats();
            prop_assert!(stats.running <= start.max_running_requests);
            prop_assert!(start.max_running_requests <= model.max_running_requests.into());
            if model.sequence_slots.is_some() {
                prop_assert_eq!(stats.free_sequence_slots + stats.running, slots);
            }
            prop_assert!(stats.free_blocks + stats.running <= total, "a running one holds a block");
            if outcome == StepOutcome::Idle && all.len() == plans.len() {
                break;
            }
        }

        let stats = engine.stats();
        prop_assert_eq!((stats.running, stats.waiting, stats.free_blocks), (0, 0, total));
        prop_assert_eq!(stats.free_window_blocks, window_blocks);
        prop_assert_eq!(stats.free_sequence_slots, slots);
        let ended = stats.requests_finished_total + stats.requests_aborted_total;
        prop_assert_eq!(ended, plans.len() as u64);
        let order: Vec<usize> = started.iter().flatten().copied().collect();
        prop_assert!(order.is_sorted(), "first come, first started: {:?}", started);
        for (i, (collected, plan)) in all.iter().zip(&plans).enumerate() {
            let (tokens, finish) = alone(&model, i, plan);
            prop_assert!(collected.retractions() as u64 <= stats.preemptions_total);
            let got = collected.tokens();
            if plan.leaves_at.is_some() {
                prop_assert!(tokens.starts_with(&got), "request {}", i);
            } else {
                prop_assert_eq!(got, tokens, "request {}", i);
                prop_assert_eq!(collected.finish(), Some(finish));
            }
        }
    }
}

#[test]
fn preempted_requests_lose_nothing() {
    // Two answers of 60 tokens need 16 blocks; there are 10.
    let model = FakeModel { blocks: 10, max_context: 80, ..FakeModel::default() };
    preempt(&model);
    preempt(&FakeModel { sliding_window: Some(20), ..model.clone() });
    preempt(&FakeModel { sequence_slots: Some(2), ..model.clone() });
    preempt(&FakeModel { sliding_window: Some(3), sequence_slots: Some(4), ..model });
}

fn preempt(model: &FakeModel) {
    let mut engine = engine(model);
    let prompts = [prompt(1, 4, 256), prompt(2, 4, 256)];
    let all: Vec<Collected> = (0..2)
        .map(|i| {
            let (request, collected) = request(i as u64, &prompts[i], 60);
            engine.add(request).expect("it fits");
            collected
        })
        .collect();
    finish(&mut engine);
    let stats = engine.stats();
    assert!(stats.preemptions_total > 0, "the pool was meant to be too small");
    assert_eq!(stats.prompt_tokens_total, 8, "a preempted prompt counts once");
    assert_eq!(stats.generation_tokens_total, 120);
    for (prompt, collected) in prompts.iter().zip(&all) {
        assert_eq!(collected.tokens(), model.greedy(prompt, 60));
    }
}

/// The prompt and the answer are far longer than all blocks of the window together.
#[test]
fn a_long_context_takes_no_more_of_the_window_than_a_short_one() {
    let model = FakeModel { block_tokens: 4, blocks: 60, ..FakeModel::default() };
    let model = with_window(model, 10, 1);
    let blocks = u64::from(model.window_blocks.unwrap());
    // A chunk of 16 and 9 places before it, then 10 places of one token.
    assert_eq!(blocks, 7);
    let mut engine = engine(&model);
    assert_eq!(engine.stats().max_running_requests, 1);
    let prompt = prompt(4, 150, 256);
    let (one, collected) = request(0, &prompt, 80);
    engine.add(one).unwrap();
    let mut fewest = blocks;
    while engine.step().unwrap() != StepOutcome::Idle {
        let stats = engine.stats();
        assert_eq!(stats.total_window_blocks, blocks);
        fewest = fewest.min(stats.free_window_blocks);
    }
    // Between steps, only the 9 places that the next token sees are held.
    assert_eq!(fewest, blocks - 3);
    assert_eq!(engine.stats().free_window_blocks, blocks);
    assert_eq!(collected.tokens(), model.greedy(&prompt, 80));
}

#[test]
fn a_slot_is_held_from_the_start_of_the_prompt_to_the_end_of_the_answer() {
    let model = FakeModel { sequence_slots: Some(2), ..FakeModel::default() };
    let mut engine = engine(&model);
    let free = |engine: &precast_runtime::Engine<_>| engine.stats().free_sequence_slots;
    let all = [40, 3, 1].map(|len| {
        let (one, collected) = request(len as u64, &prompt(len as u32, len, 256), 4);
        engine.add(one).unwrap();
        collected
    });
    assert_eq!((free(&engine), engine.stats().max_running_requests), (2, 2));
    engine.step().unwrap();
    assert_eq!((free(&engine), engine.stats().running), (0, 2));
    all[0].close();
    engine.step().unwrap();
    assert_eq!((free(&engine), engine.stats().running), (0, 2), "the third took the slot");
    finish(&mut engine);
    assert_eq!(free(&engine), 2);
    for (collected, len) in all.iter().zip([40, 3, 1]).skip(1) {
        assert_eq!(collected.tokens(), model.greedy(&prompt(len as u32, len, 256), 4));
    }
}

#[test]
fn a_long_prompt_does_not_stop_those_who_decode() {
    let model = FakeModel::default();
    let mut engine = unmixed(&model);
    let (first, _keep) = request(0, &[1, 2, 3], 200);
    engine.add(first).unwrap();
    assert_eq!(engine.step().unwrap(), StepOutcome::Prefill { tokens: 3 });
    let (long, _also) = request(1, &prompt(9, 70, 256), 2);
    engine.add(long).unwrap();
    let outcomes: Vec<StepOutcome> = (0..10).map(|_| engine.step().unwrap()).collect();
    let (decode, chunk) =
        (StepOutcome::Decode { rows: 1 }, |tokens| StepOutcome::Prefill { tokens });
    let want = [16, 16, 16, 16, 6].into_iter().flat_map(|n| [decode, chunk(n)]).collect::<Vec<_>>();
    // The prompt of 3 was the last step: decoding goes first.
    assert_eq!(outcomes, want);
    // 70 = 4 * 16 + 6, and one padded replay for those 6 is cheaper than two small ones.
    assert_eq!(engine.step().unwrap(), StepOutcome::Decode { rows: 2 });
}

#[test]
fn more_rows_than_the_largest_bucket_take_several_replays() {
    let model = FakeModel { max_running_requests: 7, ..FakeModel::default() };
    let mut engine = engine(&model);
    let all: Vec<Collected> = (0..7)
        .map(|i| {
            let (request, collected) = request(i, &[i as u32 + 1], 20);
            engine.add(request).unwrap();
            collected
        })
        .collect();
    finish(&mut engine);
    for (i, collected) in all.iter().enumerate() {
        assert_eq!(collected.tokens(), model.greedy(&[i as u32 + 1], 20));
    }
    let stats = engine.stats();
    let replays: Duration = stats.buckets.iter().map(|bucket| bucket.replay_time).sum();
    assert!(replays > Duration::ZERO && replays == stats.device_time, "{replays:?}");
    let decodes = |rows: u32| {
        let of = |b: &&precast_runtime::BucketStats| b.phase.name() == "decode" && b.rows == rows;
        let stats = engine.stats().buckets;
        let buckets = stats.iter().filter(of);
        buckets.fold((0, 0), |(n, p), b| (n + b.replays, p + b.padded_rows))
    };
    let (replays, padded) = decodes(4);
    assert!(replays > 20, "4 of 7 rows, then 3 padded to 4: {replays}");
    assert!(padded > 0 && padded < replays, "only the remainder is padded: {padded} of {replays}");
}

#[test]
fn inputs_are_made_while_the_device_runs() {
    let count = |runs_beside_host| {
        let model = FakeModel { runs_beside_host, ..FakeModel::default() };
        let mut engine = engine(&model);
        let requests = [(1, 5, 40), (2, 11, 30), (3, 2, 20)];
        let all = requests.map(|(id, len, tokens)| {
            let (request, collected) = request(id, &prompt(id as u32, len, 97), tokens);
            engine.add(request).unwrap();
            collected
        });
        finish(&mut engine);
        for ((id, len, tokens), collected) in requests.into_iter().zip(all) {
            assert_eq!(collected.tokens(), model.greedy(&prompt(id as u32, len, 97), tokens));
        }
        (engine.stats().decode_steps_total, engine.stats().prepared_steps_total)
    };
    let (steps, prepared) = count(true);
    // The first decode step, and those that follow a prefill, feed others than were expected.
    assert!(prepared >= 35 && prepared < steps && steps <= 45, "{prepared} of {steps}");
    assert_eq!(count(false), (steps, 0));
}

#[test]
fn the_context_cuts_the_answer() {
    let model = FakeModel { max_context: 40, ..FakeModel::default() };
    let mut engine = engine(&model);
    let (one, collected) = request(0, &prompt(3, 30, 256), 1000);
    engine.add(one).unwrap();
    finish(&mut engine);
    assert_eq!(collected.tokens().len(), 10);
    assert_eq!(collected.finish(), Some(Finish::Length));

    let (full, _) = request(1, &prompt(3, 40, 256), 1);
    let message = engine.add(full).unwrap_err().to_string();
    assert!(message.starts_with("prompt of 40 tokens does not fit the context of 40 tokens"));

    let tight = FakeModel { blocks: 3, ..FakeModel::default() };
    let mut engine = support::engine(&tight);
    let (full, collected) = request(1, &prompt(3, 20, 256), 100);
    engine.add(full).unwrap();
    finish(&mut engine);
    assert_eq!(collected.tokens().len(), 4, "3 blocks of 8 hold 24 tokens");
}

#[test]
fn stop_ids_end_the_answer_and_min_tokens_holds_them_back() {
    let model = FakeModel::default();
    let answer = model.greedy(&[5, 6], 12);
    let stop = answer[4];
    let run = |change: &dyn Fn(&mut Request)| {
        let mut engine = model.engine(EngineOptions::default());
        let (mut request, collected) = request(0, &[5, 6], 12);
        request.stop_token_ids = vec![stop];
        change(&mut request);
        engine.add(request).unwrap();
        finish(&mut engine);
        (collected.tokens(), collected.finish().unwrap())
    };
    let first = answer.iter().position(|&t| t == stop).unwrap();
    assert_eq!(run(&|_| ()), (answer[..=first].to_vec(), Finish::Stop { token: stop }));
    let (tokens, _) = run(&|r| r.min_tokens = 8);
    assert!(tokens.len() >= 8 && !tokens[..8].contains(&stop), "{tokens:?}");

    let eos = FakeModel { eos_token_ids: vec![stop], ..model.clone() };
    let ends = |ignore_eos| {
        let mut engine = eos.engine(EngineOptions::default());
        let (mut request, collected) = request(0, &[5, 6], 12);
        request.ignore_eos = ignore_eos;
        engine.add(request).unwrap();
        finish(&mut engine);
        collected.tokens().len()
    };
    assert_eq!((ends(false), ends(true)), (first + 1, 12));
}

#[test]
fn a_client_that_leaves_frees_its_blocks_within_a_step() {
    let mut engine = engine(&FakeModel::default());
    let (one, running) = request(0, &prompt(1, 40, 256), 100);
    engine.add(one).unwrap();
    for _ in 0..8 {
        engine.step().unwrap();
    }
    assert!(engine.stats().free_blocks < engine.stats().total_blocks);
    running.close();
    assert_eq!(engine.step().unwrap(), StepOutcome::Idle);
    let stats = engine.stats();
    assert_eq!(stats.free_blocks, stats.total_blocks);
    assert_eq!((stats.requests_aborted_total, stats.running), (1, 0));
}

#[test]
fn every_token_is_drawn_anew_and_from_the_seed() {
    let model = FakeModel::default();
    let run = |id, seed| {
        let mut engine = engine(&model);
        let (mut one, collected) = request(id, &[5, 6], 60);
        // Nearly uniform: one random number for all would choose nearly the same id every time.
        one.sampling = Sampling { temperature: 1000.0, seed, ..Sampling::default() };
        engine.add(one).unwrap();
        finish(&mut engine);
        collected.tokens()
    };
    let mut distinct = run(0, Some(1));
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 40, "{distinct:?}");
    assert_eq!(run(0, Some(1)), run(7, Some(1)));
    assert_ne!(run(0, Some(1)), run(0, Some(2)));
    assert_ne!(run(0, None), run(7, None), "without a seed, requests differ");
}

#[test]
fn who_ended_in_the_step_that_fails_is_not_told_twice() {
    // Two replays for each prompt, one for each row of a decode step; the seventh fails.
    let failure = Some(Failure::Error { after: 6 });
    let model = FakeModel { decode_rows: vec![1], failure, ..FakeModel::default() };
    let mut engine = engine(&model);
    let (first, ended) = request(0, &[1], 3);
    let (second, aborted) = request(1, &[2], 3);
    engine.add(first).unwrap();
    engine.add(second).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
    }
    assert!(engine.step().is_err());
    assert_eq!((ended.events().len(), ended.finish()), (3, Some(Finish::Length)));
    assert!(matches!(aborted.finish(), Some(Finish::Abort(why)) if why.contains("told to")));
    let stats = engine.stats();
    assert_eq!((stats.requests_finished_total, stats.requests_aborted_total), (1, 1));
    assert_eq!(stats.free_blocks, stats.total_blocks);
}
