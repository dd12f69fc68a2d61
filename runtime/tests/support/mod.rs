//! Requests for the tests of the engine.

#![allow(dead_code, reason = "each test binary uses its own part")]

use precast_runtime::testing::{Collected, FakeDevice, FakeModel, collector};
use precast_runtime::{Engine, EngineOptions, Request, Sampling, StepOutcome};
use std::{
    io,
    sync::{Arc, Mutex, OnceLock},
};
use tracing::{Dispatch, subscriber::NoSubscriber};

pub(crate) fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

pub(crate) fn request(id: u64, prompt: &[u32], max_tokens: usize) -> (Request, Collected) {
    let (sink, collected) = collector();
    (Request::greedy(id, prompt.to_vec(), max_tokens, sink), collected)
}

pub(crate) fn engine(model: &FakeModel) -> Engine<FakeDevice> {
    model.engine(EngineOptions::default())
}

/// An engine whose decode replays feed no tokens of prompts.
pub(crate) fn unmixed(model: &FakeModel) -> Engine<FakeDevice> {
    model.engine(EngineOptions { disable_mixed_chunk: true, ..EngineOptions::default() })
}

/// Steps until nothing is left to do; returns how many steps that took.
pub(crate) fn finish(engine: &mut Engine<FakeDevice>) -> usize {
    for steps in 0..100_000 {
        if engine.step().expect("the fake device does not fail") == StepOutcome::Idle {
            return steps;
        }
    }
    panic!("the engine does not come to an end");
}

/// A prompt of `len` tokens that differs with `salt`.
pub(crate) fn prompt(salt: u32, len: usize, vocab_size: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (salt.wrapping_mul(2_654_435_761) ^ (i * 40_503)) % vocab_size)
        .collect()
}

/// The lines that this thread logs while `work` is done, `info` and above.
pub(crate) fn logged<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    // Were ours the only subscriber, `tracing` would ask that of whichever thread first comes to a message
    // whether anybody wants it, and keep the answer for all threads; a test beside this one has none.
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(NoSubscriber::new()));
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(move || writer.clone())
        .finish();
    let result = tracing::subscriber::with_default(subscriber, work);
    let bytes = log.0.lock().expect("nobody panicked").clone();
    let text = String::from_utf8(bytes).expect("a log is text");
    (result, text.lines().map(|line| line.trim().to_owned()).collect())
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
