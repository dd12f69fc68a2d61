//! One spelling for each computation, so that patterns need to know only one.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{DType, Func, Node, NodeId, Op, ValueId};

/// Removes what does nothing and flattens what nests:
///
/// - `cast x {to = type of x}`, `reshape x {dims = dims of x}`, `slice x` of a whole axis,
///   `relayout x {layout = layout of x}`, `concat x` of one part: `x`;
/// - `transpose (transpose x)`: `x`;
/// - `cast (cast x)`, the inner of bf16 or f16 to f32, which is exact: one `cast x`;
/// - `reshape (reshape x)`: one `reshape x`;
/// - `slice (slice x)` along one axis: one `slice x`;
/// - `slice (concat a, b)` along one axis, inside one of the parts: `slice` of that part;
/// - `concat (concat a, b), c` along one axis, the inner read nowhere else: `concat a, b, c`;
/// - `concat` of slices of one value that follow each other along its axis: one `slice`.
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
        if let (Op::Transpose {}, Some((_, inner))) = (&node.op, func.def_node(node.args[0]))
            && inner.op == (Op::Transpose {})
        {
            return Ok(Replacement::value(node.outs[0], inner.args[0]));
        }
        let (op, args) = match &node.op {
            Op::Reshape { .. } => (node.op.clone(), reshaped_twice(func, root)?),
            Op::Cast { .. } => (node.op.clone(), widened_first(func, root)?),
            Op::Slice { .. } => sliced_twice(func, root).or_else(|_| part_of_parts(func, root))?,
            Op::Concat { axis } => match following_slices(func, root, *axis) {
                Some(slice) => slice,
                None => (node.op.clone(), nested_parts(func, root, *axis)?),
            },
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

/// What is cast to f32 before it is cast again.
fn widened_first(func: &Func, root: NodeId) -> Result<Vec<ValueId>, Decline> {
    let wide = func.nodes[root].args[0];
    let (_, inner) = func.def_node(wide).ok_or(Decline::NoMatch)?;
    let from = inner.args.first().map(|&x| func.values[x].ty.dtype);
    let is_exact =
        inner.op == (Op::Cast { to: DType::F32 }) && matches!(from, Some(DType::BF16 | DType::F16));
    if is_exact { Ok(inner.args.clone()) } else { Err(Decline::NoMatch) }
}

/// The slice of a part that a slice of joined parts is.
fn part_of_parts(func: &Func, root: NodeId) -> Result<(Op, Vec<ValueId>), Decline> {
    let outer = &func.nodes[root];
    let &Op::Slice { axis, start, len } = &outer.op else { return Err(Decline::NoMatch) };
    let (_, joined) = func.def_node(outer.args[0]).ok_or(Decline::NoMatch)?;
    if joined.op != (Op::Concat { axis }) {
        return Err(Decline::NoMatch);
    }
    let mut first = 0;
    for &part in &joined.args {
        let n = func.values[part].ty.dims[axis as usize].as_const().ok_or(Decline::NoMatch)?;
        if start >= first && start + len <= first + n {
            return Ok((Op::Slice { axis, start: start - first, len }, vec![part]));
        }
        first += n;
    }
    Err(Decline::NoMatch)
}

/// The slice that slices of one value are when they are joined again.
fn following_slices(func: &Func, root: NodeId, axis: u64) -> Option<(Op, Vec<ValueId>)> {
    let slice_of = |part: &ValueId| match func.def_node(*part)? {
        (_, Node { op: Op::Slice { axis: along, start, len }, args, .. }) if *along == axis => {
            Some((args[0], *start, *len))
        }
        _ => None,
    };
    let parts = &func.nodes[root].args;
    let (x, start, _) = slice_of(parts.first()?)?;
    let mut end = start;
    for part in parts {
        let (from, first, len) = slice_of(part)?;
        if from != x || first != end {
            return None;
        }
        end += len;
    }
    Some((Op::Slice { axis, start, len: end - start }, vec![x]))
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
