//! Elementwise operators.

use crate::support::*;
use acl::Value::Type;

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
        let wrong = Tensor::out(element, &[3, 4]);
        refused("Muls", &[a.value(), scalar(1.0), wrong.value()], 161002, "out: the shape");
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
