//! Log-probabilities of prompt and output tokens, across chunks and head buckets.

mod support;

use precast_runtime::testing::FakeModel;
use precast_runtime::{Finish, LogprobOptions, TokenEvent, TokenLogprob};
use support::{engine, finish, prompt, request};

/// The entry for `tokens[position]` by the definition.
fn expected(model: &FakeModel, tokens: &[u32], position: usize, top_n: usize) -> TokenLogprob {
    let token = tokens[position];
    if position == 0 {
        return TokenLogprob { token, logprob: None, top: Vec::new() };
    }
    let logits = model.logits(&tokens[..position]);
    let log_sum = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    let logprob = |token: u32| (f64::from(logits[token as usize]) - log_sum) as f32;
    let mut order: Vec<u32> = (0..model.vocab_size).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let top = order[..top_n].iter().map(|&t| (t, logprob(t))).collect();
    TokenLogprob { token, logprob: Some(logprob(token)), top }
}

fn assert_close(got: &TokenLogprob, want: &TokenLogprob) {
    let close = |a: f32, b: f32| (a - b).abs() < 1e-4;
    assert_eq!((got.token, got.top.len()), (want.token, want.top.len()));
    assert!(got.logprob.zip(want.logprob).is_none_or(|(a, b)| close(a, b)), "{got:?} {want:?}");
    assert_eq!(got.logprob.is_some(), want.logprob.is_some());
    for (a, b) in got.top.iter().zip(&want.top) {
        assert!(a.0 == b.0 && close(a.1, b.1), "{got:?} {want:?}");
    }
}

fn run(
    model: &FakeModel,
    prompt: &[u32],
    max_tokens: usize,
    options: LogprobOptions,
) -> Vec<TokenEvent> {
    let mut engine = engine(model);
    // A neighbour makes the blocks and the rows of the batch differ.
    let (other, _open) = request(1, &[9; 11], 60);
    engine.add(other).expect("it fits");
    let (mut one, collected) = request(0, prompt, max_tokens);
    one.logprobs = options;
    engine.add(one).expect("it fits");
    finish(&mut engine);
    collected.events()
}

#[test]
fn prompt_and_output_are_reported() {
    let model = FakeModel::default();
    for (len, from) in [(1, 0), (2, 0), (43, 0), (43, 1), (43, 17), (43, 42), (43, 43), (43, 99)] {
        let prompt = prompt(5, len, 256);
        let options = LogprobOptions { output: true, prompt_from: Some(from), top_n: 3 };
        let mut events = run(&model, &prompt, 6, options).into_iter();
        let Some(TokenEvent::Prompt { logprobs }) = events.next() else { panic!("no prompt") };
        assert_eq!(logprobs.len(), len.saturating_sub(from), "from {from} of {len}");
        for (got, position) in logprobs.iter().zip(from..) {
            assert_close(got, &expected(&model, &prompt, position, 3));
        }
        let mut tokens = prompt.clone();
        for event in events {
            let TokenEvent::Token { token, logprob, .. } = event else { panic!("{event:?}") };
            tokens.push(token);
            let want = expected(&model, &tokens, tokens.len() - 1, 3);
            assert_close(&logprob.expect("asked for"), &want);
        }
        assert_eq!(tokens[len..], model.greedy(&prompt, 6));
    }
}

#[test]
fn a_prompt_can_be_scored_without_an_answer() {
    let model = FakeModel::default();
    let prompt = prompt(8, 30, 256);
    let options = LogprobOptions { output: false, prompt_from: Some(0), top_n: 0 };
    let events = run(&model, &prompt, 0, options);
    let [TokenEvent::Prompt { logprobs }, TokenEvent::Ended { finish: Finish::Length }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(logprobs.len(), 30);
}

#[test]
fn a_preempted_prompt_is_reported_once() {
    // While the second's prompt is fed in pieces of 4, the first takes the two blocks that are left.
    let model =
        FakeModel { blocks: 14, max_context: 112, prefill_rows: vec![4], ..FakeModel::default() };
    let mut engine = engine(&model);
    let (one, _open) = request(0, &[3; 7], 90);
    engine.add(one).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
    }
    let prompt = prompt(2, 80, 256);
    let (mut scored, collected) = request(1, &prompt, 20);
    scored.logprobs = LogprobOptions { output: true, prompt_from: Some(0), top_n: 1 };
    engine.add(scored).unwrap();
    while engine.stats().preemptions_total == 0 {
        assert!(collected.events().is_empty(), "preempted before the prompt is reported");
        engine.step().unwrap();
    }
    finish(&mut engine);
    let events = collected.events();
    let prompts = events.iter().filter(|e| matches!(e, TokenEvent::Prompt { .. })).count();
    assert_eq!(prompts, 1);
    let TokenEvent::Prompt { logprobs } = &events[0] else { panic!("{events:?}") };
    for (got, position) in logprobs.iter().zip(0..) {
        assert_close(got, &expected(&model, &prompt, position, 1));
    }
    assert_eq!(logprobs.len(), 80);
    assert_eq!(collected.tokens(), model.greedy(&prompt, 20));
}
