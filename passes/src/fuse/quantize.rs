//! Products with the quantisation of their inputs.

use super::{guard, kernel, producer, product::Product};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, Node, NodeId, Op, ValueId};

/// What quantises the inputs of a product (`quantize_rows`, `quantize_static`, `quantize_fp8`) and the
/// product become a composite of kind `linear`, with the end that `fuse-epilogues` has given it, if any.
///
/// Nothing else may read the codes or their scales. Where a chain of row-wise ops makes the rows and
/// quantises them, it has done so before.
pub(crate) struct FuseQuantize;

impl Rewrite for FuseQuantize {
    fn name(&self) -> &'static str {
        "fuse-quantize"
    }

    fn source(&self) -> &'static str {
        include_str!("quantize.rs")
    }

    fn enters(&self, kind: &str) -> bool {
        matches!(kind, "mla_preprocess" | "moe")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let codes = codes_of(&func.nodes[root]).ok_or(Decline::NoMatch)?;
        let (quantise, made) = producer(func, codes)?;
        if !matches!(made.op, Op::QuantizeRows {} | Op::QuantizeStatic {} | Op::QuantizeFp8 { .. })
        {
            return Err(Decline::NoMatch);
        }
        let alone = made.outs.iter().all(|&o| func.uses(o) == 1 && func.users(o).eq([root]));
        guard(alone, "other-reader", "another op reads the quantised rows")?;
        kernel(context.target, "linear")?;
        Replacement::composite(func, &[quantise, root], "linear", context.target)
    }
}

/// What a product of codes, or a composite that begins with one, multiplies.
fn codes_of(node: &Node) -> Option<ValueId> {
    match &node.op {
        Op::QuantMatmul { .. } | Op::StaticMatmul { .. } | Op::GroupedQuantMatmul { .. } => {
            node.args.first().copied()
        }
        Op::Fused { body } if body.kind() == "linear" => {
            let inner = body.func();
            let product = inner.order.first().map(|&n| &inner.nodes[n])?;
            Product::of(&product.op)?;
            let codes = codes_of(product)?;
            let operand = inner.params.iter().position(|&p| p == codes)?;
            node.args.get(operand).copied()
        }
        _ => None,
    }
}
