//! Tokens by temperature, top-k and top-p, and copies of blocks.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(missing_docs, reason = "a test")]

mod support;

use compiler::{Arg, Lowered};
use ir::{Op, interp::Tensor};
use precast_codegen_ascend::kernels::{
    copy::copy_blocks,
    sampling::{SampleArgs, sample, top_k},
};
use support::{Case, Kernels, Random, chip, dense, ints};
use tensor::DType::{self, BF16, F32, I32};

/// Temperature, k, p and draw.
type Row = (f64, i64, f64, f64);

/// Tokens that are kept, with their weights.
fn kept(logits: &[f64], (temperature, k, p, _): Row) -> Vec<(usize, f64)> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sorted: Vec<f64> = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let k = if k > 0 { (k as usize).min(sorted.len()) } else { sorted.len() };
    let weight = |x: f64| ((x - largest) / temperature).exp();
    let reached = |a: f64| sorted.iter().filter(move |&&x| x >= a).map(|&x| weight(x)).sum::<f64>();
    let all = reached(sorted[k - 1]);
    let mut threshold = sorted[k - 1];
    if p < 1.0 {
        threshold = *sorted[..k].iter().find(|&&x| reached(x) >= p * all).unwrap();
    }
    let tokens = logits.iter().enumerate().filter(|(_, x)| **x >= threshold);
    tokens.map(|(i, &x)| (i, weight(x))).collect()
}

/// That `token` is where the draw falls, give or take the rounding of sums.
fn explains(logits: &[f64], row: Row, token: usize) -> bool {
    if row.0 <= 0.0 {
        let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        return token == logits.iter().position(|&x| x == best).unwrap();
    }
    let kept = kept(logits, row);
    let total: f64 = kept.iter().map(|(_, w)| w).sum();
    let before: f64 = kept.iter().take_while(|(i, _)| *i < token).map(|(_, w)| w).sum();
    let own = kept.iter().find(|(i, _)| *i == token).map_or(0.0, |(_, w)| *w);
    let (goal, error) = (row.3 * total, 1e-5 * total);
    own > 0.0 && before <= goal + error && goal < before + own + error
}

fn problem(logits: &Tensor, rows: &[Row]) -> (Case, Lowered) {
    let floats =
        |of: fn(&Row) -> f64| Tensor::new(F32, vec![rows.len()], rows.iter().map(of).collect());
    let operands = vec![
        logits.clone(),
        floats(|r| r.0),
        ints(&[rows.len()], rows.iter().map(|r| r.1)),
        floats(|r| r.2),
        floats(|r| r.3),
    ];
    // Any op: what runs is the kernel.
    let mut case = Case::new(Op::Argmax {}, operands, &[]);
    case.gaps = vec![16];
    let args = SampleArgs {
        logits: Arg::Operand(0),
        temperatures: Arg::Operand(1),
        top_k: Arg::Operand(2),
        top_p: Arg::Operand(3),
        draws: Arg::Operand(4),
        tokens: Arg::Result(0),
    };
    let lowered = sample(&case.operands_only()[0], &args, chip()).unwrap();
    (case, lowered)
}

fn rows(random: &mut Random) -> Vec<Row> {
    let mut rows =
        vec![(0.0, 0, 1.0, 0.5), (1.0, 1, 1.0, 0.9), (1.0, 0, 0.0, 0.99), (1.0, 0, 1.0, 0.0)];
    for (k, p) in [(0, 1.0), (5, 1.0), (0, 0.7), (40, 0.9), (1_000_000, 0.2), (3, 0.5)] {
        rows.push((0.2 + random.unit().abs() * 1.5, k, p, random.unit().abs()));
        rows.push((1.0, k, p, 0.999));
    }
    rows
}

#[test]
fn tokens_are_where_their_draws_fall() {
    let mut random = Random(1);
    let sizes = [(F32, 50), (BF16, 4096), (F32, 9001)];
    let problems: Vec<_> = sizes
        .into_iter()
        .map(|(dtype, vocabulary)| {
            let rows = rows(&mut random);
            // Of the second size, many logits are equal.
            let logits = random.tensor(dtype, &[rows.len(), vocabulary], 6.0);
            (problem(&logits, &rows), logits, rows)
        })
        .collect();
    let kernels = Kernels::of(problems.iter().map(|p| &p.0.1));
    for ((case, lowered), logits, rows) in &problems {
        let found = kernels.run_with(case, &[dense(I32, &[rows.len()])], lowered).unwrap().0;
        let size = logits.dims()[1];
        for (t, (&row, &token)) in rows.iter().zip(found[0].data()).enumerate() {
            let logits = &logits.data()[t * size..][..size];
            assert!(explains(logits, row, token as usize), "{row:?} of {size}: token {token}");
        }
    }
}

/// How often each token is chosen is its share of the weights.
#[test]
fn even_draws_give_the_distribution() {
    let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
    let draws = 100;
    let rows: Vec<Row> =
        (0..draws).map(|i| (0.8, 3, 0.95, (f64::from(i) + 0.5) / f64::from(draws))).collect();
    let all = logits.repeat(rows.len());
    let (case, lowered) = problem(&Tensor::new(F32, vec![rows.len(), 5], all), &rows);
    let kernels = Kernels::of([&lowered]);
    let found = kernels.run_with(&case, &[dense(I32, &[rows.len()])], &lowered).unwrap().0;
    let kept = kept(&logits, rows[0]);
    let total: f64 = kept.iter().map(|k| k.1).sum();
    for (token, weight) in kept {
        let times = found[0].data().iter().filter(|&&t| t as usize == token).count();
        let share = weight / total * f64::from(draws);
        assert!((times as f64 - share).abs() <= 1.0, "token {token}: {times} times of {share}");
    }
}

/// The largest in order, the first of equals first, whatever straddles groups, chunks and the end.
#[test]
fn the_largest_of_rows_in_order() {
    let mut random = Random(5);
    let mut problems = Vec::new();
    let sizes = [(F32, 50, 50), (F32, 64, 1), (BF16, 4096, 7), (F32, 9001, 64), (F32, 4160, 200)];
    for (dtype, columns, k) in sizes {
        for distinct in [5.0, 250.0] {
            let x = random.tensor(dtype, &[3, columns], distinct);
            let whole = x.data().iter().map(|x| x.round()).collect();
            let x = Tensor::new(dtype, x.dims().to_vec(), whole);
            let mut case = Case::new(Op::TopK { k }, vec![x], &[]);
            case.gaps = vec![16, 0, 0];
            problems.push((case.lower(top_k).unwrap(), case));
        }
    }
    let wide = &problems[6].0;
    let unsorted = support::seeded(wide, "chosen[place - 1] > group", "chosen[place - 1] < group");
    let race = support::seeded(wide, "Sync<HardEvent::S_V>();\n        ReduceMax", "ReduceMax");
    let kernels = Kernels::of(problems.iter().map(|p| &p.0).chain([&unsorted, &race]));
    for (lowered, case) in &problems {
        let found = kernels.run(case, lowered).unwrap();
        let expected = case.expected();
        assert_eq!(found[1].data(), expected[1].data(), "{:?}", case.op);
        assert_eq!(found[0].data(), expected[0].data(), "{:?}", case.op);
    }
    let case = &problems[6].1;
    assert_ne!(kernels.run(case, &unsorted).unwrap()[1].data(), case.expected()[1].data());
    let error = kernels.run(case, &race).unwrap_err();
    assert!(error.contains("not handed over to pipe V"), "{error}");

    let few: Vec<f64> =
        (0..50).map(|i| [f64::NEG_INFINITY, 2.0][usize::from(i % 20 == 3)]).collect();
    let case = Case::new(Op::TopK { k: 50 }, vec![Tensor::new(F32, vec![1, 50], few)], &[]);
    let lowered = case.lower(top_k).unwrap();
    let ids = kernels.run(&case, &lowered).unwrap()[1].data().to_vec();
    assert_eq!(ids[..3], [3.0, 23.0, 43.0]);
    assert!(ids[3..].iter().all(|&id| id == -1.0), "{ids:?}");
}

fn blocks(
    random: &mut Random,
    dtype: DType,
    block: usize,
    pairs: &[(i64, i64)],
) -> (Case, Lowered) {
    let state = random.tensor(dtype, &[9, 2, block], 5.0);
    let list = ints(&[pairs.len(), 2], pairs.iter().flat_map(|&(a, b)| [a, b]));
    // Any op that gives a state back: what runs is the copy.
    let mut case = Case::new(Op::PagedWrite {}, vec![state, list], &[0]);
    case.gaps = vec![0, 0];
    let sides = case.operands_only();
    let args = [Arg::Operand(0), Arg::Operand(1)];
    let lowered = copy_blocks(&sides[0], &sides[1], args, chip()).unwrap();
    (case, lowered)
}

#[test]
fn blocks_are_copied() {
    let mut random = Random(3);
    let pairs = [(3, 0), (3, 8), (-1, 3), (5, 1), (7, 7)];
    let problems = [(F32, 20_000), (BF16, 33), (DType::I8, 5)]
        .map(|(dtype, block)| blocks(&mut random, dtype, block, &pairs));
    let bug = support::seeded(&problems[0].1, "BLOCK_BYTES - at", "BLOCK_BYTES");
    let kernels = Kernels::of(problems.iter().map(|p| &p.1).chain([&bug]));
    for (case, lowered) in &problems {
        let state = &case.operands[0];
        let result = case.operands_only().remove(0);
        let found = kernels.run_with(case, &[result], lowered).unwrap().0;
        let size = state.data().len() / 9;
        let mut expected = state.data().to_vec();
        for (from, to) in [(3, 0), (3, 8), (5, 1)] {
            let block = state.data()[from * size..][..size].to_vec();
            expected[to * size..][..size].copy_from_slice(&block);
        }
        assert_eq!(found[0].data(), expected);
    }
    let (case, _) = &problems[0];
    let error = kernels.run_with(case, &[case.operands_only().remove(0)], &bug).unwrap_err();
    assert!(error.contains("race") || error.contains("out of bounds"), "{error}");
}
