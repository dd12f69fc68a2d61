//! Products of rows with the weights of their experts, rows of an expert standing together.

use super::{
    dequantize::{Dequantize, Groups},
    library::{Library, Sequence, Tensor, decline, dims, ensure},
};
use crate::{
    chip::Chip,
    kernels::{
        Declined,
        experts::{self, GatherArgs, GroupList, ScatterArgs},
    },
};
use artifact::Element;
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Layout, Op};

/// The op that takes weights of 4 bits.
pub(super) const MIXED: &str = "grouped_mixed_matmul";
/// The operator for weights in fractals.
pub(super) const WEIGHT_NZ: &str = "GroupedMatmulWeightNz";

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

/// The weight of a grouped product and what belongs to it, each with its buffer: a weight `[E,N,K]` and
/// its scales `f32[E,N,1]` where it is codes, or the three constants of [`Op::GroupedMixedMatmul`].
pub(super) type Constants<'a> = [(Arg, &'a Operand)];

/// What a grouped product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Floats.
    Floats,
    /// Rows of codes with scales, and weights whose scales are for so many inputs.
    Codes(u64),
    /// Rows of codes with scales, and weights of 4 bits.
    Mixed,
}

impl Kind {
    /// Whether rows have scales, the operand after them.
    pub(super) fn has_scales(self) -> bool {
        self != Self::Floats
    }

    /// Where the constants begin among the operands.
    pub(super) fn constants(self) -> usize {
        if self.has_scales() { 4 } else { 3 }
    }
}

/// A grouped product of pairs in their own order: rows are put in the order of experts and back.
pub(super) fn by_pairs(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, Declined> {
    let (dtype, kind) = kind(op)?;
    let first = kind.constants() - 2;
    let counts = kind == Kind::Mixed;
    let (order, starts) = (&operands[first], &operands[first + 1]);
    let (x, result) = (&operands[0], &results[0]);
    let (pairs, experts) = (order.dim(0) * order.dim(1), starts.dim(0) - 1);
    let own_rows = x.ty.rank() == 3;
    let mut calls = Sequence::default();
    let list = calls.temporary(DType::I64, &[experts]);
    let gather =
        |calls: &mut Sequence, x: &Operand, arg, list: Option<Arg>| -> Result<Arg, Declined> {
            let rows = calls.temporary(x.ty.dtype, &[pairs, x.dim(x.ty.rank() - 1)]);
            let (order_at, starts_at) = (Arg::Operand(first), Arg::Operand(first + 1));
            let group_list = list.map(|list| GroupList { list, counts });
            let args = GatherArgs { x: arg, order: order_at, starts: starts_at, rows, group_list };
            calls.append(experts::gather_rows_by_order(x, own_rows, order, starts, &args, chip)?);
            Ok(rows)
        };
    let rows = gather(&mut calls, x, Arg::Operand(0), Some(list))?;
    let scale = match kind.has_scales() {
        true => Some(gather(&mut calls, &operands[1], Arg::Operand(1), None)?),
        false => None,
    };
    let sorted = Sorted {
        x: rows,
        dtype: x.ty.dtype,
        scale,
        rows: pairs,
        groups: Groups { list, experts, counts },
    };
    let constants = operands.iter().enumerate().skip(kind.constants());
    let constants: Vec<_> = constants.map(|(i, operand)| (Arg::Operand(i), operand)).collect();
    let made = calls.temporary(dtype, &[pairs, result.dim(2)]);
    product(&mut calls, &sorted, &constants, (made, dtype), kind, chip)?;
    let args = ScatterArgs { rows: made, order: Arg::Operand(first), out: Arg::Result(0) };
    calls.append(experts::scatter_rows_by_order(order, result, &args, chip)?);
    Ok(calls.finish("rows are put in the order of experts and back"))
}

/// The type of the result of `op`, and what it multiplies.
pub(super) fn kind(op: &Op) -> Result<(DType, Kind), Declined> {
    match *op {
        Op::GroupedMatmul { out } => Ok((out, Kind::Floats)),
        Op::GroupedQuantMatmul { group, out } => Ok((out, Kind::Codes(group))),
        Op::GroupedMixedMatmul { out } => Ok((out, Kind::Mixed)),
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
    constants: &Constants<'_>,
    (out, dtype): (Arg, DType),
    kind: Kind,
    chip: &Chip,
) -> Result<(), Declined> {
    if kind == Kind::Mixed {
        return mixed(calls, x, constants, (out, dtype));
    }
    let Some(&(at, stored)) = constants.first() else { return decline("it has no weight") };
    let [experts, outputs, inputs] = dims(stored)[..] else {
        return decline("experts have no matrices");
    };
    countable(experts)?;
    let rows = Tensor::dense(x.x, x.dtype, &[x.rows, inputs]);
    let result = |arg, dtype| Tensor::dense(arg, dtype, &[x.rows, outputs]);
    let right = Tensor::right(at, stored);
    match (x.dtype, stored.ty.dtype, stored.ty.layout) {
        (DType::BF16, DType::BF16, Layout::Nz) => {
            ensure(dtype == DType::BF16, || {
                format!("the operator rounds to bf16, not to {dtype}")
            })?;
            calls.call(multiply(WEIGHT_NZ, rows, right, x.groups, result(out, dtype)));
        }
        (DType::F32, DType::F32, Layout::Nd) => {
            ensure(dtype == DType::F32, || format!("the operator gives f32, not {dtype}"))?;
            calls.call(multiply("GroupedMatmulV4", rows, right, x.groups, result(out, dtype)));
        }
        (DType::I8, DType::I8, Layout::Nz) => {
            let whole = matches!(kind, Kind::Codes(group) if group >= inputs);
            ensure(whole, || format!("scales are for parts of {inputs} inputs"))?;
            let Some(&(scale, _)) = constants.get(1) else {
                return decline("codes have no scales");
            };
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

fn countable(experts: u64) -> Result<(), Declined> {
    ensure((2..=1024).contains(&experts), || {
        format!("the operator has 2 to 1024 groups in a list, not {experts}")
    })
}

/// The product of rows of codes with weights of 4 bits, which the operator scales.
fn mixed(
    calls: &mut Sequence,
    x: &Sorted,
    constants: &Constants<'_>,
    (out, dtype): (Arg, DType),
) -> Result<(), Declined> {
    let &[(weight_at, weight), (scale_at, scale), (assist_at, assist)] = constants else {
        return decline("it has other operands");
    };
    let [experts, inputs, outputs] = dims(weight)[..] else {
        return decline("experts have no matrices");
    };
    countable(experts)?;
    ensure(weight.ty.layout == Layout::Nz, || "the weight is not stored in fractals".into())?;
    ensure(dtype == DType::BF16, || format!("the operator rounds to bf16, not to {dtype}"))?;
    ensure(x.groups.counts, || "the operator counts the rows of experts".to_owned())?;
    let Some(tokens) = x.scale else { return decline("rows have no scales") };
    let parts = scale.dim(1);
    let group = if parts == 1 { 0 } else { inputs / parts };
    let scales = Tensor::dense_of(scale_at, Element::U64, &[experts, parts, outputs]);
    let call = Library::new(WEIGHT_NZ)
        .list(Tensor::dense(x.x, DType::I8, &[x.rows, inputs]))
        .list(Tensor::weight(weight_at, weight))
        .list(Tensor::of(assist_at, assist))
        .list(scales)
        .absent(3)
        .list(Tensor::dense(tokens, DType::F32, &[x.rows]));
    let call = by_rows(call, x.groups).absent(1).ints([group as i64]);
    calls.call(call.list(Tensor::dense(out, dtype, &[x.rows, outputs])).absent(2));
    Ok(())
}

/// All rows in one tensor, all weights in another, the group list in device memory.
fn multiply(name: &'static str, x: Tensor, weight: Tensor, groups: Groups, out: Tensor) -> Library {
    let call = by_rows(Library::new(name).list(x).list(weight).absent(6), groups);
    let call = if name == WEIGHT_NZ { call.absent(1).ints([0]) } else { call };
    call.list(out).absent(2)
}

/// The parameters from the group list to the activation.
fn by_rows(call: Library, groups: Groups) -> Library {
    const ONE_TENSOR: i64 = 3;
    const ALONG_ROWS: i64 = 0;
    const NO_ACTIVATION: i64 = 0;
    let list = Tensor::dense(groups.list, DType::I64, &[groups.experts]);
    let counts = i64::from(groups.counts);
    call.tensor(list).absent(3).ints([ONE_TENSOR, ALONG_ROWS, counts, NO_ACTIVATION])
}
