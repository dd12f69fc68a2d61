//! The operators of the library that prepare latent attention in one call, and why they are not used.
//!
//! Both take the projections as separate weights, in fractals of `[inputs, outputs]`, with the rows of
//! a head side by side and rotated channels in halves; the program has them joined, in fractals of
//! `[outputs, inputs]`, by kind of channel and rotated in pairs. A weight can not be rearranged when an
//! op is lowered, so its ops are computed one by one. Sizes are told apart first, since no
//! arrangement helps against those.

use super::library::decline;
use crate::{chip::Chip, kernels::Declined};
use compiler::{Lowered, Operand};
use ir::{Func, NodeId, Op, TensorType};

/// Inputs that `MlaPrologV2WeightNz` takes.
const PROLOG_INPUTS: [u64; 9] = [1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192];

const ARRANGEMENT: &str = "takes projections one by one, [inputs,outputs] in fractals and with the \
                           channels of a head together; these are joined";

/// `MlaPrologV2WeightNz`, for weights in bf16.
pub(super) fn prolog(
    op: &Op,
    operands: &[Operand],
    _: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::Fused { body } = op else { return decline("it is no composite") };
    if let Some(other) = product(body.func(), |op| !matches!(op, Op::Matmul { .. })) {
        return decline(format!("takes weights in bf16 here, and this has a {other}"));
    }
    let inputs = operands.first().map_or(0, |x| x.dim(x.ty.rank() - 1));
    if !PROLOG_INPUTS.contains(&inputs) {
        return decline(format!("takes 1024 to 8192 inputs of its own choice, not {inputs}"));
    }
    sizes(body.func(), 512)?;
    decline(ARRANGEMENT)
}

/// `MlaPreprocess`, for static int8.
pub(super) fn preprocess(
    op: &Op,
    _: &[Operand],
    _: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::Fused { body } = op else { return decline("it is no composite") };
    if let Some(other) = product(body.func(), |op| !matches!(op, Op::StaticMatmul { .. })) {
        return decline(format!(
            "takes inputs quantised by measured scales, and this has a {other}"
        ));
    }
    sizes(body.func(), 512)?;
    decline(ARRANGEMENT)
}

/// The first product of rows, not of heads, that is of another kind.
fn product(body: &Func, is_other: impl Fn(&Op) -> bool) -> Option<&'static str> {
    let ops = body.order.iter().map(|&n| &body.nodes[n].op);
    let mut products =
        ops.filter(|op| op.matmul_weight().is_some() && !matches!(op, Op::HeadMatmul { .. }));
    products.find(|op| is_other(op)).map(Op::mnemonic)
}

/// That absorbed queries have `latent` channels, made of 128, and heads are a power of two.
fn sizes(body: &Func, latent: u64) -> Result<(), Declined> {
    let is_absorbed = |&n: &NodeId| matches!(body.nodes[n].op, Op::HeadMatmul { .. });
    let absorbed = body.order.iter().copied().find(is_absorbed);
    let Some(absorbed) = absorbed else { return decline("queries are not absorbed") };
    let node = &body.nodes[absorbed];
    let dims = |ty: &TensorType| ty.const_dims().unwrap_or_default();
    let (from, to) = (dims(&body.values[node.args[0]].ty), dims(&body.values[node.outs[0]].ty));
    match (&from[..], &to[..]) {
        ([_, heads, 128], [_, _, wide])
            if *wide == latent && heads.is_power_of_two() && *heads <= 128 =>
        {
            Ok(())
        }
        ([_, heads, channels], [_, _, wide]) => decline(format!(
            "takes up to 128 heads of 128 channels and latents of {latent}, not {heads} of \
             {channels} and {wide}"
        )),
        _ => decline("queries have no heads"),
    }
}
