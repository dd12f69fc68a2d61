//! What a function does in a step, in numbers: which ops how often, and the bytes they move.

use ir::{Bindings, EntityId, Func, NodeId, Op, Storage, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Ops by [`op_label`], with how often each runs in a step.
pub type OpCounts = BTreeMap<String, u64>;

/// The name that an op is counted under: its mnemonic, or `fused:kind` for a composite.
pub fn op_label(op: &Op) -> String {
    match op {
        Op::Fused { body } => format!("fused:{}", body.kind()),
        _ => op.mnemonic().to_owned(),
    }
}

/// Ops of `func` that run in each step: all but those whose results are known at compile time.
pub fn count_ops(func: &Func) -> OpCounts {
    let constant = constants(func);
    counts(func, run_time(func, &constant))
}

/// Bytes of activations that a step of `func` reads and writes: those of every operand and result
/// of every op that runs, weights and states left out. A composite has the operands and results it
/// shows. `reshape` and slices that leave rows in one piece move nothing.
///
/// `None` when a dimension of an activation has no number in `sizes`.
pub fn activation_bytes(func: &Func, sizes: &Bindings) -> Option<u64> {
    let constant = constants(func);
    let moved = |v: &ValueId| func.values[*v].ty.storage == Storage::Tensor && !constant[v.index()];
    let mut total = 0;
    for n in run_time(func, &constant).filter(|&n| !is_view(func, n)) {
        let node = &func.nodes[n];
        for &value in node.args.iter().chain(&node.outs).filter(|v| moved(v)) {
            total += func.values[value].ty.bind(sizes).bytes()?;
        }
    }
    Some(total)
}

/// Layers of a function that run the same ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// Numbers of the layers.
    pub layers: BTreeSet<u64>,
    /// What each of them runs.
    pub ops: OpCounts,
}

/// Layers by what they run, in order of their first, and what runs outside of layers.
///
/// An op belongs to the layer that the name of its first result begins with, as in `layers.3.attn`;
/// the sum before a norm thus belongs to the layer of the norm's name.
pub fn layer_kinds(func: &Func) -> (Vec<LayerKind>, OpCounts) {
    let constant = constants(func);
    let mut layers: BTreeMap<u64, Vec<NodeId>> = BTreeMap::new();
    let mut outside = Vec::new();
    for n in run_time(func, &constant) {
        match layer_of(func, n) {
            Some(layer) => layers.entry(layer).or_default().push(n),
            None => outside.push(n),
        }
    }
    let mut kinds: Vec<LayerKind> = Vec::new();
    for (layer, nodes) in layers {
        let ops = counts(func, nodes.into_iter());
        match kinds.iter_mut().find(|k| k.ops == ops) {
            Some(same) => same.layers.extend([layer]),
            None => kinds.push(LayerKind { layers: BTreeSet::from([layer]), ops }),
        }
    }
    (kinds, counts(func, outside.into_iter()))
}

fn layer_of(func: &Func, node: NodeId) -> Option<u64> {
    let &first = func.nodes[node].outs.first()?;
    let number = func.values[first].name.strip_prefix("layers.")?;
    number.split('.').next()?.parse().ok()
}

fn counts(func: &Func, nodes: impl Iterator<Item = NodeId>) -> OpCounts {
    let mut counts = OpCounts::new();
    for n in nodes {
        *counts.entry(op_label(&func.nodes[n].op)).or_default() += 1;
    }
    counts
}

/// For each value whether it is known at compile time, as [`Func::is_const`] says.
fn constants(func: &Func) -> Vec<bool> {
    let mut constant = vec![false; func.values.len()];
    for &w in &func.weights {
        constant[w.index()] = true;
    }
    for &n in &func.order {
        let node = &func.nodes[n];
        if node.op.writes().is_empty() && node.args.iter().all(|a| constant[a.index()]) {
            node.outs.iter().for_each(|o| constant[o.index()] = true);
        }
    }
    constant
}

fn run_time<'a>(func: &'a Func, constant: &'a [bool]) -> impl Iterator<Item = NodeId> + 'a {
    let runs = |n: &NodeId| !func.nodes[*n].outs.iter().all(|o| constant[o.index()]);
    func.order.iter().copied().filter(runs)
}

fn is_view(func: &Func, node: NodeId) -> bool {
    let node = &func.nodes[node];
    match node.op {
        Op::Reshape { .. } => true,
        Op::Slice { axis, .. } => {
            let dims = &func.values[node.args[0]].ty.dims;
            dims.iter().take(axis as usize).skip(1).all(|d| d.as_const() == Some(1))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Symbol, text};

    const TEXT: &str = "fused @gate(%g: f32[T,4], %u: f32[T,4]) {
  %a = silu %g : f32[T,4]
  %p = mul %a, %u : f32[T,4]
  return %p
}

func @f(%x: f32[T,8], %kv: state f32[NB,2,1,4,4], %slots: i32[T]) {
  weight %a : f32[4,4]
  weight %b : f32[4,4]
  %w = concat %a, %b {axis = 0} : f32[8,4]
  %layers.0.up = slice %x {axis = 1, start = 0, len = 4} : f32[T,4]
  %layers.0.gated = fused %layers.0.up, %layers.0.up {body = @gate} : f32[T,4]
  %layers.0.out = matmul %layers.0.gated, %w {out = f32} : f32[T,8]
  %layers.1.up = slice %layers.0.out {axis = 1, start = 0, len = 4} : f32[T,4]
  %layers.1.gated = fused %layers.1.up, %layers.1.up {body = @gate} : f32[T,4]
  %layers.1.out = matmul %layers.1.gated, %w {out = f32} : f32[T,8]
  %layers.2.sum = add %layers.0.out, %layers.1.out : f32[T,8]
  %keys = reshape %layers.2.sum {dims = [T,2,4]} : f32[T,2,4]
  return %keys
}
";

    fn func() -> Func {
        text::parse("test.ir", TEXT).unwrap().funcs.remove(0)
    }

    fn of(pairs: &[(&str, u64)]) -> OpCounts {
        pairs.iter().map(|&(op, n)| (op.to_owned(), n)).collect()
    }

    #[test]
    fn what_runs_is_counted() {
        let all = [("add", 1), ("fused:gate", 2), ("matmul", 2), ("reshape", 1), ("slice", 2)];
        assert_eq!(count_ops(&func()), of(&all));
    }

    #[test]
    fn layers_that_run_the_same_are_one_kind() {
        let (kinds, outside) = layer_kinds(&func());
        let gated = of(&[("fused:gate", 1), ("matmul", 1), ("slice", 1)]);
        let kind =
            |layers: &[u64], ops| LayerKind { layers: layers.iter().copied().collect(), ops };
        assert_eq!(kinds, [kind(&[0, 1], gated), kind(&[2], of(&[("add", 1)]))]);
        assert_eq!(outside, of(&[("reshape", 1)]));
    }

    /// Rows of four and eight elements: each composite 4 + 4 + 4, each product 4 + 8, the sum 8 + 8
    /// + 8; weights and views nothing.
    #[test]
    fn activations_are_what_moves() {
        let sizes = |t| Bindings::from([(Symbol::new("T"), t)]);
        assert_eq!(activation_bytes(&func(), &sizes(3)), Some(3 * 4 * (2 * (12 + 12) + 24)));
        assert_eq!(activation_bytes(&func(), &Bindings::new()), None);
    }
}
