//! Attention.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{
    InstructionSet,
    kernels::{
        kv::{BLOCK_TOKENS, Kv},
        reference::{self, Heads},
    },
};
use proptest::prelude::*;
use std::ops::RangeInclusive;
use tensor::DType;

#[derive(Clone, Debug)]
struct Case {
    /// Positions of the rows of each sequence.
    positions: Vec<Vec<i32>>,
    sizes: Heads,
    /// Size of the window when there are sinks.
    window: Option<usize>,
    kv: DType,
    out: DType,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    // Contexts straddle blocks of 16 and chunks of 128; groups straddle the tiles of queries.
    let position = prop_oneof![0..20i32, 100..140i32, 250..262i32];
    // Of many sequences with a row each, KV heads take turns.
    let positions = prop_oneof![(1..=3usize, 1..=9usize), (4..=16usize, Just(1usize))]
        .prop_flat_map(move |(sequences, rows)| {
            prop::collection::vec(prop::collection::vec(position.clone(), rows), sequences)
        });
    // AMX tiles take heads of whole steps of 32 elements.
    let half = prop_oneof![1..=40usize, (1..=4usize).prop_map(|steps| 16 * steps)];
    case_of(positions, 1..=4, 1..=9, half)
}

/// Rows of a prompt: up to more than an item takes, with chunks that all of them see.
fn prompt() -> impl Strategy<Value = Case> {
    let positions =
        (0..200i32, 1..=110i32).prop_map(|(first, rows)| vec![(first..first + rows).collect()]);
    case_of(positions, 1..=2, 1..=9, prop_oneof![1..=20usize, Just(32usize), Just(64usize)])
}

/// Cases of these positions, KV heads, query heads of each and halves of a head's elements.
fn case_of(
    positions: impl Strategy<Value = Vec<Vec<i32>>>,
    kv_heads: RangeInclusive<usize>,
    group: RangeInclusive<usize>,
    half: impl Strategy<Value = usize>,
) -> impl Strategy<Value = Case> {
    let float = || prop_oneof![Just(DType::F32), Just(DType::BF16)];
    let window = prop_oneof![
        3 => Just(None),
        1 => Just(Some(0)),
        4 => prop_oneof![1..3usize, 14..19usize, 100..132usize, 250..270usize].prop_map(Some),
    ];
    // Codes lie together by four.
    let kv = prop_oneof![Just(DType::F32), Just(DType::BF16), Just(DType::I8)];
    (positions, (kv_heads, group, half), window, (kv, float()), any::<u64>()).prop_map(
        |(positions, (kv_heads, group, half), window, (kv, out), seed)| Case {
            positions,
            sizes: Heads {
                heads: kv_heads * group,
                kv_heads,
                d: if kv == DType::I8 { (2 * half).next_multiple_of(4) } else { 2 * half },
            },
            window,
            kv,
            out,
            seed,
        },
    )
}

impl Case {
    fn longest(&self) -> usize {
        self.positions.iter().flatten().max().map_or(0, |&p| p as usize + 1)
    }

    /// Keys and values of a sequence, `[longest, kv heads, d]`.
    fn cache(&self, sequence: usize) -> [Vec<f32>; 2] {
        let len = self.longest() * self.sizes.kv_heads * self.sizes.d;
        let noise = [0, 1].map(|i| noise(self.seed ^ (2 * sequence as u64 + i), len));
        if self.kv == DType::I8 {
            return noise.map(|x| {
                let number = |(codes, scale): (Vec<i8>, f32)| -> Vec<f32> {
                    codes.iter().map(|&code| f32::from(code) * scale).collect()
                };
                x.chunks(self.sizes.d).map(reference::quantize_rows).flat_map(number).collect()
            });
        }
        noise.map(|x| rounded(self.kv, &x))
    }

    /// Queries of a row.
    fn q(&self, sequence: usize, row: usize) -> Vec<f32> {
        let seed = self.seed ^ (1000 + 100 * sequence as u64 + row as u64);
        noise(seed, self.sizes.heads * self.sizes.d).iter().map(|v| 4.0 * v).collect()
    }

    fn sinks(&self) -> Vec<f32> {
        noise(self.seed ^ 99, self.sizes.heads).iter().map(|v| 6.0 * v).collect()
    }

    /// The first token that a row at `position` sees.
    fn first_token(&self, position: i32) -> usize {
        match self.window.unwrap_or(0) {
            0 => 0,
            window => (position as usize + 1).saturating_sub(window),
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.sizes.d as f32).sqrt()
    }

    /// Runs the rows named by sequence and index, as many of each sequence.
    fn run(&self, set: InstructionSet, threads: usize, rows: &[Vec<(usize, usize)>]) -> Vec<f32> {
        let Heads { heads, kv_heads, d } = self.sizes;
        let group = 4 / (self.kv.bits() as usize / 8);
        let kv = Kv { heads: kv_heads, d, group };
        let width = self.longest().div_ceil(BLOCK_TOKENS);
        // Blocks in reverse order; what no row sees is NaN and must not be seen. The last block is
        // the spare one, which the table names where all tokens of a block are before the windows.
        let blocks = rows.len() * width + 1;
        let mut state = vec![f32::NAN; blocks * kv.block_len()];
        let mut codes = vec![0xff; blocks * kv.block_len()];
        let mut table = Vec::new();
        for (i, of_sequence) in rows.iter().enumerate() {
            let [keys, values] = self.cache(of_sequence[0].0);
            let first = blocks - 2 - i * width;
            let positions = of_sequence.iter().map(|&(s, r)| self.positions[s][r]);
            let seen = positions.map(|p| self.first_token(p)).min().unwrap();
            table.extend((0..width).map(|b| {
                let gone = (b + 1) * BLOCK_TOKENS <= seen;
                if gone { blocks as i32 - 1 } else { (first - b) as i32 }
            }));
            if self.kv == DType::I8 {
                let slot =
                    |token: usize| first * BLOCK_TOKENS - token / BLOCK_TOKENS * BLOCK_TOKENS;
                let slots = (seen..self.longest()).map(|t| (slot(t) + t % BLOCK_TOKENS) as i32);
                let from = seen * kv_heads * d;
                let slots: Vec<i32> = slots.collect();
                reference::kv_write_codes(&keys[from..], &values[from..], &slots, kv, &mut codes);
                continue;
            }
            for token in seen..self.longest() {
                let (block, slot) = (first - token / BLOCK_TOKENS, token % BLOCK_TOKENS);
                for head in 0..kv_heads {
                    for j in 0..d {
                        let from = (token * kv_heads + head) * d + j;
                        state[kv.key(block, head, slot, j)] = keys[from];
                        state[kv.value(block, head, slot, j)] = values[from];
                    }
                }
            }
        }
        let all: Vec<_> = rows.concat();
        let q: Vec<f32> = all.iter().flat_map(|&(s, r)| self.q(s, r)).collect();
        let positions: Vec<i32> = all.iter().map(|&(s, r)| self.positions[s][r]).collect();
        let n = heads * d;
        let mut buffers = vec![
            encode(DType::F32, &q),
            match self.kv {
                DType::I8 => codes,
                float => encode(float, &state),
            },
            bytes_of_i32(&table),
            bytes_of_i32(&positions),
            unwritten(self.out, all.len() * n),
        ];
        let mut scalars = ints([all.len(), rows.len(), width, heads, kv_heads, d, BLOCK_TOKENS]);
        scalars.push(Scalar::Float(self.scale()));
        scalars.extend(ints([n, n]));
        let mut name = format!("attention_{}_{}", self.kv, self.out);
        if let Some(window) = self.window {
            name.insert_str(0, "sink_");
            buffers.insert(4, encode(DType::F32, &self.sinks()));
            scalars.extend(ints([window]));
        }
        run(set, threads, &name, &mut buffers, &scalars);
        decode(self.out, &buffers[buffers.len() - 1])
    }

    /// Fails where results of an instruction set are not those of the reference.
    fn matches_the_reference(&self, threads: usize) {
        let width = self.sizes.kv_heads * self.sizes.d;
        for set in InstructionSet::available() {
            let pairs = multiplies_pairs(set) && self.kv == DType::BF16;
            let mut want = Vec::new();
            for &(s, r) in &self.rows().concat() {
                let [keys, values] = self.cache(s);
                let len = (self.positions[s][r] as usize + 1) * width;
                let q = rounded(if pairs { DType::BF16 } else { DType::F32 }, &self.q(s, r));
                let (keys, values) = (&keys[..len], &values[..len]);
                want.extend(match self.window {
                    None => reference::attention(&q, keys, values, self.sizes, self.scale()),
                    Some(window) => {
                        let (sizes, scale, sinks) = (self.sizes, self.scale(), self.sinks());
                        reference::sink_attention(&q, keys, values, sizes, scale, &sinks, window)
                    }
                });
            }
            let got = self.run(set, threads, &self.rows());
            // Scores up to 4 sqrt(d) carry an error of d units each, which is relative in the
            // weights; values are below 1. Products of pairs round the weights as well, those with codes
            // queries and weights, to 2^-15 of the largest.
            let d = self.sizes.d as f64;
            let weights = match self.kv {
                DType::I8 => 2f64.powi(-9) + 4.0 * d.sqrt() * 2f64.powi(-15),
                _ if pairs => 2f64.powi(-9),
                _ => 0.0,
            };
            let bound = (4.0 * d.sqrt() * d + 300.0) * 2f64.powi(-24) + weights;
            let error = worst(&got, &want, |_, v| bound + v.abs() * unit(self.out));
            assert!(error <= 1.0, "{set}: {error} of the bound in {self:?}");
        }
    }

    /// Fails where a row, one in `step` of them, has other bits than by itself.
    fn is_the_same_row_by_row(&self, threads: usize, step: usize) {
        for set in InstructionSet::available() {
            let together = self.run(set, threads, &self.rows());
            let n = self.sizes.heads * self.sizes.d;
            let rows = self.rows().concat();
            for (&row, together) in rows.iter().zip(together.chunks(n)).step_by(step) {
                let alone = self.run(set, 1, &[vec![row]]);
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(together), bits(&alone), "{set}, row {row:?} of {self:?}");
            }
        }
    }

    fn rows(&self) -> Vec<Vec<(usize, usize)>> {
        let of = |(s, rows): (usize, &Vec<i32>)| (0..rows.len()).map(|r| (s, r)).collect();
        self.positions.iter().enumerate().map(of).collect()
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn rows_match_the_reference(case in case(), threads in 1..=3usize) {
        case.matches_the_reference(threads);
    }

    /// A row's bits depend on nothing but the row, its position and its cache.
    #[test]
    fn a_row_is_the_same_in_every_call(case in case(), threads in 1..=4usize) {
        case.is_the_same_row_by_row(threads, 1);
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn rows_of_a_prompt_match_the_reference_and_are_the_same_alone(
        case in prompt(),
        threads in 1..=3usize,
    ) {
        case.matches_the_reference(threads);
        case.is_the_same_row_by_row(threads, 5);
    }
}

/// Heads of models people run, however few cases an emulator is given.
#[test]
fn heads_of_models_match_the_reference_and_are_the_same_alone() {
    for d in [64, 80, 128] {
        for (kv, positions) in [
            (DType::BF16, vec![vec![3, 130, 131]]),
            (DType::BF16, vec![vec![17]; 4]),
            (DType::I8, vec![vec![130]]),
            (DType::BF16, vec![(100..150).collect()]),
            (DType::I8, vec![(100..150).collect()]),
        ] {
            let sizes = Heads { heads: 14, kv_heads: 2, d };
            let case = Case { positions, sizes, window: None, kv, out: DType::BF16, seed: 1 };
            case.matches_the_reference(2);
            case.is_the_same_row_by_row(2, 7);
        }
    }
}

/// Weights are rounded before they are summed up: a token that has nearly all of a row's weight gives nearly its value,
/// however its own weight is rounded, whether or not it is so far above the tokens before that sums are scaled to it.
#[test]
fn a_token_with_nearly_all_weight_gives_its_value() {
    let first = 0;
    // A whole chunk at the end, and a part of one; whole vectors of elements, and some left over.
    for (tokens, last, d) in [(256, 250, 64), (160, 150, 64), (256, 250, 40), (160, 150, 16)] {
        let sizes = Heads { heads: 6, kv_heads: 1, d };
        for (score, kind) in [4.0, 5.0, 5.25, 5.75, 7.0, 20.0]
            .into_iter()
            .flat_map(|score| [DType::F32, DType::BF16].map(|kind| (score, kind)))
        {
            let kv = Kv { heads: 1, d, group: 4 / (kind.bits() as usize / 8) };
            let mut state = vec![0.0; tokens / BLOCK_TOKENS * kv.block_len()];
            for token in 0..tokens {
                let (block, slot) = (token / BLOCK_TOKENS, token % BLOCK_TOKENS);
                let (key, value) = match token {
                    t if t == first => (0.0, -1.0),
                    t if t == last => (score, 1.0),
                    _ => (-60.0, 0.0),
                };
                state[kv.key(block, 0, slot, 0)] = key;
                (0..d).for_each(|j| state[kv.value(block, 0, slot, j)] = value);
            }
            let mut q = vec![0.0; sizes.heads * d];
            q.chunks_mut(d).for_each(|q| q[0] = 1.0);
            let table: Vec<i32> = (0..(tokens / BLOCK_TOKENS) as i32).collect();
            let n = sizes.heads * d;
            let mut scalars = ints([1, 1, table.len(), sizes.heads, 1, d, BLOCK_TOKENS]);
            scalars.push(Scalar::Float(1.0));
            scalars.extend(ints([n, n]));
            let weight = f64::from(score).exp();
            let want = (weight - 1.0) / (weight + 1.0);
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(DType::F32, &q),
                    encode(kind, &state),
                    bytes_of_i32(&table),
                    bytes_of_i32(&[tokens as i32 - 1]),
                    unwritten(DType::F32, n),
                ];
                run(set, 1, &format!("attention_{kind}_f32"), &mut buffers, &scalars);
                for got in decode(DType::F32, &buffers[4]) {
                    let error = (f64::from(got) - want).abs();
                    // Of the little weight of the other token.
                    let bound = 2f64.powi(-7) / weight + 2f64.powi(-20);
                    assert!(
                        error < bound,
                        "{set}, {kind}, {tokens} tokens, {d}, {score}: {got}, not {want}"
                    );
                }
            }
        }
    }
}

/// A sink whose logit is below all scores is none: the row has the bits that it has in plain attention.
#[test]
fn a_sink_without_weight_is_none() {
    let kv = Kv { heads: 1, d: 64, group: 2 };
    let state = rounded(DType::BF16, &noise(1, 2 * kv.block_len()));
    let n = 6 * kv.d;
    for set in InstructionSet::available() {
        let attend = |sink: bool| {
            let mut buffers = vec![
                encode(DType::F32, &noise(2, n)),
                encode(DType::BF16, &state),
                bytes_of_i32(&[0, 1]),
                bytes_of_i32(&[20]),
                unwritten(DType::F32, n),
            ];
            let mut scalars = ints([1, 1, 2, 6, 1, kv.d, BLOCK_TOKENS]);
            scalars.push(Scalar::Float(1.0));
            scalars.extend(ints([n, n]));
            if sink {
                buffers.insert(4, encode(DType::F32, &[f32::NEG_INFINITY; 6]));
                scalars.extend(ints([0]));
            }
            let name = if sink { "sink_attention_bf16_f32" } else { "attention_bf16_f32" };
            run(set, 1, name, &mut buffers, &scalars);
            buffers.pop()
        };
        assert_eq!(attend(true), attend(false), "{set}");
    }
}

/// A value whose scale is no number makes no number of the rows that see it, and of no other.
#[test]
fn codes_that_are_no_numbers_are_not_lost() {
    let kv = Kv { heads: 1, d: 20, group: 4 };
    let x = noise(1, 3 * kv.d);
    let mut state = vec![0; kv.block_len()];
    reference::kv_write_codes(&x, &x, &[0, 1, 2], kv, &mut state);
    let scale = kv.values(0, 0) + kv.scales() + 2 * size_of::<f32>();
    for number in [f32::NAN, f32::INFINITY] {
        state[scale..scale + size_of::<f32>()].copy_from_slice(&number.to_le_bytes());
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(DType::F32, &noise(2, 2 * kv.d)),
                state.clone(),
                bytes_of_i32(&[0]),
                bytes_of_i32(&[1, 2]),
                unwritten(DType::F32, 2 * kv.d),
            ];
            let mut scalars = ints([2, 1, 1, 1, 1, kv.d, BLOCK_TOKENS]);
            scalars.push(Scalar::Float(1.0));
            scalars.extend(ints([kv.d, kv.d]));
            run(set, 1, "attention_i8_f32", &mut buffers, &scalars);
            let out = decode(DType::F32, &buffers[4]);
            assert!(out[..kv.d].iter().all(|v| v.is_finite()), "{set} {number}");
            assert!(out[kv.d..].iter().all(|v| !v.is_finite()), "{set} {number}");
        }
    }
}

/// A value that is no number makes no number of the rows that see its token, and leaves others as they are, in a block
/// of which rows see different tokens.
#[test]
fn values_that_are_no_numbers_are_for_those_that_see_them() {
    const WINDOW: usize = 17;
    for (d, group) in [(2, 1), (32, 3), (96, 20)] {
        let (kv, n) = (Kv { heads: 1, d, group: 2 }, group * d);
        let state = rounded(DType::BF16, &noise(1, 2 * kv.block_len()));
        let q = noise(2, 4 * n);
        // The number is behind what some rows see, or before it.
        for (positions, token) in [([1, 2, 3, 1], 2), ([17, 18, 19, 20], 2)] {
            let sees = |position: usize| {
                (position + 1 - WINDOW.min(position + 1)..=position).contains(&token)
            };
            for number in [f32::NAN, f32::INFINITY] {
                let mut state = state.clone();
                state[kv.value(0, 0, token, d - 1)] = number;
                for set in InstructionSet::available() {
                    let attend = |rows: &[usize]| {
                        let q: Vec<f32> =
                            rows.iter().flat_map(|r| &q[r * n..][..n]).copied().collect();
                        let positions: Vec<i32> =
                            rows.iter().map(|&r| positions[r] as i32).collect();
                        let mut buffers = vec![
                            encode(DType::F32, &q),
                            encode(DType::BF16, &state),
                            bytes_of_i32(&[0, 1]),
                            bytes_of_i32(&positions),
                            encode(DType::F32, &vec![0.0; group]),
                            unwritten(DType::F32, rows.len() * n),
                        ];
                        let mut scalars = ints([rows.len(), 1, 2, group, 1, d, BLOCK_TOKENS]);
                        scalars.push(Scalar::Float(1.0));
                        scalars.extend(ints([n, n, WINDOW]));
                        run(set, 1, "sink_attention_bf16_f32", &mut buffers, &scalars);
                        decode(DType::F32, &buffers[5])
                    };
                    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    let together = attend(&[0, 1, 2, 3]);
                    for (r, row) in together.chunks(n).enumerate() {
                        for (j, v) in row.iter().enumerate() {
                            let wild = j % d == d - 1 && sees(positions[r]);
                            assert_eq!(
                                v.is_finite(),
                                !wild,
                                "{set}, {number} at {token}, row {r}, d {d}, {j}"
                            );
                        }
                        if !sees(positions[r]) {
                            assert_eq!(bits(row), bits(&attend(&[r])), "{set}, row {r}");
                        }
                    }
                }
            }
        }
    }
}

/// Entries and positions outside their range are clamped, as documented.
#[test]
fn wild_indices_are_clamped() {
    let kv = Kv { heads: 1, d: 2, group: 1 };
    let state = noise(1, 2 * kv.block_len());
    for set in InstructionSet::available() {
        let attend = |table: [i32; 2], position: i32| {
            let mut buffers = vec![
                encode(DType::F32, &[0.5, -0.5]),
                encode(DType::F32, &state),
                bytes_of_i32(&table),
                bytes_of_i32(&[position]),
                unwritten(DType::F32, 2),
            ];
            let mut scalars = ints([1, 1, 2, 1, 1, 2, BLOCK_TOKENS]);
            scalars.push(Scalar::Float(1.0));
            scalars.extend(ints([2, 2]));
            run(set, 1, "attention_f32_f32", &mut buffers, &scalars);
            decode(DType::F32, &buffers[4])
        };
        assert_eq!(attend([i32::MAX, -7], 40), attend([1, 1], 31), "{set}");
        assert_eq!(attend([0, 1], i32::MIN), attend([0, 1], 0), "{set}");
    }
}
