//! Latent attention, whole and sparse.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{
    InstructionSet,
    kernels::{
        kv::BLOCK_TOKENS,
        reference::{self, LatentHeads},
    },
};
use proptest::prelude::*;
use tensor::DType;

#[derive(Clone, Debug)]
struct Case {
    /// Positions of the rows of each sequence.
    positions: Vec<Vec<i32>>,
    sizes: LatentHeads,
    /// Entries of a row's selection, if there is one.
    selected: Option<usize>,
    kv: DType,
    out: DType,
    seed: u64,
    /// A place whose latent is no number.
    spoilt: Option<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let float = || prop_oneof![Just(DType::F32), Just(DType::BF16)];
    // Contexts straddle blocks of 16 and chunks of 64; heads straddle vectors and items of 64.
    let position = prop_oneof![0..20i32, 60..68i32, 120..132i32];
    let heads = prop_oneof![4 => 1..=9usize, 1 => 15..=18usize, 2 => 60..=70usize];
    // Latents straddle vectors and strips of 64, and blocks of 64 pairs.
    let half = prop_oneof![1..=20usize, 30..=34usize, 60..=70usize];
    let selected = prop_oneof![1 => Just(None), 1 => (1..=80usize).prop_map(Some)];
    (
        (1..=3usize, prop_oneof![1..=3usize, 4..=20usize]).prop_flat_map(
            move |(sequences, rows)| {
                prop::collection::vec(prop::collection::vec(position.clone(), rows), sequences)
            },
        ),
        (heads, half, 1..=9usize),
        selected,
        (float(), float()),
        any::<u64>(),
    )
        .prop_map(|(positions, (heads, c, r), selected, (kv, out), seed)| Case {
            positions,
            sizes: LatentHeads { heads, c: 2 * c, r: 2 * r },
            selected,
            kv,
            out,
            seed,
            spoilt: None,
        })
}

/// A row of a case: sequence and index.
type Row = (usize, usize);

impl Case {
    fn longest(&self) -> usize {
        self.positions.iter().flatten().max().map_or(0, |&p| p as usize + 1)
    }

    /// Latents and rotated keys of a sequence, `[longest, C]` and `[longest, R]`.
    fn cache(&self, sequence: usize) -> [Vec<f32>; 2] {
        let of = |i: u64, n: usize| {
            rounded(self.kv, &noise(self.seed ^ (2 * sequence as u64 + i), self.longest() * n))
        };
        [of(0, self.sizes.c), of(1, self.sizes.r)]
    }

    /// Queries of a row. With the scale a power of two they are exact in the type of the memory,
    /// so that rounding them there changes nothing.
    fn q(&self, (sequence, row): Row) -> [Vec<f32>; 2] {
        let seed = self.seed ^ (1000 + 100 * sequence as u64 + row as u64);
        let of = |seed, n: usize| {
            let q: Vec<f32> = noise(seed, self.sizes.heads * n).iter().map(|v| 4.0 * v).collect();
            rounded(self.kv, &q)
        };
        [of(seed, self.sizes.c), of(seed ^ 0x5555, self.sizes.r)]
    }

    fn scale(&self) -> f32 {
        let d = (self.sizes.c + self.sizes.r) as f32;
        (-d.sqrt().log2().round()).exp2()
    }

    /// Places that a row attends to.
    fn places(&self, (sequence, row): Row) -> Vec<usize> {
        let context = self.positions[sequence][row] as usize + 1;
        let seed = self.seed ^ (77 + 100 * sequence as u64 + row as u64);
        let some = noise(seed, context);
        let chosen = (0..context).filter(|&j| some[j] < 0.0 || j + 1 == context);
        match self.selected {
            Some(count) => chosen.take(count).collect(),
            None => (0..context).collect(),
        }
    }

    fn reference(&self, row: Row) -> Vec<f64> {
        let LatentHeads { c, r, .. } = self.sizes;
        let ([latents, ropes], [q_latent, q_rope]) = (self.cache(row.0), self.q(row));
        let at = |rows: &[f32], n: usize| -> Vec<f32> {
            self.places(row).iter().flat_map(|&j| rows[j * n..][..n].to_vec()).collect()
        };
        let (latents, ropes) = (at(&latents, c), at(&ropes, r));
        reference::latent_attention(&q_latent, &q_rope, &latents, &ropes, self.sizes, self.scale())
    }

    /// Runs some rows, as many of each sequence.
    fn run(&self, set: InstructionSet, threads: usize, rows: &[Vec<Row>]) -> Vec<f32> {
        let LatentHeads { heads, c, r } = self.sizes;
        let width = self.longest().div_ceil(BLOCK_TOKENS);
        // Blocks in reverse order; places that no row attends to are NaN and must not be seen.
        let blocks = rows.len() * width;
        let mut latent = vec![f32::NAN; blocks * BLOCK_TOKENS * c];
        let mut rope = vec![f32::NAN; blocks * BLOCK_TOKENS * r];
        let mut table = Vec::new();
        for (i, of_sequence) in rows.iter().enumerate() {
            let [latents, ropes] = self.cache(of_sequence[0].0);
            let first = blocks - 1 - i * width;
            table.extend((0..width).map(|b| (first - b) as i32));
            for place in of_sequence.iter().flat_map(|&row| self.places(row)) {
                let slot = (first - place / BLOCK_TOKENS) * BLOCK_TOKENS + place % BLOCK_TOKENS;
                latent[slot * c..][..c].copy_from_slice(&latents[place * c..][..c]);
                if self.spoilt == Some(place) {
                    latent[slot * c..][..c].fill(f32::INFINITY);
                }
                rope[slot * r..][..r].copy_from_slice(&ropes[place * r..][..r]);
            }
        }
        let all: Vec<_> = rows.concat();
        let q = |i: usize| all.iter().flat_map(|&row| self.q(row)[i].clone()).collect::<Vec<_>>();
        let positions: Vec<i32> = all.iter().map(|&(s, r)| self.positions[s][r]).collect();
        let (c_stride, r_stride) = (heads * c + 3, heads * r + 5);
        let mut buffers = vec![
            encode(DType::F32, &spread(&q(0), heads * c, c_stride)),
            encode(DType::F32, &spread(&q(1), heads * r, r_stride)),
            encode(self.kv, &latent),
            encode(self.kv, &rope),
            bytes_of_i32(&table),
            bytes_of_i32(&positions),
            unwritten(self.out, all.len() * c_stride),
        ];
        let mut scalars = ints([all.len(), rows.len(), width, heads, c, r, BLOCK_TOKENS]);
        scalars.push(Scalar::Float(self.scale()));
        scalars.extend(ints([c_stride, r_stride, c_stride]));
        let mut name = format!("latent_attention_{}_{}", self.kv, self.out);
        if let Some(count) = self.selected {
            name.insert_str(0, "sparse_");
            let mut selected = Vec::new();
            for &row in &all {
                let places = self.places(row).into_iter().map(|p| p as i32);
                selected.extend(places.chain(std::iter::repeat(-1)).take(count));
            }
            buffers.insert(6, bytes_of_i32(&selected));
            scalars.extend(ints([count, count]));
        }
        run(set, threads, &name, &mut buffers, &scalars);
        gathered(&decode(self.out, &buffers[buffers.len() - 1]), heads * c, c_stride)
    }

    fn rows(&self) -> Vec<Vec<Row>> {
        let of = |(s, rows): (usize, &Vec<i32>)| (0..rows.len()).map(|r| (s, r)).collect();
        self.positions.iter().enumerate().map(of).collect()
    }
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn rows_match_the_reference(case in case(), threads in 1..=3usize) {
        let rows = case.rows().concat();
        let want: Vec<f64> = rows.iter().flat_map(|&row| case.reference(row)).collect();
        for set in InstructionSet::available() {
            let got = case.run(set, threads, &case.rows());
            // Scores up to 4 sqrt(d) carry an error of d units each, which is relative in the
            // weights; values are below 1. Products of pairs round the weights as well.
            let d = (case.sizes.c + case.sizes.r) as f64;
            let pairs = multiplies_pairs(set) && case.kv == DType::BF16;
            let weights = if pairs { 2f64.powi(-8) } else { 0.0 };
            let bound = (8.0 * d.sqrt() * d + 300.0) * 2f64.powi(-24) + weights;
            let error = worst(&got, &want, |_, v| bound + v.abs() * unit(case.out));
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    /// A row's bits depend on nothing but the row, its position and its places.
    #[test]
    fn a_row_is_the_same_in_every_call(case in case(), threads in 1..=4usize) {
        for set in InstructionSet::available() {
            let together = case.run(set, threads, &case.rows());
            let n = case.sizes.heads * case.sizes.c;
            for (&row, together) in case.rows().concat().iter().zip(together.chunks(n)) {
                let alone = case.run(set, 1, &[vec![row]]);
                prop_assert_eq!(bits(together), bits(&alone), "{}", set);
            }
        }
    }
}

/// Decode, a chunk of a prompt and a batch at the sizes of the largest models.
#[test]
fn large_rows_match_the_reference_in_every_company() {
    let case = Case {
        positions: vec![(126..130).collect()],
        sizes: LatentHeads { heads: 128, c: 512, r: 64 },
        selected: None,
        kv: DType::BF16,
        out: DType::F32,
        seed: 5,
        spoilt: None,
    };
    let rows = case.rows();
    let want: Vec<f64> = rows[0].iter().flat_map(|&row| case.reference(row)).collect();
    for set in InstructionSet::available() {
        let chunk = case.run(set, 2, &rows);
        let error = worst(&chunk, &want, |_, _| 2f64.powi(-8));
        assert!(error <= 1.0, "{set}: {error} of the bound");
        let batch: Vec<Vec<Row>> = rows[0].iter().map(|&row| vec![row]).collect();
        assert_eq!(bits(&chunk), bits(&case.run(set, 3, &batch)), "{set}");
        let alone: Vec<f32> =
            batch.iter().flat_map(|row| case.run(set, 1, std::slice::from_ref(row))).collect();
        assert_eq!(bits(&chunk), bits(&alone), "{set}");
    }
}

/// What a later row of a prompt reads is not in the sums of an earlier one, not even times zero.
#[test]
fn later_places_do_not_spoil_earlier_rows() {
    for (kv, last) in [(DType::BF16, 70), (DType::BF16, 95), (DType::F32, 70)] {
        let case = Case {
            positions: vec![(0..=last).collect()],
            sizes: LatentHeads { heads: 3, c: 70, r: 6 },
            selected: None,
            kv,
            out: DType::F32,
            seed: 9,
            spoilt: None,
        };
        let spoilt = Case { spoilt: Some(last as usize), ..case.clone() };
        let n = last as usize * case.sizes.heads * case.sizes.c;
        for set in InstructionSet::available() {
            let [clean, spoilt] = [&case, &spoilt].map(|case| case.run(set, 1, &case.rows()));
            assert_eq!(bits(&clean[..n]), bits(&spoilt[..n]), "{set}");
            assert!(spoilt[n..].iter().any(|v| !v.is_finite()), "{set}");
        }
    }
}

/// Entries and positions outside their range, as documented.
#[test]
fn wild_indices_are_clamped() {
    let (latent, rope) = (noise(1, 2 * BLOCK_TOKENS * 2), noise(2, 2 * BLOCK_TOKENS));
    for set in InstructionSet::available() {
        let attend = |table: [i32; 2], position: i32, selected: Option<[i32; 3]>| {
            let mut buffers = vec![
                encode(DType::F32, &[0.5, -0.5]),
                encode(DType::F32, &[2.0]),
                encode(DType::F32, &latent),
                encode(DType::F32, &rope),
                bytes_of_i32(&table),
                bytes_of_i32(&[position]),
                unwritten(DType::F32, 2),
            ];
            let mut scalars = ints([1, 1, 2, 1, 2, 1, BLOCK_TOKENS]);
            scalars.push(Scalar::Float(1.0));
            scalars.extend(ints([2, 1, 2]));
            let mut name = "latent_attention_f32_f32".to_owned();
            if let Some(selected) = selected {
                name.insert_str(0, "sparse_");
                buffers.insert(6, bytes_of_i32(&selected));
                scalars.extend(ints([3, 3]));
            }
            run(set, 1, &name, &mut buffers, &scalars);
            decode(DType::F32, &buffers[buffers.len() - 1])
        };
        assert_eq!(attend([i32::MAX, -7], 40, None), attend([1, 1], 31, None), "{set}");
        assert_eq!(attend([0, 1], i32::MIN, None), attend([0, 1], 0, None), "{set}");
        let some = |places| attend([0, 1], 20, Some(places));
        assert_eq!(some([3, 21, 7]), some([3, 7, -1]), "{set}: past the position");
        assert_eq!(some([i32::MAX, i32::MIN, 7]), some([7, -1, -1]), "{set}");
        assert_eq!(some([-1, -1, -1]), [0.0, 0.0], "{set}: no place");
    }
}
