//! Seconds of a step by batch size, measured where they were, else modelled.

use compiler::{Rates, StepWork};
use std::collections::BTreeMap;

/// Measured times, and the model that joins them.
pub(super) struct Times<'a> {
    pub(super) measured: BTreeMap<u32, f64>,
    pub(super) work: &'a StepWork,
    pub(super) rates: Rates,
}

impl Times<'_> {
    /// Seconds of a step with a plan for `rows` rows. Between two measured sizes they lie on a line;
    /// outside, the model gives the ratio to the nearest.
    pub(super) fn seconds(&self, rows: u32) -> f64 {
        let model = |rows| self.work.seconds(rows, &self.rates);
        let below = self.measured.range(..=rows).next_back();
        let above = self.measured.range(rows..).next();
        match (below, above) {
            (Some((a, from)), Some((b, to))) if a != b => {
                from + (to - from) * f64::from(rows - a) / f64::from(b - a)
            }
            (Some((at, seconds)), _) | (None, Some((at, seconds))) => {
                seconds * model(rows) / model(*at)
            }
            (None, None) => model(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_are_joined() {
        let work = StepWork { weight_bytes: 10.0, row_bytes: 1.0, ..StepWork::default() };
        let rates = Rates { bytes_per_second: 1.0, flops_per_second: 1.0, step_seconds: 0.0 };
        let modelled = Times { measured: BTreeMap::new(), work: &work, rates };
        assert_eq!(modelled.seconds(4), 14.0);
        let times = Times { measured: [(4, 28.0), (8, 20.0)].into(), work: &work, rates };
        assert_eq!(times.seconds(4), 28.0);
        assert_eq!(times.seconds(5), 26.0);
        assert_eq!(times.seconds(8), 20.0);
        assert_eq!(times.seconds(2), 24.0, "12/14 of 28");
        assert_eq!(times.seconds(26), 40.0, "36/18 of 20");
    }
}
