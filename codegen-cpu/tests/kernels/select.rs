//! The indexer.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{
    InstructionSet,
    kernels::{kv::BLOCK_TOKENS, reference},
};
use proptest::prelude::*;
use tensor::DType;

#[derive(Clone, Debug)]
struct Case {
    /// Positions of the rows of each sequence.
    positions: Vec<Vec<i32>>,
    heads: usize,
    d: usize,
    keys: usize,
    kv: DType,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let position = prop_oneof![0..20i32, 60..68i32, 120..200i32];
    let heads = prop_oneof![4 => 1..=9usize, 1 => 15..=18usize, 1 => 62..=70usize];
    (
        (1..=3usize, prop_oneof![1..=2usize, 3..=20usize]).prop_flat_map(
            move |(sequences, rows)| {
                prop::collection::vec(prop::collection::vec(position.clone(), rows), sequences)
            },
        ),
        (heads, 1..=130usize, 1..=90usize),
        prop_oneof![Just(DType::F32), Just(DType::BF16)],
        any::<u64>(),
    )
        .prop_map(|(positions, (heads, d, keys), kv, seed)| Case {
            positions,
            heads,
            d,
            keys,
            kv,
            seed,
        })
}

type Row = (usize, usize);

/// Whole numbers from -2 to 2: sums of their products are exact, and often equal.
fn whole(seed: u64, len: usize) -> Vec<f32> {
    noise(seed, len).iter().map(|v| (2.4 * v).round()).collect()
}

impl Case {
    fn longest(&self) -> usize {
        self.positions.iter().flatten().max().map_or(0, |&p| p as usize + 1)
    }

    fn cache(&self, sequence: usize) -> Vec<f32> {
        whole(self.seed ^ sequence as u64, self.longest() * self.d)
    }

    /// Queries and weights of a row.
    fn q(&self, (sequence, row): Row) -> [Vec<f32>; 2] {
        let seed = self.seed ^ (1000 + 100 * sequence as u64 + row as u64);
        [whole(seed, self.heads * self.d), whole(seed ^ 0x5555, self.heads)]
    }

    fn reference(&self, row: Row) -> Vec<i32> {
        let context = self.positions[row.0][row.1] as usize + 1;
        let ([q, weights], keys) = (self.q(row), self.cache(row.0));
        reference::select_keys(&q, &weights, &keys[..context * self.d], self.d, 0.25, self.keys)
    }

    /// Runs some rows, as many of each sequence.
    fn run(&self, set: InstructionSet, threads: usize, rows: &[Vec<Row>]) -> Vec<i32> {
        let (heads, d, keys) = (self.heads, self.d, self.keys);
        let width = self.longest().div_ceil(BLOCK_TOKENS);
        // Blocks in reverse order; keys that no row sees would be the best.
        let blocks = rows.len() * width;
        let mut state = vec![f32::INFINITY; blocks * BLOCK_TOKENS * d];
        let mut table = Vec::new();
        for (i, of_sequence) in rows.iter().enumerate() {
            let cache = self.cache(of_sequence[0].0);
            let first = blocks - 1 - i * width;
            table.extend((0..width).map(|b| (first - b) as i32));
            let context = of_sequence.iter().map(|&(s, r)| self.positions[s][r]).max().unwrap() + 1;
            for place in 0..context as usize {
                let slot = (first - place / BLOCK_TOKENS) * BLOCK_TOKENS + place % BLOCK_TOKENS;
                state[slot * d..][..d].copy_from_slice(&cache[place * d..][..d]);
            }
        }
        let all: Vec<_> = rows.concat();
        let q = |i: usize| all.iter().flat_map(|&row| self.q(row)[i].clone()).collect::<Vec<_>>();
        let positions: Vec<i32> = all.iter().map(|&(s, r)| self.positions[s][r]).collect();
        let mut buffers = vec![
            encode(DType::F32, &spread(&q(0), heads * d, heads * d + 3)),
            encode(DType::F32, &spread(&q(1), heads, heads + 2)),
            encode(self.kv, &state),
            bytes_of_i32(&table),
            bytes_of_i32(&positions),
            bytes_of_i32(&vec![i32::MIN; all.len() * keys]),
        ];
        let mut scalars = ints([all.len(), rows.len(), width, heads, d, BLOCK_TOKENS, keys]);
        scalars.push(Scalar::Float(0.25));
        scalars.extend(ints([heads * d + 3, heads + 2, keys]));
        run(set, threads, &format!("select_keys_{}", self.kv), &mut buffers, &scalars);
        to_i32(&buffers[5])
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn the_best_places_are_chosen_in_any_company(case in case(), threads in 1..=4usize) {
        let of = |(s, rows): (usize, &Vec<i32>)| (0..rows.len()).map(|r| (s, r)).collect();
        let rows: Vec<Vec<Row>> = case.positions.iter().enumerate().map(of).collect();
        let want: Vec<i32> =
            rows.concat().iter().flat_map(|&row| case.reference(row)).collect();
        for set in InstructionSet::available() {
            prop_assert_eq!(&case.run(set, threads, &rows), &want, "{}", set);
            for (&row, want) in rows.concat().iter().zip(want.chunks(case.keys)).take(3) {
                prop_assert_eq!(&case.run(set, 1, &[vec![row]])[..], want, "{}", set);
            }
        }
    }
}

/// Entries and positions outside their range are clamped, scores without a number are the least.
#[test]
fn wild_data_has_an_outcome() {
    let mut state = vec![1.0; 2 * BLOCK_TOKENS];
    (state[3], state[BLOCK_TOKENS + 3], state[BLOCK_TOKENS + 5]) = (9.0, 5.0, f32::NAN);
    for set in InstructionSet::available() {
        let select = |table: [i32; 2], position: i32, weight: f32| {
            let mut buffers = vec![
                encode(DType::F32, &[1.0]),
                encode(DType::F32, &[weight]),
                encode(DType::F32, &state),
                bytes_of_i32(&table),
                bytes_of_i32(&[position]),
                bytes_of_i32(&[7, 7]),
            ];
            let mut scalars = ints([1, 1, 2, 1, 1, BLOCK_TOKENS, 2]);
            scalars.push(Scalar::Float(1.0));
            scalars.extend(ints([1, 1, 2]));
            run(set, 2, "select_keys_f32", &mut buffers, &scalars);
            to_i32(&buffers[5])
        };
        assert_eq!(select([0, i32::MAX], 40, 1.0), [3, BLOCK_TOKENS as i32 + 3], "{set}");
        assert_eq!(select([-1, 0], 31, 1.0), [3, BLOCK_TOKENS as i32 + 3], "{set}");
        assert_eq!(select([0, 1], i32::MIN, 1.0), [0, -1], "{set}");
        assert_eq!(select([0, 1], 20, f32::NAN), [0, 1], "{set}");
    }
}
