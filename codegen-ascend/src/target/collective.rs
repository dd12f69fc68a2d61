//! Collectives. Plans are for one device: a sum or a join over one rank is a copy.

use super::library::{decline, ensure};
use crate::{chip::Chip, kernels::Declined};
use compiler::{Arg, KernelCall, Lowered, Operand};
use ir::Op;

/// A collective of one rank as a copy from device to device.
pub(super) fn of_one_rank(
    op: &Op,
    operands: &[Operand],
    _: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    match op {
        Op::AllReduce { .. } => {}
        Op::AllGather { ranks, .. } => ensure(*ranks == 1, || {
            format!("plans are for one device, and this joins the parts of {ranks}")
        })?,
        _ => return decline("it is no collective"),
    }
    ensure(super::quant::dense(&operands[0]), || "its rows lie apart".to_owned())?;
    let call = KernelCall {
        kernel: "memcpy".to_owned(),
        args: vec![Arg::Result(0), Arg::Operand(0)],
        ..KernelCall::default()
    };
    let why = "a collective of one rank is a copy".to_owned();
    Ok(Lowered { calls: vec![call], why, ..Lowered::default() })
}
