//! Products of rows with the weights of their experts, rows of an expert standing together.

use super::{
    dequantize::{Dequantize, Groups},
    library::{Library, Sequence, Tensor, decline, dims, ensure},
};
use crate::{
    chip::Chip,
    kernels::{
        Declined,
        experts::{self, GatherArgs, ScatterArgs},
    },
};
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Layout, Op};

/// Rows in the order of experts.
pub(super) struct Sorted {
    /// `[rows,K]`, dense.
    pub(super) x: Arg,
    /// Element type of the rows.
    pub(super) dtype: DType,
    /// `f32[rows]` where they are codes.
    pub(super) scale: Option<Arg>,
    /// Rows.
    pub(super) rows: u64,
    /// Which are whose.
    pub(super) groups: Groups,
}

/// A weight `[E,N,K]`, its scales `f32[E,N,1]` where it is codes.
pub(super) struct Weight<'a> {
    /// Buffer and type of the weight.
    pub(super) weight: (Arg, &'a Operand),
    /// Buffer and type of the scales.
    pub(super) scale: Option<(Arg, &'a Operand)>,
}

/// A grouped product of pairs in their own order: rows are put in the order of experts and back.
pub(super) fn by_pairs(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let (dtype, group) = kind(op)?;
    let quantised = group.is_some();
    let first = if quantised { 2 } else { 1 };
    let (order, starts) = (&operands[first], &operands[first + 1]);
    let (x, result) = (&operands[0], &results[0]);
    let (pairs, experts) = (order.dim(0) * order.dim(1), starts.dim(0) - 1);
    let own_rows = x.ty.rank() == 3;
    let mut calls = Sequence::default();
    let list = calls.temporary(DType::I64, &[experts]);
    let gather = |calls: &mut Sequence, x: &Operand, arg, list| -> Result<Arg, Declined> {
        let rows = calls.temporary(x.ty.dtype, &[pairs, x.dim(x.ty.rank() - 1)]);
        let (order_at, starts_at) = (Arg::Operand(first), Arg::Operand(first + 1));
        let args =
            GatherArgs { x: arg, order: order_at, starts: starts_at, rows, group_list: list };
        calls.append(experts::gather_rows_by_order(x, own_rows, order, starts, &args, chip)?);
        Ok(rows)
    };
    let rows = gather(&mut calls, x, Arg::Operand(0), Some(list))?;
    let scale = match quantised {
        true => Some(gather(&mut calls, &operands[1], Arg::Operand(1), None)?),
        false => None,
    };
    let sorted = Sorted {
        x: rows,
        dtype: x.ty.dtype,
        scale,
        rows: pairs,
        groups: Groups { list, experts, counts: false },
    };
    let at = first + 2;
    let weight = Weight {
        weight: (Arg::Operand(at), &operands[at]),
        scale: operands.get(at + 1).map(|scale| (Arg::Operand(at + 1), scale)),
    };
    let made = calls.temporary(dtype, &[pairs, result.dim(2)]);
    product(&mut calls, &sorted, &weight, (made, dtype), group, chip)?;
    let args = ScatterArgs { rows: made, order: Arg::Operand(first), out: Arg::Result(0) };
    calls.append(experts::scatter_rows_by_order(order, result, &args, chip)?);
    Ok(calls.finish("rows are put in the order of experts and back"))
}

/// What kind of grouped product `op` is: the type of its result, and the group that shares a scale.
pub(super) fn kind(op: &Op) -> Result<(DType, Option<u64>), Declined> {
    match *op {
        Op::GroupedMatmul { out } => Ok((out, None)),
        Op::GroupedQuantMatmul { group, out } => Ok((out, Some(group))),
        _ => decline(format!("{} has no grouped product here", op.mnemonic())),
    }
}

/// The product of sorted rows into `out [rows,N]`, dense, of type `dtype`.
///
/// # Errors
/// When the operator does not take the types.
pub(super) fn product(
    calls: &mut Sequence,
    x: &Sorted,
    weight: &Weight<'_>,
    (out, dtype): (Arg, DType),
    group: Option<u64>,
    chip: &Chip,
) -> Result<(), Declined> {
    let (at, stored) = weight.weight;
    let [experts, outputs, inputs] = dims(stored)[..] else {
        return decline("experts have no matrices");
    };
    ensure((2..=1024).contains(&experts), || {
        format!("the operator has 2 to 1024 groups in a list, not {experts}")
    })?;
    let rows = Tensor::dense(x.x, x.dtype, &[x.rows, inputs]);
    let result = |arg, dtype| Tensor::dense(arg, dtype, &[x.rows, outputs]);
    let right = Tensor::right(at, stored);
    match (x.dtype, stored.ty.dtype, stored.ty.layout) {
        (DType::BF16, DType::BF16, Layout::Nz) => {
            ensure(dtype == DType::BF16, || {
                format!("the operator rounds to bf16, not to {dtype}")
            })?;
            calls.call(multiply(
                "GroupedMatmulWeightNz",
                rows,
                right,
                x.groups,
                result(out, dtype),
            ));
        }
        (DType::F32, DType::F32, Layout::Nd) => {
            ensure(dtype == DType::F32, || format!("the operator gives f32, not {dtype}"))?;
            calls.call(multiply("GroupedMatmulV4", rows, right, x.groups, result(out, dtype)));
        }
        (DType::I8, DType::I8, Layout::Nz) => {
            let whole = group.is_some_and(|group| group >= inputs);
            ensure(whole, || format!("scales are for parts of {inputs} inputs"))?;
            let Some((scale, _)) = weight.scale else { return decline("codes have no scales") };
            let sums = calls.temporary(DType::I32, &[x.rows, outputs]);
            let integers = result(sums, DType::I32);
            calls.call(multiply("GroupedMatmulV4", rows, right, x.groups, integers));
            let scaled = Dequantize {
                sums,
                row_scale: x.scale,
                weight_scale: scale,
                groups: Some(x.groups),
                out,
                rows: x.rows,
                width: outputs,
                dtype,
            };
            calls.append(scaled.lower(chip)?);
        }
        (rows, stored, layout) => {
            return decline(format!("no grouped operator multiplies {rows} by {stored} {layout}"));
        }
    }
    Ok(())
}

/// All rows in one tensor, all weights in another, the group list in device memory.
fn multiply(name: &'static str, x: Tensor, weight: Tensor, groups: Groups, out: Tensor) -> Library {
    const ONE_TENSOR: i64 = 3;
    const ALONG_ROWS: i64 = 0;
    const NO_ACTIVATION: i64 = 0;
    let list = Tensor::dense(groups.list, DType::I64, &[groups.experts]);
    let call = Library::new(name).list(x).list(weight).absent(6).tensor(list).absent(3).ints([
        ONE_TENSOR,
        ALONG_ROWS,
        i64::from(groups.counts),
        NO_ACTIVATION,
    ]);
    let call = match name {
        "GroupedMatmulWeightNz" => call.absent(1).ints([0]),
        _ => call,
    };
    call.list(out).absent(2)
}
