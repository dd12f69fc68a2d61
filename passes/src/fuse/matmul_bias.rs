//! Bias in the matrix product.

use super::{guard, kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op};

/// `add_bias(matmul(x, w), b)` becomes `matmul_bias(x, w, b)`.
///
/// The product must have no other reader: it would be computed twice.
pub(crate) struct FuseMatmulBias;

impl Rewrite for FuseMatmulBias {
    fn name(&self) -> &'static str {
        "fuse-matmul-bias"
    }

    fn source(&self) -> &'static str {
        include_str!("matmul_bias.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (Op::AddBias {}, &[product, bias]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let (_, matmul) = producer(func, product)?;
        let (&Op::Matmul { out }, &[x, weight]) = (&matmul.op, &matmul.args[..]) else {
            return Err(Decline::NoMatch);
        };
        kernel(context.target, "matmul_bias")?;
        guard(func.uses(product) == 1, "other-reader", "the product has another reader")?;
        let fused = func
            .create(Op::MatmulBias { out }, &[x, weight, bias], "")
            .map_err(|_| Decline::NoMatch)?;
        Ok(Replacement::node(func, root, fused))
    }
}
