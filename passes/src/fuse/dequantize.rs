//! Products with weights that stay codes.

use super::{guard, kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{DType, Func, NodeId, Op, ValueId};

/// `matmul(x, dequantize(codes, scale))` becomes `dequant_matmul(x, codes, scale)`, and
/// `grouped_matmul` the grouped one, so that memory holds codes; a `cast` of the values is passed
/// over.
///
/// Codes and scales must be constant. The values must not be rounded, which the fused op does not
/// do: they are f32, or bf16 of mxfp4 codes, whose values bf16 holds.
pub(crate) struct FuseDequantize;

impl Rewrite for FuseDequantize {
    fn name(&self) -> &'static str {
        "fuse-dequantize"
    }

    fn source(&self) -> &'static str {
        include_str!("dequantize.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let operand = match node.op {
            Op::Matmul { .. } => 1,
            Op::GroupedMatmul { .. } => 3,
            _ => return Err(Decline::NoMatch),
        };
        let stored = Stored::of(func, node.args[operand])?;
        let group = stored.group;
        let fused = match node.op {
            Op::Matmul { out } => Op::DequantMatmul { group, out },
            Op::GroupedMatmul { out } => Op::GroupedDequantMatmul { group, out },
            _ => return Err(Decline::NoMatch),
        };
        kernel(context.target, fused.mnemonic())?;
        guard(
            stored.parts.iter().all(|&p| func.is_const(p)),
            "weight-not-constant",
            "the weight is computed at run time",
        )?;
        guard(!stored.rounded, "rounded-weight", "the values are rounded before the product")?;
        let mut operands = node.args[..operand].to_vec();
        operands.extend(stored.parts);
        let fused = func.create(fused, &operands, "").map_err(|_| Decline::NoMatch)?;
        Ok(Replacement::node(func, root, fused))
    }
}

/// Where the values of a weight come from.
struct Stored {
    /// Codes and scales.
    parts: [ValueId; 2],
    group: u64,
    /// Whether they are rounded on the way.
    rounded: bool,
}

impl Stored {
    fn of(func: &Func, weight: ValueId) -> Result<Self, Decline> {
        let mut values = weight;
        let (_, mut node) = producer(func, weight)?;
        if let Op::Cast { .. } = node.op {
            values = node.args[0];
            (_, node) = producer(func, values)?;
        }
        let (&Op::Dequantize { group, .. }, &[codes, scale]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let codes_type = func.values[codes].ty.dtype;
        let exact = |value: ValueId| match func.values[value].ty.dtype {
            DType::F32 => true,
            DType::BF16 => codes_type == DType::MxFp4,
            _ => false,
        };
        Ok(Self { parts: [codes, scale], group, rounded: !(exact(values) && exact(weight)) })
    }
}
