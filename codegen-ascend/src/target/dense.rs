//! Products of floats.

use super::library::{Library, Sequence, Tensor, decline, dims, ensure, one};
use crate::{chip::Chip, kernels::Declined};
use artifact::Element;
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Layout, Op};

/// `cubeMathType` of every product: operands are multiplied in the type they have.
pub(super) const KEEP_DTYPE: i64 = 0;

/// The operands of a `matmul`, which both have one type.
fn same_types(operands: &[Operand]) -> Result<DType, Declined> {
    let (x, weight) = (operands[0].ty.dtype, operands[1].ty.dtype);
    ensure(x == weight, || format!("rows are {x} and the weight is {weight}"))?;
    Ok(x)
}

/// `matmul` of bf16 rows with a weight in fractals.
pub(super) fn matmul_nz(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::Matmul { out } = *op else { return decline("it is no product of floats") };
    let dtype = same_types(operands)?;
    ensure(dtype == DType::BF16, || format!("fractals are for bf16, not {dtype}"))?;
    ensure(operands[1].ty.layout == Layout::Nz, || "the weight is not stored in fractals".into())?;
    product("MatmulWeightNz", out, operands, results)
}

/// `matmul` of rows with a row-major weight, which is seen transposed.
pub(super) fn matmul_nd(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::Matmul { out } = *op else { return decline("it is no product of floats") };
    let dtype = same_types(operands)?;
    let known = matches!(dtype, DType::F32 | DType::BF16);
    ensure(known, || format!("matrices are f32 or bf16, not {dtype}"))?;
    ensure(operands[1].ty.layout == Layout::Nd, || "the weight is stored in fractals".into())?;
    product("Mm", out, operands, results)
}

fn product(
    name: &'static str,
    out: DType,
    operands: &[Operand],
    results: &[Operand],
) -> Result<Lowered, Declined> {
    let dtype = operands[0].ty.dtype;
    let x = Tensor::rows(Arg::Operand(0), &operands[0])?;
    let weight = Tensor::right(Arg::Operand(1), &operands[1]);
    let multiply = |y| Library::new(name).tensor(x).tensor(weight).tensor(y).ints([KEEP_DTYPE]);
    if out == dtype {
        return Ok(one(multiply(Tensor::rows(Arg::Result(0), &results[0])?), ""));
    }
    let mut calls = Sequence::default();
    let shape = dims(&results[0]);
    let rounded = calls.temporary(dtype, &shape);
    let matrix = matrix_of(&shape);
    calls.call(multiply(Tensor::dense(rounded, dtype, &matrix)));
    calls.call(cast(rounded, dtype, Arg::Result(0), out, &matrix));
    Ok(calls.finish(format!(
        "the result is rounded to {dtype} and converted to {out}: the operator gives results of the \
         type of its operands alone"
    )))
}

/// Rows and columns of a tensor.
pub(super) fn matrix_of(shape: &[u64]) -> [u64; 2] {
    match shape {
        [leading @ .., cols] => [leading.iter().product(), *cols],
        [] => [1, 1],
    }
}

/// A dense tensor in another type.
pub(super) fn cast(x: Arg, from: DType, y: Arg, to: DType, shape: &[u64]) -> Library {
    Library::new("Cast")
        .tensor(Tensor::dense(x, from, shape))
        .element(Element::Of(to))
        .tensor(Tensor::dense(y, to, shape))
}

/// `head_matmul` as one product for each head, on views of rows and results with heads first.
pub(super) fn head_matmul(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::HeadMatmul { out } = *op else { return decline("it is no product by head") };
    let dtype = same_types(operands)?;
    let known = matches!(dtype, DType::F32 | DType::BF16);
    ensure(known, || format!("matrices are f32 or bf16, not {dtype}"))?;
    ensure(operands[1].ty.layout == Layout::Nd, || "the weight is stored in fractals".into())?;
    let heads_first = [1, 0, 2];
    let x = Tensor::of(Arg::Operand(0), &operands[0]).permuted(&heads_first);
    let weight = Tensor::right(Arg::Operand(1), &operands[1]);
    let multiply =
        |y| Library::new("BatchMatMul").tensor(x).tensor(weight).tensor(y).ints([KEEP_DTYPE]);
    if out == dtype {
        let y = Tensor::of(Arg::Result(0), &results[0]).permuted(&heads_first);
        return Ok(one(multiply(y), ""));
    }
    let mut calls = Sequence::default();
    let shape = dims(&results[0]);
    let rounded = calls.temporary(dtype, &shape);
    calls.call(multiply(Tensor::dense(rounded, dtype, &shape).permuted(&heads_first)));
    calls.call(cast(rounded, dtype, Arg::Result(0), out, &shape));
    Ok(calls.finish(format!("the result is rounded to {dtype} and converted to {out}")))
}
