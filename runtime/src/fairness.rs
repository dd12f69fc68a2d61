//! Whatever arrives and whatever replays cost, everything that runs goes on within a bounded number
//! of steps.

use crate::{
    Engine, EngineOptions, Request, StepOutcome,
    choice::MOST_PASSED,
    testing::{FakeDevice, FakeModel, collector},
};
use proptest::prelude::*;
use std::{collections::HashMap, time::Duration};

fn request(id: u64, len: usize, max_tokens: usize) -> Request {
    let prompt = (0..len as u64).map(|i| ((id * 31 + i * 7) % 97) as u32).collect();
    // Nobody reads; the sink stays open.
    let (sink, _) = collector();
    Request { ignore_eos: true, ..Request::greedy(id, prompt, max_tokens, sink) }
}

/// Steps since each running request was fed, and whether it was in prefill all the while.
#[derive(Default)]
struct Watch {
    since: HashMap<u64, (usize, bool, usize)>,
    /// The most steps that a sequence waited which decodes, and one in prefill.
    longest: [usize; 2],
}

impl Watch {
    fn after_step(&mut self, engine: &Engine<FakeDevice>) {
        let running = &engine.scheduler.running;
        self.since.retain(|id, _| running.iter().any(|s| s.request.id.0 == *id));
        for s in running {
            let now = (s.fed, s.is_prefilling(), 0);
            let waited = match self.since.get(&s.request.id.0) {
                Some(seen) if (seen.0, seen.1) == (now.0, now.1) => seen.2 + 1,
                _ => 0,
            };
            self.since.insert(s.request.id.0, (now.0, now.1, waited));
            let longest = &mut self.longest[usize::from(now.1)];
            *longest = (*longest).max(waited);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_runs_waits_long(
        times in prop::collection::vec((1u64..1000).prop_map(Duration::from_micros), 20),
        traffic in prop::collection::vec((0usize..4, 1usize..150, 1usize..30), 20..60),
        max_running in 1u32..9,
        slots in any::<bool>(),
        window in any::<bool>(),
        mixed in prop::bool::weighted(0.8),
    ) {
        let model = FakeModel {
            vocab_size: 97,
            blocks: 1000,
            max_running_requests: max_running,
            sequence_slots: slots.then_some(8),
            sliding_window: window.then_some(20),
            ..FakeModel::default()
        };
        let mut engine = model.engine(EngineOptions {
            plan_times: Some(times),
            disable_mixed_chunk: !mixed,
            ..EngineOptions::default()
        });
        let mut watch = Watch::default();
        let mut arrivals = traffic.iter().zip(0..);
        let mut next = arrivals.next();
        let mut wait = 0;
        loop {
            while let Some((&(after, len, max_tokens), id)) = next {
                if wait < after {
                    wait += 1;
                    break;
                }
                wait = 0;
                engine.add(request(id, len, max_tokens)).expect("it fits");
                next = arrivals.next();
            }
            let outcome = engine.step().expect("the fake device finds nothing wrong");
            watch.after_step(&engine);
            if outcome == StepOutcome::Idle && next.is_none() {
                break;
            }
        }
        let [decoding, prefilling] = watch.longest;
        prop_assert!(decoding <= 1, "a sequence that decodes waits for one prefill chunk at most");
        // Every second step feeds a prompt, and whoever was passed over long enough goes first.
        let bound = 2 * (MOST_PASSED + max_running + 1) as usize;
        prop_assert!(prefilling <= bound, "{prefilling} steps, at most {bound}");
    }
}

/// Steps until the request `id` is no longer in prefill, while `stream` makes the request of a step.
fn until_fed(engine: &mut Engine<FakeDevice>, id: u64, stream: impl Fn(u64) -> Request) -> usize {
    for step in 0..2000 {
        engine.add(stream(1000 + step)).expect("it fits");
        engine.step().expect("the fake device finds nothing wrong");
        let of = engine.scheduler.running.iter().find(|s| s.request.id.0 == id);
        if of.is_none_or(|s| !s.is_prefilling()) && step > 0 {
            return step as usize;
        }
    }
    panic!("request {id} starves");
}

#[test]
fn neither_long_nor_short_prompts_starve() {
    let model = FakeModel {
        max_context: 1024,
        context_tiers: vec![1024],
        blocks: 4000,
        max_running_requests: 8,
        decode_rows: vec![1, 2, 4, 8],
        ..FakeModel::default()
    };
    for mixed in [true, false] {
        let options = EngineOptions { disable_mixed_chunk: !mixed, ..EngineOptions::default() };
        let mut engine = model.engine(options.clone());
        engine.add(request(0, 900, 4)).unwrap();
        let steps = until_fed(&mut engine, 0, |id| request(id, 3, 4));
        // 57 chunks of 16.
        assert!(steps < 57 * 2 * (MOST_PASSED as usize + 1), "a long prompt took {steps} steps");

        let mut engine = model.engine(options);
        for id in 0..3 {
            engine.add(request(id, 900, 4)).unwrap();
        }
        engine.step().unwrap();
        engine.add(request(7, 10, 4)).unwrap();
        let steps = until_fed(&mut engine, 7, |id| request(id, 900, 4));
        assert!(steps <= 3, "a short prompt behind long ones took {steps} steps");
    }
}

#[test]
fn a_higher_priority_starts_first_only_where_that_is_on() {
    let model = FakeModel { max_running_requests: 1, ..FakeModel::default() };
    let order = |priority_scheduling| {
        let options = EngineOptions { priority_scheduling, ..EngineOptions::default() };
        let mut engine = model.engine(options);
        for (id, priority) in [(0, 0), (1, 0), (2, 5), (3, -1), (4, 5)] {
            engine.add(Request { priority, ..request(id, 2, 1) }).unwrap();
        }
        engine.scheduler.waiting.iter().map(|s| s.request.id.0).collect::<Vec<_>>()
    };
    assert_eq!(order(false), [0, 1, 2, 3, 4]);
    assert_eq!(order(true), [2, 4, 0, 1, 3]);
}

#[test]
fn only_so_many_prompt_tokens_are_begun_at_once() {
    let model = FakeModel { max_running_requests: 8, ..FakeModel::default() };
    let begun = |max_prefill_tokens, lengths: &[usize]| {
        let mut engine =
            model.engine(EngineOptions { max_prefill_tokens, ..EngineOptions::default() });
        for (&len, id) in lengths.iter().zip(0..) {
            engine.add(request(id, len, 4)).unwrap();
        }
        engine.step().unwrap();
        engine.stats().running
    };
    // Prompts count with the 16 tokens that a step may feed of them.
    assert_eq!(begun(None, &[40, 40, 40]), 3);
    assert_eq!(begun(Some(32), &[40, 40, 40]), 2);
    assert_eq!(begun(Some(20), &[40, 4, 40]), 2);
    assert_eq!(begun(Some(1), &[40, 1, 1]), 1, "the first always");
}
