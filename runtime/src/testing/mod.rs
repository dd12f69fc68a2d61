//! An engine without a model, for tests of whatever drives an engine.
//!
//! [`FakeModel`] makes real plans for a device that computes no network: the logits after a
//! sequence are a pure function of its tokens, read back from the KV slots, window slots and recurrent
//! memory that the engine said to use. A replay fails when a row sees a place that its sequence did
//! not write there, continues another sequence's memory, or is padding and does not say so.

mod device;
mod feed;
mod graph;
mod hash;
mod plans;
mod sink;

pub use device::{Failure, FakeDevice};
pub use graph::FakeGraph;
pub use sink::{Collected, collector};

use crate::{Engine, EngineHandle, EngineOptions};
use artifact::{Manifest, Plan, WindowMemory};
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
    /// Tokens that layers with a sliding window see; `None` for a model without such layers.
    pub sliding_window: Option<u32>,
    /// Blocks of the window's memory; enough for `max_running_requests` when `None`.
    pub window_blocks: Option<u32>,
    /// Slots of recurrent memory; `None` for a model without it.
    pub sequence_slots: Option<u32>,
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
    /// What [`hal::Device::runs_beside_host`] says.
    pub runs_beside_host: bool,
    /// The most likely tokens that plans find for each row, all there are at most; 0 for none.
    pub head_top_k: u32,
    /// Whether logits are NaN where they are read as a whole.
    pub hides_logits: bool,
}

impl Default for FakeModel {
    /// Two tiers, several buckets, no end-of-sequence id, instant replays.
    fn default() -> Self {
        Self {
            vocab_size: 256,
            max_context: 256,
            block_tokens: 8,
            blocks: 128,
            sliding_window: None,
            window_blocks: None,
            sequence_slots: None,
            decode_rows: vec![1, 2, 4],
            prefill_rows: vec![4, 16],
            head_rows: vec![1, 4],
            context_tiers: vec![64, 256],
            eos_token_ids: Vec::new(),
            max_running_requests: 4,
            replay_time: Duration::ZERO,
            failure: None,
            runs_beside_host: false,
            head_top_k: 16,
            hides_logits: false,
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

    /// An engine to be driven step by step. Its steps are chosen by plan times that are given, not
    /// measured, unless `options` say otherwise.
    ///
    /// # Panics
    /// When the model contradicts itself, such as tiers that are no multiples of a block.
    pub fn engine(&self, mut options: EngineOptions) -> Engine<FakeDevice> {
        options.plan_times.get_or_insert_default();
        Engine::from_parts(self.device(), &self.manifest(), &self.plans(), options)
            .expect("a fake model is consistent")
    }

    /// The most likely tokens that plans find for each row.
    fn found(&self) -> u32 {
        self.head_top_k.min(self.vocab_size)
    }

    /// Whether heads look back at KV memory: the last layer is softmax attention over it, unless the model
    /// has other memories.
    fn head_attends(&self) -> bool {
        self.sliding_window.is_none() && self.sequence_slots.is_none()
    }

    /// The memory of layers with a sliding window.
    fn window_memory(&self) -> Option<WindowMemory> {
        let tokens = self.sliding_window?;
        let chunk = self.prefill_rows.iter().copied().max().unwrap_or(0);
        let each = tokens.saturating_sub(1).div_ceil(self.block_tokens) + 1;
        let enough = self.max_running_requests * each + chunk.div_ceil(self.block_tokens) + 1;
        let blocks = self.window_blocks.unwrap_or(enough);
        let bytes_per_block = u64::from(self.block_tokens) * device::ENTRY_BYTES;
        Some(WindowMemory { tokens, blocks, bytes_per_block })
    }

    /// The logits after `tokens`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        let hidden = hash::hidden(self, tokens);
        (0..self.vocab_size).map(|token| hash::logit(hidden, token)).collect()
    }

    /// The greedy continuation of `prompt` by `count` tokens, end-of-sequence ids ignored.
    pub fn greedy(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            let best = hash::first_largest(self.logits(&tokens).into_iter());
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
