//! What some models add to attention: a logit of each head that has no value, and a window.

use super::Attention;
use super::soften::{MARGIN, MARGIN_WEIGHT};
use super::tile::KvElement;
use crate::kernels::bind::{Binder, Kernel, Rows};
use crate::kernels::element::Element;
use crate::kernels::simd::{Dots, Simd};
use crate::kernels::worker::{Scratch, Worker};

/// Changes to plain causal attention.
#[derive(Default)]
pub(super) struct Sinks {
    /// A logit for each head.
    logits: Option<Rows<f32>>,
    /// Tokens that are seen, 0 for all.
    window: usize,
}

impl Sinks {
    /// Takes the buffer after the positions and the scalar after the strides.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn bind(b: &mut Binder<'_>, heads: usize) -> Result<Self, String> {
        let logits = b.input("sinks", 1, heads, heads)?;
        Ok(Self { logits: Some(logits), window: b.count("window")? })
    }

    /// The first token that is seen from the last of `context` tokens.
    #[inline(always)]
    pub(super) fn first_token(&self, context: usize) -> usize {
        if self.window == 0 { 0 } else { context.saturating_sub(self.window) }
    }

    /// Maximum and total that the running softmax of `head` begins with: so far below the sink that sums are scaled to
    /// the first score above it.
    ///
    /// # Safety
    /// `head` is one of those bound.
    #[inline(always)]
    pub(super) unsafe fn softmax(&self, head: usize) -> (f32, f32) {
        match self.logits {
            // SAFETY: as the caller's.
            Some(logits) => unsafe { (*logits.row(0).add(head) - MARGIN, MARGIN_WEIGHT) },
            None => (f32::NEG_INFINITY, 0.0),
        }
    }
}

/// `sink_attention_{kv}_{out}`.
pub(crate) struct SinkAttention<T, O>(Attention<T, O>);

impl<T: KvElement, O: Element> Kernel for SinkAttention<T, O> {
    const DOTS: Dots = T::DOTS;

    fn bind(b: &mut Binder<'_>) -> Result<Self, String> {
        Attention::bind_with(b, Sinks::bind).map(Self)
    }

    fn scratch<S: Simd>(&self) -> Scratch {
        self.0.scratch::<S>()
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, worker: &Worker<'_>) {
        // SAFETY: as the caller's.
        unsafe { self.0.run::<S>(worker) }
    }
}
