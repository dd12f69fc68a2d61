//! Gate and up projections with their activation.

use super::{guard, kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{DType, Func, NodeId, Op, ValueId};

/// `silu_mul(matmul(x, wg), matmul(x, wu))` becomes
/// `matmul_silu_mul(x, interleave(wg, wu) {block})`, the block being the target's.
///
/// Both products must be f32, which is what the fused kernel activates, and have no other reader;
/// both weights must be constant, so that they are interleaved when compiling, and read nowhere
/// else, so that they are not stored twice.
pub(crate) struct FuseGateUp;

impl Rewrite for FuseGateUp {
    fn name(&self) -> &'static str {
        "fuse-gate-up"
    }

    fn source(&self) -> &'static str {
        include_str!("gate_up.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (&Op::SiluMul { out }, &[gate, up]) = (&node.op, &node.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let (x, gate_weight, gate_out) = product(func, gate)?;
        let (other_x, up_weight, up_out) = product(func, up)?;
        kernel(context.target, "matmul_silu_mul")?;
        let block = context.target.gate_up_block.ok_or(Decline::Guard {
            code: "no-block",
            why: "the target does not say how gate and up rows alternate",
        })?;
        guard(x == other_x, "other-input", "gate and up multiply different inputs")?;
        guard(
            gate_out == DType::F32 && up_out == DType::F32,
            "not-f32",
            "a product is rounded before the activation",
        )?;
        guard(
            func.uses(gate) == 1 && func.uses(up) == 1,
            "other-reader",
            "a product has another reader",
        )?;
        for weight in [gate_weight, up_weight] {
            guard(
                func.is_const(weight),
                "weight-not-constant",
                "a weight is computed at run time",
            )?;
            guard(func.uses(weight) == 1, "shared-weight", "a weight has another reader")?;
        }
        let (gate_ty, up_ty) = (&func.values[gate_weight].ty, &func.values[up_weight].ty);
        guard(gate_ty == up_ty, "other-type", "gate and up weights differ in type")?;
        let whole_blocks =
            gate_ty.dims[0].as_const().is_some_and(|rows| rows.is_multiple_of(block));
        guard(whole_blocks, "ragged-rows", "the rows are no multiple of the target's block")?;

        let name = format!("{}.weight", func.values[node.outs[0]].name);
        let weight = func
            .create(Op::Interleave { block }, &[gate_weight, up_weight], &name)
            .map_err(|_| Decline::NoMatch)?;
        let operands = [x, func.nodes[weight].outs[0]];
        let fused = func
            .create(Op::MatmulSiluMul { block, out }, &operands, "")
            .map_err(|_| Decline::NoMatch)?;
        let mut replacement = Replacement::node(func, root, fused);
        replacement.nodes.insert(0, weight);
        Ok(replacement)
    }
}

/// Input, weight and element type of the matrix product that computes `value`.
fn product(func: &Func, value: ValueId) -> Result<(ValueId, ValueId, DType), Decline> {
    let (_, node) = producer(func, value)?;
    match (&node.op, &node.args[..]) {
        (&Op::Matmul { out }, &[x, weight]) => Ok((x, weight, out)),
        _ => Err(Decline::NoMatch),
    }
}
