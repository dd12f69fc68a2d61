//! The batch sizes with the least expected step time, by dynamic programming.

use std::ops::Range;

/// How long a step takes and how often it has how many rows.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Seconds of a step with a plan for `i + 1` rows. The last is that of the admission ceiling.
    pub seconds: &'a [f64],
    /// Weight of steps with `i + 1` running sequences, as long as `seconds`; only ratios count.
    pub weights: &'a [f64],
}

/// Batch sizes and what a step costs with them.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeList {
    /// Ascending; the last is the ceiling.
    pub sizes: Vec<u32>,
    /// Expected seconds of a step, when each runs the smallest plan that holds it.
    pub seconds: f64,
}

impl Load<'_> {
    /// The most sequences that run at once.
    pub fn ceiling(&self) -> u32 {
        self.seconds.len() as u32
    }

    /// Expected seconds of a step when each runs the smallest of `sizes` that holds it. `sizes` are
    /// ascending and the last is the ceiling.
    pub fn expected(&self, sizes: &[u32]) -> f64 {
        let mut below = 0;
        let mut sum = 0.0;
        for &size in sizes {
            let size = size as usize;
            sum += self.seconds[size - 1] * self.weight(below..size);
            below = size;
        }
        sum / self.weight(0..self.seconds.len())
    }

    fn weight(&self, sequences: Range<usize>) -> f64 {
        self.weights[sequences].iter().sum()
    }

    /// For each number of sizes from one to `most`, the list of at most as many sizes with the least
    /// expected step time, and of those with the least the shortest. Sizes are multiples of
    /// `multiple`, but for the ceiling, which is always one.
    ///
    /// # Panics
    /// When `seconds` and `weights` differ in length or are empty.
    pub fn best(&self, most: usize, multiple: u32) -> Vec<SizeList> {
        assert_eq!(self.seconds.len(), self.weights.len());
        let ceiling = self.ceiling();
        assert!(ceiling > 0, "a ceiling of no sequences");
        let multiple = multiple.max(1);
        let mut candidates: Vec<u32> = (1..ceiling).filter(|n| n % multiple == 0).collect();
        candidates.push(ceiling);

        let mut upto = vec![0.0];
        for w in self.weights {
            upto.push(upto[upto.len() - 1] + w);
        }
        let covered = |below: u32, size: u32| upto[size as usize] - upto[below as usize];
        let seconds = |size: u32| self.seconds[size as usize - 1];

        // `cost[i]` is that of all steps up to candidate `i` with as many sizes as rounds, which end
        // with it; `before[round][i]` is the size below it, as an index plus one.
        let count = candidates.len();
        let mut cost: Vec<f64> = candidates.iter().map(|&c| seconds(c) * covered(0, c)).collect();
        let mut before = vec![vec![0usize; count]];
        let mut found = vec![(cost[count - 1], 0)];
        for round in 1..most.min(count) {
            let (mut next, mut from) = (vec![f64::INFINITY; count], vec![0; count]);
            for i in round..count {
                let (size, time) = (candidates[i], seconds(candidates[i]));
                for j in round - 1..i {
                    let total = cost[j] + time * covered(candidates[j], size);
                    if total < next[i] {
                        (next[i], from[i]) = (total, j + 1);
                    }
                }
            }
            cost = next;
            before.push(from);
            let last = found[found.len() - 1];
            // Sums in another order differ in their last bits, which is no gain.
            let gained = cost[count - 1] < last.0 * (1.0 - 1e-12);
            found.push(if gained { (cost[count - 1], round) } else { last });
        }
        let list = |&(_, round): &(f64, usize)| {
            let mut sizes = Vec::new();
            let mut at = count;
            for round in (0..=round).rev() {
                sizes.push(candidates[at - 1]);
                at = before[round][at - 1];
            }
            sizes.reverse();
            SizeList { seconds: self.expected(&sizes), sizes }
        };
        found.iter().map(list).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least expected time over every list of at most `most` sizes.
    fn by_trying_all(load: &Load<'_>, most: usize, multiple: u32) -> f64 {
        let ceiling = load.ceiling();
        let candidates: Vec<u32> = (1..ceiling).filter(|n| n % multiple == 0).collect();
        let mut least = f64::INFINITY;
        for set in 0u32..1 << candidates.len() {
            if set.count_ones() as usize >= most {
                continue;
            }
            let chosen = candidates.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
            let sizes: Vec<u32> = chosen.map(|(_, &c)| c).chain([ceiling]).collect();
            least = least.min(load.expected(&sizes));
        }
        least
    }

    proptest! {
        /// Measured times need not grow with the size.
        #[test]
        fn no_list_is_better(
            steps in prop::collection::vec((1u32..50, 0u32..10), 1..11),
            most in 1usize..8,
            multiple in 1u32..4,
        ) {
            let seconds: Vec<f64> = steps.iter().map(|s| f64::from(s.0)).collect();
            let mut weights: Vec<f64> = steps.iter().map(|s| f64::from(s.1)).collect();
            weights[0] += 1.0;
            let load = Load { seconds: &seconds, weights: &weights };
            for (i, list) in load.best(most, multiple).iter().enumerate() {
                let least = by_trying_all(&load, i + 1, multiple);
                prop_assert!((list.seconds - least).abs() <= 1e-9 * least, "{list:?} and {least}");
                prop_assert!(list.sizes.len() <= i + 1 && list.sizes.is_sorted());
                prop_assert_eq!(list.sizes.last(), Some(&load.ceiling()));
                let own = &list.sizes[..list.sizes.len() - 1];
                prop_assert!(own.iter().all(|n| n % multiple == 0));
            }
        }
    }

    #[test]
    fn sizes_lie_where_steps_are() {
        let seconds: Vec<f64> = (1..=32).map(|n| 1.0 + f64::from(n)).collect();
        let mut weights = vec![0.0; 32];
        (weights[2], weights[19], weights[31]) = (1.0, 1.0, 1.0);
        let load = Load { seconds: &seconds, weights: &weights };
        let best = load.best(5, 1);
        assert_eq!(best[2].sizes, [3, 20, 32]);
        assert_eq!(best[4].sizes, [3, 20, 32], "more sizes gain nothing");
        assert_eq!(load.best(5, 8).pop().unwrap().sizes, [8, 24, 32]);
        assert_eq!(load.best(1, 5)[0].sizes, [32], "the ceiling need not be a multiple");
        assert_eq!(best[0].seconds, 33.0);
    }

    #[test]
    fn flat_times_need_one_size() {
        let load = Load { seconds: &[2.0; 64], weights: &[1.0; 64] };
        assert_eq!(load.best(9, 1)[8].sizes, [64]);
    }
}
