//! When each thread worked on each launch of a replay.

use std::time::{Duration, Instant};

/// What one thread did with one launch, counted from the start of the replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// When it began its share.
    pub began: Duration,
    /// When it had done its share, waiting where threads meet inside a kernel included.
    pub ended: Duration,
    /// When it knew that all threads had done theirs.
    pub passed: Duration,
}

/// A timed replay: a [`Span`] for every launch and thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    threads: usize,
    /// Those of the first thread, then those of the next.
    spans: Vec<Span>,
}

impl Timeline {
    /// Room for a replay of `launches` launches by `threads` threads.
    pub(super) fn new(launches: usize, threads: usize) -> Self {
        Self { threads, spans: vec![Span::default(); launches * threads] }
    }

    /// How many launches there were.
    pub fn launches(&self) -> usize {
        self.spans.len().checked_div(self.threads).unwrap_or(0)
    }

    /// How many threads ran them.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// What each thread did with launch `launch`, in the order of the threads.
    ///
    /// # Panics
    /// When there is no such launch.
    pub fn launch(&self, launch: usize) -> impl Iterator<Item = Span> + Clone {
        assert!(launch < self.launches(), "launch {launch} of {}", self.launches());
        self.spans.iter().copied().skip(launch).step_by(self.launches())
    }

    /// Where threads note their times from now on.
    pub(super) fn record(&mut self) -> Record {
        let launches = self.launches();
        Record { start: Instant::now(), spans: self.spans.as_mut_ptr(), launches }
    }
}

/// Where the threads of one replay note their times.
#[derive(Clone, Copy)]
pub(super) struct Record {
    start: Instant,
    spans: *mut Span,
    launches: usize,
}

impl Record {
    /// The part of one thread.
    ///
    /// # Safety
    /// The timeline has so many threads and stays until all of them have used their clocks; a clock
    /// is used for as many launches as the timeline has.
    pub(super) unsafe fn of_thread(self, index: usize) -> impl Clock {
        Timed { start: self.start, span: self.spans.wrapping_add(index * self.launches) }
    }
}

/// What a walk over launches notes: called in this order for each launch.
pub(super) trait Clock {
    /// A share begins.
    fn begin(&mut self);
    /// The share is done.
    fn end(&mut self);
    /// All threads are done.
    fn pass(&mut self);
}

/// Notes nothing.
pub(super) struct Untimed;

impl Clock for Untimed {
    #[inline(always)]
    fn begin(&mut self) {}
    #[inline(always)]
    fn end(&mut self) {}
    #[inline(always)]
    fn pass(&mut self) {}
}

/// Notes everything.
struct Timed {
    start: Instant,
    /// The launch that is running.
    span: *mut Span,
}

impl Clock for Timed {
    fn begin(&mut self) {
        // SAFETY: the promise of `Record::of_thread`; no other thread has this part.
        unsafe { (*self.span).began = self.start.elapsed() };
    }
    fn end(&mut self) {
        // SAFETY: as above.
        unsafe { (*self.span).ended = self.start.elapsed() };
    }
    fn pass(&mut self) {
        // SAFETY: as above.
        unsafe { (*self.span).passed = self.start.elapsed() };
        self.span = self.span.wrapping_add(1);
    }
}
