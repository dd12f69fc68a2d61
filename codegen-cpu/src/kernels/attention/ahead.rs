//! Keys and values that are needed soon, asked for while others are in use.

use super::tile::LINE_BYTES;
use crate::kernels::simd::Simd;
use std::cell::Cell;

/// Runs of memory to ask for, a few cache lines at a time and one after the other: a processor drops what is asked
/// for while it waits for too much, and its own prefetching brings that only where lines come in their order.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// The first and past-the-last run that is not begun, and the cache lines of each.
    runs: *const *const u8,
    end: *const *const u8,
    lines: usize,
    /// What is left of the one that is.
    from: *const u8,
    left: usize,
}

impl Ahead {
    /// Nothing.
    pub(super) const NONE: Self = Self {
        runs: std::ptr::null(),
        end: std::ptr::null(),
        lines: 0,
        from: std::ptr::null(),
        left: 0,
    };

    /// All of `runs`, which stay where they are, each of `bytes`.
    #[inline(always)]
    pub(super) fn new(runs: &[*const u8], bytes: usize) -> Self {
        let (range, lines) = (runs.as_ptr_range(), bytes.div_ceil(LINE_BYTES));
        Self { runs: range.start, end: range.end, lines, ..Self::NONE }
    }

    /// Where the next `count` lines begin, of which the last may lie behind the end of a run.
    ///
    /// # Safety
    /// The runs are where they were.
    #[inline(always)]
    unsafe fn next(&mut self, count: usize) -> Option<*const u8> {
        if self.left == 0 {
            if self.runs == self.end {
                return None;
            }
            // SAFETY: the caller's promise.
            unsafe {
                (self.from, self.left) = (*self.runs, self.lines);
                self.runs = self.runs.add(1);
            }
        }
        let from = self.from;
        self.from = from.wrapping_add(count * LINE_BYTES);
        self.left = self.left.saturating_sub(count);
        Some(from)
    }

    /// Asks for the next `count` lines.
    ///
    /// # Safety
    /// As [`Simd`]; the runs are where they were.
    #[inline(always)]
    pub(super) unsafe fn ask<S: Simd>(&mut self, count: usize) {
        // SAFETY: the caller's promise; what is asked for may be anywhere.
        unsafe {
            if let Some(from) = self.next(count) {
                for i in 0..count {
                    S::prefetch_far(from.wrapping_add(i * LINE_BYTES));
                }
            }
        }
    }
}

/// What a tile takes of an [`Ahead`] that several share, if there is one.
pub(super) struct Taken<'a> {
    from: Option<&'a Cell<Ahead>>,
    ahead: Option<Ahead>,
}

impl<'a> Taken<'a> {
    #[inline(always)]
    pub(super) fn new(from: Option<&'a Cell<Ahead>>) -> Self {
        Self { from, ahead: from.map(Cell::get) }
    }

    /// As [`Ahead::ask`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn ask<S: Simd>(&mut self, count: usize) {
        if let Some(ahead) = &mut self.ahead {
            // SAFETY: the caller's promise.
            unsafe { ahead.ask::<S>(count) }
        }
    }

    /// Puts back what was not asked for.
    #[inline(always)]
    pub(super) fn put_back(self) {
        if let (Some(from), Some(ahead)) = (self.from, self.ahead) {
            from.set(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_gone_through_line_by_line() {
        let runs = [10_000, 50_000, 20_000].map(std::ptr::without_provenance);
        let lines = |count: usize| {
            let mut ahead = Ahead::new(&runs, 4 * LINE_BYTES + 1);
            // SAFETY: the runs are still there.
            let next = || unsafe { ahead.next(count) }.map(|from| from.addr());
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let expected = |steps: &[usize]| {
            let of = |run: &*const u8| {
                let from = run.addr();
                steps.iter().map(move |line| from + line * LINE_BYTES).collect::<Vec<_>>()
            };
            runs.iter().flat_map(of).collect::<Vec<_>>()
        };
        assert_eq!(lines(1), expected(&[0, 1, 2, 3, 4]));
        assert_eq!(lines(2), expected(&[0, 2, 4]), "one line more than there is");
        assert_eq!(lines(4), expected(&[0, 4]));
        // SAFETY: there are no runs.
        assert!(unsafe { { Ahead::NONE }.next(1) }.is_none());
    }
}
