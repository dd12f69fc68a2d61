//! Sibling projections in one matrix product.

use super::{guard, product::Product};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, Layout, NodeId, Op, TypeError, ValueId};

/// Products of one input, `matmul(x, wq)`, `matmul(x, wk)`, `matmul(x, wv)`, become slices of
/// `matmul(x, concat(wq, wk, wv))`; so do their sums with biases (`add_bias`), and products of
/// quantised weights with their scales, which must be in groups of one size and read the same codes
/// of inputs.
///
/// Results have two axes: a slice of the last of three would be a copy.
///
/// A sibling joins when its weight is constant, so that they are joined when compiling, and read
/// nowhere else, so that it is not stored twice: in this function, and in others only where the siblings it
/// joins are read too.
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
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let product = Product::of(&func.nodes[root].op).ok_or(Decline::NoMatch)?;
        if product.grouped {
            return Err(Decline::NoMatch);
        }
        let siblings = siblings(func, root, product);
        if siblings.len() < 2 {
            return Err(Decline::NoMatch);
        }
        let functions = |n: NodeId| {
            let weight = func.nodes[n].args[product.shared];
            context.product_weights.functions(func, weight)
        };
        let joins = |s: &&Sibling| {
            functions(s.product) == functions(root) && joins(func, s.product, product)
        };
        let joinable: Vec<Sibling> = siblings.iter().filter(joins).copied().collect();
        if joinable.len() < 2 && siblings[0].product == root {
            let why = "a weight is computed at run time, laid out, or read where others are not";
            guard(false, "shared-weight", why)?;
        }
        if joinable.len() < 2 || joinable[0].product != root {
            return Err(Decline::NoMatch);
        }
        let rank = func.values[func.nodes[root].outs[0]].ty.rank();
        guard(rank <= 2, "stacked-rows", "the slices of the joined product would be copies")?;
        join(func, &joinable, product).map_err(|_| Decline::NoMatch)
    }
}

/// A projection.
#[derive(Clone, Copy)]
struct Sibling {
    product: NodeId,
    /// The sum with a constant bias, if that is all that reads the product.
    biased: Option<NodeId>,
}

impl Sibling {
    fn of(func: &Func, product: NodeId) -> Self {
        let value = func.nodes[product].outs[0];
        let reader = func.users(value).next().filter(|_| func.uses(value) == 1);
        let biased = reader.filter(|&n| {
            let node = &func.nodes[n];
            node.op == Op::AddBias {} && node.args[0] == value && func.is_const(node.args[1])
        });
        Self { product, biased }
    }

    /// What others read.
    fn result(self, func: &Func) -> ValueId {
        func.nodes[self.biased.unwrap_or(self.product)].outs[0]
    }
}

/// Products like `root` of its input, whose constants have its element types, with a bias if `root`
/// has one.
fn siblings(func: &Func, root: NodeId, product: Product) -> Vec<Sibling> {
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
    let biased = Sibling::of(func, root).biased.is_some();
    let found = func.users(node.args[0]).filter(alike).map(|n| Sibling::of(func, n));
    found.filter(|s| s.biased.is_some() == biased).collect()
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

fn join(func: &mut Func, siblings: &[Sibling], product: Product) -> Result<Replacement, TypeError> {
    let first = func.nodes[siblings[0].product].clone();
    let result = siblings[0].result(func);
    let name = func.values[result].name.clone();
    let mut nodes = Vec::new();
    let mut concat = |func: &mut Func, parts: Vec<ValueId>, what: &str| {
        let joined = func.create(Op::Concat { axis: 0 }, &parts, &format!("{name}.{what}"))?;
        nodes.push(joined);
        Ok(func.nodes[joined].outs[0])
    };
    let mut operands = first.args[..product.shared].to_vec();
    for (i, part) in (product.shared..).zip(product.parts) {
        let parts = siblings.iter().map(|s| func.nodes[s.product].args[i]).collect();
        operands.push(concat(func, parts, part.name)?);
    }
    let biases: Option<Vec<ValueId>> =
        siblings.iter().map(|s| s.biased.map(|n| func.nodes[n].args[1])).collect();
    let bias = biases.map(|parts| concat(func, parts, "bias")).transpose()?;
    let unbiased = func.values[first.outs[0]].name.clone();
    let product = func.create(first.op, &operands, &format!("{unbiased}.joined"))?;
    nodes.push(product);
    let mut joined = func.nodes[product].outs[0];
    if let Some(bias) = bias {
        let sum = func.create(Op::AddBias {}, &[joined, bias], &format!("{name}.joined"))?;
        nodes.push(sum);
        joined = func.nodes[sum].outs[0];
    }

    let axis = func.values[joined].ty.rank() as u64 - 1;
    let mut values = Vec::new();
    let mut start = 0;
    for s in siblings {
        let old = s.result(func);
        let len = func.values[old].ty.dims[axis as usize].as_const().unwrap_or_default();
        let part = func.create(Op::Slice { axis, start, len }, &[joined], "")?;
        nodes.push(part);
        values.push((old, func.nodes[part].outs[0]));
        start += len;
    }
    Ok(Replacement { nodes, values, ..Replacement::default() })
}
