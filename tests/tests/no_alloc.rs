//! A decode step of a real model allocates nothing, from the scheduler to the sampler.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{
    compile_here,
    engine::{Output, load, request},
    fixture, root,
};
use runtime::StepOutcome;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use tempfile::TempDir;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STEPS: usize = 1000;

#[test]
fn a_thousand_decode_steps_allocate_nothing() {
    let fixtures = ["qwen3_moe_w8a8", "qwen3_next", "deepseek_v32", "gpt_oss"].map(fixture);
    for model in std::iter::once(root("demo")).chain(fixtures) {
        decode(&model);
    }
}

fn decode(model: &Path) {
    let dir = TempDir::new().unwrap();
    let options = "--graph-bs 4 --max-context 1100 --no-record";
    let artifact = compile_here(model, &dir.path().join("artifact"), options);
    let mut engine = load(&artifact, 2);
    let outputs: Vec<Output> = (0..3).map(|_| Output::with_capacity(STEPS + 50)).collect();
    for (id, output) in outputs.iter().enumerate() {
        let mut request = request(id as u64, &[5, 6, 7 + id as u32], STEPS + 40, output);
        request.logprobs.output = id == 1;
        request.sampling.temperature = if id == 0 { 0.0 } else { 0.7 };
        request.sampling.top_p = 0.9;
        engine.add(request).unwrap();
    }
    // Every prompt is fed and buffers have reached their size.
    while !outputs.iter().all(|o| o.tokens().len() > 20) {
        engine.step().unwrap();
    }
    let before = ALLOCATIONS.load(Relaxed);
    for _ in 0..STEPS {
        assert_eq!(engine.step().unwrap(), StepOutcome::Decode { rows: 3 });
    }
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "{}", model.display());
}
