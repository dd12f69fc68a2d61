//! Sibling projections in one matrix product.

use super::guard;
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, Layout, NodeId, Op, TypeError, ValueId};

/// Products of one input, `matmul(x, wq)`, `matmul(x, wk)`, `matmul(x, wv)`, become slices of
/// `matmul(x, concat(wq, wk, wv))`; so do `matmul_bias` with their biases, and products of quantised
/// weights with their scales, which must be in groups of one size and read the same codes of inputs.
///
/// Results have two axes: a slice of the last of three would be a copy.
///
/// A sibling joins when its weight is constant, so that they are joined when compiling, and read
/// nowhere else, so that it is not stored twice.
pub(crate) struct FuseQkv;

impl Rewrite for FuseQkv {
    fn name(&self) -> &'static str {
        "fuse-qkv"
    }

    fn source(&self) -> &'static str {
        include_str!("qkv.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let product = Product::of(&func.nodes[root].op).ok_or(Decline::NoMatch)?;
        let siblings = siblings(func, root, product);
        if siblings.len() < 2 {
            return Err(Decline::NoMatch);
        }
        let joins = |n: &NodeId| joins(func, *n, product);
        let joinable: Vec<NodeId> = siblings.iter().copied().filter(joins).collect();
        if joinable.len() < 2 && siblings[0] == root {
            let why = "a weight is computed at run time, has another reader or is laid out";
            guard(false, "shared-weight", why)?;
        }
        if joinable.len() < 2 || joinable[0] != root {
            return Err(Decline::NoMatch);
        }
        let rank = func.values[func.nodes[root].outs[0]].ty.rank();
        guard(rank <= 2, "stacked-rows", "the slices of the joined product would be copies")?;
        join(func, &joinable, product).map_err(|_| Decline::NoMatch)
    }
}

/// A kind of product whose siblings can be joined.
#[derive(Clone, Copy)]
struct Product {
    /// Operands that siblings have in common; the others are constants with a row for each output.
    shared: usize,
    /// What the constants are called.
    parts: &'static [&'static str],
}

impl Product {
    fn of(op: &Op) -> Option<Self> {
        let (shared, parts): (_, &[_]) = match op {
            Op::Matmul { .. } => (1, &["weight"]),
            Op::MatmulBias { .. } => (1, &["weight", "bias"]),
            Op::DequantMatmul { .. } => (1, &["weight", "weight_scale"]),
            Op::QuantMatmul { .. } => (2, &["weight", "weight_scale"]),
            Op::StaticMatmul { .. } => (1, &["weight", "bias", "scale"]),
            _ => return None,
        };
        Some(Self { shared, parts })
    }
}

/// Products like `root` of its input, whose constants have its element types.
fn siblings(func: &Func, root: NodeId, product: Product) -> Vec<NodeId> {
    let node = &func.nodes[root];
    let alike = |n: &NodeId| {
        let other = &func.nodes[*n];
        other.op == node.op
            && other.args[..product.shared] == node.args[..product.shared]
            && node.args.iter().zip(&other.args).all(|(&a, &b)| {
                let (a, b) = (&func.values[a].ty, &func.values[b].ty);
                a.dtype == b.dtype && a.layout == b.layout
            })
    };
    func.users(node.args[0]).filter(alike).collect()
}

fn joins(func: &Func, node: NodeId, product: Product) -> bool {
    let constants = &func.nodes[node].args[product.shared..];
    let weight = constants[0];
    let can_be_joined = |&c: &ValueId| {
        let ty = &func.values[c].ty;
        func.is_const(c) && ty.dims[0].as_const().is_some() && ty.layout == Layout::Nd
    };
    constants.iter().all(can_be_joined) && func.uses(weight) == 1
}

fn join(func: &mut Func, siblings: &[NodeId], product: Product) -> Result<Replacement, TypeError> {
    let first = func.nodes[siblings[0]].clone();
    let name = func.values[first.outs[0]].name.clone();
    let mut nodes = Vec::new();
    let mut operands = first.args[..product.shared].to_vec();
    for (i, what) in (product.shared..).zip(product.parts) {
        let parts: Vec<ValueId> = siblings.iter().map(|&s| func.nodes[s].args[i]).collect();
        let joined = func.create(Op::Concat { axis: 0 }, &parts, &format!("{name}.{what}"))?;
        nodes.push(joined);
        operands.push(func.nodes[joined].outs[0]);
    }
    let product = func.create(first.op, &operands, &format!("{name}.joined"))?;
    nodes.push(product);
    let product = func.nodes[product].outs[0];

    let axis = func.values[product].ty.rank() as u64 - 1;
    let mut values = Vec::new();
    let mut start = 0;
    for &s in siblings {
        let old = func.nodes[s].outs[0];
        let len = func.values[old].ty.dims[axis as usize].as_const().unwrap_or_default();
        let part = func.create(Op::Slice { axis, start, len }, &[product], "")?;
        nodes.push(part);
        values.push((old, func.nodes[part].outs[0]));
        start += len;
    }
    Ok(Replacement { nodes, values, ..Replacement::default() })
}
