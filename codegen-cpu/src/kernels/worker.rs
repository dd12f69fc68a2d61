//! What a kernel knows of the thread it runs on.

use super::barrier::Barrier;
use std::ops::Range;

/// Bytes of working memory that a kernel wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// For each thread.
    pub(crate) private: usize,
    /// For all threads together.
    pub(crate) shared: usize,
}

impl Scratch {
    /// Enough for either, in whole cache lines.
    pub(crate) fn most(self, other: Scratch) -> Scratch {
        Scratch {
            private: self.private.max(other.private.next_multiple_of(64)),
            shared: self.shared.max(other.shared.next_multiple_of(64)),
        }
    }
}

/// One thread of a replay, as kernels see it.
pub(crate) struct Worker<'a> {
    /// Which thread, counted from 0.
    pub(crate) index: usize,
    /// How many threads.
    pub(crate) count: usize,
    /// Where kernels meet; every thread must take part.
    pub(crate) barrier: &'a Barrier,
    /// This thread's working memory, 64-byte aligned.
    pub(crate) private: *mut u8,
    /// Working memory of all threads, 64-byte aligned.
    pub(crate) shared: *mut u8,
    /// The weights that this thread reads first in a launch soon after this one, to ask for while it reads its
    /// last ones; null when that is not known.
    pub(crate) upcoming: *const u8,
}

/// The share of worker `index` of `count`: see [`Worker::share`].
#[inline(always)]
pub(crate) fn share(n: usize, index: usize, count: usize) -> Range<usize> {
    if n == count {
        return index..index + 1;
    }
    let at = |i: usize| match n.checked_mul(i) {
        Some(product) => product / count,
        None => (n as u128 * i as u128 / count as u128) as usize,
    };
    at(index)..at(index + 1)
}

impl Worker<'_> {
    /// This thread's share of `0..n`: contiguous, in the order of the threads, as equal as it goes.
    #[inline(always)]
    pub(crate) fn share(&self, n: usize) -> Range<usize> {
        share(n, self.index, self.count)
    }

    /// This thread's share of a matrix: some rows with all columns, or all rows with some columns
    /// when there are fewer rows than threads. Columns are cut at multiples of 64.
    #[inline(always)]
    pub(crate) fn share_matrix(&self, rows: usize, n: usize) -> (Range<usize>, Range<usize>) {
        if rows >= self.count {
            return (self.share(rows), 0..n);
        }
        let lines = self.share(n.div_ceil(64));
        (0..rows, (lines.start * 64).min(n)..(lines.end * 64).min(n))
    }
}
