//! The panels of a weight of bf16, as they are stored.

use super::{CompactPanel, CompactWeight, GROUP_BYTES, Simd};

/// A matrix of weights, perhaps one of several.
#[derive(Clone, Copy)]
pub(crate) struct TileWeight<'a> {
    /// The first word of all matrices.
    base: *const u8,
    /// Where they are compact.
    compact: Option<&'a CompactWeight>,
    /// Panels of the matrices before this one.
    before: usize,
    /// Pairs along `K`.
    pub(super) groups: usize,
}

impl<'a> TileWeight<'a> {
    /// The matrix after `before` panels of `k` inputs each of those at `base`.
    pub(crate) fn new(
        base: *const u32,
        compact: Option<&'a CompactWeight>,
        before: usize,
        k: usize,
    ) -> Self {
        Self { base: base.cast(), compact, before, groups: k.div_ceil(2) }
    }

    /// Whether panels may be made of what is stored.
    pub(super) fn is_compact(&self) -> bool {
        self.compact.is_some()
    }

    /// A pair of a plain panel, of all outputs.
    #[inline(always)]
    pub(super) fn plain(&self, panel: usize, pair: usize) -> *const u8 {
        self.base.wrapping_add(((self.before + panel) * self.groups + pair) * GROUP_BYTES)
    }

    /// A panel, if the weight is compact.
    ///
    /// # Safety
    /// The weight was bound, and the panel exists.
    #[inline(always)]
    pub(super) unsafe fn compact(&self, panel: usize) -> Option<CompactPanel> {
        // SAFETY: the caller's promise.
        self.compact.map(|compact| unsafe { compact.panel(self.before + panel) })
    }

    /// As [`CompactWeight::after`], if the weight is compact.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn compact_after<S: Simd>(
        &self,
        panel: usize,
        end: usize,
    ) -> Option<CompactPanel> {
        // SAFETY: the caller's promise.
        self.compact
            .map(|compact| unsafe { compact.after::<S>(self.before + panel, self.before + end) })
    }
}
