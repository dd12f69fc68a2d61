//! Rounding where a value is made instead of in an op of its own.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{DType, Func, NodeId, Op, ValueDef};

/// `cast(op(..) {out = f32}) {to = t}` becomes `op(..) {out = t}` for every op that rounds its
/// result to `out`.
///
/// The unrounded value must have no other reader, and be f32: an op computes in f32 and rounds
/// once, so a narrower `out` has rounded already.
pub(crate) struct FoldCast;

impl Rewrite for FoldCast {
    fn name(&self) -> &'static str {
        "fold-cast"
    }

    fn source(&self) -> &'static str {
        include_str!("fold_cast.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (&Op::Cast { to }, &[wide]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let rounded = node.outs[0];
        let &ValueDef::Result { node: producer, index } = &func.values[wide].def else {
            return Err(Decline::NoMatch);
        };
        let producer = func.nodes[producer].clone();
        let mut op = producer.op;
        let out = rounds(&mut op, index).ok_or(Decline::NoMatch)?;
        if *out != DType::F32 || !to.is_float() {
            let why = "the value is rounded already, or becomes an integer";
            return Err(Decline::Guard { code: "not-f32", why });
        }
        if func.uses(wide) != 1 {
            let why = "the unrounded value has another reader";
            return Err(Decline::Guard { code: "other-reader", why });
        }
        *out = to;
        let new = func.create(op, &producer.args, "").map_err(|_| Decline::NoMatch)?;
        let mut replacement = Replacement { nodes: vec![new], ..Replacement::default() };
        for (i, (&old, &new)) in producer.outs.iter().zip(&func.nodes[new].outs).enumerate() {
            replacement.values.push((if i == index { rounded } else { old }, new));
        }
        Ok(replacement)
    }
}

/// The attribute that result `index` of `op` is rounded to.
fn rounds(op: &mut Op, index: usize) -> Option<&mut DType> {
    match (op, index) {
        (
            Op::Embed { out }
            | Op::Matmul { out }
            | Op::HeadMatmul { out }
            | Op::Dequantize { out, .. }
            | Op::QuantMatmul { out, .. }
            | Op::StaticMatmul { out }
            | Op::DequantMatmul { out, .. }
            | Op::GroupedMatmul { out }
            | Op::GroupedQuantMatmul { out, .. }
            | Op::GroupedMixedMatmul { out }
            | Op::GroupedDequantMatmul { out, .. }
            | Op::CombineExperts { out }
            | Op::RmsNorm { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::Attention { out, .. }
            | Op::SinkAttention { out, .. }
            | Op::LatentAttention { out, .. }
            | Op::SparseLatentAttention { out, .. }
            | Op::ExpandedLatentAttention { out, .. }
            | Op::SparseExpandedLatentAttention { out, .. }
            | Op::SiluMul { out }
            | Op::SwigluClamped { out, .. }
            | Op::SiluMulPairs { out, .. }
            | Op::SwigluClampedPairs { out, .. },
            0,
        )
        | (Op::AddRmsNorm { out, .. }, 1) => Some(out),
        _ => None,
    }
}
