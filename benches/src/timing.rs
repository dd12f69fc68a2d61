//! Steps of an engine on the host, timed.

use anyhow::{Context, ensure};
use cli::HostDevice;
use runtime::{Engine, EngineOptions, Request, StepOutcome, TokenEvent, TokenSink};
use std::time::Instant;

/// Steps that [`decode`] times.
pub const STEPS: usize = 32;

/// Every prompt is computed, and nothing beside it.
pub fn options() -> EngineOptions {
    EngineOptions { prefix_cache: false, disable_mixed_chunk: true, ..EngineOptions::default() }
}

/// Takes tokens and forgets them.
pub struct Ignore;

impl TokenSink for Ignore {
    fn push(&mut self, _: TokenEvent) -> bool {
        true
    }
    fn is_open(&self) -> bool {
        true
    }
}

fn add(
    engine: &mut Engine<HostDevice>,
    id: u64,
    prompt: usize,
    tokens: usize,
) -> anyhow::Result<()> {
    let prompt = (0..prompt as u64).map(|i| ((i * 31 + id * 17) % 256) as u32).collect();
    let request = Request::greedy(id, prompt, tokens, Box::new(Ignore));
    engine.add(Request { ignore_eos: true, ..request })?;
    Ok(())
}

/// Seconds from a waiting prompt of `tokens` to its first token. Prompts differ by `id`.
///
/// # Errors
/// When the engine refuses the prompt or fails.
pub fn prefill(engine: &mut Engine<HostDevice>, tokens: usize, id: u64) -> anyhow::Result<f64> {
    add(engine, id, tokens, 1)?;
    let start = Instant::now();
    let mut seconds = None;
    while engine.step()? != StepOutcome::Idle {
        seconds = Some(start.elapsed().as_secs_f64());
    }
    seconds.context("a waiting prompt takes a step")
}

/// Feeds prompts of `context` tokens to `batch` sequences, which then decode together, for `runs` times
/// [`decode`].
///
/// # Errors
/// When the engine refuses a prompt or fails.
pub fn start_decoding(
    engine: &mut Engine<HostDevice>,
    batch: usize,
    context: usize,
    runs: usize,
) -> anyhow::Result<()> {
    for i in 0..batch {
        // The first decodes between the chunks of the others and ends with the same context.
        add(engine, i as u64, context, runs * STEPS + batch + 2 - i)?;
    }
    while engine.step()? != (StepOutcome::Decode { rows: batch as u32 }) {}
    Ok(())
}

/// Seconds of a decode step over `batch` sequences: the mean of [`STEPS`].
///
/// # Errors
/// When the engine fails, or does anything else in between.
pub fn decode(engine: &mut Engine<HostDevice>, batch: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    for _ in 0..STEPS {
        let outcome = engine.step()?;
        ensure!(outcome == StepOutcome::Decode { rows: batch as u32 }, "{outcome:?}");
    }
    Ok(start.elapsed().as_secs_f64() / STEPS as f64)
}

/// Lets what decodes come to its end.
///
/// # Errors
/// When the engine fails.
pub fn finish(engine: &mut Engine<HostDevice>) -> anyhow::Result<()> {
    while engine.step()? != StepOutcome::Idle {}
    Ok(())
}
