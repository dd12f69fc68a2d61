//! The interpreter against numbers worked out by other means, by family of ops.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod dense;
mod experts;
mod latent;
mod quant;
mod recurrent;

use precast_ir::{
    Bindings, DType, Func,
    interp::{self, Tensor},
    text,
};

fn func(source: &str) -> Func {
    let func = text::parse("test.ir", source).expect("the text is well formed").funcs.remove(0);
    func.verify().expect("the function verifies");
    func
}

fn f32s(dims: &[usize], data: &[f64]) -> Tensor {
    Tensor::new(DType::F32, dims.to_vec(), data.to_vec())
}

fn i32s(data: &[f64]) -> Tensor {
    Tensor::new(DType::I32, vec![data.len()], data.to_vec())
}

fn counting(dims: &[usize]) -> Tensor {
    let n = dims.iter().product::<usize>();
    f32s(dims, &(0..n).map(|i| i as f64).collect::<Vec<_>>())
}

fn no_weights(name: &str) -> Tensor {
    unreachable!("no weight is called {name}")
}

fn run(source: &str, inputs: &[Tensor]) -> Vec<Tensor> {
    interp::run(&func(source), inputs, &no_weights, &Bindings::new()).expect("it runs")
}

fn tensor(dtype: DType, dims: &[usize], data: &[f64]) -> Tensor {
    Tensor::new(dtype, dims.to_vec(), data.to_vec())
}

/// Numbers without a pattern between -1 and 1.
fn wave(dims: &[usize], step: f64) -> Tensor {
    let n = dims.iter().product::<usize>();
    f32s(dims, &(0..n).map(|i| (i as f64 * step).sin()).collect::<Vec<_>>())
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 1e-5, "element {i}: {found}, expected {expected}");
    }
}

/// Why `source` does not run.
fn failure(source: &str, inputs: &[Tensor]) -> String {
    interp::run(&func(source), inputs, &no_weights, &Bindings::new()).unwrap_err().to_string()
}
