//! One spelling for each computation, so that patterns need to know only one.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op, ValueId};

/// Removes what does nothing and flattens what nests:
///
/// - `cast x {to = type of x}`, `reshape x {dims = dims of x}`, `slice x` of a whole axis,
///   `relayout x {layout = layout of x}`, `concat x` of one part: `x`;
/// - `reshape (reshape x)`: one `reshape x`;
/// - `slice (slice x)` along one axis: one `slice x`;
/// - `concat (concat a, b), c` along one axis, the inner read nowhere else: `concat a, b, c`.
pub(crate) struct Canonicalise;

impl Rewrite for Canonicalise {
    fn name(&self) -> &'static str {
        "canonicalise"
    }

    fn source(&self) -> &'static str {
        include_str!("canonicalise.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        if does_nothing(func, root) {
            return Ok(Replacement::value(node.outs[0], node.args[0]));
        }
        let (op, args) = match &node.op {
            Op::Reshape { .. } => (node.op.clone(), reshaped_twice(func, root)?),
            Op::Slice { .. } => sliced_twice(func, root)?,
            Op::Concat { axis } => (node.op.clone(), nested_parts(func, root, *axis)?),
            _ => return Err(Decline::NoMatch),
        };
        let new = func.create(op, &args, "").map_err(|_| Decline::NoMatch)?;
        Ok(Replacement::node(func, root, new))
    }
}

fn does_nothing(func: &Func, root: NodeId) -> bool {
    let node = &func.nodes[root];
    let shape_or_type = matches!(
        node.op,
        Op::Cast { .. }
            | Op::Reshape { .. }
            | Op::Slice { .. }
            | Op::Relayout { .. }
            | Op::Concat { .. }
    );
    shape_or_type
        && node.args.len() == 1
        && func.values[node.args[0]].ty == func.values[node.outs[0]].ty
}

fn reshaped_twice(func: &Func, root: NodeId) -> Result<Vec<ValueId>, Decline> {
    match func.def_node(func.nodes[root].args[0]) {
        Some((_, inner)) if matches!(inner.op, Op::Reshape { .. }) => Ok(inner.args.clone()),
        _ => Err(Decline::NoMatch),
    }
}

fn sliced_twice(func: &Func, root: NodeId) -> Result<(Op, Vec<ValueId>), Decline> {
    let outer = &func.nodes[root];
    let inner = func.def_node(outer.args[0]).map(|(_, inner)| inner).ok_or(Decline::NoMatch)?;
    match (&outer.op, &inner.op) {
        (Op::Slice { axis, start, len }, Op::Slice { axis: same, start: first, .. })
            if axis == same =>
        {
            let op = Op::Slice { axis: *axis, start: first + start, len: *len };
            Ok((op, inner.args.clone()))
        }
        _ => Err(Decline::NoMatch),
    }
}

fn nested_parts(func: &Func, root: NodeId, axis: u64) -> Result<Vec<ValueId>, Decline> {
    let parts = &func.nodes[root].args;
    let inner = |part: ValueId| match func.def_node(part) {
        Some((_, node)) if node.op == (Op::Concat { axis }) && func.uses(part) == 1 => {
            Some(&node.args)
        }
        _ => None,
    };
    if parts.iter().all(|&p| inner(p).is_none()) {
        return Err(Decline::NoMatch);
    }
    let flat = parts.iter().flat_map(|&p| inner(p).cloned().unwrap_or_else(|| vec![p]));
    Ok(flat.collect())
}
