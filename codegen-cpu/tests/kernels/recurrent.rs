//! Convolution and the gated delta rule: what a sequence remembers.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::InstructionSet;
use codegen_cpu::kernels::reference::{self, DeltaHeads, DeltaInputs, Sequences};
use proptest::prelude::*;
use std::ops::Range;
use tensor::DType;

const F: DType = DType::F32;
/// Slots that exist; the last is the spare one.
const SLOTS: usize = 4;

/// Slots and positions of the rows of a step.
#[derive(Clone, Debug)]
struct Rows {
    slots: Vec<i32>,
    positions: Vec<i32>,
}

impl Rows {
    fn len(&self) -> usize {
        self.slots.len()
    }

    fn sequences(&self) -> Sequences<'_> {
        Sequences { slots: &self.slots, positions: &self.positions }
    }

    fn part(&self, rows: Range<usize>) -> Rows {
        Rows { slots: self.slots[rows.clone()].to_vec(), positions: self.positions[rows].to_vec() }
    }
}

/// Runs of rows: each has a slot, which may not exist or come again, and goes on where the slot
/// was left or begins at 0. Padding rows on the spare slot follow, all at position 0.
fn rows() -> impl Strategy<Value = Rows> {
    let run = (-1..SLOTS as i32 + 1, prop_oneof![Just(0), -1..9i32], 1..6i32);
    (prop::collection::vec(run, 1..5), 0..4usize).prop_map(|(runs, padding)| {
        let mut rows = Rows { slots: vec![], positions: vec![] };
        for (slot, start, len) in runs {
            rows.slots.extend((0..len).map(|_| slot));
            rows.positions.extend(start..start + len);
        }
        rows.slots.extend(vec![SLOTS as i32 - 1; padding]);
        rows.positions.extend(vec![0; padding]);
        rows
    })
}

/// The same step in one call or in several: its results and the state after it.
trait Step {
    /// Results of `rows` of the step; `state` becomes the next one.
    fn call(
        &self,
        how: (InstructionSet, usize),
        rows: Range<usize>,
        state: &mut Vec<u8>,
    ) -> Vec<u8>;

    fn calls(
        &self,
        how: (InstructionSet, usize),
        cuts: &[usize],
        state: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let (mut out, mut state) = (Vec::new(), state.to_vec());
        for cut in cuts.windows(2) {
            out.extend(self.call(how, cut[0]..cut[1], &mut state));
        }
        (out, state)
    }
}

struct Conv {
    kv: DType,
    channels: usize,
    taps: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    rows: Rows,
}

impl Step for Conv {
    fn call(
        &self,
        how: (InstructionSet, usize),
        rows: Range<usize>,
        state: &mut Vec<u8>,
    ) -> Vec<u8> {
        let (c, at) = (self.channels, self.rows.part(rows.clone()));
        let mut buffers = vec![
            encode(F, &self.x[rows.start * c..rows.end * c]),
            encode(F, &self.weight),
            bytes_of_i32(&at.slots),
            bytes_of_i32(&at.positions),
            state.clone(),
            unwritten(F, rows.len() * c),
        ];
        let scalars = ints([rows.len(), c, self.taps, SLOTS, c, c]);
        run(how.0, how.1, &format!("causal_conv_{}", self.kv), &mut buffers, &scalars);
        *state = buffers[4].clone();
        buffers[5].clone()
    }
}

struct Delta {
    sizes: DeltaHeads,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    rows: Rows,
}

impl Delta {
    fn new(sizes: DeltaHeads, rows: Rows, seed: u64) -> Self {
        let DeltaHeads { key_heads, heads, dk, dv } = sizes;
        let (keys, t) = (rows.len() * key_heads * dk, rows.len());
        // Keys of length 1, decays and rates as a model has them.
        let norm = |x: Vec<f32>| -> Vec<f32> {
            x.chunks(dk).flat_map(|x| reference::l2_norm(x, 1e-6, 1.0)).map(|v| v as f32).collect()
        };
        Self {
            sizes,
            q: norm(noise(seed, keys)),
            k: norm(noise(seed ^ 1, keys)),
            v: noise(seed ^ 2, t * heads * dv),
            gate: noise(seed ^ 3, t * heads).iter().map(|v| -(v + 1.0)).collect(),
            beta: noise(seed ^ 4, t * heads).iter().map(|v| (v + 1.0) / 2.0).collect(),
            rows,
        }
    }

    fn state_len(&self) -> usize {
        self.sizes.heads * self.sizes.dk * self.sizes.dv
    }
}

impl Step for Delta {
    fn call(
        &self,
        how: (InstructionSet, usize),
        rows: Range<usize>,
        state: &mut Vec<u8>,
    ) -> Vec<u8> {
        let DeltaHeads { key_heads, heads, dk, dv } = self.sizes;
        let (keys, values, at) = (key_heads * dk, heads * dv, self.rows.part(rows.clone()));
        let part = |x: &[f32], n: usize| encode(F, &x[rows.start * n..rows.end * n]);
        let mut buffers = vec![
            part(&self.q, keys),
            part(&self.k, keys),
            part(&self.v, values),
            part(&self.gate, heads),
            part(&self.beta, heads),
            bytes_of_i32(&at.slots),
            bytes_of_i32(&at.positions),
            state.clone(),
            unwritten(F, rows.len() * values),
        ];
        let scalars: Vec<Scalar> = ints([
            rows.len(),
            SLOTS,
            key_heads,
            heads,
            dk,
            dv,
            keys,
            keys,
            values,
            heads,
            heads,
            values,
        ]);
        run(how.0, how.1, "gated_delta", &mut buffers, &scalars);
        *state = buffers[7].clone();
        buffers[8].clone()
    }
}

/// `0`, the cuts inside `0..len`, and `len`.
fn cuts(len: usize, wanted: &[usize]) -> Vec<usize> {
    let mut cuts: Vec<usize> = wanted.iter().map(|c| c % len).chain([0, len]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn convolution_remembers_the_last_rows(
        rows in rows(),
        (channels, taps) in (1..200usize, 2..6usize),
        kv in prop_oneof![Just(DType::F32), Just(DType::BF16)],
        wanted in prop::collection::vec(0..64usize, 0..3),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let x = noise(seed, rows.len() * channels);
        let weight = noise(seed ^ 1, channels * taps);
        let before = rounded(kv, &noise(seed ^ 2, SLOTS * (taps - 1) * channels));
        let mut after = wide(&before);
        let held = rounded(kv, &x);
        let want =
            reference::causal_conv(&held, &weight, channels, rows.sequences(), &mut after);
        let after: Vec<f32> = after.iter().map(|&v| v as f32).collect();
        let step = Conv { kv, channels, taps, x, weight, rows };
        let cuts = cuts(step.rows.len(), &wanted);
        for set in InstructionSet::available() {
            let (y, state) =
                step.calls((set, threads), &[0, step.rows.len()], &encode(kv, &before));
            // Each of `K` products below 1 and each sum is rounded.
            let error = worst(&decode(F, &y), &want, |_, _| (taps * taps) as f64 * unit(F));
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
            prop_assert_eq!(&decode(kv, &state), &after, "{}", set);
            let cut = step.calls((set, threads % 3 + 1), &cuts, &encode(kv, &before));
            prop_assert!(cut == (y, state), "{set}: cuts {cuts:?} changed a bit");
        }
    }

    #[test]
    fn the_decay_matches_the_reference(
        (rows, heads, pad) in (1..5usize, 1..40usize, 0..4usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let a: Vec<f32> = noise(seed, rows * heads).iter().map(|v| v * 40.0).collect();
        let (a_log, bias) = (noise(seed ^ 1, heads), noise(seed ^ 2, heads));
        let want: Vec<f64> = a
            .iter()
            .enumerate()
            .map(|(i, &a)| reference::delta_gate(a, a_log[i % heads], bias[i % heads]))
            .collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(F, &spread(&a, heads, heads + pad)),
                encode(F, &a_log),
                encode(F, &bias),
                unwritten(F, rows * heads),
            ];
            run(set, threads, "delta_gate", &mut buffers, &ints([rows, heads, heads + pad, heads]));
            // Two exponentials, a logarithm and a product.
            let error = worst(&decode(F, &buffers[3]), &want, |_, v| v.abs() * 1e-6);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn the_delta_rule_matches_the_reference_however_rows_are_cut(
        rows in rows(),
        (key_heads, ratio, dk, dv) in (1..3usize, 1..4usize, 1..40usize, 1..75usize),
        wanted in prop::collection::vec(0..64usize, 0..3),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let sizes = DeltaHeads { key_heads, heads: key_heads * ratio, dk, dv };
        let step = Delta::new(sizes, rows, seed);
        let before = noise(seed ^ 9, SLOTS * step.state_len());
        let mut after = wide(&before);
        let Delta { q, k, v, gate, beta, rows, .. } = &step;
        let inputs = DeltaInputs { q, k, v, gate, beta };
        let want = reference::gated_delta(inputs, sizes, rows.sequences(), &mut after);
        let cuts = cuts(rows.len(), &wanted);
        for set in InstructionSet::available() {
            let (o, state) = step.calls((set, threads), &[0, rows.len()], &encode(F, &before));
            // A product with a vector of length 1 stays below `sqrt(dk)`, and so do its roundings.
            let bound = (dk as f64).sqrt() * (dk + 8) as f64 * 4.0 * unit(F);
            let error = worst(&decode(F, &o), &want, |_, _| bound);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
            let error = worst(&decode(F, &state), &after, |_, _| bound);
            prop_assert!(error <= 1.0, "{set}: state, {error} of the bound");
            let cut = step.calls((set, threads % 3 + 1), &cuts, &encode(F, &before));
            prop_assert!(cut == (o, state), "{set}: cuts {cuts:?} changed a bit");
        }
    }
}

/// A row gets the same bits alone and among rows of other sequences.
#[test]
fn company_changes_no_bit() {
    let sizes = DeltaHeads { key_heads: 2, heads: 4, dk: 16, dv: 48 };
    let slots = [0, 0, 0, 2, 1, 1, 3, 3];
    let positions = [0, 1, 2, 7, 4, 5, 0, 0];
    let rows = Rows { slots: slots.to_vec(), positions: positions.to_vec() };
    let step = Delta::new(sizes, rows, 3);
    let before = encode(F, &noise(4, SLOTS * step.state_len()));
    let row_bytes = 4 * sizes.heads * sizes.dv;
    for set in InstructionSet::available() {
        let (all, state) = step.calls((set, 2), &[0, 8], &before);
        for (rows, slot) in [(0..3, 0), (3..4, 2), (4..6, 1)] {
            let mut alone = before.clone();
            let out = step.call((set, 1), rows.clone(), &mut alone);
            assert_eq!(out, all[rows.start * row_bytes..rows.end * row_bytes], "{set}: {rows:?}");
            let memory = slot * 4 * step.state_len()..(slot + 1) * 4 * step.state_len();
            assert_eq!(alone[memory.clone()], state[memory], "{set}: memory of {rows:?}");
        }
    }
}

/// What decays must not hide NaN, and a sequence that begins must not see what its slot held.
#[test]
fn zeros_are_zeros_and_nan_stays() {
    let sizes = DeltaHeads { key_heads: 1, heads: 1, dk: 3, dv: 20 };
    let rows = Rows { slots: vec![1, 1, 0], positions: vec![0, 1, 1] };
    for set in InstructionSet::available() {
        let mut step = Delta::new(sizes, rows.clone(), 5);
        let before = encode(F, &vec![f32::NAN; SLOTS * step.state_len()]);
        let (o, state) = step.calls((set, 1), &[0, 3], &before);
        let (o, state) = (decode(F, &o), decode(F, &state));
        assert!(o[..40].iter().all(|v| v.is_finite()), "{set}");
        assert!(o[40..].iter().all(|v| v.is_nan()), "{set}: the memory was NaN");
        assert!(state[60..120].iter().all(|v| v.is_finite()), "{set}");
        step.gate[1] = f32::NAN;
        let (o, _) = step.calls((set, 1), &[0, 3], &before);
        assert!(decode(F, &o)[20..40].iter().all(|v| v.is_nan()), "{set}");
    }
}
