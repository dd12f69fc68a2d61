//! Keys and values that are needed soon, asked for while others are in use.

use crate::device::asks_near;
use crate::kernels::simd::{LINE_BYTES, Simd};
use std::cell::Cell;

/// Cache lines that follow one another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) from: *const u8,
    pub(super) lines: usize,
}

impl Run {
    /// None.
    pub(super) const NONE: Self = Self { from: std::ptr::null(), lines: 0 };
}

/// How far requests are ahead of what is read.
#[derive(Default)]
pub(super) struct Lead {
    /// Cache lines of what is read next that were asked for; `None` where nothing was.
    asked: Option<usize>,
}

impl Lead {
    /// Begins a list of what to ask for while the next `now` cache lines are read: what is among them and `ahead` lines
    /// behind them, but for what was asked for before; where nothing was, the first `ahead` lines are as good as read.
    /// To be added is all that is read, from now on.
    #[inline(always)]
    pub(super) fn begin<'a>(&self, ahead: usize, now: usize, runs: &'a mut [Run]) -> List<'a> {
        let skipped = self.asked.unwrap_or(ahead.min(now));
        List { runs, count: 0, skipped, left: (now + ahead).saturating_sub(skipped), ahead }
    }

    /// Ends it, and returns how many runs there are.
    #[inline(always)]
    pub(super) fn end(&mut self, list: List<'_>) -> usize {
        self.asked = Some(list.ahead - list.left.min(list.ahead));
        list.count
    }
}

/// Runs to ask for.
pub(super) struct List<'a> {
    runs: &'a mut [Run],
    count: usize,
    /// Cache lines that are not taken, of those that are added next.
    skipped: usize,
    /// Those that are taken then.
    left: usize,
    ahead: usize,
}

impl List<'_> {
    /// Whether more is to be added.
    #[inline(always)]
    pub(super) fn wants_more(&self) -> bool {
        self.left > 0
    }

    /// Whether runs of so many lines in all need not be added one by one.
    #[inline(always)]
    pub(super) fn skips(&mut self, lines: usize) -> bool {
        let all = self.skipped >= lines;
        self.skipped -= if all { lines } else { 0 };
        all || !self.wants_more()
    }

    /// Adds what of `run` is to be taken.
    #[inline(always)]
    pub(super) fn add(&mut self, run: Run) {
        let skips = self.skipped.min(run.lines);
        let lines = self.left.min(run.lines - skips);
        if lines > 0 {
            self.runs[self.count] = Run { from: run.from.wrapping_add(skips * LINE_BYTES), lines };
            self.count += 1;
        }
        (self.skipped, self.left) = (self.skipped - skips, self.left - lines);
    }
}

/// Runs of memory to ask for, a few cache lines at a time and one after the other: a processor drops what is asked
/// for while it waits for too much, and its own prefetching brings that only where lines come in their order.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// The first and past-the-last run that is not begun.
    runs: *const Run,
    end: *const Run,
    /// What is left of the one that is.
    left: Run,
}

impl Ahead {
    /// Nothing.
    pub(super) const NONE: Self =
        Self { runs: std::ptr::null(), end: std::ptr::null(), left: Run::NONE };

    /// All of `runs`, which stay where they are.
    #[inline(always)]
    pub(super) fn new(runs: &[Run]) -> Self {
        let range = runs.as_ptr_range();
        Self { runs: range.start, end: range.end, left: Run::NONE }
    }

    /// Where the next `count` lines begin, of which the last may lie behind the end of a run.
    ///
    /// # Safety
    /// The runs are where they were.
    #[inline(always)]
    unsafe fn next(&mut self, count: usize) -> Option<*const u8> {
        if self.left.lines == 0 {
            if self.runs == self.end {
                return None;
            }
            // SAFETY: the caller's promise.
            unsafe {
                self.left = *self.runs;
                self.runs = self.runs.add(1);
            }
        }
        let from = self.left.from;
        self.left.from = from.wrapping_add(count * LINE_BYTES);
        self.left.lines = self.left.lines.saturating_sub(count);
        Some(from)
    }
}

/// How fast to ask for memory while scores become weights.
#[derive(Clone, Copy)]
pub(super) struct Pace<'a> {
    pub(super) ahead: Option<&'a Cell<Ahead>>,
    /// Cache lines for each vector of each pass.
    pub(super) lines: usize,
}

/// What a tile takes of an [`Ahead`] that several share, if there is one.
pub(super) struct Taken<'a> {
    from: Option<&'a Cell<Ahead>>,
    /// Words alone: a copy that has a byte and what pads it keeps loads waiting for stores.
    ahead: Ahead,
    /// Whether lines are asked for into the nearest cache.
    near: bool,
}

impl<'a> Taken<'a> {
    #[inline(always)]
    pub(super) fn new(from: Option<&'a Cell<Ahead>>) -> Self {
        let ahead = from.map_or(Ahead::NONE, Cell::get);
        Self { from, ahead, near: from.is_some() && asks_near() }
    }

    /// Where the next `count` lines begin, to be asked for by the caller, or `instead` where there is nothing to ask
    /// for, and whether into the nearest cache.
    ///
    /// # Safety
    /// As [`Ahead::next`].
    #[inline(always)]
    pub(super) unsafe fn next_or(&mut self, count: usize, instead: *const u8) -> (*const u8, bool) {
        // SAFETY: the caller's promise.
        (unsafe { self.ahead.next(count) }.unwrap_or(instead), self.near)
    }

    /// Asks for the next `count` lines, into the cache that suits this machine.
    ///
    /// # Safety
    /// As [`Simd`]; the runs are where they were.
    #[inline(always)]
    pub(super) unsafe fn ask<S: Simd>(&mut self, count: usize) {
        // SAFETY: the caller's promise; what is asked for may be anywhere.
        unsafe {
            if let Some(from) = self.ahead.next(count) {
                for i in 0..count {
                    S::prefetch_to(from.wrapping_add(i * LINE_BYTES), self.near);
                }
            }
        }
    }

    /// Asks for as many lines as step `step` of a loop takes, `N`, but at least four at once.
    ///
    /// # Safety
    /// As [`Taken::ask`].
    #[inline(always)]
    pub(super) unsafe fn ask_in_fours<S: Simd, const N: usize>(&mut self, step: usize) {
        if N > 1 || step.is_multiple_of(4) {
            // SAFETY: the caller's promise.
            unsafe { self.ask::<S>(const { if N > 1 { N } else { 4 } }) }
        }
    }

    /// Puts back what was not asked for.
    #[inline(always)]
    pub(super) fn put_back(self) {
        if let Some(from) = self.from {
            from.set(self.ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_asked_for_once_ahead_of_being_read() {
        // Chunks of runs of three lines, each run by itself.
        let chunks = [1, 1, 2, 2, 1, 2, 1, 2];
        let run = |i: usize| Run { from: std::ptr::without_provenance(i * 1000), lines: 3 };
        let number = |at: *const u8| at.addr() / 1000 * 3 + at.addr() % 1000 / LINE_BYTES;
        for lines in [1, 2, 3, 4, 6, 7, 20] {
            let mut lead = Lead::default();
            let (mut first, mut next) = (0, lines.min(3 * chunks[0]));
            for (c, now) in chunks.into_iter().enumerate() {
                let (mut to, mut seen) = ([Run::NONE; 6], first);
                let mut list = lead.begin(lines, 3 * now, &mut to);
                for runs in chunks[c..].iter().take(3) {
                    if !list.skips(3 * runs) {
                        (seen..seen + runs).for_each(|i| list.add(run(i)));
                    }
                    seen += runs;
                }
                let count = lead.end(list);
                for run in &to[..count] {
                    assert_eq!(number(run.from), next, "lead {lines}, chunk {c}");
                    next += run.lines;
                }
                first += now;
                assert_eq!(next, (3 * first + lines).min(3 * seen), "lead {lines}, chunk {c}");
            }
        }
    }

    #[test]
    fn runs_are_gone_through_line_by_line() {
        let runs = [(10_000, 5), (50_000, 5), (20_000, 3)];
        let runs = runs.map(|(at, lines)| Run { from: std::ptr::without_provenance(at), lines });
        let lines = |count: usize| {
            let mut ahead = Ahead::new(&runs);
            // SAFETY: the runs are still there.
            let next = || unsafe { ahead.next(count) }.map(|from| from.addr());
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let at = |steps: &[(usize, &[usize])]| {
            let of = |&(from, lines): &(usize, &[usize])| {
                lines.iter().map(move |line| from + line * LINE_BYTES).collect::<Vec<_>>()
            };
            steps.iter().flat_map(of).collect::<Vec<_>>()
        };
        let all: &[usize] = &[0, 1, 2, 3, 4];
        assert_eq!(lines(1), at(&[(10_000, all), (50_000, all), (20_000, &all[..3])]));
        let two: &[usize] = &[0, 2, 4];
        assert_eq!(
            lines(2),
            at(&[(10_000, two), (50_000, two), (20_000, &two[..2])]),
            "one line more than there is"
        );
        let four: &[usize] = &[0, 4];
        assert_eq!(lines(4), at(&[(10_000, four), (50_000, four), (20_000, &four[..1])]));
        // SAFETY: there are no runs.
        assert!(unsafe { { Ahead::NONE }.next(1) }.is_none());
    }
}
