//! Greedy choice in the output projection.

use super::{guard, kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{DType, Func, NodeId, Op};

/// `l = matmul(x, w) {out = f32}; i = argmax(l)` becomes `l, i = matmul_argmax(x, w)`.
///
/// The product may have other readers: the fused op returns it. It must be f32, or the choice would
/// be made before rounding instead of after it.
pub(crate) struct FuseMatmulArgmax;

impl Rewrite for FuseMatmulArgmax {
    fn name(&self) -> &'static str {
        "fuse-matmul-argmax"
    }

    fn source(&self) -> &'static str {
        include_str!("matmul_argmax.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (Op::Argmax {}, &[product]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let best = node.outs[0];
        let (_, matmul) = producer(func, product)?;
        let (&Op::Matmul { out }, &[x, weight]) = (&matmul.op, &matmul.args[..]) else {
            return Err(Decline::NoMatch);
        };
        kernel(context.target, "matmul_argmax")?;
        guard(out == DType::F32, "not-f32", "the product is rounded before the choice")?;
        let fused =
            func.create(Op::MatmulArgmax {}, &[x, weight], "").map_err(|_| Decline::NoMatch)?;
        let [new_product, new_best] = func.nodes[fused].outs[..] else {
            unreachable!("the fused op has two results")
        };
        let values = vec![(product, new_product), (best, new_best)];
        Ok(Replacement { nodes: vec![fused], values, ..Replacement::default() })
    }
}
