//! Kernels that work element by element, and the largest of a row.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn casts_round_to_nearest_even(
        (rows, n, pad) in (1..5usize, 1..150usize, 0..5usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let stride = n + pad;
        for (from, to) in FLOATS.iter().flat_map(|&a| FLOATS.map(|b| (a, b))) {
            let x = rounded(from, &noise(seed, rows * n));
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(from, &spread(&x, n, stride)),
                    unwritten(to, rows * stride),
                ];
                let scalars = ints([rows, n, stride, stride]);
                run(set, threads, &format!("cast_{from}_{to}"), &mut buffers, &scalars);
                let got = gathered(&decode(to, &buffers[1]), n, stride);
                prop_assert_eq!(&got, &rounded(to, &x), "{} {} {}", set, from, to);
            }
        }
    }

    #[test]
    fn sums_and_products_are_exact(
        (rows, n) in (1..5usize, 1..150usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (a, b) = (noise(seed, rows * n), noise(seed ^ 1, rows * n));
        let zip = |f: fn(f32, f32) -> f32| -> Vec<f32> {
            a.iter().zip(&b).map(|(&a, &b)| f(a, b)).collect()
        };
        let biased = reference::add_bias(&a, &b[..n]);
        for set in InstructionSet::available() {
            for (kernel, want) in [("add_f32", zip(|a, b| a + b)), ("mul_f32", zip(|a, b| a * b))] {
                let mut buffers = vec![
                    encode(DType::F32, &a),
                    encode(DType::F32, &b),
                    unwritten(DType::F32, rows * n),
                ];
                run(set, threads, kernel, &mut buffers, &ints([rows, n, n, n, n]));
                prop_assert_eq!(&decode(DType::F32, &buffers[2]), &want, "{} {}", set, kernel);
            }
            let mut buffers = vec![
                encode(DType::F32, &a),
                encode(DType::F32, &b[..n]),
                unwritten(DType::F32, rows * n),
            ];
            run(set, threads, "add_bias_f32", &mut buffers, &ints([rows, n, n, n]));
            prop_assert_eq!(&decode(DType::F32, &buffers[2]), &biased, "{}", set);
        }
    }

    #[test]
    fn silu_matches_the_reference(
        x in prop::collection::vec(prop_oneof![-20f32..20.0, -200f32..200.0, -1e-3f32..1e-3], 1..80),
        threads in 1..=3usize,
    ) {
        let n = x.len();
        let up = noise(n as u64, n);
        let want: Vec<f64> = x.iter().map(|&x| reference::silu(f64::from(x))).collect();
        let gated: Vec<f64> = want.iter().zip(&up).map(|(s, &u)| s * f64::from(u)).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![encode(DType::F32, &x), unwritten(DType::F32, n)];
            run(set, threads, "silu_f32", &mut buffers, &ints([1, n, n, n]));
            // The exponential, the sum and the quotient: two units each. Below -87 the result is
            // too small for a normal number and may be zero.
            let error = worst(&decode(DType::F32, &buffers[1]), &want, |_, v| v.abs() * 6e-7 + 1e-35);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
            for out in FLOATS {
                let mut buffers =
                    vec![encode(DType::F32, &x), encode(DType::F32, &up), unwritten(out, n)];
                run(set, threads, &format!("silu_mul_{out}"), &mut buffers, &ints([1, n, n, n, n]));
                let error =
                    worst(&decode(out, &buffers[2]), &gated, |_, v| {
                        v.abs() * (8e-7 + unit(out)) + 1e-35
                    });
                prop_assert!(error <= 1.0, "{set} {out}: {error} of the bound");
            }
        }
    }

    #[test]
    fn sigmoid_and_the_clamped_gate_match_the_reference(
        x in prop::collection::vec(prop_oneof![-20f32..20.0, -200f32..200.0, -1e-3f32..1e-3], 1..80),
        (alpha, limit) in (0.5f32..2.0, 1f32..10.0),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let n = x.len();
        let up: Vec<f32> = noise(seed, n).iter().map(|v| v * 20.0).collect();
        let want: Vec<f64> = x.iter().map(|&x| reference::sigmoid(f64::from(x))).collect();
        let pairs = x.iter().zip(&up);
        let gated: Vec<f64> =
            pairs.map(|(&x, &u)| reference::swiglu_clamped(x, u, alpha, limit)).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![encode(DType::F32, &x), unwritten(DType::F32, n)];
            run(set, threads, "sigmoid_f32", &mut buffers, &ints([1, n, n, n]));
            let error = worst(&decode(DType::F32, &buffers[1]), &want, |_, v| v.abs() * 5e-7 + 1e-37);
            prop_assert!(error <= 1.0, "{set}: {error} of the bound");
            for out in FLOATS {
                let mut buffers =
                    vec![encode(DType::F32, &x), encode(DType::F32, &up), unwritten(out, n)];
                let mut scalars = ints([1, n, n, n, n]);
                scalars.extend([Scalar::Float(alpha), Scalar::Float(limit)]);
                run(set, threads, &format!("swiglu_clamped_{out}"), &mut buffers, &scalars);
                // `alpha * g` is rounded before the exponential, which magnifies it; `u + 1` may
                // cancel.
                let error = worst(&decode(out, &buffers[2]), &gated, |i, v| {
                    let g = f64::from(x[i].min(limit));
                    let slope = 1.0 + f64::from(alpha) * g.abs();
                    let gate = g * reference::sigmoid(f64::from(alpha) * g);
                    v.abs() * (8e-7 + 1.2e-7 * slope + unit(out)) + 6e-7 * gate.abs() + 1e-34
                });
                prop_assert!(error <= 1.0, "{set} {out}: {error} of the bound");
            }
        }
    }

    #[test]
    fn scalars_and_factors_of_rows_are_exact(
        (rows, n, pad) in (1..5usize, 1..150usize, 0..5usize),
        value in -2f32..2.0,
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let stride = n + pad;
        let (x, scale) = (noise(seed, rows * n), noise(seed ^ 1, rows));
        let sums: Vec<f32> = x.iter().map(|v| v + value).collect();
        let scaled: Vec<f32> =
            x.chunks(n).zip(&scale).flat_map(|(x, s)| x.iter().map(move |v| v * s)).collect();
        for set in InstructionSet::available() {
            let strided = encode(DType::F32, &spread(&x, n, stride));
            let mut buffers = vec![strided.clone(), unwritten(DType::F32, rows * stride)];
            let mut scalars = ints([rows, n, stride, stride]);
            scalars.push(Scalar::Float(value));
            run(set, threads, "add_scalar_f32", &mut buffers, &scalars);
            let got = gathered(&decode(DType::F32, &buffers[1]), n, stride);
            prop_assert_eq!(&got, &sums, "{}", set);

            let factors = encode(DType::F32, &spread(&scale, 1, 1 + pad));
            let mut buffers = vec![strided, factors, unwritten(DType::F32, rows * stride)];
            let scalars = ints([rows, n, stride, 1 + pad, stride]);
            run(set, threads, "scale_rows_f32", &mut buffers, &scalars);
            let got = gathered(&decode(DType::F32, &buffers[2]), n, stride);
            prop_assert_eq!(&got, &scaled, "{}", set);
        }
    }

    #[test]
    fn the_largest_is_found(
        rows in prop::collection::vec(prop::collection::vec(-3..3i32, 70), 1..5),
        n in 1..=70usize,
        threads in 1..=3usize,
    ) {
        // Small integers, so that equal elements are common.
        let x: Vec<f32> = rows.iter().flat_map(|r| r[..n].iter().map(|&v| v as f32)).collect();
        let want: Vec<i32> = x.chunks(n).map(|r| reference::argmax(r) as i32).collect();
        for set in InstructionSet::available() {
            let mut buffers = vec![encode(DType::F32, &x), bytes_of_i32(&vec![-1; rows.len()])];
            run(set, threads, "argmax_f32", &mut buffers, &ints([rows.len(), n, n]));
            prop_assert_eq!(&to_i32(&buffers[1]), &want, "{}", set);
        }
    }
}

#[test]
fn special_values_survive_a_cast() {
    let x = [f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, -0.0, f32::MAX, 1e-40];
    for set in InstructionSet::available() {
        let mut buffers = vec![encode(DType::F32, &x), vec![0; 2 * x.len()]];
        run(set, 1, "cast_f32_bf16", &mut buffers, &ints([1, x.len(), x.len(), x.len()]));
        let got = decode(DType::BF16, &buffers[1]);
        assert!(got[0].is_nan() && got[1].is_nan(), "{set}");
        assert_eq!(got[2..5], [f32::INFINITY, -0.0, f32::INFINITY], "{set}");
        assert_eq!(got[5], rounded(DType::BF16, &x[5..])[0], "{set}: small numbers are kept");
    }
}

/// What `min`, `max` and the exponential make of NaN must not hide it.
#[test]
fn gates_do_not_hide_nan() {
    let x = [f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY];
    let up = [1.0, f32::NAN, 1.0, 1.0];
    for set in InstructionSet::available() {
        let mut buffers = vec![encode(DType::F32, &x), encode(DType::F32, &[0.0; 4])];
        run(set, 1, "sigmoid_f32", &mut buffers, &ints([1, 4, 4, 4]));
        let got = decode(DType::F32, &buffers[1]);
        assert!(got[0].is_nan() && got[2] == 1.0 && got[3] < 1e-37, "{set}: {got:?}");

        let mut buffers =
            vec![encode(DType::F32, &x), encode(DType::F32, &up), encode(DType::F32, &[0.0; 4])];
        let mut scalars = ints([1, 4, 4, 4, 4]);
        scalars.extend([Scalar::Float(1.702), Scalar::Float(7.0)]);
        run(set, 1, "swiglu_clamped_f32", &mut buffers, &scalars);
        let got = decode(DType::F32, &buffers[2]);
        assert!(got[0].is_nan() && got[1].is_nan() && got[2].is_finite(), "{set}: {got:?}");
    }
}
