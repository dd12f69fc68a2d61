//! Elementwise operators, copies and reductions.

use crate::support::*;
use acl::Value::{Bool as Flag, Int, Type};

#[test]
fn elementwise_operators_repeat_what_is_narrower() {
    let mut rng = Rng::new(31);
    for element in [F32, BF16] {
        let a = Tensor::strided(element, &[3, 4, 5], &[40, 10, 2], &rng.reals(60));
        let b = Tensor::new(element, &[4, 1], &rng.reals(4));
        let y = Tensor::out(element, &[3, 4, 5]);
        run("Add", &[a.value(), b.value(), scalar(2.0), y.value()]);
        let (x, z) = (a.values(), b.values());
        let want: Vec<f64> = (0..60).map(|i| x[i] + 2.0 * z[i / 5 % 4]).collect();
        near(&y.values(), &want, tolerance(element));
        run("Mul", &[a.value(), b.value(), y.value()]);
        let want: Vec<f64> = (0..60).map(|i| x[i] * z[i / 5 % 4]).collect();
        near(&y.values(), &want, tolerance(element));
        run("Muls", &[a.value(), scalar(-0.5), y.value()]);
        near(&y.values(), &x.iter().map(|v| v * -0.5).collect::<Vec<_>>(), tolerance(element));
        run("Sigmoid", &[a.value(), y.value()]);
        let sigmoid = |v: &f64| 1.0 / (1.0 + (-v).exp());
        near(&y.values(), &x.iter().map(sigmoid).collect::<Vec<_>>(), tolerance(element));
        run("Silu", &[a.value(), y.value()]);
        let silu: Vec<f64> = x.iter().map(|v| v * sigmoid(v)).collect();
        near(&y.values(), &silu, tolerance(element));
        let wrong = Tensor::out(element, &[3, 4]);
        refused("Sigmoid", &[a.value(), wrong.value()], 161002, "out: the shape");
    }
    let a = Tensor::new(I32, &[3], &[1.0, -2.0, 2_000_000_001.0]);
    let y = Tensor::out(I32, &[3]);
    run("Add", &[a.value(), a.value(), scalar(0.0), y.value()]);
    assert_eq!(y.values(), [1.0, -2.0, 2_000_000_001.0], "whole numbers stay exact");
}

#[test]
fn conversions_round_to_floats_and_cut_to_whole_numbers() {
    let x = Tensor::new(F32, &[5], &[1.75, -1.75, 1.003_906_25, 3.0, 300.0]);
    let half = Tensor::out(BF16, &[5]);
    run("Cast", &[x.value(), Type(BF16.code()), half.value()]);
    assert_eq!(half.values(), [1.75, -1.75, 1.0, 3.0, 300.0], "ties go to even");
    let whole = Tensor::out(I32, &[5]);
    run("Cast", &[x.value(), Type(I32.code()), whole.value()]);
    assert_eq!(whole.values(), [1.0, -1.0, 1.0, 3.0, 300.0]);
    let wide = Tensor::out(I64, &[5]);
    run("Cast", &[whole.value(), Type(I64.code()), wide.value()]);
    assert_eq!(wide.values(), whole.values());
    refused("Cast", &[x.value(), Type(I32.code()), half.value()], 161002, "out: BFLOAT16");
    refused("Cast", &[x.value(), Type(77), half.value()], 161002, "no data type 77");
}

#[test]
fn parts_are_gathered_joined_and_reordered() {
    let mut rng = Rng::new(32);
    let table = Tensor::new(BF16, &[7, 6], &rng.reals(42));
    let t = table.values();
    let ids = Tensor::new(I64, &[2, 2], &[6.0, 0.0, 3.0, 3.0]);
    let y = Tensor::out(BF16, &[2, 2, 6]);
    run("Embedding", &[table.value(), ids.value(), y.value()]);
    let want: Vec<f64> = [6, 0, 3, 3].iter().flat_map(|&r| t[r * 6..][..6].to_vec()).collect();
    assert_eq!(y.values(), want);
    let columns = Tensor::new(I32, &[3], &[5.0, 1.0, 1.0]);
    let y = Tensor::out(BF16, &[7, 3]);
    for name in ["IndexSelect", "GatherV2"] {
        run(name, &[table.value(), Int(-1), columns.value(), y.value()]);
        let want: Vec<f64> = (0..21).map(|i| t[i / 3 * 6 + [5, 1, 1][i % 3]]).collect();
        assert_eq!(y.values(), want);
    }
    let outside = Tensor::new(I32, &[3], &[5.0, 6.0, 1.0]);
    let (code, message) =
        call("GatherV2", &[table.value(), Int(1), outside.value(), y.value()]).unwrap_err();
    assert!(code == 507015 && message.contains("index: 6 of 6"), "{code}: {message}");

    let a = Tensor::new(I32, &[2, 3], &rng.codes(6, 100));
    let b = Tensor::strided(I32, &[2, 2], &[4, 1], &rng.codes(4, 100));
    let (av, bv) = (a.values(), b.values());
    let y = Tensor::out(I32, &[2, 5]);
    run("Cat", &[lists(&[&a, &b]), Int(1), y.value()]);
    let want: Vec<f64> = (0..10)
        .map(|i| if i % 5 < 3 { av[i / 5 * 3 + i % 5] } else { bv[i / 5 * 2 + i % 5 - 3] })
        .collect();
    assert_eq!(y.values(), want);

    let x = Tensor::new(F32, &[2, 3, 4], &rng.reals(24));
    let xs = x.values();
    let y = Tensor::out(F32, &[4, 2, 3]);
    run("Permute", &[x.value(), ints(&[2, 0, 1]), y.value()]);
    let want: Vec<f64> = (0..24).map(|i| xs[(i / 3 % 2) * 12 + (i % 3) * 4 + i / 6]).collect();
    assert_eq!(y.values(), want);
    refused("Permute", &[x.value(), ints(&[2, 0, 0]), y.value()], 161002, "no order");
    let to = Tensor::out(BF16, &[2, 3, 4]);
    run("InplaceCopy", &[to.value(), x.value()]);
    near(&to.values(), &xs, tolerance(BF16));
}

#[test]
fn rows_are_reduced_along_any_dimension() {
    let mut rng = Rng::new(33);
    let x = Tensor::new(F32, &[3, 5, 2], &rng.reals(30));
    let xs = x.values();
    let at = |i: usize, j: usize, k: usize| xs[(i * 5 + j) * 2 + k];
    let y = Tensor::out(F32, &[3, 5, 2]);
    run("Softmax", &[x.value(), Int(1), y.value()]);
    let want: Vec<f64> = (0..30)
        .map(|n| {
            let (i, j, k) = (n / 10, n / 2 % 5, n % 2);
            at(i, j, k).exp() / (0..5).map(|j| at(i, j, k).exp()).sum::<f64>()
        })
        .collect();
    near(&y.values(), &want, 1e-6);

    let best = Tensor::out(I64, &[3, 2]);
    run("ArgMax", &[x.value(), Int(1), Flag(false), best.value()]);
    let values = Tensor::out(F32, &[3, 2, 2]);
    let places = Tensor::out(I64, &[3, 2, 2]);
    let args = [x.value(), Int(2), Int(1), Flag(true), Flag(true), values.value(), places.value()];
    run("Topk", &args);
    for i in 0..3 {
        for k in 0..2 {
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|&a, &b| at(i, b, k).total_cmp(&at(i, a, k)));
            assert_eq!(best.values()[i * 2 + k], order[0] as f64);
            for (r, &j) in order[..2].iter().enumerate() {
                assert_eq!(places.values()[(i * 2 + r) * 2 + k], j as f64);
                assert_eq!(values.values()[(i * 2 + r) * 2 + k], at(i, j, k));
            }
        }
    }

    let sum = Tensor::out(F32, &[5]);
    let args = [x.value(), ints(&[0, -1]), Flag(false), Type(F32.code()), sum.value()];
    run("ReduceSum", &args);
    let want: Vec<f64> = (0..5)
        .map(|j| (0..3).flat_map(|i| (0..2).map(move |k| (i, k))).map(|(i, k)| at(i, j, k)).sum())
        .collect();
    near(&sum.values(), &want, 1e-6);
    let ties = Tensor::new(F32, &[1, 4], &[1.0, 7.0, 7.0, 2.0]);
    let first = Tensor::out(I64, &[1]);
    run("ArgMax", &[ties.value(), Int(-1), Flag(false), first.value()]);
    assert_eq!(first.values(), [1.0]);
}

#[test]
fn sampling_keeps_the_tail_that_was_asked_for() {
    let logits = [2.0, 1.0, 0.0, -1.0, 2.0, 1.0, 0.0, -1.0];
    let x = Tensor::new(F32, &[2, 4], &logits);
    let k = Tensor::new(I32, &[2], &[2.0, 4.0]);
    let p = Tensor::new(F32, &[2], &[1.0, 0.7]);
    let y = Tensor::out(F32, &[2, 4]);
    run("ApplyTopKTopP", &[x.value(), p.value(), k.value(), y.value()]);
    let gone = f64::NEG_INFINITY;
    // Chances are 0.644, 0.237, 0.087 and 0.032: two of them pass 0.7.
    assert_eq!(y.values(), [2.0, 1.0, gone, gone, 2.0, 1.0, gone, gone]);
    refused("ApplyTopKTopP", &[x.value(), NONE, NONE, y.value()], 161002, "p and k");
}
