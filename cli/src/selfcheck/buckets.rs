//! Every bucket of an artifact beside another artifact of the same checkpoint, such as one for the
//! CPU.

use super::values::Difference;
use anyhow::{Context, bail};
use hal::Device;
use runtime::{Engine, LogprobOptions, Request, StepOutcome, TokenEvent, TokenSink};
use serde::Serialize;
use std::sync::mpsc;

/// Tokens of each answer.
const TOKENS: usize = 8;
/// How far log-probabilities of bf16 runs may be apart: it keeps 8 bits of each activation.
const TOLERANCE: f64 = 0.25;

/// What became of a bucket.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    /// Sequences that decode at once.
    pub(super) rows: u32,
    /// Tokens that are the same, up to the first of each answer that is not.
    pub(super) same: usize,
    /// Tokens of all answers.
    pub(super) tokens: usize,
    /// The largest difference of log-probabilities up to there.
    pub(super) worst: f64,
    pub(super) holds: bool,
}

/// A token and its log-probability.
type Token = (u32, f32);

struct Collect(mpsc::Sender<(u64, TokenEvent)>, u64);

impl TokenSink for Collect {
    fn push(&mut self, event: TokenEvent) -> bool {
        self.0.send((self.1, event)).is_ok()
    }
    fn is_open(&self) -> bool {
        true
    }
}

/// Asks both engines the same, as many requests at once as each bucket has rows.
pub(super) fn check<A: Device, B: Device>(
    buckets: &[u32],
    vocabulary: u32,
    ours: &mut Engine<A>,
    theirs: &mut Engine<B>,
) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for &rows in buckets {
        let (a, b) = (answers(ours, rows, vocabulary)?, answers(theirs, rows, vocabulary)?);
        let mut line =
            Line { rows, same: 0, tokens: a.iter().map(Vec::len).sum(), worst: 0.0, holds: true };
        for (a, b) in a.iter().zip(&b) {
            let shared = a.iter().zip(b).take_while(|(x, y)| x.0 == y.0).count();
            line.same += shared;
            // Where they part, the two tokens are nearly as probable.
            for (x, y) in a.iter().zip(b).take(shared + 1) {
                let apart = Difference { worst: f64::from((x.1 - y.1).abs()), bound: TOLERANCE };
                line.worst = line.worst.max(apart.worst);
                line.holds &= apart.holds();
            }
        }
        lines.push(line);
    }
    Ok(lines)
}

/// The answers to `rows` prompts of different lengths at once.
fn answers<D: Device>(
    engine: &mut Engine<D>,
    rows: u32,
    vocabulary: u32,
) -> anyhow::Result<Vec<Vec<Token>>> {
    let (events, received) = mpsc::channel();
    for row in 0..rows {
        let prompt = (0..4 + row % 9).map(|i| (i * 7919 + row * 104_729 + 13) % vocabulary);
        let sink = Box::new(Collect(events.clone(), u64::from(row)));
        let request = Request::greedy(u64::from(row), prompt.collect(), TOKENS, sink);
        let logprobs = LogprobOptions { output: true, ..Default::default() };
        engine
            .add(Request { ignore_eos: true, logprobs, ..request })
            .with_context(|| format!("{rows} requests at once"))?;
    }
    drop(events);
    while engine.step()? != StepOutcome::Idle {}
    let mut answers = vec![Vec::new(); rows as usize];
    for (row, event) in received.try_iter() {
        match event {
            TokenEvent::Token { token, logprob, .. } => {
                let logprob = logprob.and_then(|l| l.logprob).unwrap_or(f32::NAN);
                answers[row as usize].push((token, logprob));
            }
            TokenEvent::Ended { finish } => {
                bail!("request {row} of {rows} ended early: {finish:?}")
            }
            _ => {}
        }
    }
    Ok(answers)
}
