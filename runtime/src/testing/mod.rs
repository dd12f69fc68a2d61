//! An engine without a model, for tests of whatever drives an engine.
//!
//! [`FakeModel`] makes real plans for a device that computes no network: the logits after a
//! sequence are a pure function of its tokens, read back from the KV slots that the engine said to
//! write. A wrong slot, block table, position, padding row or a block used twice changes the tokens,
//! and what a kernel would read out of bounds fails the replay.

mod device;
mod plans;
mod sink;

pub use device::{Failure, FakeDevice};
pub use sink::{Collected, collector};

use crate::{Engine, EngineHandle, EngineOptions};
use artifact::{Manifest, Plan};
use std::time::Duration;

/// What the fake engine should be like.
#[derive(Clone, Debug)]
pub struct FakeModel {
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Longest prompt and answer together, in tokens.
    pub max_context: u32,
    /// Tokens in a KV block.
    pub block_tokens: u32,
    /// KV blocks, the spare one not counted.
    pub blocks: u32,
    /// Decode buckets.
    pub decode_rows: Vec<u32>,
    /// Prefill chunk lengths.
    pub prefill_rows: Vec<u32>,
    /// Head buckets.
    pub head_rows: Vec<u32>,
    /// Context tiers in tokens, multiples of `block_tokens`; the last holds `max_context`.
    pub context_tiers: Vec<u32>,
    /// Ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// The most sequences that decode at once.
    pub max_running_requests: u32,
    /// How long a replay takes.
    pub replay_time: Duration,
    /// Makes a replay fail.
    pub failure: Option<Failure>,
}

impl Default for FakeModel {
    /// Two tiers, several buckets, no end-of-sequence id, instant replays.
    fn default() -> Self {
        Self {
            vocab_size: 256,
            max_context: 256,
            block_tokens: 8,
            blocks: 128,
            decode_rows: vec![1, 2, 4],
            prefill_rows: vec![4, 16],
            head_rows: vec![1, 4],
            context_tiers: vec![64, 256],
            eos_token_ids: Vec::new(),
            max_running_requests: 4,
            replay_time: Duration::ZERO,
            failure: None,
        }
    }
}

impl FakeModel {
    /// Its manifest; names and hashes are made up.
    pub fn manifest(&self) -> Manifest {
        plans::manifest(self)
    }

    /// Its plans, one for each bucket and tier.
    pub fn plans(&self) -> Vec<Plan> {
        plans::plans(self)
    }

    /// A device with its memory.
    pub fn device(&self) -> FakeDevice {
        FakeDevice::new(self)
    }

    /// An engine to be driven step by step.
    ///
    /// # Panics
    /// When the model contradicts itself, such as tiers that are no multiples of a block.
    pub fn engine(&self, options: EngineOptions) -> Engine<FakeDevice> {
        Engine::from_parts(self.device(), &self.manifest(), &self.plans(), options)
            .expect("a fake model is consistent")
    }

    /// The logits after `tokens`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let entries = tokens.iter().zip(0..).map(|(&t, p)| device::entry(t, p));
        let hidden = entries.fold(device::START, device::fold);
        (0..self.vocab_size).map(|token| device::logit(hidden, token)).collect()
    }

    /// The greedy continuation of `prompt` by `count` tokens, end-of-sequence ids ignored.
    pub fn greedy(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let best = device::first_largest(self.logits(&tokens).into_iter());
            tokens.push(best);
        }
        tokens.split_off(prompt.len())
    }
}

/// A running engine for `model`.
///
/// # Panics
/// As [`FakeModel::engine`], and when no thread can be started.
pub fn fake_engine(model: &FakeModel, options: EngineOptions) -> EngineHandle {
    model.engine(options).spawn().expect("a thread can be started")
}
