//! Which constants are stored in a layout of the target's.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{DType, Func, Layout, NodeId, Op, TypeError, ValueId};

/// `matmul(x, w)` becomes `matmul(x, relayout(w))` for every constant weight of a matrix product,
/// fused or not, that is not in the layout that [`TargetInfo::layout_of`](crate::TargetInfo::layout_of)
/// gives for it, and for the scales of quantised weights. A weight in an element type that the
/// target's product does not take is cast first, as
/// [`TargetInfo::weight_type_of`](crate::TargetInfo::weight_type_of) says. Each is converted once for
/// all that read it so; being constant, it is stored so. Stacks of matrices are converted like matrices.
///
/// An `embed` of a table that some function of the module multiplies by reads the converted table
/// too, so that a tied table is stored once, unless the target's `embed` cannot.
pub(crate) struct AssignLayouts;

impl Rewrite for AssignLayouts {
    fn name(&self) -> &'static str {
        "assign-layouts"
    }

    fn source(&self) -> &'static str {
        include_str!("layouts.rs")
    }

    fn required(&self) -> Option<&'static str> {
        Some("the target's kernels rely on it")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let operand = node.op.matrix_operand().ok_or(Decline::NoMatch)?;
        let is_product = node.op.matmul_weight().is_some();
        if !is_product && !context.product_weights.contains(func, node.args[operand]) {
            return Err(Decline::NoMatch);
        }
        let rows = func.values[node.args[0]].ty.dtype;
        let misplaced = |i: usize| {
            let ty = &func.values[node.args[i]].ty;
            let dtype = match is_product && i == operand && ty.layout == Layout::Nd {
                true => context.target.weight_type_of(&node.op, rows, ty.dtype),
                false => ty.dtype,
            };
            let layout = context.target.layout_of(&node.op, &ty.with_dtype(dtype));
            ((ty.dtype, ty.layout) != (dtype, layout)).then_some((i, dtype, layout))
        };
        let operands = [Some(operand), node.op.weight_scale()].into_iter().flatten();
        let operands: Vec<(usize, DType, Layout)> = operands.filter_map(misplaced).collect();
        if operands.is_empty() {
            return Err(Decline::NoMatch);
        }
        if !operands.iter().all(|&(i, ..)| func.is_const(node.args[i])) {
            let why = "the matrix is computed at run time";
            return Err(Decline::Guard { code: "weight-not-constant", why });
        }
        let (op, mut args) = (node.op.clone(), node.args.clone());
        let mut nodes = Vec::new();
        for (i, dtype, layout) in operands {
            for step in [Op::Cast { to: dtype }, Op::Relayout { layout }] {
                let made = prepared(func, args[i], step).map_err(|_| Decline::NoMatch)?;
                args[i] = made.0;
                nodes.extend(made.1);
            }
        }
        let new = func.create(op, &args, "").map_err(|_| Decline::NoMatch)?;
        let mut replacement = Replacement::node(func, root, new);
        nodes.append(&mut replacement.nodes);
        Ok(Replacement { nodes, ..replacement })
    }
}

/// `weight` after `step`, which converts it, and the node that does so if there was none.
fn prepared(
    func: &mut Func,
    weight: ValueId,
    step: Op,
) -> Result<(ValueId, Option<NodeId>), TypeError> {
    let ty = &func.values[weight].ty;
    let suffix = match step {
        Op::Cast { to } if ty.dtype != to => to.to_string(),
        Op::Relayout { layout } if ty.layout != layout => layout.to_string(),
        _ => return Ok((weight, None)),
    };
    if let Some(known) = func.users(weight).find(|&n| func.nodes[n].op == step) {
        return Ok((func.nodes[known].outs[0], None));
    }
    let name = format!("{}.{suffix}", func.values[weight].name);
    let made = func.create(step, &[weight], &name)?;
    Ok((func.nodes[made].outs[0], Some(made)))
}
