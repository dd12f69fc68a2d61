//! Residual sum and the norm of it.

use super::{kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op};

/// `s = add(a, b); n = rms_norm(s, w)` becomes `s, n = add_rms_norm(a, b, w)`.
///
/// The sum may have other readers, as a residual has: the fused op returns it.
pub(crate) struct FuseAddRmsNorm;

impl Rewrite for FuseAddRmsNorm {
    fn name(&self) -> &'static str {
        "fuse-add-rms-norm"
    }

    fn source(&self) -> &'static str {
        include_str!("add_rms_norm.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (&Op::RmsNorm { eps, out }, &[sum, weight]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let normed = node.outs[0];
        let (_, add) = producer(func, sum)?;
        let (Op::Add {}, &[a, b]) = (&add.op, &add.args[..]) else {
            return Err(Decline::NoMatch);
        };
        kernel(context.target, "add_rms_norm")?;
        let fused = func
            .create(Op::AddRmsNorm { eps, out }, &[a, b, weight], "")
            .map_err(|_| Decline::NoMatch)?;
        let [new_sum, new_normed] = func.nodes[fused].outs[..] else {
            unreachable!("the fused op has two results")
        };
        let values = vec![(sum, new_sum), (normed, new_normed)];
        Ok(Replacement { nodes: vec![fused], values, ..Replacement::default() })
    }
}
