//! Steady decoding takes no memory, whatever the sampling.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use precast_runtime::testing::FakeModel;
use precast_runtime::{Allowed, Constraint, Sampling, StepOutcome};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use support::{engine, greedy, request};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Fails only while the thread's storage is taken down; nothing is measured then.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allows every third token, in turn with every second.
struct Thirds([Vec<u32>; 2]);

impl Thirds {
    fn new() -> Self {
        Self([vec![0x4924_9249; 38], vec![0x5555_5555; 38]])
    }
}

impl Constraint for Thirds {
    fn advance(&mut self, _token: u32) {
        self.0.swap(0, 1);
    }

    fn allowed(&mut self, _patience: Duration) -> Allowed<'_> {
        Allowed::Tokens(&self.0[0])
    }
}

const STEPS: usize = 1000;

#[test]
fn a_thousand_decode_steps_allocate_nothing() {
    let before = ALLOCATIONS.get();
    drop(vec![0u8; 100]);
    assert_eq!(ALLOCATIONS.get() - before, 2, "the counter counts");

    let plain = FakeModel {
        vocab_size: 1200,
        max_context: 2048,
        blocks: 1024,
        context_tiers: vec![256, 2048],
        max_running_requests: 7,
        head_top_k: 32,
        ..FakeModel::default()
    };
    decode(&plain);
    // Every new block is one whose prefix is evicted.
    let tight = FakeModel { blocks: 7 * 2008 / 8, ..plain.clone() };
    let evicted = decode(&tight);
    assert!(evicted > 500, "{evicted}");
    decode(&FakeModel { runs_beside_host: true, ..tight });
    let other = FakeModel { sliding_window: Some(100), sequence_slots: Some(7), ..plain };
    decode(&other);
    decode(&FakeModel { runs_beside_host: true, ..other });
}

/// Decodes; returns how many blocks lost their prefix meanwhile.
fn decode(model: &FakeModel) -> u64 {
    let mut engine = engine(model);
    for id in 0..7 {
        let (request, _) = request(id, &[100 + id as u32; 2000], 1);
        engine.add(request).unwrap();
    }
    while engine.step().unwrap() != StepOutcome::Idle {}
    let samplings = [
        greedy(),
        Sampling { repetition_penalty: 1.1, frequency_penalty: 0.2, ..greedy() },
        Sampling::default(),
        Sampling { top_p: 0.9, logit_bias: vec![(3, 1.0)], ..Sampling::default() },
        // Chosen from what the device finds.
        Sampling { top_k: Some(20), top_p: 0.9, ..Sampling::default() },
        Sampling { top_k: Some(700), min_p: 0.01, ..Sampling::default() },
        Sampling { top_p: 0.999, presence_penalty: 0.5, ..Sampling::default() },
    ];
    let all: Vec<_> = samplings
        .into_iter()
        .zip(1..)
        .map(|(sampling, id)| {
            let (mut request, collected) = request(id, &[id as u32; 5], 2000);
            request.sampling = sampling;
            if id % 2 == 0 {
                request.constraint = Some(Box::new(Thirds::new()));
            }
            collected.reserve(2000);
            engine.add(request).unwrap();
            collected
        })
        .collect();
    let full = StepOutcome::Decode { rows: 7 };
    while engine.step().unwrap() != full {}

    let evicted = engine.stats().evicted_blocks_total;
    let before = ALLOCATIONS.get();
    for _ in 0..STEPS {
        assert_eq!(engine.step().unwrap(), full);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(all.iter().all(|collected| collected.tokens().len() > STEPS));
    engine.stats().evicted_blocks_total - evicted
}
