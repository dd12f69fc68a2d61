//! Products of integers.

use super::{
    dequantize::Dequantize,
    library::{Library, Sequence, Tensor, decline, ensure, one},
};
use crate::{chip::Chip, kernels::Declined};
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Layout, Op};

/// `quant_matmul` with one scale for each output, of which the operator applies both kinds.
pub(super) fn quant_matmul(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let (out, dynamic) = Dynamic::of(op, operands)?;
    ensure(out == DType::BF16, || format!("the operator scales to bf16, not to {out}"))?;
    let scales = Scales {
        rows: Some(Tensor::dense(Arg::Operand(1), DType::F32, &[dynamic.rows])),
        outputs: Tensor::dense(Arg::Operand(3), DType::F32, &[dynamic.outputs]),
        bias: None,
    };
    let weight = Tensor::weight(Arg::Operand(2), &operands[2]);
    let y = Tensor::rows(Arg::Result(0), &results[0])?;
    Ok(one(multiply(Tensor::rows(Arg::Operand(0), &operands[0])?, weight, scales, y), ""))
}

/// `quant_matmul` as sums of integers that a kernel of ours scales.
pub(super) fn quant_matmul_sums(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let (dtype, Dynamic { rows, outputs }) = Dynamic::of(op, operands)?;
    ensure(dense(&results[0]), || "the rows of the result lie apart".to_owned())?;
    let mut calls = Sequence::default();
    let sums = calls.temporary(DType::I32, &[rows, outputs]);
    let scales = Scales {
        rows: None,
        outputs: Tensor::dense(Arg::Operand(3), DType::F32, &[outputs]),
        bias: None,
    };
    let weight = Tensor::weight(Arg::Operand(2), &operands[2]);
    let y = Tensor::dense(sums, DType::I32, &[rows, outputs]);
    calls.call(multiply(Tensor::rows(Arg::Operand(0), &operands[0])?, weight, scales, y));
    let scaled = Dequantize {
        sums,
        row_scale: Some(Arg::Operand(1)),
        weight_scale: Arg::Operand(3),
        groups: None,
        out: Arg::Result(0),
        rows,
        width: outputs,
        dtype,
    };
    calls.append(scaled.lower(chip)?);
    Ok(calls.finish(""))
}

/// The sizes of a `quant_matmul` whose weight has one scale for each output.
struct Dynamic {
    rows: u64,
    outputs: u64,
}

impl Dynamic {
    fn of(op: &Op, operands: &[Operand]) -> Result<(DType, Self), Declined> {
        let Op::QuantMatmul { group, out } = *op else {
            return decline("it is no quantised product");
        };
        let [x, x_scale, weight, weight_scale] = operands else {
            return decline("it has other operands");
        };
        integers(x, weight)?;
        let (outputs, inputs) = (weight.dim(0), weight.dim(1));
        ensure(group >= inputs, || format!("scales are for groups of {group} of {inputs} inputs"))?;
        ensure(dense(x_scale), || "scales of rows lie apart".to_owned())?;
        ensure(weight_scale.ty.layout == Layout::Nd, || "scales are no vector".to_owned())?;
        Ok((out, Self { rows: rows_of(x), outputs }))
    }
}

/// `static_matmul`, whose bias and scale the operator takes as they are.
pub(super) fn static_matmul(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::StaticMatmul { out } = *op else { return decline("it is no static product") };
    ensure(out == DType::BF16, || format!("the operator scales to bf16, not to {out}"))?;
    Ok(one(static_product(operands, Tensor::rows(Arg::Result(0), &results[0])?)?, ""))
}

/// `static_matmul` as sums of integers, the bias included, that a kernel of ours scales.
pub(super) fn static_matmul_sums(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let Op::StaticMatmul { out: dtype } = *op else { return decline("it is no static product") };
    ensure(dense(&results[0]), || "the rows of the result lie apart".to_owned())?;
    let (rows, outputs) = (rows_of(&operands[0]), operands[1].dim(0));
    let mut calls = Sequence::default();
    let sums = calls.temporary(DType::I32, &[rows, outputs]);
    calls.call(static_product(operands, Tensor::dense(sums, DType::I32, &[rows, outputs]))?);
    let scaled = Dequantize {
        sums,
        row_scale: None,
        weight_scale: Arg::Operand(3),
        groups: None,
        out: Arg::Result(0),
        rows,
        width: outputs,
        dtype,
    };
    calls.append(scaled.lower(chip)?);
    Ok(calls.finish(""))
}

fn static_product(operands: &[Operand], out: Tensor) -> Result<Library, Declined> {
    let [x, weight, bias, scale] = operands else { return decline("it has other operands") };
    integers(x, weight)?;
    let scales = Scales {
        rows: None,
        outputs: Tensor::of(Arg::Operand(3), scale),
        bias: Some(Tensor::of(Arg::Operand(2), bias)),
    };
    let weight = Tensor::weight(Arg::Operand(1), weight);
    Ok(multiply(Tensor::rows(Arg::Operand(0), x)?, weight, scales, out))
}

/// Both sides int8, the weight in fractals.
pub(super) fn integers(x: &Operand, weight: &Operand) -> Result<(), Declined> {
    let (rows, stored) = (x.ty.dtype, weight.ty.dtype);
    ensure(rows == DType::I8 && stored == DType::I8, || {
        format!("the operator multiplies i8 by i8, not {rows} by {stored}")
    })?;
    ensure(weight.ty.layout == Layout::Nz, || "the weight is not stored in fractals".into())
}

/// Rows of `x [..,K]`.
pub(super) fn rows_of(x: &Operand) -> u64 {
    (0..x.ty.rank().saturating_sub(1)).map(|i| x.dim(i)).product()
}

/// Whether the rows of `x` follow one another.
pub(super) fn dense(x: &Operand) -> bool {
    x.row_stride == (1..x.ty.rank()).map(|i| x.dim(i)).product::<u64>()
}

/// What a product of integers is multiplied by.
pub(super) struct Scales {
    pub(super) rows: Option<Tensor>,
    pub(super) outputs: Tensor,
    pub(super) bias: Option<Tensor>,
}

/// `out = (x * weight + bias) * scales`, the weight `[N,K]` in fractals.
pub(super) fn multiply(x: Tensor, weight: Tensor, scales: Scales, out: Tensor) -> Library {
    Library::new("QuantMatmulWeightNz")
        .tensor(x)
        .tensor(weight)
        .optional(scales.rows)
        .tensor(scales.outputs)
        .absent(4)
        .optional(scales.bias)
        .flag(false)
        .flag(true)
        .ints([0])
        .tensor(out)
}
