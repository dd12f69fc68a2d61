//! Activations of the library, for rows that are too wide for local memory.

use super::library::{Library, Tensor, decline, ensure, one};
use crate::{chip::Chip, kernels::Declined};
use compiler::{Arg, Lowered, Operand};
use ir::Op;

/// `silu_mul_pairs` and `swiglu_clamped_pairs` of a row whose first half is the gate and whose second
/// half is the up projection. The operators compute in f32 and round once.
pub(super) fn pairs(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let (block, out) = match *op {
        Op::SiluMulPairs { block, out } | Op::SwigluClampedPairs { block, out, .. } => (block, out),
        _ => return decline("it is no activation of pairs"),
    };
    let (x, y) = (&operands[0], &results[0]);
    let width = y.dim(y.ty.rank() - 1);
    ensure(block == width, || format!("gate and up alternate in blocks of {block} of {width}"))?;
    ensure(out == x.ty.dtype, || format!("the operator gives {}, not {out}", x.ty.dtype))?;
    let (x, y) = (Tensor::rows(Arg::Operand(0), x)?, Tensor::rows(Arg::Result(0), y)?);
    let call = match *op {
        Op::SwigluClampedPairs { alpha, limit, .. } => Library::new("ClippedSwiglu")
            .tensor(x)
            .absent(1)
            .ints([-1])
            .float(f64::from(alpha))
            .float(f64::from(limit))
            .float(1.0)
            .flag(false)
            .tensor(y),
        _ => Library::new("SwiGlu").tensor(x).ints([-1]).tensor(y),
    };
    Ok(one(call, ""))
}
