//! Products of integers.

use super::library::{Library, Tensor, decline, ensure, one};
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
    let Op::QuantMatmul { group, out } = *op else { return decline("it is no quantised product") };
    let [x, x_scale, weight, weight_scale] = operands else {
        return decline("it has other operands");
    };
    integers(x, weight)?;
    let (outputs, inputs) = (weight.dim(0), weight.dim(1));
    ensure(group >= inputs, || format!("scales are for groups of {group} of {inputs} inputs"))?;
    ensure(out == DType::BF16, || format!("the operator scales to bf16, not to {out}"))?;
    let rows = rows_of(x);
    ensure(dense(x_scale), || "scales of rows lie apart".to_owned())?;
    let call = multiply(
        Tensor::rows(Arg::Operand(0), x)?,
        Tensor::weight(Arg::Operand(2), weight),
        Scales {
            rows: Some(Tensor::dense(Arg::Operand(1), x_scale.ty.dtype, &[rows])),
            outputs: Tensor::dense(Arg::Operand(3), weight_scale.ty.dtype, &[outputs]),
            bias: None,
        },
        Tensor::rows(Arg::Result(0), &results[0])?,
    );
    Ok(one(call, ""))
}

/// `static_matmul`, whose bias and scale the operator takes as they are.
pub(super) fn static_matmul(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::StaticMatmul { out } = *op else { return decline("it is no static product") };
    let [x, weight, bias, scale] = operands else { return decline("it has other operands") };
    integers(x, weight)?;
    ensure(out == DType::BF16, || format!("the operator scales to bf16, not to {out}"))?;
    let call = multiply(
        Tensor::rows(Arg::Operand(0), x)?,
        Tensor::weight(Arg::Operand(1), weight),
        Scales {
            rows: None,
            outputs: Tensor::of(Arg::Operand(3), scale),
            bias: Some(Tensor::of(Arg::Operand(2), bias)),
        },
        Tensor::rows(Arg::Result(0), &results[0])?,
    );
    Ok(one(call, ""))
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
