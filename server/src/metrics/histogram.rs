//! Histograms that many threads write to without waiting for each other.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Counts durations by fixed bounds.
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// One for each bound and one for what is above all, not cumulative.
    counts: Vec<AtomicU64>,
    sum_us: AtomicU64,
}

/// A histogram at one moment.
pub(super) struct Snapshot {
    /// Bounds in seconds with the number of durations up to them.
    pub(super) cumulative: Vec<(f64, u64)>,
    /// All durations.
    pub(super) count: u64,
    /// Their sum.
    pub(super) sum_seconds: f64,
}

impl Histogram {
    /// `bounds` are seconds in ascending order.
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_us: AtomicU64::new(0) }
    }

    pub(super) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(duration.as_micros() as u64, Relaxed);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut count = 0;
        let mut cumulative = Vec::with_capacity(self.bounds.len());
        for (index, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Relaxed);
            cumulative.extend(self.bounds.get(index).map(|bound| (*bound, count)));
        }
        Snapshot { cumulative, count, sum_seconds: self.sum_us.load(Relaxed) as f64 / 1e6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_counts_what_is_at_most_it() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for ms in [50, 100, 500, 2000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.cumulative, [(0.1, 2), (1.0, 3)]);
        assert_eq!(snapshot.count, 4);
        assert!((snapshot.sum_seconds - 2.65).abs() < 1e-9);
    }
}
