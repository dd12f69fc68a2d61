//! Grouped products, and the routing of tokens to experts and back.

use crate::support::*;
use acl::Value::{self, Bool as Flag, Float, Int};

/// The parameters of `GroupedMatmulV5`, those of the first version that has them all.
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
        "GroupedMatmulV5" => args.push(NONE),
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
        (1, BF16, "GroupedMatmulV5"),
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

#[test]
fn rows_go_to_their_experts_and_come_back_weighed() {
    let mut rng = Rng::new(14);
    let (tokens, k, experts, width) = (13, 3, 6, 40);
    let mut ids = Vec::new();
    for _ in 0..tokens {
        let first = rng.below(experts as u64);
        ids.extend((0..k as u64).map(|j| ((first + j) % experts as u64) as f64));
    }
    let x = Tensor::new(BF16, &[tokens, width], &rng.reals(tokens * width));
    let chosen = Tensor::new(I32, &[tokens, k], &ids);
    let pairs = tokens * k;
    let out = Tensor::out(BF16, &[pairs, width]);
    let rows = Tensor::out(I32, &[pairs]);
    let counts = Tensor::out(I32, &[experts]);
    run(
        "MoeInitRoutingV2",
        &[
            x.value(),
            chosen.value(),
            Int(0),
            Int(0),
            Int(experts as i64),
            Int(0),
            Int(2),
            Flag(false),
            out.value(),
            rows.value(),
            counts.value(),
            NONE,
        ],
    );
    let mut order: Vec<usize> = (0..pairs).collect();
    order.sort_by_key(|&p| (ids[p] as usize, p));
    let place: Vec<f64> =
        (0..pairs).map(|p| order.iter().position(|&o| o == p).unwrap() as f64).collect();
    assert_eq!(rows.values(), place);
    let count = |e: usize| ids.iter().filter(|&&i| i == e as f64).count() as f64;
    assert_eq!(counts.values(), (0..experts).map(count).collect::<Vec<_>>());
    let xs = x.values();
    let expanded = out.values();
    for (i, &p) in order.iter().enumerate() {
        assert_eq!(expanded[i * width..][..width], xs[p / k * width..][..width]);
    }

    // Back again, with weights, a bias for each expert and a residual.
    let scales = Tensor::new(BF16, &[tokens, k], &rng.reals(pairs));
    let bias = Tensor::new(BF16, &[experts, width], &rng.reals(experts * width));
    let residual = Tensor::new(BF16, &[tokens, width], &rng.reals(tokens * width));
    let sum = Tensor::out(BF16, &[tokens, width]);
    run(
        "MoeFinalizeRoutingV2",
        &[
            out.value(),
            rows.value(),
            residual.value(),
            NONE,
            bias.value(),
            scales.value(),
            chosen.value(),
            Int(2),
            sum.value(),
        ],
    );
    let (s, b, r) = (scales.values(), bias.values(), residual.values());
    let want: Vec<f64> = (0..tokens * width)
        .map(|i| {
            let (t, c) = (i / width, i % width);
            let term = |j: usize| {
                let p = t * k + j;
                s[p] * (xs[t * width + c] + b[ids[p] as usize * width + c])
            };
            r[i] + (0..k).map(term).sum::<f64>()
        })
        .collect();
    near(&sum.values(), &want, tolerance(BF16));
    let back = Tensor::out(BF16, &[tokens, width]);
    let args = [out.value(), rows.value(), scales.value(), Flag(false), NONE, back.value()];
    run("MoeTokenUnpermute", &args);
    let want: Vec<f64> = (0..tokens * width)
        .map(|i| (0..k).map(|j| s[i / width * k + j]).sum::<f64>() * xs[i])
        .collect();
    near(&back.values(), &want, tolerance(BF16));
}

#[test]
fn rows_are_coded_while_they_are_dispatched_to_the_experts_that_are_here() {
    let (tokens, k, experts, width) = (4, 2, 4, 8);
    let ids = [0.0, 2.0, 1.0, 3.0, 2.0, 1.0, 3.0, 0.0];
    let mut rng = Rng::new(15);
    let x = Tensor::new(F32, &[tokens, width], &rng.reals(tokens * width));
    let chosen = Tensor::new(I32, &[tokens, k], &ids);
    let out = Tensor::new(I8, &[8, width], &[9.0; 64]);
    let rows = Tensor::out(I32, &[8]);
    let counts = Tensor::out(I64, &[2]);
    let scales = Tensor::new(F32, &[8], &[9.0; 8]);
    let range = ints(&[1, 3]);
    let args = |kind: i64, counts: &Tensor| {
        vec![
            x.value(),
            chosen.value(),
            NONE,
            NONE,
            Int(8),
            Int(0),
            Int(experts as i64),
            Int(0),
            Int(kind),
            Flag(true),
            Int(1),
            range,
            Int(0),
            out.value(),
            rows.value(),
            counts.value(),
            scales.value(),
        ]
    };
    run("MoeInitRoutingV3", &args(1, &counts));
    // Expert 1 has pairs 2 and 5, expert 2 pairs 1 and 4.
    assert_eq!(rows.values(), [-1.0, 2.0, 0.0, -1.0, 3.0, 1.0, -1.0, -1.0]);
    assert_eq!(counts.values(), [2.0, 2.0]);
    let (xs, codes, s) = (x.values(), out.values(), scales.values());
    for (row, token) in [(0, 1), (1, 2), (2, 0), (3, 2)] {
        let row_x = &xs[token * width..][..width];
        let largest = row_x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        near(&[s[row]], &[largest / 127.0], 1e-6);
        for c in 0..width {
            assert!((codes[row * width + c] - row_x[c] / s[row]).abs() <= 0.5001);
        }
    }
    assert_eq!(codes[4 * width..], [9.0; 32], "rows of other experts are not written");
    let running = Tensor::out(I64, &[2]);
    run("MoeInitRoutingV3", &args(0, &running));
    assert_eq!(running.values(), [2.0, 4.0]);
    let pairs = Tensor::out(I64, &[4, 2]);
    run("MoeInitRoutingV3", &args(2, &pairs));
    assert_eq!(pairs.values(), [1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
    let mut wrong = args(1, &counts);
    wrong[16] = NONE;
    refused("MoeInitRoutingV3", &wrong, 161002, "expanded_scale_out");
    wrong[10] = Int(2);
    refused("MoeInitRoutingV3", &wrong, 161002, "quant_mode: 2");
}

/// Places of the largest values, largest first.
fn best(values: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).unwrap().then(a.cmp(&b)));
    order.truncate(k);
    order
}

#[test]
fn experts_are_chosen_in_groups_by_biased_scores_and_weighed_by_plain_ones() {
    let mut rng = Rng::new(16);
    let (rows, experts, k) = (7, 32, 4);
    let x = Tensor::new(F32, &[rows, experts], &rng.reals(rows * experts));
    let bias = Tensor::new(F32, &[experts], &rng.reals(experts));
    let y = Tensor::out(F32, &[rows, k]);
    let ids = Tensor::out(I32, &[rows, k]);
    let all = Tensor::out(F32, &[rows, experts]);
    let args = |groups: i64, kept: i64, select: i64, kind: i64, bias: Value| {
        [
            x.value(),
            bias,
            Int(k as i64),
            Int(kept),
            Int(groups),
            Int(select),
            Int(0),
            Int(kind),
            Flag(true),
            Float(2.5),
            Float(1e-20),
            y.value(),
            ids.value(),
            all.value(),
        ]
    };
    run("MoeGatingTopK", &args(8, 3, 1, 1, bias.value()));
    let (xs, b) = (x.values(), bias.values());
    let (weights, chosen, scores) = (y.values(), ids.values(), all.values());
    for r in 0..rows {
        let s: Vec<f64> =
            xs[r * experts..][..experts].iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect();
        near(&scores[r * experts..][..experts], &s, 1e-6);
        let keys: Vec<f64> = s.iter().zip(&b).map(|(s, b)| s + b).collect();
        let worth: Vec<f64> =
            keys.chunks(4).map(|g| best(g, 2).iter().map(|&i| g[i]).sum()).collect();
        let kept = best(&worth, 3);
        let masked: Vec<f64> = (0..experts)
            .map(|e| if kept.contains(&(e / 4)) { keys[e] } else { f64::NEG_INFINITY })
            .collect();
        let picked = best(&masked, k);
        let sum: f64 = picked.iter().map(|&e| s[e]).sum();
        let want: Vec<f64> = picked.iter().map(|&e| s[e] / sum * 2.5).collect();
        let expected: Vec<f64> = picked.iter().map(|&e| e as f64).collect();
        assert_eq!(chosen[r * k..][..k], expected);
        near(&weights[r * k..][..k], &want, 1e-6);
    }
    run("MoeGatingTopK", &args(1, 1, 0, 0, NONE));
    let (weights, chosen) = (y.values(), ids.values());
    for r in 0..rows {
        let row = &xs[r * experts..][..experts];
        let sum: f64 = row.iter().map(|v| v.exp()).sum();
        for (j, e) in best(row, k).into_iter().enumerate() {
            assert_eq!(chosen[r * k + j], e as f64);
            near(&[weights[r * k + j]], &[row[e].exp() / sum * 2.5], 1e-6);
        }
    }
    refused("MoeGatingTopK", &args(5, 1, 1, 1, NONE), 161002, "groups of equal size");
    refused("MoeGatingTopK", &args(8, 9, 1, 1, NONE), 161002, "k_group: 9");
    refused("MoeGatingTopK", &args(32, 4, 1, 1, NONE), 161002, "more than group_select_mode");
    refused("MoeGatingTopK", &args(8, 3, 1, 2, NONE), 161002, "norm_type: 2");

    let softmax = |renorm: i64| {
        [x.value(), NONE, Int(k as i64), Int(renorm), Flag(false), y.value(), ids.value(), NONE]
    };
    for renorm in [0, 1] {
        run("MoeGatingTopKSoftmaxV2", &softmax(renorm));
        let weights = y.values();
        for r in 0..rows {
            let row = &xs[r * experts..][..experts];
            let picked = best(row, k);
            let over: Vec<usize> =
                if renorm == 1 { picked.clone() } else { (0..experts).collect() };
            let sum: f64 = over.iter().map(|&e| row[e].exp()).sum();
            let want: Vec<f64> = picked.iter().map(|&e| row[e].exp() / sum).collect();
            near(&weights[r * k..][..k], &want, 1e-6);
        }
    }
}

#[test]
fn grouped_products_end_in_codes_or_in_the_sums_of_tokens() {
    let mut rng = Rng::new(17);
    let (m, k, n) = (25, 32, 64);
    let values = rng.codes(4 * k * n, 128);
    let codes = rng.codes(m * k, 128);
    let x = Tensor::new(I8, &[m, k], &codes);
    let weight = Tensor::nz(I8, &[4, k, n], false, &values);
    let small: Vec<f64> = rng.reals(4 * n).iter().map(|v| v / 4096.0).collect();
    let scale = Tensor::new(F32, &[4, n], &small);
    let tokens = Tensor::new(F32, &[m], &rng.reals(m));
    let (s, t) = (scale.values(), tokens.values());
    let groups = written(0);
    let sums = by_group(&codes, &values, &ENDS, (k, n));
    let real = |i: usize| {
        let e = ENDS.iter().position(|&end| i / n < end).unwrap();
        sums[i] * s[e * n + i % n] * t[i / n]
    };

    let out = Tensor::out(I8, &[m, n / 2]);
    let out_scale = Tensor::out(F32, &[m]);
    run(
        "GroupedMatmulSwigluQuantWeightNZ",
        &[
            x.value(),
            weight.value(),
            NONE,
            NONE,
            scale.value(),
            tokens.value(),
            groups.value(),
            out.value(),
            out_scale.value(),
            NONE,
        ],
    );
    let (got, scales) = (out.values(), out_scale.values());
    for row in 0..ENDS[3] {
        let gated: Vec<f64> = (0..n / 2)
            .map(|c| {
                let gate = real(row * n + c);
                gate / (1.0 + (-gate).exp()) * real(row * n + c + n / 2)
            })
            .collect();
        let largest = gated.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        near(&[scales[row]], &[largest / 127.0], 1e-5);
        for (c, v) in gated.iter().enumerate() {
            assert!((got[row * n / 2 + c] - v / scales[row]).abs() < 0.51);
        }
    }

    let rows = 6;
    let logit = Tensor::new(F32, &[m], &rng.reals(m));
    let index: Vec<f64> = (0..m).map(|i| (i * 5 % rows) as f64).collect();
    let index_tensor = Tensor::new(I64, &[m], &index);
    let shared = Tensor::new(BF16, &[2, n], &rng.reals(2 * n));
    let sum = Tensor::out(F32, &[rows, n]);
    run(
        "GroupedMatmulFinalizeRoutingV3",
        &[
            x.value(),
            weight.value(),
            scale.value(),
            NONE,
            NONE,
            NONE,
            NONE,
            tokens.value(),
            groups.value(),
            shared.value(),
            logit.value(),
            index_tensor.value(),
            Int(0),
            Float(0.5),
            Int(3),
            Flag(false),
            Flag(false),
            Int(0),
            NONE,
            sum.value(),
        ],
    );
    let (l, sh) = (logit.values(), shared.values());
    let want: Vec<f64> = (0..rows * n)
        .map(|i| {
            let (row, c) = (i / n, i % n);
            let beside = if (3..5).contains(&row) { 0.5 * sh[(row - 3) * n + c] } else { 0.0 };
            let own = (0..ENDS[3]).filter(|&r| index[r] as usize == row);
            beside + own.map(|r| l[r] * real(r * n + c)).sum::<f64>()
        })
        .collect();
    near(&sum.values(), &want, 1e-4);
}
