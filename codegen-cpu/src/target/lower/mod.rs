//! One op, one kernel call. `None` means that no kernel takes these types.

use artifact::Scalar;
use compiler::{Arg, KernelCall, Lowered, Operand};
use ir::{DType, Op};

mod dense;
mod experts;
mod latent;
mod linear;
mod product;
mod quant;
mod recurrent;

/// Builds one call from the operands and results of an op.
struct Call {
    args: Vec<Arg>,
    scalars: Vec<Scalar>,
}

impl Call {
    fn new(operands: usize, results: usize) -> Self {
        let args = (0..operands).map(Arg::Operand).chain((0..results).map(Arg::Result)).collect();
        Self { args, scalars: Vec::new() }
    }
    fn ints(mut self, values: &[u64]) -> Self {
        self.scalars.extend(values.iter().map(|&v| Scalar::Int(v)));
        self
    }
    fn float(mut self, value: f32) -> Self {
        self.scalars.push(Scalar::Float(value));
        self
    }
    fn named(self, kernel: impl Into<String>) -> Option<Lowered> {
        let call = KernelCall {
            kernel: kernel.into(),
            args: self.args,
            scalars: self.scalars,
            ..KernelCall::default()
        };
        Some(Lowered { calls: vec![call], ..Lowered::default() })
    }
}

/// Rows, and elements in a row, of a tensor of any rank.
fn rows_of(o: &Operand) -> (u64, u64) {
    match o.ty.rank() {
        0 => (1, 1),
        rank => (o.dim(0), (1..rank).map(|i| o.dim(i)).product()),
    }
}

fn stride(o: &Operand) -> u64 {
    o.row_stride
}

fn is(o: &Operand, dtype: DType) -> bool {
    o.ty.dtype == dtype
}

fn is_f32(operands: &[&Operand]) -> bool {
    operands.iter().all(|o| is(o, DType::F32))
}

/// `f32` or `bf16`, the types activations and weights have here.
fn float(o: &Operand) -> Option<&'static str> {
    match o.ty.dtype {
        DType::F32 => Some("f32"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

/// `f32`, `bf16` or `i8`, the types keys and values have here.
fn cached(o: &Operand) -> Option<&'static str> {
    if o.ty.dtype == DType::I8 { Some("i8") } else { float(o) }
}

/// The first family that has a kernel for these types.
pub(super) fn lower(op: &Op, operands: &[Operand], results: &[Operand]) -> Option<Lowered> {
    dense::lower(op, operands, results)
        .or_else(|| experts::lower(op, operands, results))
        .or_else(|| linear::lower(op, operands, results))
        .or_else(|| latent::lower(op, operands, results))
        .or_else(|| product::lower(op, operands, results))
        .or_else(|| quant::lower(op, operands, results))
        .or_else(|| recurrent::lower(op, operands, results))
}
