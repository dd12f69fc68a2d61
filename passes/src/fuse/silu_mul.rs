//! Gated activation.

use super::{guard, kernel};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op, ValueId};

/// `mul(silu(g), u)` or `mul(u, silu(g))` becomes `silu_mul(g, u)`.
///
/// The activation must have no other reader: it would be computed twice.
pub(crate) struct FuseSiluMul;

impl Rewrite for FuseSiluMul {
    fn name(&self) -> &'static str {
        "fuse-silu-mul"
    }

    fn source(&self) -> &'static str {
        include_str!("silu_mul.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (Op::Mul {}, &[a, b]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let (activated, gate, up) = match (gate_of(func, a), gate_of(func, b)) {
            (Some(gate), _) => (a, gate, b),
            (None, Some(gate)) => (b, gate, a),
            (None, None) => return Err(Decline::NoMatch),
        };
        kernel(context.target, "silu_mul")?;
        guard(func.uses(activated) == 1, "other-reader", "the activation has another reader")?;
        let out = func.values[gate].ty.dtype;
        let fused =
            func.create(Op::SiluMul { out }, &[gate, up], "").map_err(|_| Decline::NoMatch)?;
        Ok(Replacement::node(func, root, fused))
    }
}

fn gate_of(func: &Func, value: ValueId) -> Option<ValueId> {
    let (_, node) = func.def_node(value)?;
    matches!(node.op, Op::Silu {}).then(|| node.args[0])
}
