//! Rotary embedding.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn tables_are_right_at_any_position(
        positions in prop::collection::vec(prop_oneof![0..64i32, 0..2_000_000i32, -3..0i32], 1..6),
        half in 1..70usize,
        factor in 0.5f32..1.5,
        threads in 1..=3usize,
    ) {
        let frequencies: Vec<f32> =
            (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
        let want: Vec<f64> = positions
            .iter()
            .flat_map(|&p| reference::rope_row(p, &frequencies, factor))
            .collect();
        for set in InstructionSet::available() {
            let mut buffers =
                vec![bytes_of_i32(&positions), unwritten(DType::F32, positions.len() * 2 * half)];
            let mut scalars = ints([positions.len(), half]);
            scalars.push(Scalar::Float(factor));
            scalars.extend(frequencies.iter().map(|&f| Scalar::Float(f)));
            run(set, threads, "rope_table", &mut buffers, &scalars);
            // Two roundings of f32: of the function and of the product.
            let error = worst(&decode(DType::F32, &buffers[1]), &want, |_, _| 2.4e-7);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn heads_are_rotated(
        (rows, heads, half, rest) in (1..4usize, 1..4usize, 1..40usize, 0..20usize),
        interleaved in any::<bool>(),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (r, d) = (2 * half, 2 * half + rest);
        let (x, table) = (noise(seed, rows * heads * d), noise(seed ^ 1, rows * r));
        let want: Vec<f64> = x
            .chunks(d)
            .enumerate()
            .flat_map(|(i, x)| {
                reference::rotary(x, &table[i / heads * r..][..r], interleaved)
            })
            .collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(DType::F32, &x),
                encode(DType::F32, &table),
                unwritten(DType::F32, x.len()),
            ];
            let width = heads * d;
            let scalars = ints([rows, heads, d, r, usize::from(interleaved), width, width]);
            run(set, threads, "rotary_f32", &mut buffers, &scalars);
            // Two products of numbers below 1 and their sum.
            let error = worst(&decode(DType::F32, &buffers[2]), &want, |_, _| 2.4e-7);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }
}
