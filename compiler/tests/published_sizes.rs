//! Lists that were tuned by hand are never better than ours with as many sizes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use precast_compiler::{Experts, Load, Rates, StepWork};

const LISTS: &str = include_str!("data/published_buckets.txt");

/// An NPU of the kind that the lists are for: a die of an Atlas A3.
const RATES: Rates =
    Rates { bytes_per_second: 1.6e12, flops_per_second: 353.9e12, step_seconds: 1e-3 };

fn lists() -> Vec<Vec<u32>> {
    let lines = LISTS.lines().filter(|l| !l.starts_with('#'));
    let list = |l: &str| {
        l.split_once(": ").unwrap().1.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<u32>>()
    };
    lines.map(list).collect()
}

/// Steps of a dense model, of one of many experts, and one that is limited by arithmetic.
fn works() -> [StepWork; 3] {
    let dense =
        StepWork { weight_bytes: 8e9, row_bytes: 3e8, row_flops: 16e9, ..StepWork::default() };
    let experts = vec![Experts { count: 128, chosen: 8, bytes: 50e9 }];
    let mixture = StepWork { weight_bytes: 2e9, experts, row_bytes: 1e8, row_flops: 6e9 };
    let heavy = StepWork { weight_bytes: 1e8, row_flops: 4e12, ..StepWork::default() };
    [dense, mixture, heavy]
}

/// How often `n` of `ceiling` sequences run.
type Shape = fn(n: f64, ceiling: f64) -> f64;

const SHAPES: [(&str, Shape); 5] = [
    ("uniform", |_, _| 1.0),
    ("peaked at the ceiling", |n, ceiling| (-((n - ceiling) / (0.1 * ceiling)).powi(2)).exp()),
    ("always full", |n, ceiling| f64::from(n == ceiling)),
    ("geometric", |n, ceiling| (-4.0 * n / ceiling).exp()),
    ("two peaks", |n, ceiling| if n < 0.1 * ceiling || n > 0.9 * ceiling { 1.0 } else { 0.01 }),
];

#[test]
fn published_lists_are_never_better() {
    let (mut compared, mut better) = (0, 0);
    for theirs in lists() {
        let ceiling = *theirs.last().unwrap();
        for work in works() {
            let seconds: Vec<f64> = (1..=ceiling).map(|n| work.seconds(n, &RATES)).collect();
            for (name, shape) in SHAPES {
                let weights: Vec<f64> =
                    (1..=ceiling).map(|n| shape(f64::from(n), f64::from(ceiling))).collect();
                let load = Load { seconds: &seconds, weights: &weights };
                let best = load.best(theirs.len(), 1);
                let ours = best.last().unwrap();
                let published = load.expected(&theirs);
                assert!(
                    ours.seconds <= published * (1.0 + 1e-12),
                    "{name}: {ours:?} against {theirs:?} of {published}"
                );
                assert!(ours.sizes.len() <= theirs.len());
                compared += 1;
                better += usize::from(ours.seconds < published * 0.999);
            }
        }
    }
    assert_eq!(compared, 24 * 3 * 5);
    assert!(better > compared / 4, "hardly ever better: {better} of {compared}");
}

/// The same for lists of multiples, such as those for attention that is divided by four.
#[test]
fn published_lists_of_multiples_are_never_better() {
    for theirs in lists() {
        let multiple = (1..=8).rev().find(|m| theirs.iter().all(|n| n % m == 0)).unwrap();
        let ceiling = *theirs.last().unwrap();
        let work = &works()[0];
        let seconds: Vec<f64> = (1..=ceiling).map(|n| work.seconds(n, &RATES)).collect();
        let load = Load { seconds: &seconds, weights: &vec![1.0; seconds.len()] };
        let ours = load.best(theirs.len(), multiple).pop().unwrap();
        assert!(ours.seconds <= load.expected(&theirs) * (1.0 + 1e-12), "{theirs:?}");
        assert!(ours.sizes.iter().all(|n| n % multiple == 0), "{ours:?}");
    }
}
