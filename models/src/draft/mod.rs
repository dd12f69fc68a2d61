//! Small models that draft tokens for a main model, which checks them.
//!
//! A draft reads pairs: what the main model knew at position `t`, and the token at `t + 1`. It
//! predicts the token at `t + 2`, and what it then knows stands for the main model's knowledge in
//! the next pair.

pub(crate) mod eagle3;
mod mtp;

pub(crate) use mtp::Mtp;

use crate::{
    BuildOptions, Checkpoint, Config, ModelError, SafetensorsSource, build, check::Sound,
    checkpoint::Ignored,
};
use ir::Module;
use std::path::Path;
use tensor::TensorInfo;

/// A draft that can be built, with the tensors of its own and those it shares with its target.
#[derive(Debug)]
pub struct Draft {
    config: Config,
    form: Form,
    capture: Capture,
    source: SafetensorsSource,
    parameters: u64,
    ignored: Vec<Ignored>,
    /// The target's id of each of the draft's, where they differ.
    target_ids: Option<Vec<u32>>,
}

/// What a draft reads of a step of the main model. Each row is one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capture {
    /// The residual stream after the final norm.
    FinalNorm,
    /// The residual stream at these points, one after the other: 0 before the first layer, `i`
    /// after layer `i - 1`.
    Residuals(Vec<u64>),
}

impl Capture {
    /// Channels of a row, for a residual stream of `hidden`.
    pub fn width(&self, hidden: u64) -> u64 {
        match self {
            Self::FinalNorm => hidden,
            Self::Residuals(points) => points.len() as u64 * hidden,
        }
    }
}

/// How a draft is made.
#[derive(Debug)]
pub(crate) enum Form {
    /// One layer of the main model's kind, stored with it (arXiv 2412.19437, section 2.2).
    Mtp(Mtp),
    /// A head of its own (arXiv 2503.01840).
    Eagle3 {
        /// Whether it has an output matrix of its own.
        own_head: bool,
    },
}

impl Draft {
    /// The layer for multi-token prediction in `checkpoint`, if it stores one.
    ///
    /// # Errors
    /// [`ModelError`] when its tensors are not exactly those that the configuration calls for.
    pub fn mtp(checkpoint: &Checkpoint) -> Result<Option<Self>, ModelError> {
        mtp::open(checkpoint)
    }

    /// The EAGLE-3 head in `dir` for `target`, whose embedding it reads.
    ///
    /// # Errors
    /// [`ModelError`] when a file is missing or damaged, a setting is not supported or does not fit
    /// the target, or the stored tensors are not exactly those of the configured head.
    pub fn eagle3(dir: impl AsRef<Path>, target: &Checkpoint) -> Result<Self, ModelError> {
        eagle3::open(dir.as_ref(), target)
    }

    /// The draft as primitive ops over the symbols of [`crate::build`]. Inputs are those of its
    /// functions, for pairs: `token_ids` are the later tokens, positions count pairs from 0.
    ///
    /// - `@draft_start(inputs.., states.., rows i32[T], features, draft_hidden)` reads rows `rows`
    ///   of `features [R,F]`, where the main model left what [`Draft::capture`] says, and returns
    ///   `logits f32[T,V]`, `argmax i32[T]`, the states, and `draft_hidden`, a state `[R,H]` of the
    ///   activation type, whose first `T` rows hold what the draft now knows;
    /// - `@draft_prefill` is the same for pairs of one sequence: tables have one row;
    /// - `@draft_next(inputs.., states.., rows i32[T], draft_hidden)` reads rows `rows` of
    ///   `draft_hidden` instead.
    ///
    /// States are those of one layer of the main model's kind, numbered 0. `V` is the draft's own
    /// vocabulary; see [`Draft::target_ids`].
    ///
    /// # Panics
    /// As [`crate::build`].
    pub fn build(&self, options: &BuildOptions) -> Module {
        build::draft::build(self, options)
    }

    /// What the main model must keep for it; see [`crate::build_capturing`].
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// Where its weights come from: its own, and those of the target that it shares.
    pub fn source(&self) -> &SafetensorsSource {
        &self.source
    }

    /// Stored numbers of its own, codes once and their scales not.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Stored tensors that it does not use, in the order of their names.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// The target's token for each of the draft's; `None` where both have one vocabulary.
    pub fn target_ids(&self) -> Option<&[u32]> {
        self.target_ids.as_deref()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn form(&self) -> &Form {
        &self.form
    }
}

/// How many numbers the parameters among `sound` are.
fn count(sound: &Sound) -> u64 {
    sound.counted().map(|TensorInfo { dims, .. }| dims.iter().product::<u64>()).sum()
}
