//! Which rows meet which panels.

use crate::kernels::bind::{Binder, Rows, product};
use crate::kernels::worker::Worker;
use std::ops::Range;

/// Reading a panel costs a thread about as much as this many rows of arithmetic.
const ROWS_OF_A_READ: usize = 6;

/// Numbers of rows and weights.
#[derive(Clone, Copy)]
pub(crate) struct Company {
    /// Rows of `x`.
    pub(super) inputs: usize,
    /// Of those, how many a token has.
    pub(super) runs: usize,
    /// Rows of the result.
    pub(super) outputs: usize,
    /// Weights.
    pub(super) experts: usize,
}

/// Rows that meet the same panels: row `sources[i]` of the inputs gives row `results[i]`.
pub(crate) struct Meeting {
    pub(super) expert: usize,
    pub(super) panels: Range<usize>,
    pub(super) rows: usize,
    /// Expert and first panel of the thread's next meeting, if there is one.
    pub(super) next: Option<(usize, usize)>,
}

/// Memory for the rows of a [`Meeting`], one of each for every row of the result.
#[derive(Clone, Copy)]
pub(crate) struct Lists {
    pub(super) sources: *mut u32,
    pub(super) results: *mut u32,
}

/// The way rows and weights are brought together, which the first word of a kernel's name says.
pub(super) enum Gathering {
    All(All),
    ByExpert(ByExpert),
}

impl Gathering {
    /// Takes the first scalars: numbers of rows and weights, and how many pairs read one row.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn company(b: &mut Binder<'_>) -> Result<(Company, usize), String> {
        if Self::is_by_expert(b) { ByExpert::company(b) } else { All::company(b) }
    }

    /// Takes its buffers; `share` is what [`Gathering::company`] gave.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn bind(b: &mut Binder<'_>, company: Company, share: usize) -> Result<Self, String> {
        if Self::is_by_expert(b) {
            Ok(Self::ByExpert(ByExpert::bind(b, company, share)?))
        } else {
            Ok(Self::All(All { rows: company.outputs }))
        }
    }

    fn is_by_expert(b: &Binder<'_>) -> bool {
        b.name().starts_with("grouped_")
    }

    /// The next meeting of this thread after those it has `seen`, all of which have `panels`
    /// panels. Every panel of every weight that has rows is in exactly one thread's meetings.
    ///
    /// # Safety
    /// Buffers are alive, lists as long as there are results.
    pub(super) unsafe fn next(
        &self,
        worker: &Worker<'_>,
        panels: usize,
        seen: &mut Seen,
        lists: Lists,
    ) -> Option<Meeting> {
        // SAFETY: as the caller's.
        unsafe {
            match self {
                Self::All(all) => all.next(worker, panels, seen, lists),
                Self::ByExpert(pairs) => pairs.next(worker, panels, seen, lists),
            }
        }
    }

    /// The rows of the result that meet nothing, as ranges of places of [`Gathering::at`].
    ///
    /// # Safety
    /// Buffers are alive.
    pub(super) unsafe fn alone(&self) -> [Range<usize>; 2] {
        match self {
            Self::All(_) => [0..0, 0..0],
            // SAFETY: as the caller's.
            Self::ByExpert(pairs) => unsafe { pairs.alone() },
        }
    }

    /// The row of the result at a place.
    ///
    /// # Safety
    /// Buffers are alive, the place exists.
    pub(super) unsafe fn at(&self, place: usize) -> Option<usize> {
        match self {
            Self::All(_) => Some(place),
            // SAFETY: as the caller's.
            Self::ByExpert(pairs) => unsafe { pairs.at(place) },
        }
    }
}

/// How far a thread is.
#[derive(Default)]
pub(crate) struct Seen {
    expert: usize,
    /// Place among the rows, and work before it.
    place: usize,
    work: usize,
    /// Work of all threads, once it is known.
    total: Option<usize>,
}

/// All rows meet one weight.
pub(super) struct All {
    rows: usize,
}

impl All {
    fn company(b: &mut Binder<'_>) -> Result<(Company, usize), String> {
        let rows = b.count("T")?;
        Ok((Company { inputs: rows, runs: 1, outputs: rows, experts: 1 }, 1))
    }

    unsafe fn next(
        &self,
        worker: &Worker<'_>,
        panels: usize,
        seen: &mut Seen,
        lists: Lists,
    ) -> Option<Meeting> {
        let panels = worker.share(panels);
        if seen.expert > 0 || self.rows == 0 || panels.is_empty() {
            return None;
        }
        seen.expert = 1;
        for row in 0..self.rows {
            // SAFETY: the lists are as long.
            unsafe {
                *lists.sources.add(row) = row as u32;
                *lists.results.add(row) = row as u32;
            }
        }
        Some(Meeting { expert: 0, panels, rows: self.rows, next: None })
    }
}

/// Pairs meet the weights of their experts.
pub(super) struct ByExpert {
    pairs: usize,
    experts: usize,
    /// Pairs that read one row of `x`.
    share: usize,
    order: Rows<i32>,
    starts: Rows<i32>,
}

impl ByExpert {
    /// The places of the pairs of an expert: those from `from` on, whatever `starts` holds.
    ///
    /// # Safety
    /// Buffers are alive, the expert exists.
    #[inline(always)]
    unsafe fn places(&self, expert: usize, from: usize) -> Range<usize> {
        // SAFETY: the caller's promise.
        let (first, end) = unsafe {
            let starts = self.starts.row(0).add(expert);
            (*starts, *starts.add(1))
        };
        let within = |place: i32| usize::try_from(place).unwrap_or(0).clamp(from, self.pairs);
        let first = within(first);
        first..within(end).max(first)
    }

    #[inline(always)]
    fn work(rows: usize) -> usize {
        if rows == 0 { 0 } else { ROWS_OF_A_READ + rows }
    }
}

impl ByExpert {
    fn company(b: &mut Binder<'_>) -> Result<(Company, usize), String> {
        let (tokens, k) = (b.count("T")?, b.positive("k")?);
        let share = match b.count("own")? {
            0 => k,
            1 => 1,
            other => return Err(format!("`own` is {other}, expected 0 or 1")),
        };
        let outputs = product(&[tokens, k])?;
        if i32::try_from(outputs).is_err() {
            return Err(format!("{outputs} pairs are too many for an index"));
        }
        let experts = b.positive("E")?;
        Ok((Company { inputs: outputs / share, runs: k / share, outputs, experts }, share))
    }

    fn bind(b: &mut Binder<'_>, company: Company, share: usize) -> Result<Self, String> {
        let Company { outputs, experts, .. } = company;
        let order = b.input("order", 1, outputs, outputs)?;
        let starts = b.input("starts", 1, experts + 1, experts + 1)?;
        Ok(Self { pairs: outputs, experts, share, order, starts })
    }

    unsafe fn next(
        &self,
        worker: &Worker<'_>,
        panels: usize,
        seen: &mut Seen,
        lists: Lists,
    ) -> Option<Meeting> {
        // SAFETY: experts and places exist; the lists are as long as there are pairs.
        unsafe {
            let total = match seen.total {
                Some(total) => total,
                None => {
                    let (mut from, mut total) = (0, 0);
                    for expert in 0..self.experts {
                        let places = self.places(expert, from);
                        total += panels * Self::work(places.len());
                        from = places.end;
                    }
                    seen.total = Some(total);
                    total
                }
            };
            let mine = worker.share(total);
            while seen.expert < self.experts && seen.work < mine.end {
                let (expert, before) = (seen.expert, seen.work);
                let places = self.places(expert, seen.place);
                let each = Self::work(places.len());
                seen.expert += 1;
                seen.place = places.end;
                seen.work += panels * each;
                if each == 0 {
                    continue;
                }
                // A panel belongs to the thread whose share has the beginning of its work.
                let panel = |work: usize| work.saturating_sub(before).div_ceil(each).min(panels);
                let panels = panel(mine.start)..panel(mine.end);
                if panels.is_empty() {
                    continue;
                }
                let mut rows = 0;
                for place in places {
                    if let Some(pair) = self.at(place) {
                        *lists.sources.add(rows) = (pair / self.share) as u32;
                        *lists.results.add(rows) = pair as u32;
                        rows += 1;
                    }
                }
                if rows > 0 {
                    let more = seen.work < mine.end;
                    let next = more.then(|| self.next_with_rows(seen)).flatten();
                    return Some(Meeting { expert, panels, rows, next: next.map(|e| (e, 0)) });
                }
            }
            None
        }
    }

    /// The next expert that has rows.
    ///
    /// # Safety
    /// Buffers are alive.
    unsafe fn next_with_rows(&self, seen: &Seen) -> Option<usize> {
        // SAFETY: the experts exist.
        let has_rows = |expert: &usize| unsafe { !self.places(*expert, seen.place).is_empty() };
        (seen.expert..self.experts).find(has_rows)
    }

    unsafe fn alone(&self) -> [Range<usize>; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.places(0, 0).start;
            let end = (0..self.experts).fold(0, |from, expert| self.places(expert, from).end);
            [0..first, end..self.pairs]
        }
    }

    unsafe fn at(&self, place: usize) -> Option<usize> {
        // SAFETY: the caller's promise.
        let pair = unsafe { *self.order.row(0).add(place) };
        usize::try_from(pair).ok().filter(|&pair| pair < self.pairs)
    }
}
