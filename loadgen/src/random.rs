//! The random numbers of the Python client, so that the same seed makes the same requests.
//!
//! Both of its generators are the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998), seeded
//! and turned into numbers in ways that numpy's legacy interface and Python's `random` document as
//! stable.

use rand_mt::Mt;

/// `numpy.random` after `seed(n)`.
pub(crate) struct NumpyRandom(Mt);

impl NumpyRandom {
    pub(crate) fn new(seed: u32) -> Self {
        Self(Mt::new(seed))
    }

    /// `randint(low, high)`: below `high`, by rejection under a mask of ones.
    pub(crate) fn integer(&mut self, low: usize, high: usize) -> usize {
        let range = u32::try_from(high - low - 1).unwrap_or(u32::MAX);
        if range == 0 {
            return low;
        }
        let mask = u32::MAX >> range.leading_zeros();
        loop {
            let value = self.0.next_u32() & mask;
            if value <= range {
                return low + value as usize;
            }
        }
    }

    /// `exponential(scale)`.
    pub(crate) fn exponential(&mut self, scale: f64) -> f64 {
        -(1.0 - unit(&mut self.0)).ln() * scale
    }
}

/// `random` after `seed(n)`.
pub(crate) struct PythonRandom(Mt);

impl PythonRandom {
    pub(crate) fn new(seed: u32) -> Self {
        Self(Mt::new_with_key([seed]))
    }

    /// `shuffle(items)`.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// An index as `choices` takes it from `len` items.
    pub(crate) fn choice(&mut self, len: usize) -> usize {
        (unit(&mut self.0) * len as f64) as usize
    }

    fn below(&mut self, n: usize) -> usize {
        let bits = usize::BITS - n.leading_zeros();
        loop {
            let value = (self.0.next_u32() >> (32 - bits)) as usize;
            if value < n {
                return value;
            }
        }
    }
}

/// In [0, 1), with 53 random bits.
fn unit(mt: &mut Mt) -> f64 {
    let (high, low) = (mt.next_u32() >> 5, mt.next_u32() >> 6);
    (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What numpy 2.4 and Python 3.11 answer for seed 1.
    #[test]
    fn numbers_are_those_of_the_python_client() {
        let mut numpy = NumpyRandom::new(1);
        let mut draw = |low, high, n| -> Vec<usize> {
            std::iter::repeat_with(|| numpy.integer(low, high)).take(n).collect()
        };
        assert_eq!(draw(1, 1025, 8), [38, 236, 909, 73, 768, 906, 716, 646]);
        assert_eq!(draw(512, 1025, 4), [656, 641, 1020, 902]);
        assert_eq!(draw(7, 8, 2), [7, 7]);
        assert_eq!(draw(0, 151_936, 4), [21_758, 51_668, 139_516, 19_946]);
        let gaps: Vec<f64> = std::iter::repeat_with(|| numpy.exponential(0.125)).take(3).collect();
        let expected =
            [0.032_601_980_217_715_716, 0.095_557_282_022_389_1, 0.306_620_813_191_743_3];
        for (gap, expected) in gaps.iter().zip(expected) {
            assert!((gap - expected).abs() < 1e-15, "{gap} {expected}");
        }

        let mut python = PythonRandom::new(1);
        let mut items: Vec<usize> = (0..10).collect();
        python.shuffle(&mut items);
        assert_eq!(items, [6, 8, 9, 7, 5, 3, 0, 4, 1, 2]);
        let choices: Vec<usize> = std::iter::repeat_with(|| python.choice(1000)).take(4).collect();
        assert_eq!(choices, [788, 93, 28, 835]);
    }
}
