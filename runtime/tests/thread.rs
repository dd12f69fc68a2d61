//! The engine on its own thread: queueing, draining, stopping and failing.

mod support;

use precast_runtime::testing::{Collected, Failure, FakeModel, fake_engine};
use precast_runtime::{
    EngineHandle, EngineOptions, Finish, FlushError, Flushed, RequestError, SubmitError, TokenEvent,
};
use std::time::{Duration, Instant};
use support::request;

const PATIENCE: Duration = Duration::from_secs(20);

fn slow() -> FakeModel {
    FakeModel { replay_time: Duration::from_millis(2), ..FakeModel::default() }
}

fn submit(engine: &EngineHandle, id: u64, max_tokens: usize) -> Collected {
    let (request, collected) = request(id, &[id as u32 + 1, 7], max_tokens);
    engine.submit(request).expect("the engine takes it");
    collected
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_from_many_threads_are_served() {
    let model = FakeModel::default();
    let engine = fake_engine(&model, EngineOptions::default());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, model) = (engine.clone(), &model);
            scope.spawn(move || {
                for i in 0..10 {
                    let id = thread * 10 + i;
                    let collected = submit(&engine, id, 15);
                    assert!(collected.wait(PATIENCE));
                    assert_eq!(collected.tokens(), model.greedy(&[id as u32 + 1, 7], 15));
                }
            });
        }
    });
    assert!(engine.wait_idle(PATIENCE));
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.free_blocks), (0, 0, stats.total_blocks));
    assert_eq!(stats.requests_finished_total, 40);
    assert_eq!(stats.generation_tokens_total, 600);
    assert_eq!(stats.prompt_tokens_total, 80);
    engine.shutdown();
    engine.shutdown();
    assert!(engine.is_stopped() && engine.failure().is_none());
}

#[test]
fn a_full_queue_refuses_and_accepts_again() {
    let model = FakeModel { max_running_requests: 1, ..slow() };
    let options = EngineOptions { max_queued_requests: Some(2), ..EngineOptions::default() };
    let engine = fake_engine(&model, options);
    let all = [submit(&engine, 0, 100), submit(&engine, 1, 1), submit(&engine, 2, 1)];
    let (one_more, _) = request(3, &[1], 1);
    assert_eq!(engine.submit(one_more), Err(SubmitError::QueueFull { limit: 2 }));
    assert_eq!(engine.stats().requests_rejected_total, 1);
    all[0].close();
    assert!(all[0].wait(PATIENCE));
    assert!(submit(&engine, 4, 1).wait(PATIENCE), "there is room again");
}

#[test]
fn what_can_never_be_served_is_refused_at_once() {
    let engine = fake_engine(&FakeModel::default(), EngineOptions::default());
    let refused = |change: &dyn Fn(&mut precast_runtime::Request)| {
        let (mut request, _) = request(0, &[1, 2], 5);
        change(&mut request);
        match engine.submit(request) {
            Err(SubmitError::Invalid(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&|r| r.prompt.clear()), RequestError::EmptyPrompt);
    let bad = RequestError::PromptToken { position: 1, token: 256, vocab_size: 256 };
    assert_eq!(refused(&|r| r.prompt[1] = 256), bad);
    let long = RequestError::PromptTooLong { tokens: 256, context: 256 };
    assert_eq!(refused(&|r| r.prompt = vec![1; 256]), long);
    let bias = RequestError::BiasToken { token: 999, vocab_size: 256 };
    assert_eq!(refused(&|r| r.sampling.logit_bias = vec![(999, 1.0)]), bias);
    assert!(matches!(refused(&|r| r.sampling.top_p = 0.0), RequestError::Sampling(_)));
    // None of them counts against the queue.
    assert_eq!(engine.flush_cache(), Ok(Flushed { blocks: 0 }));
}

#[test]
fn the_cache_is_flushed_only_when_idle() {
    let engine = fake_engine(&slow(), EngineOptions::default());
    let running = submit(&engine, 0, 100);
    assert_eq!(engine.flush_cache(), Err(FlushError::Busy { requests: 1 }));
    running.close();
    assert!(engine.wait_idle(PATIENCE));
    assert_eq!(engine.flush_cache(), Ok(Flushed { blocks: 0 }));
    engine.shutdown();
    assert_eq!(engine.flush_cache(), Err(FlushError::Stopped));
}

#[test]
fn draining_finishes_what_was_accepted() {
    let model = FakeModel { max_running_requests: 1, ..slow() };
    let engine = fake_engine(&model, EngineOptions::default());
    let all = [submit(&engine, 0, 20), submit(&engine, 1, 20)];
    assert!(!engine.wait_idle(Duration::ZERO));
    engine.drain();
    let (late, _) = request(2, &[1], 1);
    assert_eq!(engine.submit(late), Err(SubmitError::Stopped));
    assert!(engine.wait_idle(PATIENCE));
    for collected in &all {
        assert_eq!(collected.finish(), Some(Finish::Length));
    }
    engine.shutdown();
}

#[test]
fn shutting_down_tells_everyone() {
    let model = FakeModel { max_running_requests: 1, ..slow() };
    let engine = fake_engine(&model, EngineOptions::default());
    let all = [submit(&engine, 0, 200), submit(&engine, 1, 200)];
    wait_until("the first runs", || engine.stats().running == 1);
    engine.shutdown();
    for collected in &all {
        assert!(matches!(collected.finish(), Some(Finish::Abort(_))), "{:?}", collected.events());
    }
    assert_eq!(engine.stats().requests_aborted_total, 2);
    let (late, _) = request(2, &[1], 1);
    assert_eq!(engine.submit(late), Err(SubmitError::Stopped));
}

#[test]
fn an_engine_that_nobody_holds_finishes_and_leaves() {
    let model = slow();
    let engine = fake_engine(&model, EngineOptions::default());
    let collected = submit(&engine, 0, 20);
    drop(engine);
    assert!(collected.wait(PATIENCE));
    assert_eq!(collected.tokens(), model.greedy(&[1, 7], 20));
}

fn fails_with(failure: Failure, why: &str) {
    let model = FakeModel { max_running_requests: 2, failure: Some(failure), ..slow() };
    let engine = fake_engine(&model, EngineOptions::default());
    let all: Vec<Collected> = (0..3)
        .map(|id| {
            let (request, collected) = request(id, &[1, 2], 100);
            // The engine may have failed before the last one arrives.
            let _ = engine.submit(request);
            collected
        })
        .collect();
    for collected in &all {
        assert!(collected.wait(PATIENCE));
        let ends = collected.events().into_iter().filter(|event| match event {
            TokenEvent::Ended { finish: Finish::Abort(reason) } => reason.contains(why),
            _ => false,
        });
        assert_eq!(ends.count(), 1, "{:?}", collected.events());
    }
    wait_until("the engine says that it stopped", || engine.is_stopped());
    assert!(engine.failure().is_some_and(|f| f.contains(why)), "{:?}", engine.failure());
    assert!(engine.wait_idle(PATIENCE));
    let (late, _) = request(9, &[1], 1);
    assert_eq!(engine.submit(late), Err(SubmitError::Stopped));
    engine.shutdown();
}

#[test]
fn a_device_that_fails_ends_every_request() {
    fails_with(Failure::Error { after: 30 }, "fake failed: it was told to");
}

#[test]
fn a_panic_ends_every_request() {
    fails_with(Failure::Panic { after: 30 }, "told to panic");
}
