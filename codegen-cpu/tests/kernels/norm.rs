//! Normalisation.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

const EPS: f32 = 1e-6;

fn float() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::BF16)]
}

/// A few units of `f32` of the row's largest output, and the rounding of the result.
fn check(got: &[f32], want: &[f64], n: usize, out: DType) -> f64 {
    let rows = got.chunks(n).zip(want.chunks(n));
    rows.map(|(got, want)| {
        let peak = want.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
        worst(got, want, |_, v| 2e-6 * peak + v.abs() * unit(out))
    })
    .max_by(f64::total_cmp)
    .unwrap_or(0.0)
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn rms_norm_matches_the_reference(
        (rows, groups, n, pad) in (1..5usize, 1..4usize, 1..200usize, 0..5usize),
        (x_type, out_type) in (float(), float()),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (width, stride) = (groups * n, groups * n + pad);
        let x = rounded(x_type, &noise(seed, rows * width));
        let weight = noise(seed ^ 1, n);
        let want: Vec<f64> =
            x.chunks(n).flat_map(|x| reference::rms_norm(x, &weight, EPS)).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(x_type, &spread(&x, width, stride)),
                encode(DType::F32, &weight),
                unwritten(out_type, rows * stride),
            ];
            let mut scalars = ints([rows, groups, n, stride, stride]);
            scalars.push(Scalar::Float(EPS));
            run(set, threads, &format!("rms_norm_{x_type}_{out_type}"), &mut buffers, &scalars);
            let got = gathered(&decode(out_type, &buffers[2]), width, stride);
            let error = check(&got, &want, n, out_type);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn layer_norm_matches_the_reference(
        (rows, groups, n, pad) in (1..5usize, 1..4usize, 1..200usize, 0..5usize),
        (x_type, out_type) in (float(), float()),
        threads in 1..=3usize,
        offset in -3f32..3.0,
        seed in any::<u64>(),
    ) {
        let (width, stride) = (groups * n, groups * n + pad);
        let x: Vec<f32> = noise(seed, rows * width).iter().map(|v| v + offset).collect();
        let x = rounded(x_type, &x);
        let (weight, bias) = (noise(seed ^ 1, n), noise(seed ^ 2, n));
        let eps = 1e-3;
        let want: Vec<f64> =
            x.chunks(n).flat_map(|x| reference::layer_norm(x, &weight, &bias, eps)).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(x_type, &spread(&x, width, stride)),
                encode(DType::F32, &weight),
                encode(DType::F32, &bias),
                unwritten(out_type, rows * stride),
            ];
            let mut scalars = ints([rows, groups, n, stride, stride]);
            scalars.push(Scalar::Float(eps));
            run(set, threads, &format!("layer_norm_{x_type}_{out_type}"), &mut buffers, &scalars);
            let got = gathered(&decode(out_type, &buffers[3]), width, stride);
            // The mean of values up to 4 is known to a unit of them, and differences from it are
            // divided by at least the root of eps.
            let error = worst(&got, &want, |_, v| 4e-6 / eps.sqrt() as f64 + v.abs() * unit(out_type));
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn add_rms_norm_is_a_sum_and_its_norm(
        (rows, n) in (1..5usize, 1..200usize),
        out_type in float(),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (a, b, weight) =
            (noise(seed, rows * n), noise(seed ^ 1, rows * n), noise(seed ^ 2, n));
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let want: Vec<f64> =
            sum.chunks(n).flat_map(|x| reference::rms_norm(x, &weight, EPS)).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(DType::F32, &a),
                encode(DType::F32, &b),
                encode(DType::F32, &weight),
                unwritten(DType::F32, rows * n),
                unwritten(out_type, rows * n),
            ];
            let mut scalars = ints([rows, n, n, n, n, n]);
            scalars.push(Scalar::Float(EPS));
            run(set, threads, &format!("add_rms_norm_{out_type}"), &mut buffers, &scalars);
            prop_assert_eq!(&decode(DType::F32, &buffers[3]), &sum);
            let error = check(&decode(out_type, &buffers[4]), &want, n, out_type);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }

    #[test]
    fn l2_norm_matches_the_reference(
        (rows, groups, n, pad) in (1..5usize, 1..4usize, 1..200usize, 0..5usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (width, stride, scale) = (groups * n, groups * n + pad, 0.25);
        let x = noise(seed, rows * width);
        let want: Vec<f64> =
            x.chunks(n).flat_map(|x| reference::l2_norm(x, EPS, scale)).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![
                encode(DType::F32, &spread(&x, width, stride)),
                unwritten(DType::F32, rows * stride),
            ];
            let mut scalars = ints([rows, groups, n, stride, stride]);
            scalars.extend([Scalar::Float(EPS), Scalar::Float(scale)]);
            run(set, threads, "l2_norm_f32", &mut buffers, &scalars);
            let got = gathered(&decode(DType::F32, &buffers[1]), width, stride);
            let error = check(&got, &want, n, DType::F32);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
        }
    }
}
