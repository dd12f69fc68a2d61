//! Memories of sequences.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(missing_docs, reason = "a test")]

mod support;

use ir::{Op, interp::Tensor};
use precast_codegen_ascend::kernels::recurrent;
use support::{Case, Kernels, Random, check, ints};
use tensor::DType::{self, BF16, F32};

/// Runs of rows: slot, position of the first, and how many.
type Runs<'a> = &'a [(i64, i64, usize)];

fn rows(runs: Runs<'_>) -> (Tensor, Tensor, usize) {
    let count = runs.iter().map(|r| r.2).sum();
    let slots = runs.iter().flat_map(|&(slot, _, n)| std::iter::repeat_n(slot, n));
    let positions = runs.iter().flat_map(|&(_, first, n)| (first..).take(n));
    (ints(&[count], slots), ints(&[count], positions), count)
}

/// Two sequences that go on, one that begins, and two rows of padding, each of which begins.
const MIXED: Runs<'_> = &[(3, 7, 5), (0, 0, 4), (5, 129, 1), (6, 0, 1), (6, 0, 1)];
const DECODE: Runs<'_> = &[(1, 9, 1), (2, 1, 1), (0, 0, 1)];
const SLOTS: usize = 7;

fn conv(
    random: &mut Random,
    state: DType,
    x: DType,
    channels: usize,
    taps: usize,
    runs: Runs<'_>,
) -> Case {
    let (sequences, positions, count) = rows(runs);
    let operands = vec![
        random.tensor(state, &[SLOTS, taps - 1, channels], 1.0),
        random.tensor(x, &[count, channels], 1.0),
        random.tensor(F32, &[channels, taps], 1.0),
        sequences,
        positions,
    ];
    let mut case = Case::new(Op::CausalConv {}, operands, &[0]);
    // Of x, and of y behind five operands and the state.
    case.gaps = vec![0, 16, 0, 0, 0, 0, 32];
    case
}

#[test]
fn convolutions() {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for (state, x) in [(F32, F32), (BF16, F32), (BF16, BF16), (F32, BF16)] {
        cases.push(conv(&mut random, state, x, 96, 4, MIXED));
        cases.push(conv(&mut random, state, x, 1040, 2, DECODE));
    }
    check(recurrent::lower, &cases, 1e-6);
}

/// Key heads, heads, rows and columns of memories.
type Sizes = (usize, usize, usize, usize);

fn delta(random: &mut Random, (key_heads, heads, dk, dv): Sizes, runs: Runs<'_>) -> Case {
    let (sequences, positions, count) = rows(runs);
    let mut gate = random.tensor(F32, &[count, heads], 1.0);
    gate = Tensor::new(F32, gate.dims().to_vec(), gate.data().iter().map(|g| -g.abs()).collect());
    let operands = vec![
        random.tensor(F32, &[SLOTS, heads, dk, dv], 1.0),
        random.tensor(F32, &[count, key_heads, dk], 0.3),
        random.tensor(F32, &[count, key_heads, dk], 0.3),
        random.tensor(F32, &[count, heads, dv], 1.0),
        gate,
        random.tensor(F32, &[count, heads], 1.0),
        sequences,
        positions,
    ];
    let mut case = Case::new(Op::GatedDelta {}, operands, &[0]);
    case.gaps = vec![0, 8, 16, 24];
    case
}

#[test]
fn delta_rules() {
    let mut random = Random(2);
    let cases = [
        delta(&mut random, (2, 4, 16, 16), MIXED),
        delta(&mut random, (1, 3, 24, 40), DECODE),
        delta(&mut random, (2, 2, 128, 128), DECODE),
        // Columns of one memory that are worked on in two halves.
        delta(&mut random, (1, 1, 128, 256), MIXED),
    ];
    check(recurrent::lower, &cases, 1e-5);
}

/// A prompt has the same memories and the same rows in one piece, in two, and beside others.
#[test]
fn cuts_and_company_change_no_bit() {
    let mut random = Random(3);
    let all = delta(&mut random, (2, 4, 16, 16), &[(3, 0, 6), (1, 4, 3)]);
    let part = |rows: std::ops::Range<usize>, state: &Tensor| {
        let of = |(i, t): (usize, &Tensor)| {
            if i == 0 {
                return state.clone();
            }
            let size = t.data().len() / t.dims()[0];
            let mut dims = t.dims().to_vec();
            dims[0] = rows.len();
            Tensor::new(t.dtype(), dims, t.data()[rows.start * size..rows.end * size].to_vec())
        };
        let operands = all.operands.iter().enumerate().map(of).collect();
        Case { operands, ..all.clone() }
    };
    let lowered = all.lower(recurrent::lower).unwrap();
    let kernels = Kernels::of([&lowered]);
    let whole = kernels.run(&all, &lowered).unwrap();
    let mut state = all.operands[0].clone();
    let mut rows = Vec::new();
    for range in [0..2, 2..6, 6..9] {
        let case = part(range, &state);
        let results = kernels.run(&case, &case.lower(recurrent::lower).unwrap()).unwrap();
        state = results[0].clone();
        rows.extend(results[1].data().to_vec());
    }
    assert_eq!(state.data(), whole[0].data());
    assert_eq!(rows, whole[1].data());
}

#[test]
fn bugs_are_told() {
    let mut random = Random(4);
    let cases = [
        conv(&mut random, BF16, F32, 96, 4, MIXED),
        delta(&mut random, (2, 4, 16, 16), MIXED),
        delta(&mut random, (2, 4, 16, 16), MIXED),
    ];
    let bugs = [
        ("oldest = (oldest + 1) % TAPS", "oldest = (oldest + 2) % TAPS", "element"),
        ("        Sync<HardEvent::MTE2_V>();\n", "", "handed over"),
        ("positionsGm.GetValue(t) <= 0", "positionsGm.GetValue(t) < 0", "element"),
    ];
    let seeded: Vec<_> = cases
        .iter()
        .zip(bugs)
        .map(|(case, bug)| support::seeded(&case.lower(recurrent::lower).unwrap(), bug.0, bug.1))
        .collect();
    let kernels = Kernels::of(&seeded);
    for ((case, lowered), bug) in cases.iter().zip(&seeded).zip(bugs) {
        let told = support::told(&kernels, case, lowered, 1e-4);
        assert!(told.contains(bug.2), "`{}` as `{}`: {told}", bug.0, bug.1);
    }
}
