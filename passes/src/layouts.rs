//! Which constants are stored in a layout of the target's.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, Layout, NodeId, Op, TypeError, ValueId};

/// `matmul(x, w)` becomes `matmul(x, relayout(w))` for every constant weight of a matrix product,
/// fused or not, that is not in the target's layout. A weight is converted once for all its readers.
///
/// An `embed` of a table that some function of the module multiplies by reads the converted table
/// too, so that a tied table is stored once.
pub(crate) struct AssignLayouts;

impl Rewrite for AssignLayouts {
    fn name(&self) -> &'static str {
        "assign-layouts"
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
        let layout = context.target.matmul_weight_layout;
        let node = &func.nodes[root];
        let operand = node.op.matrix_operand().ok_or(Decline::NoMatch)?;
        let weight = node.args[operand];
        let is_product = node.op.matmul_weight().is_some();
        let is_tied = context.product_weights.contains(func, weight);
        if func.values[weight].ty.layout == layout || !(is_product || is_tied) {
            return Err(Decline::NoMatch);
        }
        if !func.is_const(weight) {
            let why = "the matrix is computed at run time";
            return Err(Decline::Guard { code: "weight-not-constant", why });
        }
        let mut nodes = Vec::new();
        let converted = converted(func, weight, layout).map_or_else(
            || {
                let name = format!("{}.{layout}", func.values[weight].name);
                let made = func.create(Op::Relayout { layout }, &[weight], &name)?;
                nodes.push(made);
                Ok::<_, TypeError>(func.nodes[made].outs[0])
            },
            Ok,
        );
        let converted = converted.map_err(|_| Decline::NoMatch)?;
        let (op, mut args) = (func.nodes[root].op.clone(), func.nodes[root].args.clone());
        args[operand] = converted;
        let new = func.create(op, &args, "").map_err(|_| Decline::NoMatch)?;
        let mut replacement = Replacement::node(func, root, new);
        nodes.append(&mut replacement.nodes);
        Ok(Replacement { nodes, ..replacement })
    }
}

/// `weight` in `layout`, if a live node computes it already.
fn converted(func: &Func, weight: ValueId, layout: Layout) -> Option<ValueId> {
    let node = func.users(weight).find(|&n| func.nodes[n].op == Op::Relayout { layout })?;
    Some(func.nodes[node].outs[0])
}
