//! Norms, activations and codes of rows.

use crate::support::*;
use acl::Value::{self, Bool as Flag, Float, Int, Text};

fn silu(v: f64) -> f64 {
    v / (1.0 + (-v).exp())
}

fn norm(row: &[f64], gamma: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    row.iter().zip(gamma).map(|(v, g)| v / (mean + epsilon).sqrt() * g).collect()
}

/// That codes and their scale are those of a row.
#[track_caller]
fn coded(codes: &[f64], scale: f64, row: &[f64], limit: f64, relative: f64) {
    let largest = row.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    near(&[scale], &[largest / limit], relative);
    for (c, v) in codes.iter().zip(row) {
        assert!((c - v / scale).abs() <= 0.51 + limit * relative, "{c} for {v} at {scale}");
    }
}

#[test]
fn norms_divide_by_the_root_of_the_mean_square() {
    let mut rng = Rng::new(21);
    for (rows, width) in [(1, 7), (3, 64), (5, 100)] {
        for element in [F32, BF16] {
            let x = || rng.reals(rows * width);
            let mut x = x;
            let a = Tensor::strided(element, &[rows, width], &[width + 5, 1], &x());
            let b = Tensor::new(element, &[rows, width], &x());
            let gamma = Tensor::new(element, &[width], &rng.reals(width));
            let y = Tensor::out(element, &[rows, width]);
            let sum = Tensor::out(element, &[rows, width]);
            let rstd = Tensor::out(F32, &[rows, 1]);
            run("RmsNorm", &[a.value(), gamma.value(), Float(1e-5), y.value(), rstd.value()]);
            let g = gamma.values();
            let rows_of = |v: &[f64]| -> Vec<f64> {
                v.chunks(width).flat_map(|row| norm(row, &g, 1e-5)).collect()
            };
            near(&y.values(), &rows_of(&a.values()), tolerance(element));
            run(
                "AddRmsNorm",
                &[
                    a.value(),
                    b.value(),
                    gamma.value(),
                    Float(1e-5),
                    y.value(),
                    rstd.value(),
                    sum.value(),
                ],
            );
            let added: Vec<f64> = a.values().iter().zip(b.values()).map(|(a, b)| a + b).collect();
            near(&sum.values(), &added, tolerance(element));
            near(&y.values(), &rows_of(&sum.values()), tolerance(element));
            let first = sum.values()[..width].iter().map(|v| v * v).sum::<f64>();
            near(&rstd.values()[..1], &[1.0 / (first / width as f64 + 1e-5).sqrt()], 1e-5);
        }
    }
}

#[test]
fn norms_end_in_codes() {
    let mut rng = Rng::new(22);
    let (rows, width) = (4, 48);
    let a = Tensor::new(BF16, &[rows, width], &rng.reals(rows * width));
    let b = Tensor::new(BF16, &[rows, width], &rng.reals(rows * width));
    let gamma = Tensor::new(BF16, &[width], &rng.reals(width));
    let sum = Tensor::out(BF16, &[rows, width]);
    let y1 = Tensor::out(I8, &[rows, width]);
    let y2 = Tensor::out(I8, &[rows, width]);
    let scale1 = Tensor::out(F32, &[rows]);
    let scale2 = Tensor::out(F32, &[rows]);
    let smooth = Tensor::new(BF16, &[width], &rng.reals(width));
    run(
        "AddRmsNormDynamicQuant",
        &[
            a.value(),
            b.value(),
            gamma.value(),
            smooth.value(),
            NONE,
            Float(1e-6),
            y1.value(),
            y2.value(),
            sum.value(),
            scale1.value(),
            scale2.value(),
        ],
    );
    let (g, s) = (gamma.values(), smooth.values());
    let kept = sum.values();
    for r in 0..rows {
        let normed = norm(&kept[r * width..][..width], &g, 1e-6);
        let smoothed: Vec<f64> = normed.iter().zip(&s).map(|(v, s)| v * s).collect();
        coded(&y1.values()[r * width..][..width], scale1.values()[r], &smoothed, 127.0, 1e-5);
    }
    let _ = (a.values(), b.values());

    let scales = Tensor::new(F32, &[1], &[0.02]);
    let zero = Tensor::new(I32, &[1], &[-3.0]);
    for divide in [true, false] {
        run(
            "AddRmsNormQuant",
            &[
                a.value(),
                b.value(),
                gamma.value(),
                scales.value(),
                NONE,
                zero.value(),
                NONE,
                Int(-1),
                Float(1e-6),
                Flag(divide),
                y1.value(),
                y2.value(),
                sum.value(),
            ],
        );
        let codes = y1.values();
        for (r, row) in kept.chunks(width).enumerate() {
            for (c, v) in norm(row, &g, 1e-6).into_iter().enumerate() {
                let exact = (if divide { v / 0.02 } else { v * 0.02 }) - 3.0;
                let exact = exact.clamp(-128.0, 127.0);
                assert!((codes[r * width + c] - exact).abs() <= 0.501);
            }
        }
    }
    let floats = Tensor::out(F32, &[rows, width]);
    let args = [
        floats.value(),
        b.value(),
        gamma.value(),
        NONE,
        NONE,
        Float(1e-6),
        y1.value(),
        y2.value(),
        sum.value(),
        scale1.value(),
        scale2.value(),
    ];
    refused("AddRmsNormDynamicQuant", &args, 161002, "x1: FLOAT is not one of");
}

#[test]
fn gates_open_one_half_with_the_other() {
    let mut rng = Rng::new(23);
    let (rows, half) = (5, 24);
    for element in [F32, BF16] {
        let x = Tensor::new(element, &[rows, 2 * half], &rng.reals(rows * 2 * half));
        let y = Tensor::out(element, &[rows, half]);
        run("SwiGlu", &[x.value(), Int(-1), y.value()]);
        let xs = x.values();
        let at = |r: usize, c: usize| xs[r * 2 * half + c];
        let want: Vec<f64> = (0..rows * half)
            .map(|i| silu(at(i / half, i % half)) * at(i / half, i % half + half))
            .collect();
        near(&y.values(), &want, tolerance(element));
        for interleaved in [true, false] {
            let groups = Tensor::new(I64, &[2], &[1.0, 2.0]);
            let y = Tensor::new(element, &[rows, half], &vec![8.0; rows * half]);
            run(
                "ClippedSwiglu",
                &[
                    x.value(),
                    groups.value(),
                    Int(1),
                    Float(1.702),
                    Float(0.5),
                    Float(1.0),
                    Flag(interleaved),
                    y.value(),
                ],
            );
            let want: Vec<f64> = (0..rows * half)
                .map(|i| {
                    let (r, c) = (i / half, i % half);
                    if r >= 3 {
                        return 8.0;
                    }
                    let (a, b) = match interleaved {
                        true => (at(r, 2 * c), at(r, 2 * c + 1)),
                        false => (at(r, c), at(r, c + half)),
                    };
                    let (a, b) = (a.min(0.5), b.clamp(-0.5, 0.5));
                    a / (1.0 + (-1.702 * a).exp()) * (b + 1.0)
                })
                .collect();
            near(&y.values(), &want, tolerance(element));
        }
    }
}

#[test]
fn gated_rows_are_coded_with_the_vectors_of_their_group() {
    let mut rng = Rng::new(24);
    let (rows, half) = (6, 16);
    let sizes = [2usize, 0, 3];
    let group = |r: usize| if r < 2 { 0 } else { 2 };
    let counts = Tensor::new(I64, &[3], &sizes.map(|s| s as f64));
    let dynamic = Text(c"dynamic".as_ptr());
    let smooth = Tensor::new(F32, &[3, half], &rng.reals(3 * half));
    let sm = smooth.values();

    let x = Tensor::new(BF16, &[rows, 2 * half], &rng.reals(rows * 2 * half));
    let y = Tensor::new(I8, &[rows, half], &vec![1.0; rows * half]);
    let scale = Tensor::new(F32, &[rows], &vec![1.0; rows]);
    run(
        "SwiGluQuantV2",
        &[
            x.value(),
            smooth.value(),
            NONE,
            counts.value(),
            Flag(true),
            dynamic,
            Int(1),
            Int(2),
            y.value(),
            scale.value(),
        ],
    );
    let xs = x.values();
    for r in 0..5 {
        let row: Vec<f64> = (0..half)
            .map(|c| {
                let (a, b) = (xs[r * 2 * half + c], xs[r * 2 * half + c + half]);
                silu(a) * b * sm[group(r) * half + c]
            })
            .collect();
        coded(&y.values()[r * half..][..half], scale.values()[r], &row, 127.0, 1e-5);
    }
    assert_eq!(scale.values()[5], 1.0, "rows of no group are not written");

    let sums = Tensor::new(I32, &[rows, 2 * half], &rng.codes(rows * 2 * half, 30000));
    let weights = Tensor::new(
        F32,
        &[3, 2 * half],
        &rng.reals(6 * half).iter().map(|v| v / 9999.0).collect::<Vec<_>>(),
    );
    let tokens = Tensor::new(F32, &[rows], &rng.reals(rows));
    let args = |mode: Value| {
        [
            sums.value(),
            weights.value(),
            tokens.value(),
            NONE,
            smooth.value(),
            NONE,
            counts.value(),
            Flag(false),
            mode,
            y.value(),
            scale.value(),
        ]
    };
    run("DequantSwigluQuant", &args(dynamic));
    refused("DequantSwigluQuant", &args(Text(c"other".as_ptr())), 161002, "quant_mode: other");
    refused("DequantSwigluQuant", &args(Text(c"static".as_ptr())), 161002, "scales and offsets");
    let (v, w, t) = (sums.values(), weights.values(), tokens.values());
    for r in 0..5 {
        let real = |c: usize| v[r * 2 * half + c] * w[group(r) * 2 * half + c] * t[r];
        let row: Vec<f64> =
            (0..half).map(|c| real(c) * silu(real(c + half)) * sm[group(r) * half + c]).collect();
        coded(&y.values()[r * half..][..half], scale.values()[r], &row, 127.0, 1e-5);
    }
}

#[test]
fn rows_are_coded_with_scales_that_are_found_or_given() {
    let mut rng = Rng::new(25);
    let (rows, width) = (5, 48);
    let x = Tensor::new(BF16, &[rows, width], &rng.reals(rows * width));
    let scale = Tensor::out(F32, &[rows]);
    for (element, limit) in [(I8, 127.0), (I4, 7.0)] {
        let y = Tensor::out(element, &[rows, width]);
        run("DynamicQuant", &[x.value(), NONE, y.value(), scale.value()]);
        for r in 0..rows {
            let row = &x.values()[r * width..][..width];
            coded(&y.values()[r * width..][..width], scale.values()[r], row, limit, 1e-5);
        }
        let words = Value::Tensor(y.as_words());
        if element == I4 {
            run("DynamicQuant", &[x.value(), NONE, words, scale.value()]);
        }
    }
    let floats = Tensor::out(F32, &[rows, width]);
    let y = Tensor::out(I8, &[rows, width]);
    let args = [floats.value(), NONE, y.value(), scale.value()];
    refused("DynamicQuant", &args, 161002, "x: FLOAT is not one of FLOAT16, BFLOAT16");

    let factor = Tensor::new(
        BF16,
        &[width],
        &rng.reals(width).iter().map(|v| v * 100.0).collect::<Vec<_>>(),
    );
    let offset = Tensor::new(BF16, &[width], &rng.codes(width, 10));
    let y = Tensor::out(I8, &[rows, width]);
    let round = |mode: &'static std::ffi::CStr| {
        [
            x.value(),
            factor.value(),
            offset.value(),
            Flag(false),
            Text(mode.as_ptr()),
            Int(2),
            Int(-1),
            y.value(),
        ]
    };
    run("AscendQuantV3", &round(c"round"));
    refused("AscendQuantV3", &round(c"up"), 161002, "round_mode");
    let (xs, f, o) = (x.values(), factor.values(), offset.values());
    for (i, code) in y.values().into_iter().enumerate() {
        let exact = xs[i] * f[i % width] + o[i % width];
        assert!((code - exact.clamp(-128.0, 127.0)).abs() <= 0.501);
    }
}
