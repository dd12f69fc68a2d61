//! The operators of the library that prepare latent attention in one call.
//!
//! `MlaPrologV2WeightNz` takes the projections as separate weights, in fractals of `[inputs, outputs]`,
//! with the rows of a head side by side. A weight cannot be rearranged when an op is lowered, so the
//! pass `fuse-mla-prolog` does it and makes a composite of a kind of its own, which is one call here.
//! What it left alone is a composite of kind `mla_preprocess`, whose ops are computed one by one; the
//! reasons are told here, sizes first, since no arrangement helps against those.

use super::{
    library::{Library, Tensor, decline, ensure, one},
    quant::dense,
    sparse::cache,
};
use crate::{chip::Chip, kernels::Declined};
use compiler::{Arg, Lowered, Operand};
use ir::{DType, Func, Layout, NodeId, Op, TensorType};

/// The kind of composite that [`prolog`] computes.
pub(super) const PROLOG: &str = "mla_prolog";

/// Inputs that `MlaPrologV2WeightNz` takes.
const PROLOG_INPUTS: [u64; 9] = [1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192];

const SEPARATE: &str = "takes what the pass fuse-mla-prolog makes, which left this alone: `inspect \
                        --passes` says why";
const ARRANGEMENT: &str = "takes both down projections as one weight of codes with the compressed \
                           vector first, and the norm of the layer; these are arranged otherwise";

/// `MlaPrologV2WeightNz`. Operands are the rows `[T,H]`, the projections `[H,1536]`,
/// `[1536,heads*192]`, `[heads,128,512]` and `[H,576]`, the weights of both norms, cosines and sines
/// `[T,64]`, places `i64[T]`, and the paged memories; results the absorbed and the rotated queries, and
/// the memories.
///
/// That rotated channels are left in halves is unsure. Queries and keys agree in it, so scores do not
/// depend on it as long as all steps of a model use the operator, which they do.
pub(super) fn prolog(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    _: &Chip,
) -> Result<Lowered, Declined> {
    let Op::Fused { body } = op else { return decline("it is no composite") };
    let [x, dq, uq_qr, uk, dkv_kr, gamma_q, gamma_kv, cos, sin, index, latent, rope_key] = operands
    else {
        return decline("it has other operands");
    };
    ensure(operands[..9].iter().all(|o| o.ty.dtype == DType::BF16), || "not all is bf16".into())?;
    ensure([dq, uq_qr, dkv_kr].iter().all(|w| w.ty.layout == Layout::Nz), || {
        "projections are not in fractals".to_owned()
    })?;
    ensure([x, cos, sin, index].iter().all(|o| dense(o)), || "rows lie apart".to_owned())?;
    let ops = body.func().order.iter().map(|&n| &body.func().nodes[n].op);
    let norms = ops.filter_map(|op| match op {
        Op::RmsNorm { eps, .. } => Some(f64::from(*eps)),
        _ => None,
    });
    let &[eps_q, eps_kv] = &norms.collect::<Vec<_>>()[..] else {
        return decline("it has other norms");
    };
    let arg = Arg::Operand;
    let call = Library::new("MlaPrologV2WeightNz")
        .tensor(Tensor::of(arg(0), x))
        .tensor(Tensor::weight(arg(1), dq))
        .tensor(Tensor::weight(arg(2), uq_qr))
        .tensor(Tensor::weight(arg(3), uk))
        .tensor(Tensor::weight(arg(4), dkv_kr))
        .tensor(Tensor::of(arg(5), gamma_q))
        .tensor(Tensor::of(arg(6), gamma_kv))
        .tensor(Tensor::of(arg(8), sin))
        .tensor(Tensor::of(arg(7), cos))
        .tensor(Tensor::of(arg(9), index))
        .tensor(cache(arg(10), latent))
        .tensor(cache(arg(11), rope_key))
        .absent(7)
        .float(eps_q)
        .float(eps_kv)
        .text("PA_BSND")
        .tensor(Tensor::of(Arg::Result(0), &results[0]))
        .tensor(Tensor::of(Arg::Result(1), &results[1]))
        .absent(1);
    Ok(one(call, "weights were rearranged for it by fuse-mla-prolog"))
}

/// Why `MlaPrologV2WeightNz` is not used.
pub(super) fn no_prolog(
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
    decline(SEPARATE)
}

/// Why `MlaPreprocess`, for static int8, is not used.
pub(super) fn no_preprocess(
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
