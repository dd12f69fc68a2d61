//! Tokens per second over the recent past.

use std::time::{Duration, Instant};

/// Long enough to hold several steps of a large model, short enough to follow the load.
const WINDOW: Duration = Duration::from_millis(500);

/// The rate of a counter, measured whenever [`WINDOW`] has passed.
#[derive(Default)]
pub(crate) struct Throughput {
    window: Option<(Instant, u64)>,
    rate: f64,
}

impl Throughput {
    /// Takes the counter's value at `now` and returns the rate; 0 when idle.
    pub(crate) fn update(&mut self, now: Instant, total: u64, idle: bool) -> f64 {
        if idle {
            self.window = None;
            self.rate = 0.0;
            return self.rate;
        }
        let &mut (since, before) = self.window.get_or_insert((now, total));
        let passed = now.duration_since(since);
        if passed >= WINDOW {
            self.rate = (total - before) as f64 / passed.as_secs_f64();
            self.window = Some((now, total));
        }
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_last_window_and_0_when_idle() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut throughput = Throughput::default();
        assert_eq!(throughput.update(at(0), 10, false), 0.0);
        assert_eq!(throughput.update(at(499), 90, false), 0.0);
        assert_eq!(throughput.update(at(500), 110, false), 200.0);
        assert_eq!(throughput.update(at(900), 110, false), 200.0);
        assert_eq!(throughput.update(at(1500), 210, false), 100.0);
        assert_eq!(throughput.update(at(1501), 210, true), 0.0);
        assert_eq!(throughput.update(at(9000), 210, false), 0.0, "idle time does not count");
    }
}
