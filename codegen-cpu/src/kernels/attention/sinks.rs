//! What some models add to attention: a logit of each head that has no value, and a window.

use crate::kernels::bind::{Binder, Rows};

/// Changes to plain causal attention.
pub(crate) trait Variant: Sized + Send + Sync + 'static {
    /// Takes the buffers after the positions and the scalars after the strides.
    ///
    /// # Errors
    /// What is wrong with them.
    fn bind(b: &mut Binder<'_>, heads: usize) -> Result<Self, String>;

    /// The first token that is seen from the last of `context` tokens.
    fn first_token(&self, context: usize) -> usize;

    /// Maximum and total that the running softmax of `head` begins with.
    ///
    /// # Safety
    /// `head` is one of those bound.
    unsafe fn softmax(&self, head: usize) -> (f32, f32);
}

/// Nothing.
pub(crate) struct Plain;

impl Variant for Plain {
    fn bind(_: &mut Binder<'_>, _: usize) -> Result<Self, String> {
        Ok(Self)
    }

    #[inline(always)]
    fn first_token(&self, _: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn softmax(&self, _: usize) -> (f32, f32) {
        (f32::NEG_INFINITY, 0.0)
    }
}

/// A logit for each head, and a window of tokens or, when it is 0, none.
pub(crate) struct Sinks {
    logits: Rows<f32>,
    window: usize,
}

impl Variant for Sinks {
    fn bind(b: &mut Binder<'_>, heads: usize) -> Result<Self, String> {
        Ok(Self { logits: b.input("sinks", 1, heads, heads)?, window: b.count("window")? })
    }

    #[inline(always)]
    fn first_token(&self, context: usize) -> usize {
        if self.window == 0 { 0 } else { context.saturating_sub(self.window) }
    }

    #[inline(always)]
    unsafe fn softmax(&self, head: usize) -> (f32, f32) {
        // SAFETY: as the caller's.
        unsafe { (*self.logits.row(0).add(head), 1.0) }
    }
}
