//! Products of floating-point matrices.

use crate::support::*;
use acl::Value::Int;

#[test]
fn products_agree_with_the_formula_in_every_layout() {
    let mut rng = Rng::new(1);
    for (m, k, n) in [(1, 2, 2), (3, 16, 17), (17, 33, 31), (5, 70, 48)] {
        for element in [F32, F16, BF16] {
            let x = Tensor::strided(element, &[m, k], &[k + 3, 1], &rng.reals(m * k));
            let values = rng.reals(k * n);
            let weights = [
                ("Mm", Tensor::new(element, &[k, n], &values)),
                ("Mm", Tensor::transposed(element, &[k, n], &values)),
                ("MatmulWeightNz", Tensor::nz(element, &[k, n], false, &values)),
                ("MatmulWeightNz", Tensor::nz(element, &[k, n], true, &values)),
            ];
            for (name, w) in weights {
                let y = Tensor::strided(element, &[m, n], &[n + 1, 1], &[]);
                let args = [x.value(), w.value(), y.value(), Int(0)];
                if name == "MatmulWeightNz" && element == F32 {
                    refused(name, &args, 161002, "input: FLOAT is not one of");
                    continue;
                }
                run(name, &args);
                let want = product(&x.values(), &w.values(), (m, k, n));
                near(&y.values(), &want, tolerance(element));
            }
        }
    }
}

#[test]
fn a_row_is_the_same_whatever_rows_are_beside_it() {
    let mut rng = Rng::new(2);
    let (m, k, n) = (9, 67, 40);
    let values = rng.reals(m * k);
    let w = Tensor::nz(BF16, &[k, n], true, &rng.reals(k * n));
    let result = |rows: std::ops::Range<usize>| {
        let x = Tensor::new(BF16, &[rows.len(), k], &values[rows.start * k..rows.end * k]);
        let y = Tensor::out(BF16, &[rows.len(), n]);
        run("MatmulWeightNz", &[x.value(), w.value(), y.value(), Int(0)]);
        y.values()
    };
    let all = result(0..m);
    for row in 0..m {
        assert_eq!(result(row..row + 1), all[row * n..][..n]);
    }
}

#[test]
fn batches_multiply_matrix_by_matrix() {
    let mut rng = Rng::new(3);
    let (b, m, k, n) = (3, 5, 18, 33);
    let x = Tensor::strided(F32, &[b, m, k], &[k, b * k, 1], &rng.reals(b * m * k));
    let values = rng.reals(b * k * n);
    let plain = Tensor::transposed(F32, &[b, k, n], &values);
    let y = Tensor::strided(F32, &[b, m, n], &[n, b * n, 1], &[]);
    run("BatchMatMul", &[x.value(), plain.value(), y.value(), Int(0)]);
    let want = |x: &[f64], w: &[f64]| {
        let part = |i: usize| product(&x[i * m * k..], &w[i * k * n..], (m, k, n));
        (0..b).flat_map(part).collect::<Vec<_>>()
    };
    near(&y.values(), &want(&x.values(), &plain.values()), 1e-5);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let x = Tensor::out(BF16, &[4, 32]);
    let w = Tensor::out(BF16, &[32, 48]);
    let nz = Tensor::nz(BF16, &[32, 48], false, &[]);
    let y = Tensor::out(BF16, &[4, 48]);
    let short = Tensor::out(BF16, &[33, 48]);
    let wide = Tensor::out(BF16, &[4, 47]);
    let floats = Tensor::out(F32, &[32, 48]);
    let (ok, kind) = (y.value(), Int(0));
    refused("Mm", &[x.value(), short.value(), ok, kind], 161002, "has 32 columns");
    refused("Mm", &[x.value(), nz.value(), ok, kind], 161002, "mat2: has to be ND");
    refused("Mm", &[x.value(), floats.value(), ok, kind], 161002, "mat2: FLOAT");
    refused("Mm", &[x.value(), w.value(), wide.value(), kind], 161002, "out: the shape");
    refused("Mm", &[x.value(), w.value(), ok, Int(2)], 161002, "cube_math_type");
    refused("Mm", &[x.value(), w.value(), ok, Int(4)], 161002, "cube_math_type");
    refused("MatmulWeightNz", &[x.value(), w.value(), ok, kind], 161002, "FRACTAL_NZ");
}
