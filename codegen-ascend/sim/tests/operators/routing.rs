//! The routing of tokens to experts and back.

use crate::support::*;
use acl::Value::{self, Bool as Flag, Float, Int};

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
    let counts = Tensor::out(I64, &[experts]);
    run(
        "MoeInitRoutingV3",
        &[
            x.value(),
            chosen.value(),
            NONE,
            NONE,
            Int(0),
            Int(0),
            Int(experts as i64),
            Int(0),
            Int(1),
            Flag(true),
            Int(-1),
            NONE,
            Int(0),
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

    // Rows that are codes already go with the scales they have.
    let coded = Tensor::new(I8, &[tokens, width], &rng.codes(tokens * width, 128));
    let own = Tensor::new(F32, &[tokens], &rng.reals(tokens));
    let mut args = args(1, &counts);
    args[0] = coded.value();
    args[2] = own.value();
    args[10] = Int(-1);
    run("MoeInitRoutingV3", &args);
    for (row, token) in [(0, 1), (1, 2), (2, 0), (3, 2)] {
        assert_eq!(scales.values()[row], own.values()[token]);
        let moved = &out.values()[row * width..][..width];
        assert_eq!(*moved, coded.values()[token * width..][..width]);
    }
    let short = Tensor::out(F32, &[7]);
    args[16] = short.value();
    refused("MoeInitRoutingV3", &args, 161002, "expanded_scale_out: [7] breaks the rule");
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
