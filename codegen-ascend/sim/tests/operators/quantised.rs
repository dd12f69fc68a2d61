//! Products of quantised matrices.

use crate::support::*;
use acl::Value::{Bool as Flag, Int};

/// What `QuantMatmulWeightNz` takes, by what it does.
struct Quant<'a> {
    tokens: Option<&'a Tensor>,
    scale: &'a Tensor,
    offset: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
}

fn weight_nz(x: &Tensor, w: &Tensor, q: Quant<'_>, flipped: bool, y: &Tensor) -> Vec<acl::Value> {
    let value = |t: Option<&Tensor>| t.map_or(NONE, Tensor::value);
    vec![
        x.value(),
        w.value(),
        value(q.tokens),
        q.scale.value(),
        NONE,
        NONE,
        value(q.offset),
        NONE,
        value(q.bias),
        Flag(false),
        Flag(flipped),
        Int(0),
        y.value(),
    ]
}

#[test]
fn eight_bit_products_scale_round_and_add_as_documented() {
    let mut rng = Rng::new(4);
    for (m, k, n) in [(1, 32, 16), (17, 65, 33), (4, 96, 50)] {
        let x = Tensor::strided(I8, &[m, k], &[k + 32, 1], &rng.codes(m * k, 128));
        let values = rng.codes(k * n, 128);
        let flipped: Vec<f64> = (0..n * k).map(|i| values[i % k * n + i / k]).collect();
        let sums = product(&x.values(), &values, (m, k, n));
        let scales: Vec<f64> = rng.reals(n).iter().map(|v| v.abs() / 512.0 + 1e-4).collect();
        let scale = Tensor::new(F32, &[n], &scales);
        let tokens = Tensor::new(F32, &[m], &rng.reals(m));
        let whole = Tensor::new(I32, &[n], &rng.codes(n, 5000));
        let real = Tensor::new(F32, &[n], &rng.reals(n));
        let (s, t) = (scale.values(), tokens.values());
        let (wb, rb) = (whole.values(), real.values());

        // The weight as it is stored in a checkpoint, [N,K], said to be transposed.
        let stored = Tensor::nz(I8, &[n, k], false, &flipped);
        let y = Tensor::out(BF16, &[m, n]);
        let quant =
            Quant { tokens: Some(&tokens), scale: &scale, offset: None, bias: Some(&whole) };
        run("QuantMatmulWeightNz", &weight_nz(&x, &stored, quant, true, &y));
        let want: Vec<f64> =
            (0..m * n).map(|i| (sums[i] + wb[i % n]) * s[i % n] * t[i / n]).collect();
        near(&y.values(), &want, tolerance(BF16));

        // The weight as [K,N], with a bias that is added at the end.
        let straight = Tensor::nz(I8, &[k, n], false, &values);
        let quant = Quant { tokens: Some(&tokens), scale: &scale, offset: None, bias: Some(&real) };
        run("QuantMatmulWeightNz", &weight_nz(&x, &straight, quant, false, &y));
        let want: Vec<f64> =
            (0..m * n).map(|i| sums[i] * s[i % n] * t[i / n] + rb[i % n]).collect();
        near(&y.values(), &want, tolerance(BF16));

        // The sums themselves.
        let exact = Tensor::out(I32, &[m, n]);
        let quant = Quant { tokens: None, scale: &scale, offset: None, bias: Some(&whole) };
        run("QuantMatmulWeightNz", &weight_nz(&x, &straight, quant, false, &exact));
        let want: Vec<f64> = (0..m * n).map(|i| sums[i] + wb[i % n]).collect();
        assert_eq!(exact.values(), want);

        // Scales in the form of the matrix unit lose 13 bits; codes are moved and saturate.
        let unit = Tensor::new(U64, &[n], &s);
        let cut = |v: f64| f64::from(f32::from_bits((v as f32).to_bits() & !0x1fff));
        let codes = Tensor::out(I8, &[m, n]);
        let offset = Tensor::new(F32, &[1], &[3.0]);
        let quant = Quant { tokens: None, scale: &unit, offset: Some(&offset), bias: None };
        run("QuantMatmulWeightNz", &weight_nz(&x, &straight, quant, false, &codes));
        for (i, code) in codes.values().into_iter().enumerate() {
            let exact = sums[i] * cut(s[i % n]) + 3.0;
            let nearest = exact.round_ties_even().clamp(-128.0, 127.0);
            let tie = (exact - exact.floor() - 0.5).abs() < 1e-3;
            assert!(code == nearest || tie && (code - nearest).abs() <= 1.0, "{code} {exact}");
        }
        let half = Tensor::out(F16, &[m, n]);
        let quant = Quant { tokens: None, scale: &unit, offset: None, bias: Some(&whole) };
        run("QuantMatmulWeightNz", &weight_nz(&x, &straight, quant, false, &half));
        let want: Vec<f64> = (0..m * n).map(|i| (sums[i] + wb[i % n]) * cut(s[i % n])).collect();
        near(&half.values(), &want, tolerance(F16));
    }
}

#[test]
fn combinations_that_are_not_documented_are_refused() {
    let x = Tensor::out(I8, &[4, 32]);
    let w = Tensor::nz(I8, &[32, 64], false, &[]);
    let scale = Tensor::out(F32, &[64]);
    let short = Tensor::out(F32, &[63]);
    let unit = Tensor::out(U64, &[64]);
    let tokens = Tensor::out(F32, &[4]);
    let y = Tensor::out(BF16, &[4, 64]);
    let half = Tensor::out(F16, &[4, 64]);
    let float = Tensor::out(F32, &[4, 64]);
    let quant = |tokens, scale| Quant { tokens, scale, offset: None, bias: None };
    let name = "QuantMatmulWeightNz";
    let cases = [
        (weight_nz(&x, &w, quant(None, &unit), false, &y), "scale of the rows null"),
        (weight_nz(&x, &w, quant(None, &scale), false, &half), "and out FLOAT16"),
        (weight_nz(&x, &w, quant(Some(&tokens), &scale), false, &float), "and out FLOAT"),
        (weight_nz(&x, &w, quant(Some(&tokens), &short), false, &y), "x2_scale: [63]"),
        (weight_nz(&x, &w, quant(Some(&scale), &scale), false, &y), "x1_scale: the shape"),
        (weight_nz(&x, &w, quant(None, &scale), true, &y), "has 32 columns"),
    ];
    for (args, part) in cases {
        refused(name, &args, 161002, part);
    }
    let plain = Tensor::out(I8, &[32, 64]);
    let args = weight_nz(&x, &plain, quant(None, &scale), false, &y);
    refused(name, &args, 161002, "x2: has to be FRACTAL_NZ");
}
