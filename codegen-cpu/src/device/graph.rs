//! A captured list of calls.

use super::memory::Memory;
use crate::kernels::{Run, Scratch};
use std::sync::Arc;

/// A bound call.
pub(super) struct Call {
    /// The kernel with its arguments.
    pub(super) kernel: Box<dyn Run>,
    /// Offset and bytes of the weights it reads.
    pub(super) weights: Vec<(u64, u64)>,
}

/// A captured list of calls, ready to replay on the device that captured it.
pub struct CpuGraph {
    pub(super) calls: Vec<Call>,
    /// The most working memory any call wants.
    pub(super) scratch: Scratch,
    /// What the calls' addresses point into.
    pub(super) memory: Arc<Memory>,
}

impl CpuGraph {
    /// How many calls it makes.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
