//! Numbers to codes.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{InstructionSet, kernels::reference};
use proptest::prelude::*;
use tensor::DType;

const F: DType = DType::F32;
const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// Numbers of every size; some runs are all zeros, or tiny.
fn numbers(seed: u64, len: usize, run: usize) -> Vec<f32> {
    let sizes = noise(seed ^ 5, len.div_ceil(run));
    let size = |i: usize| match sizes[i / run] {
        s if s < -0.8 => 0.0,
        s if s < -0.6 => 1e-42,
        s => 10f32.powf(s * 6.0),
    };
    noise(seed, len).iter().enumerate().map(|(i, v)| v * size(i)).collect()
}

fn codes(bytes: &[u8]) -> Vec<i8> {
    bytes.iter().map(|&b| b as i8).collect()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn rows_get_codes_and_scales(
        (rows, runs, n, pad) in (1..5usize, 1..4usize, 1..150usize, 0..4usize),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (width, stride) = (runs * n, runs * n + pad);
        for t in FLOATS {
            let x = rounded(t, &numbers(seed, rows * width, n));
            let want: Vec<_> = x.chunks(n).map(reference::quantize_rows).collect();
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(t, &spread(&x, width, stride)),
                    vec![0x55; rows * width],
                    unwritten(F, rows * runs),
                ];
                let scalars = ints([rows, runs, n, stride]);
                run(set, threads, &format!("quantize_rows_{t}"), &mut buffers, &scalars);
                let want_codes: Vec<i8> = want.iter().flat_map(|(c, _)| c.clone()).collect();
                let want_scales: Vec<f32> = want.iter().map(|&(_, s)| s).collect();
                prop_assert_eq!(&codes(&buffers[1]), &want_codes, "{} {}", set, t);
                prop_assert_eq!(&decode(F, &buffers[2]), &want_scales, "{} {}", set, t);
            }
        }
    }

    /// A quotient there may be on one side, and what is quicker than a division on the other.
    #[test]
    fn codes_near_the_middle_of_two_integers_are_those_of_quotients(
        bits in 0x0100_0000u32..0x7d00_0000,
        threads in 1..=3usize,
    ) {
        let largest = f32::from_bits(bits);
        let middles = (-127..127).map(|code| (code as f32 + 0.5) * (largest / 127.0));
        let near = |x: f32| {
            (-3..=3).map(move |units| f32::from_bits(x.to_bits().wrapping_add_signed(units)))
        };
        let mut x = vec![largest];
        x.extend(middles.flat_map(near));
        let (n, (want, scale)) = (x.len(), reference::quantize_rows(&x));
        for set in InstructionSet::available() {
            let mut buffers = vec![encode(F, &x), vec![0x55; n], unwritten(F, 1)];
            run(set, threads, "quantize_rows_f32", &mut buffers, &ints([1, 1, n, n]));
            prop_assert_eq!(&codes(&buffers[1]), &want, "{}", set);
            prop_assert_eq!(decode(F, &buffers[2]), [scale], "{}", set);
        }
    }

    #[test]
    fn a_measured_scale_saturates(
        (rows, n, pad) in (1..5usize, 1..150usize, 0..4usize),
        (scale, offset) in (1e-3f32..0.1, -20i32..20),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let offset = offset as f32;
        for t in FLOATS {
            // Half of the numbers fall outside the codes.
            let x: Vec<f32> = noise(seed, rows * n).iter().map(|v| v * 256.0 * scale).collect();
            let x = rounded(t, &x);
            let want = reference::quantize_static(&x, scale, offset);
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(t, &spread(&x, n, n + pad)),
                    encode(F, &[scale]),
                    encode(F, &[offset]),
                    vec![0x55; rows * n],
                ];
                let scalars = ints([rows, n, n + pad]);
                run(set, threads, &format!("quantize_static_{t}"), &mut buffers, &scalars);
                prop_assert_eq!(&codes(&buffers[3]), &want, "{} {}", set, t);
            }
        }
    }

    #[test]
    fn groups_get_fp8_codes_and_scales(
        (rows, runs, n, pad) in (1..4usize, 1..3usize, 1..300usize, 0..4usize),
        group in prop_oneof![Just(128usize), 1..70usize],
        power_of_two in any::<bool>(),
        threads in 1..=3usize,
        seed in any::<u64>(),
    ) {
        let (width, stride) = (runs * n, runs * n + pad);
        for t in FLOATS {
            let x = rounded(t, &numbers(seed, rows * width, n));
            let groups = x.chunks(n).flat_map(|run| run.chunks(group));
            let want: Vec<_> = groups.map(|g| reference::quantize_fp8(g, power_of_two)).collect();
            for set in InstructionSet::available() {
                let mut buffers = vec![
                    encode(t, &spread(&x, width, stride)),
                    vec![0x55; rows * width],
                    unwritten(F, want.len()),
                ];
                let scalars =
                    ints([rows, runs, n, group, usize::from(power_of_two), stride]);
                run(set, threads, &format!("quantize_fp8_{t}"), &mut buffers, &scalars);
                let want_codes: Vec<u8> = want.iter().flat_map(|(c, _)| c.clone()).collect();
                let want_scales: Vec<f32> = want.iter().map(|&(_, s)| s).collect();
                prop_assert_eq!(&buffers[1], &want_codes, "{} {}", set, t);
                prop_assert_eq!(&decode(F, &buffers[2]), &want_scales, "{} {}", set, t);
            }
        }
    }
}

/// A number that is not finite must not look like a result.
#[test]
fn what_is_not_finite_makes_the_scale_nan() {
    for set in InstructionSet::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 17, 39] {
                let mut x = vec![0.5; 40];
                x[place] = bad;
                let input = encode(F, &x);
                let mut buffers = vec![input.clone(), vec![0; 40], encode(F, &[0.0])];
                run(set, 1, "quantize_rows_f32", &mut buffers, &ints([1, 1, 40, 40]));
                assert!(decode(F, &buffers[2])[0].is_nan(), "{set}: {bad} at {place}");
                assert!(buffers[1].iter().all(|&c| c == 0), "{set}");

                let mut buffers = vec![input, vec![0; 40], encode(F, &[0.0])];
                run(set, 1, "quantize_fp8_f32", &mut buffers, &ints([1, 1, 40, 40, 1, 40]));
                assert!(decode(F, &buffers[2])[0].is_nan(), "{set}: {bad} at {place}");
            }
        }
        let mut buffers = vec![
            encode(F, &[f32::NAN, 1e30, -1e30]),
            encode(F, &[1.0]),
            encode(F, &[0.0]),
            vec![9; 3],
        ];
        let scalars: Vec<Scalar> = ints([1, 3, 3]);
        run(set, 1, "quantize_static_f32", &mut buffers, &scalars);
        assert_eq!(codes(&buffers[3]), [0, 127, -128], "{set}");
    }
}
