//! When requests are sent.

use crate::random::NumpyRandom;
use std::time::Duration;

/// When each request is sent, after the first: a Poisson process of `rate` requests a second, or
/// all at once when it is infinite. Times add up, so that a late request does not delay the next.
pub(crate) fn schedule(n: usize, rate: f64, numpy: &mut NumpyRandom) -> Vec<Duration> {
    let mut time = 0.0;
    (0..n)
        .map(|_| {
            let due = Duration::from_secs_f64(time);
            if rate.is_finite() {
                time += numpy.exponential(1.0 / rate);
            }
            due
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_the_rate() {
        let times = schedule(10_001, 250.0, &mut NumpyRandom::new(1));
        let mean = times[10_000].as_secs_f64() / 10_000.0;
        assert!((mean * 250.0 - 1.0).abs() < 0.05, "{mean}");
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        let at_once = schedule(3, f64::INFINITY, &mut NumpyRandom::new(1));
        assert_eq!(at_once, [Duration::ZERO; 3]);
    }
}
