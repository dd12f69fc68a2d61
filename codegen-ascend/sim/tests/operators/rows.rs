//! Gated activations.

use crate::support::*;
use acl::Value::{Bool as Flag, Float, Int};

fn silu(v: f64) -> f64 {
    v / (1.0 + (-v).exp())
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
