//! Kernels from outside: lowered, bound to buffers with gaps between rows, and run on several threads.

use crate::support::*;
use artifact::Scalar;
use codegen_cpu::{
    CpuDevice, CpuOptions,
    external::{self, ExternalCall, ExternalKernel, ExternalKernels, Row, RowMut},
    target::{CpuTarget, ExtendedTarget},
};
use compiler::{Lowered, Operand, Target};
use hal::{Device, DeviceError, MemoryRequest};
use ir::{Func, NodeId, Op, TensorType, text};
use std::sync::Arc;
use tensor::DType::{self, BF16, F32};

/// `y = factor * x * w` and the index of the largest element of x, which it counts from `first`.
struct Scaled;

impl ExternalKernel for Scaled {
    fn kind(&self) -> &str {
        "scaled"
    }
    fn lower(&self, _: &Func, operands: &[Operand], _: &[Operand]) -> Option<ExternalCall> {
        let wide = operands.iter().all(|o| o.ty.dtype == F32);
        let scalars = vec![Scalar::Float(0.5), Scalar::Int(100)];
        wide.then(|| ExternalCall { scalars, whole: vec![1] })
    }
    fn run(&self, scalars: &[Scalar], inputs: &[Row<'_>], outputs: &mut [RowMut<'_>]) {
        let (&[Scalar::Float(factor), Scalar::Int(first)], &[x, w]) = (scalars, inputs) else {
            panic!("the call is another one")
        };
        let (x, w) = (x.f32(), w.f32());
        let [y, RowMut::I32(best)] = outputs else { panic!("two results") };
        y.fill_with(|i| factor * x[i] * w[i]);
        let largest = x.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        best[0] = first as i32 + largest.0 as i32;
    }
}

fn kernels() -> ExternalKernels {
    let mut kernels = ExternalKernels::default();
    kernels.add(Arc::new(Scaled)).unwrap();
    kernels
}

/// A composite of kind `scaled` with operands of these types; its body does not matter here.
fn composite(x: &str, w: &str, out: &str) -> Op {
    let body = format!(
        "fused @scaled(%x: {x}, %w: {w}) {{
  %f = cast %x {{to = f32}} : f32[7,6]
  %y = cast %x {{to = {out}}} : {out}[7,6]
  %i = argmax %f : i32[7]
  return %y, %i
}}
func @f(%x: {x}, %w: {w}) {{
  %y, %i = fused %x, %w {{body = @scaled}} : {out}[7,6], i32[7]
  return %y, %i
}}
"
    );
    let func = text::parse("test.ir", &body).unwrap().funcs.remove(0);
    let last: NodeId = *func.order.last().unwrap();
    func.nodes[last].op.clone()
}

fn operands(types: &[&str], strides: &[u64]) -> Vec<Operand> {
    let ty = |text: &str| -> TensorType {
        let source = format!("func @f(%x: {text}) {{\n return %x\n}}\n");
        let func = text::parse("test.ir", &source).unwrap().funcs.remove(0);
        func.values[func.params[0]].ty.clone()
    };
    let stride = |(text, &row_stride): (&&str, &u64)| Operand { ty: ty(text), row_stride };
    types.iter().zip(strides).map(stride).collect()
}

fn lowered(out: &str) -> Lowered {
    let op = composite("f32[7,6]", "f32[6]", out);
    let results = [&format!("{out}[7,6]")[..], "i32[7]"];
    ExtendedTarget::new(kernels())
        .lower(&op, &operands(&["f32[7,6]", "f32[6]"], &[9, 1]), &operands(&results, &[8, 1]))
        .unwrap()
}

fn device(threads: usize, external: ExternalKernels) -> CpuDevice {
    let options =
        CpuOptions { threads: Some(threads), pin: false, external, ..CpuOptions::default() };
    CpuDevice::new(options).unwrap()
}

/// What the call gives, or why it is refused.
fn run(
    threads: usize,
    external: ExternalKernels,
    lowered: &Lowered,
    out: DType,
) -> Result<(Vec<f32>, Vec<i32>), DeviceError> {
    let (x, w) = (noise(1, 42), noise(2, 6));
    let mut buffers = [
        encode(F32, &spread(&x, 6, 9)),
        encode(F32, &w),
        unwritten(out, 7 * 8),
        bytes_of_i32(&[-1; 7]),
    ];
    let mut device = device(threads, external);
    let (refs, arena_bytes) = place(buffers.iter().map(Vec::len));
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes,
            state_bytes: 0,
        })
        .unwrap();
    device.begin_capture().unwrap();
    device.launch(&hal::Launch::new(&lowered.calls[0].kernel, &refs, &lowered.calls[0].scalars))?;
    let graph = device.end_capture().unwrap();
    for (&at, bytes) in refs.iter().zip(&buffers) {
        device.write(at, bytes);
    }
    device.replay(&graph).unwrap();
    for (&at, bytes) in refs.iter().zip(&mut buffers) {
        device.read(at, bytes).unwrap();
    }
    Ok((gathered(&decode(out, &buffers[2]), 6, 8), to_i32(&buffers[3])))
}

#[test]
fn rows_are_split_between_threads() {
    let (x, w) = (noise(1, 42), noise(2, 6));
    let y: Vec<f32> = (0..42).map(|i| 0.5 * x[i] * w[i % 6]).collect();
    for (name, out) in [("f32", F32), ("bf16", BF16)] {
        let lowered = lowered(name);
        assert_eq!(lowered.calls[0].kernel, "ext.scaled");
        for threads in 1..=3 {
            let (found, best) = run(threads, kernels(), &lowered, out).unwrap();
            assert_eq!(found, rounded(out, &y), "{threads} threads, {name}");
            for (row, &best) in x.chunks(6).zip(&best) {
                let is_best = row.iter().all(|&v| v <= row[best as usize - 100]);
                assert!(is_best, "{row:?} {best}");
            }
        }
    }
}

/// Half of what the body says, and what it says of rows that stay unwritten.
struct Halved {
    factor: f32,
    writes: bool,
}

impl ExternalKernel for Halved {
    fn kind(&self) -> &str {
        "gated"
    }
    fn lower(&self, _: &Func, _: &[Operand], _: &[Operand]) -> Option<ExternalCall> {
        Some(ExternalCall::default())
    }
    fn run(&self, _: &[Scalar], inputs: &[Row<'_>], outputs: &mut [RowMut<'_>]) {
        let x = inputs[0].f32();
        if self.writes {
            outputs[0].fill_with(|i| self.factor * x[i] / (1.0 + (-x[i]).exp()));
        }
    }
}

#[test]
fn kernels_are_compared_with_their_bodies() {
    let module = text::parse(
        "test.ir",
        "fused @gated(%x: f32[T,6]) {
  %y = silu %x : f32[T,6]
  return %y
}
func @f(%x: f32[T,6]) {
  %y = fused %x {body = @gated} : f32[T,6]
  return %y
}
",
    )
    .unwrap();
    let distance = |factor, writes| external::distance(&Halved { factor, writes }, &module, 3);
    assert!(distance(1.0, true).unwrap() < 1e-6);
    assert!(distance(0.5, true).unwrap() > 0.1);
    assert_eq!(distance(1.0, false), Ok(f64::INFINITY), "unwritten rows are found");
    assert!(external::distance(&Scaled, &module, 3).unwrap_err().contains("kind scaled"));
}

#[test]
fn a_kernel_that_is_missing_is_named() {
    let error = run(1, ExternalKernels::default(), &lowered("f32"), F32).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`scaled`") && text.contains("precast compile"), "{text}");
}

/// Sizes come from a file and are not trusted.
#[test]
fn calls_that_do_not_fit_are_refused() {
    let good = lowered("f32");
    let scalars = &good.calls[0].scalars;
    let changed = |at: usize, value: u64| {
        let mut bad = good.clone();
        bad.calls[0].scalars[at] = Scalar::Int(value);
        run(1, kernels(), &bad, F32).unwrap_err().to_string()
    };
    assert!(run(1, kernels(), &good, F32).is_ok());
    assert!(changed(0, 8).contains("too few for 8 rows"));
    assert!(changed(1, 99).contains("at most 16"));
    assert!(changed(3, 7).contains("no element type 7"));
    assert!(changed(4, 10).contains("are 9 apart"));
    assert!(changed(7, 1000).contains("too few"));
    let mut short = good.clone();
    short.calls[0].scalars.truncate(5);
    assert!(run(1, kernels(), &short, F32).unwrap_err().to_string().contains("missing"));
    assert_eq!(scalars.len(), 3 + 4 * 3 + 2);
}

/// What a kernel cannot be given falls back to the ops of the body, which the emitter runs one by one.
#[test]
fn what_a_kernel_does_not_take_has_no_call() {
    let target = ExtendedTarget::new(kernels());
    let lower = |types: [&str; 2], strides: [u64; 2]| {
        let op = composite(types[0], types[1], "f32");
        let results = operands(&["f32[7,6]", "i32[7]"], &[6, 1]);
        target.lower(&op, &operands(&types, &strides), &results)
    };
    assert!(lower(["f32[7,6]", "f32[6]"], [6, 1]).is_ok());
    assert!(lower(["bf16[7,6]", "f32[6]"], [6, 1]).is_err(), "the kernel says so");
    assert!(lower(["f32[7,6]", "f32[2,3]"], [6, 4]).is_err(), "a whole operand has no gaps");
    let other = composite("f32[7,6]", "f32[6]", "f32");
    let types = operands(&["f32[7,6]", "f32[6]"], &[6, 1]);
    assert!(
        CpuTarget.lower(&other, &types, &types).is_err(),
        "the plain target has no such kernel"
    );
    assert!(target.info().has("scaled") && !CpuTarget.info().has("scaled"));
    assert_eq!(kernels().add(Arc::new(Scaled)), Err("scaled".to_owned()));
}
