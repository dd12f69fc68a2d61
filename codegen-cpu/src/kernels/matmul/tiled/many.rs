//! More than 16 rows, by [`super::super::squares`]. Threads share the copying of inputs.

use super::super::squares::{Cut, Memory, Panels, chunk_rows};
use super::*;
use std::ops::Range;

impl Tiled {
    /// How the rows from `first` on that go through the panels together are cut.
    fn cut(&self, first: usize) -> Cut {
        let Matmul { rows, k, .. } = self.product;
        Cut::new(chunk_rows(rows).min(rows - first), k.div_ceil(2), self.compact.then_some(1))
    }

    /// The inputs for all threads.
    pub(super) fn scratch_of_many(&self) -> Scratch {
        let rows = self.product.rows;
        let shared = rows.div_ceil(chunk_rows(rows)) * self.cut(0).inputs_bytes();
        Scratch { private: Memory::bytes(rows), shared }
    }

    /// Multiplies and stores this thread's panels.
    ///
    /// # Safety
    /// As [`Kernel::run`]; there are more than 16 rows.
    #[inline(always)]
    pub(super) unsafe fn many<S: Simd>(&self, worker: &Worker<'_>) {
        let Matmul { rows, k, panels, ref x, .. } = self.product;
        let (chunk_rows, chunk_bytes) = (chunk_rows(rows), self.cut(0).inputs_bytes());
        // SAFETY: rows and panels are those bound; scratch is large enough.
        unsafe {
            for row in worker.share(rows) {
                let (chunk, at) = (row / chunk_rows, row % chunk_rows);
                let to = worker.shared.add(chunk * chunk_bytes);
                let from: *const u8 = x.row(row).cast();
                self.cut(row - at).pack::<S>(at, from, k * size_of::<bf16>(), to);
            }
            worker.barrier.wait();
            let share = worker.share(panels);
            let compact = self.compact_weight();
            let weight = self.weight(compact.as_ref());
            for (chunk, first) in (0..rows).step_by(chunk_rows).enumerate() {
                let results = ResultRows::From(first, chunk_rows.min(rows - first));
                let many = ManyRows { weight, end: &self.product.end, results };
                let is_last = first + chunk_rows >= rows;
                let after =
                    if is_last { worker.upcoming } else { many.first(share.start.min(panels - 1)) };
                let (x, memory) =
                    (worker.shared.add(chunk * chunk_bytes), Memory::at(worker.private));
                self.cut(first).multiply::<S, _>(x, &memory, &many, share.clone(), after);
            }
        }
    }
}

/// Rows that go through the panels of a weight together, of which the results are these.
pub(crate) struct ManyRows<'a> {
    pub(crate) weight: TileWeight<'a>,
    pub(crate) end: &'a End,
    pub(crate) results: ResultRows<'a>,
}

impl ManyRows<'_> {
    /// Where a panel begins.
    pub(crate) fn first(&self, panel: usize) -> *const u8 {
        self.at(panel, 0)
    }
}

/// Half of some groups of a compact panel.
pub(crate) struct CodedHalf {
    panel: CompactPanel,
    half: usize,
    /// Its next escape.
    escape: usize,
    /// Where what is asked for while groups are made begins, if their first was the first of the panel.
    ahead: *const u8,
}

impl Make for CodedHalf {
    #[inline(always)]
    unsafe fn make<S: Simd>(&mut self, groups: Range<usize>, to: *mut u32) {
        let groups = (groups.start, groups.len());
        // SAFETY: as the caller's.
        unsafe {
            let panel = &self.panel;
            self.escape = panel.unpack_half::<S>(groups, self.half, to, self.escape, self.ahead);
        }
    }
}

impl Panels for ManyRows<'_> {
    type Half = CodedHalf;

    const BYTES: bool = false;

    #[inline(always)]
    fn group_lines(&self) -> usize {
        if self.weight.is_compact() { CompactPanel::PAIR_LINES } else { STEP_LINES / STEP_GROUPS }
    }

    #[inline(always)]
    fn at(&self, panel: usize, pair: usize) -> *const u8 {
        // SAFETY: the weight was bound, and the panel exists.
        match unsafe { self.weight.compact(panel) } {
            None => self.weight.plain(panel, pair),
            Some(panel) => panel.octets_of((pair, 0), std::ptr::null_mut()).from.cast(),
        }
    }

    #[inline(always)]
    unsafe fn block<S: Simd>(
        &self,
        panel: usize,
        groups: Range<usize>,
        to: *mut u32,
    ) -> *const u32 {
        // SAFETY: as the caller's; blocks begin with whole octets.
        unsafe {
            let Some(coded) = self.weight.compact(panel) else {
                return self.weight.plain(panel, groups.start).cast();
            };
            if let Some(pairs) = coded.pairs() {
                return pairs.add(groups.start * WIDTH);
            }
            coded.unpack_pairs::<S>((groups.start, groups.len()), to, 0);
        }
        to
    }

    #[inline(always)]
    fn halves(
        &self,
        panel: usize,
        groups: Range<usize>,
        next: *const u8,
    ) -> Option<[CodedHalf; 2]> {
        // SAFETY: the weight was bound, and the panel exists.
        let panel = unsafe { self.weight.compact(panel)? };
        if panel.pairs().is_some() {
            return None;
        }
        Some([0, 1].map(|half| CodedHalf {
            panel,
            half,
            escape: 0,
            ahead: panel.ahead_of_half(half, (groups.start, groups.len()), next),
        }))
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&self, panel: usize, rows: Range<usize>, sums: *mut f32) {
        let rows = self.results.part(rows);
        // SAFETY: as the caller's.
        unsafe { self.end.store::<S>(PanelSums { panel, sums, rows, factors: None }) }
    }
}
