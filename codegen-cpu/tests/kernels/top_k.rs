//! The largest of rows in order, found in a product's panels or by themselves.

use crate::support::*;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

const F32: DType = DType::F32;

/// Numbers of which many are equal, or few; some are none.
fn row() -> impl Strategy<Value = Vec<f32>> {
    const ODD: [f32; 6] = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 0.0, 1e-40, 3.0];
    prop_oneof![1..200usize, 1000..3000usize].prop_flat_map(|n| {
        let many = prop_oneof![30 => -9.0f32..9.0, 1 => prop::sample::select(&ODD[..])];
        prop_oneof![
            2 => prop::collection::vec(many, n),
            2 => prop::collection::vec((-3i8..3).prop_map(f32::from), n),
            1 => prop::collection::vec(prop::sample::select(&ODD[..]), n),
            1 => Just(vec![f32::NAN; n]),
            1 => Just((0..n).map(|i| i as f32).collect()),
            1 => Just((0..n).map(|i| -(i as f32)).collect()),
        ]
    })
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_largest_come_in_order(
        row in row(),
        (share, most, whole) in (0.0f64..1.0, prop_oneof![Just(80usize), Just(1024)], any::<bool>()),
        (rows, threads) in (1..=4usize, 1..=3usize),
    ) {
        let n = row.len();
        let k = if whole { n.min(most) } else { 1 + (share * n.min(most) as f64) as usize };
        let k = k.min(n).min(most);
        // Products with one input are the weights, or the weights negated.
        let x: Vec<f32> = (0..rows).map(|r| if r % 2 == 0 { 1.0 } else { -1.0 }).collect();
        for set in InstructionSet::available() {
            let panel_bytes = vec![0xff; 4 * rows * n.div_ceil(64)];
            let found = || [unwritten(F32, rows * k), bytes_of_i32(&vec![-7; rows * k])];
            let mut joined = vec![encode(F32, &x), panels(F32, &row, n, 1), unwritten(F32, rows * n)];
            joined.extend(found());
            joined.push(panel_bytes);
            let mut scalars = ints([rows, n, 1, 1, n]);
            scalars.extend(End { top_k: k, ..End::default() }.scalars());
            run(set, threads, "linear_matmul_f32_f32", &mut joined, &scalars);
            let values = decode(F32, &joined[2]);
            let best: Vec<usize> =
                values.chunks(n).flat_map(|row| reference::top_k(row, k)).collect();
            let ids: Vec<i32> = best.iter().map(|&id| id as i32).collect();
            let want: Vec<f32> =
                best.iter().enumerate().map(|(i, id)| values[i / k * n + id]).collect();
            prop_assert_eq!(&to_i32(&joined[4]), &ids, "{} of a product", set);
            prop_assert_eq!(bits(&decode(F32, &joined[3])), bits(&want), "{} of a product", set);

            let mut apart = vec![encode(F32, &spread(&values, n, n + 3))];
            apart.extend(found());
            run(set, threads, "top_k_f32", &mut apart, &ints([rows, n, k, n + 3]));
            prop_assert_eq!(&to_i32(&apart[2]), &ids, "{}", set);
            prop_assert_eq!(bits(&decode(F32, &apart[1])), bits(&want), "{}", set);
        }
    }
}
