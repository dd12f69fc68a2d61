//! Which constants are stored in a layout of the target's.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, Layout, NodeId, Op, TypeError, ValueId};

/// `matmul(x, w)` becomes `matmul(x, relayout(w))` for every constant weight of a matrix product,
/// fused or not, that is not in the layout that [`TargetInfo::layout_of`](crate::TargetInfo::layout_of)
/// gives for it, and for the scales of quantised weights. Each is converted once for all that read it
/// so; being constant, it is stored so. Stacks of matrices are converted like matrices.
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

    fn required(&self) -> bool {
        true
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
        let misplaced = |i: usize| {
            let ty = &func.values[node.args[i]].ty;
            let wanted = context.target.layout_of(&node.op, ty.dtype);
            (ty.layout != wanted).then_some((i, wanted))
        };
        let operands = [Some(operand), node.op.weight_scale()].into_iter().flatten();
        let operands: Vec<(usize, Layout)> = operands.filter_map(misplaced).collect();
        if operands.is_empty() {
            return Err(Decline::NoMatch);
        }
        if !operands.iter().all(|&(i, _)| func.is_const(node.args[i])) {
            let why = "the matrix is computed at run time";
            return Err(Decline::Guard { code: "weight-not-constant", why });
        }
        let (op, mut args) = (node.op.clone(), node.args.clone());
        let mut nodes = Vec::new();
        for (i, layout) in operands {
            args[i] = match converted(func, args[i], layout) {
                Some(known) => known,
                None => {
                    let made = convert(func, args[i], layout).map_err(|_| Decline::NoMatch)?;
                    nodes.push(made);
                    func.nodes[made].outs[0]
                }
            };
        }
        let new = func.create(op, &args, "").map_err(|_| Decline::NoMatch)?;
        let mut replacement = Replacement::node(func, root, new);
        nodes.append(&mut replacement.nodes);
        Ok(Replacement { nodes, ..replacement })
    }
}

fn convert(func: &mut Func, weight: ValueId, layout: Layout) -> Result<NodeId, TypeError> {
    let name = format!("{}.{layout}", func.values[weight].name);
    func.create(Op::Relayout { layout }, &[weight], &name)
}

/// `weight` in `layout`, if a live node computes it already.
fn converted(func: &Func, weight: ValueId, layout: Layout) -> Option<ValueId> {
    let node = func.users(weight).find(|&n| func.nodes[n].op == Op::Relayout { layout })?;
    Some(func.nodes[node].outs[0])
}
