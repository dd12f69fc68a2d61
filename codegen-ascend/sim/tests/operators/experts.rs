//! Grouped products.

use crate::support::*;
use acl::Value::{self, Int};

/// The parameters of grouped products.
struct Grouped<'a> {
    x: &'a Tensor,
    weight: Value,
    bias: Option<&'a Tensor>,
    scale: Option<&'a Tensor>,
    tokens: Option<&'a Tensor>,
    groups: &'a Tensor,
    kind: i64,
    out: &'a Tensor,
}

/// A list around a tensor that stays alive after it.
fn member(t: Option<&Tensor>) -> Value {
    match t {
        Some(t) => list(t),
        None => NONE,
    }
}

fn grouped(name: &str, g: Grouped<'_>) -> Vec<Value> {
    let mut args = vec![list(g.x), g.weight, member(g.bias), member(g.scale)];
    args.extend([NONE, NONE, NONE, member(g.tokens), g.groups.value(), NONE, NONE, NONE]);
    args.extend([Int(3), Int(0), Int(g.kind), Int(0)]);
    match name {
        "GroupedMatmulV4" => {}
        _ => args.extend([NONE, Int(0)]),
    }
    args.extend([list(g.out), NONE, NONE]);
    args
}

/// The matrix of the group of each row.
fn by_group(x: &[f64], w: &[f64], ends: &[usize], (k, n): (usize, usize)) -> Vec<f64> {
    let mut out = Vec::new();
    for row in 0..ends[ends.len() - 1] {
        let e = ends.iter().position(|&end| row < end).unwrap();
        out.extend(product(&x[row * k..], &w[e * k * n..], (1, k, n)));
    }
    out
}

const ENDS: [usize; 4] = [3, 3, 20, 22];

/// The groups in each of the ways to write them.
fn written(kind: i64) -> Tensor {
    let ends = ENDS.map(|e| e as f64);
    let sizes = [ends[0], ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2]];
    match kind {
        0 => Tensor::new(I64, &[4], &ends),
        1 => Tensor::new(I64, &[4], &sizes),
        _ => {
            let pairs: Vec<f64> = (0..4).flat_map(|e| [e as f64, sizes[e]]).collect();
            Tensor::new(I64, &[4, 2], &pairs)
        }
    }
}

#[test]
fn groups_of_rows_meet_the_matrix_of_their_group_and_rows_of_none_stay() {
    let mut rng = Rng::new(11);
    let (m, k, n) = (25, 33, 18);
    let w = rng.reals(4 * k * n);
    for (kind, element, name) in [
        (0, F32, "GroupedMatmulV4"),
        (1, BF16, "GroupedMatmulV4"),
        (2, BF16, "GroupedMatmulWeightNz"),
        (1, F16, "GroupedMatmulWeightNz"),
    ] {
        let x = Tensor::new(element, &[m, k], &rng.reals(m * k));
        let weight = match name {
            "GroupedMatmulWeightNz" => Tensor::nz(element, &[4, k, n], kind == 2, &w),
            _ => Tensor::transposed(element, &[4, k, n], &w),
        };
        let held = if element == F16 { F16 } else { F32 };
        let bias = Tensor::new(held, &[4, n], &rng.reals(4 * n));
        let untouched = vec![77.0; m * n];
        let y = Tensor::new(element, &[m, n], &untouched);
        let groups = written(kind);
        let (xs, ws, bs) = (x.values(), weight.values(), bias.values());
        let args = grouped(
            name,
            Grouped {
                x: &x,
                weight: list(&weight),
                bias: Some(&bias),
                scale: None,
                tokens: None,
                groups: &groups,
                kind,
                out: &y,
            },
        );
        run(name, &args);
        let mut want = by_group(&xs, &ws, &ENDS, (k, n));
        for (i, v) in want.iter_mut().enumerate() {
            let e = ENDS.iter().position(|&end| i / n < end).unwrap();
            *v += bs[e * n + i % n];
        }
        want.extend(vec![77.0; (m - ENDS[3]) * n]);
        near(&y.values(), &want, tolerance(element));
    }
}

#[test]
fn quantised_groups_scale_as_documented() {
    let mut rng = Rng::new(12);
    let (m, k, n) = (25, 64, 32);
    let values = rng.codes(4 * k * n, 128);
    let codes = rng.codes(m * k, 128);
    let scales = rng.reals(4 * n);
    let sums = by_group(&codes, &values, &ENDS, (k, n));
    let expert = |i: usize| ENDS.iter().position(|&end| i / n < end).unwrap();
    for (scale_type, out, with_tokens) in
        [(Some(BF16), BF16, true), (Some(F32), F16, true), (None, I32, false)]
    {
        let x = Tensor::new(I8, &[m, k], &codes);
        let weight = Tensor::nz(I8, &[4, k, n], true, &values);
        let small: Vec<f64> = scales.iter().map(|s| s / 4096.0).collect();
        let scale = scale_type.map(|t| Tensor::new(t, &[4, n], &small));
        let tokens = with_tokens.then(|| Tensor::new(F32, &[m], &rng.reals(m)));
        let s = scale.as_ref().map(Tensor::values);
        let t = tokens.as_ref().map(Tensor::values);
        let y = Tensor::new(out, &[m, n], &vec![5.0; m * n]);
        let groups = written(1);
        let args = grouped(
            "GroupedMatmulWeightNz",
            Grouped {
                x: &x,
                weight: list(&weight),
                bias: None,
                scale: scale.as_ref(),
                tokens: tokens.as_ref(),
                groups: &groups,
                kind: 1,
                out: &y,
            },
        );
        run("GroupedMatmulWeightNz", &args);
        let value = |i: usize| {
            let scale = s.as_ref().map_or(1.0, |s| s[expert(i) * n + i % n]);
            sums[i] * scale * t.as_ref().map_or(1.0, |t| t[i / n])
        };
        let mut want: Vec<f64> = (0..ENDS[3] * n).map(value).collect();
        want.extend(vec![5.0; (m - ENDS[3]) * n]);
        near(&y.values(), &want, tolerance(out));
    }
}

#[test]
fn four_bit_groups_take_words_of_eight_and_the_sums_of_their_weights() {
    let mut rng = Rng::new(13);
    let (m, k, n) = (25, 512, 64);
    let values = rng.codes(4 * k * n, 8);
    let codes = rng.codes(m * k, 128);
    let packed = Tensor::nz(I4, &[4, k, n], false, &values);
    for parts in [1, 2] {
        let scales: Vec<f64> = rng.reals(4 * parts * n).iter().map(|v| v / 512.0).collect();
        let scale = Tensor::new(U64, &[4, parts, n], &scales);
        let s = scale.values();
        let at = |e: usize, p: usize, c: usize| s[(e * parts + p * parts / k) * n + c];
        let mut sums = vec![0.0; 4 * n];
        for (i, code) in values.iter().enumerate() {
            let (e, p, c) = (i / (k * n), i / n % k, i % n);
            sums[e * n + c] += 8.0 * code * at(e, p, c);
        }
        let bias = Tensor::new(F32, &[4, n], &sums);
        let tokens = Tensor::new(F32, &[m], &rng.reals(m));
        let t = tokens.values();
        let x = Tensor::new(I8, &[m, k], &codes);
        let y = Tensor::new(BF16, &[m, n], &vec![0.0; m * n]);
        let groups = written(1);
        let weight = packed.fractal_words();
        let args = grouped(
            "GroupedMatmulWeightNz",
            Grouped {
                x: &x,
                weight,
                bias: Some(&bias),
                scale: Some(&scale),
                tokens: Some(&tokens),
                groups: &groups,
                kind: 1,
                out: &y,
            },
        );
        run("GroupedMatmulWeightNz", &args);
        let got = y.values();
        for i in (0..ENDS[3] * n).step_by(7) {
            let (row, c) = (i / n, i % n);
            let e = ENDS.iter().position(|&end| row < end).unwrap();
            let term = |p: usize| codes[row * k + p] * values[(e * k + p) * n + c] * at(e, p, c);
            let want = (0..k).map(term).sum::<f64>() * t[row];
            near(&[got[i]], &[want], tolerance(BF16));
        }
    }
}

#[test]
fn grouped_products_refuse_what_is_not_documented() {
    let make = |kind: i64, groups: &Tensor, out: (Element, &[usize])| {
        let x = Tensor::out(BF16, &[25, 32]);
        let w = Tensor::nz(BF16, &[4, 32, 64], false, &[]);
        let y = Tensor::out(out.0, out.1);
        let args = grouped(
            "GroupedMatmulWeightNz",
            Grouped {
                x: &x,
                weight: list(&w),
                bias: None,
                scale: None,
                tokens: None,
                groups,
                kind,
                out: &y,
            },
        );
        (args, [x, w, y])
    };
    let name = "GroupedMatmulWeightNz";
    let short = Tensor::out(I64, &[3]);
    let small = Tensor::out(I32, &[4]);
    let good = written(1);
    type Case<'a> = (i64, &'a Tensor, (Element, &'a [usize]), &'a str);
    let cases: [Case<'_>; 5] = [
        (1, &short, (BF16, &[25, 64]), "group_list: the shape is [3], not [4]"),
        (1, &small, (BF16, &[25, 64]), "group_list: INT32"),
        (2, &good, (BF16, &[25, 64]), "group_list: the shape is [4], not [4, 2]"),
        (1, &good, (F32, &[25, 64]), "and out FLOAT"),
        (1, &good, (BF16, &[24, 64]), "out: the shape is [24, 64]"),
    ];
    for (kind, groups, out, part) in cases {
        let (args, _kept) = make(kind, groups, out);
        refused(name, &args, 161002, part);
    }
    let (args, _kept) = make(1, &good, (BF16, &[25, 64]));
    let mut split = args.clone();
    split[12] = Int(0);
    refused(name, &split, 161002, "split_item");
    let mut along_k = args;
    along_k[13] = Int(2);
    refused(name, &along_k, 161002, "group_type: 2");
}
