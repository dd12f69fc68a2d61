//! A mixture of experts as one op.

use super::{guard, kernel, producer, product::Product};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op, ValueId};
use std::collections::HashSet;

/// From the choice of experts to the weighted sum of their results becomes a composite of kind `moe`:
/// `route`, `expert_groups`, the products of experts in any kind of weight with their biases,
/// activation and the quantisation of their inputs, `combine_experts`. What feeds these alone comes
/// along: the router, and a shared expert with its gate when it is only added to the sum.
///
/// Nothing may read the choice of experts or what is between but these ops.
pub(crate) struct FuseMoe;

impl Rewrite for FuseMoe {
    fn name(&self) -> &'static str {
        "fuse-moe"
    }

    fn source(&self) -> &'static str {
        include_str!("moe.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let combine = combined(func, root).ok_or(Decline::NoMatch)?;
        let routed = func.nodes[combine].args[0];
        producer(func, routed)?;
        kernel(context.target, "moe")?;
        let nodes = feeding(func, root);
        let has = |is_it: fn(&Op) -> bool| nodes.iter().any(|&n| is_it(&func.nodes[n].op));
        let whole = has(|op| matches!(op, Op::Route { .. }))
            && has(|op| matches!(op, Op::ExpertGroups { .. }))
            && has(|op| {
                matches!(op, Op::GroupedMixedMatmul { .. })
                    || Product::of(op).is_some_and(|p| p.grouped)
            });
        let why = "an op that is none of the experts' reads their choice or their results";
        guard(whole, "other-reader", why)?;
        Replacement::composite(func, &nodes, "moe", context.target)
    }
}

/// The `combine_experts` that `root` ends: itself, or a sum of it with a shared expert.
fn combined(func: &Func, root: NodeId) -> Option<NodeId> {
    let node = &func.nodes[root];
    match node.op {
        Op::CombineExperts { .. } => {
            let sum = node.outs[0];
            let reader = func.users(sum).next().filter(|_| func.uses(sum) == 1);
            let shared = reader.and_then(|reader| combined(func, reader)).is_some();
            (!shared).then_some(root)
        }
        Op::Add {} => {
            let made = |v: ValueId| func.def_node(v).filter(|_| func.uses(v) == 1);
            let &[a, b] = &node.args[..] else { return None };
            [(a, b), (b, a)].into_iter().find_map(|(sum, shared)| {
                let (combine, by) = made(sum)?;
                let (_, shared) = made(shared)?;
                let is_sum = matches!(by.op, Op::CombineExperts { .. });
                let of_rows = matches!(shared.op, Op::ScaleRows {})
                    || Product::of(&shared.op).is_some_and(|p| !p.grouped);
                (is_sum && of_rows).then_some(combine)
            })
        }
        _ => None,
    }
}

/// `root` and the ops of experts that nothing reads but these.
fn feeding(func: &Func, root: NodeId) -> Vec<NodeId> {
    let mut found = HashSet::from([root]);
    let end = func.order.iter().position(|&n| n == root).unwrap_or_default();
    for &n in func.order[..end].iter().rev() {
        let node = &func.nodes[n];
        if !belongs(&node.op) || node.outs.iter().all(|&o| func.is_const(o)) {
            continue;
        }
        let mut readers = node.outs.iter().flat_map(|&o| func.users(o)).peekable();
        let returned = node.outs.iter().any(|o| func.results.contains(o));
        if readers.peek().is_some() && !returned && readers.all(|r| found.contains(&r)) {
            found.insert(n);
        }
    }
    func.order[..=end].iter().copied().filter(|n| found.contains(n)).collect()
}

/// Whether an op may be one of those that compute experts.
fn belongs(op: &Op) -> bool {
    Product::of(op).is_some()
        || matches!(
            op,
            Op::GroupedMixedMatmul { .. }
                | Op::Route { .. }
                | Op::ExpertGroups { .. }
                | Op::ExpertBias {}
                | Op::AddBias {}
                | Op::CombineExperts { .. }
                | Op::SiluMul { .. }
                | Op::SiluMulPairs { .. }
                | Op::SwigluClamped { .. }
                | Op::SwigluClampedPairs { .. }
                | Op::QuantizeRows {}
                | Op::QuantizeStatic {}
                | Op::QuantizeFp8 { .. }
                | Op::ScaleRows {}
                | Op::Sigmoid {}
                | Op::Cast { .. }
                | Op::Reshape { .. }
                | Op::Slice { .. }
        )
}
