//! What comes before latent attention, as one op.

use super::{guard, kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, Node, NodeId, Op, ValueId};
use std::collections::BTreeSet;

/// From the rows of a layer to all that `latent_attention` and `sparse_latent_attention` read becomes
/// a composite of kind `mla_preprocess`: the norm of the layer if it is an op of its own, the down
/// projections of queries and of keys and values, their norms, the up projection of queries, the
/// rotation of both, the absorbed projection of keys, and both writes to the caches.
///
/// Projections may be of floats or quantised in any way, with the quantisation of their inputs, and
/// may be joined with others, whose parts then are results too.
pub(crate) struct FuseMlaPreprocess;

impl Rewrite for FuseMlaPreprocess {
    fn name(&self) -> &'static str {
        "fuse-mla-preprocess"
    }

    fn source(&self) -> &'static str {
        include_str!("mla_preprocess.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (Op::LatentAttention { .. } | Op::SparseLatentAttention { .. }) = node.op else {
            return Err(Decline::NoMatch);
        };
        let &[q_latent, q_rope, latent, rope_key, ..] = &node.args[..] else {
            return Err(Decline::NoMatch);
        };
        // An attention without the composite, or one that has it already.
        let mut walk = Walk { func, nodes: BTreeSet::new() };
        let absorbed = walk.one(q_latent, |op| matches!(op, Op::HeadMatmul { .. }))?.args[0];
        let rotated = walk.one(q_rope, |op| matches!(op, Op::Rotary { .. }))?.args[0];
        let key = walk.one(rope_key, |op| matches!(op, Op::PagedWrite {}))?.args[1];
        let vector = walk.one(latent, |op| matches!(op, Op::PagedWrite {}))?.args[1];
        let key = walk.moved(key);
        let key = walk.one(key, |op| matches!(op, Op::Rotary { .. }))?.args[0];
        let vector = walk.one(vector, |op| matches!(op, Op::RmsNorm { .. }))?.args[0];
        kernel(context.target, "mla_preprocess")?;

        let queries = [absorbed, rotated].map(|v| walk.input_of_product(v));
        let [query, other] = [queries[0]?, queries[1]?];
        guard(query == other, "other-query", "parts of the query have different inputs")?;
        let norm = walk.one(query, |op| matches!(op, Op::RmsNorm { .. }));
        let norm = norm.map_err(|_| Decline::Guard {
            code: "no-query-norm",
            why: "queries are not compressed and normalised first",
        })?;
        let down = norm.args[0];
        let inputs = [down, vector, key].map(|v| walk.input_of_product(v));
        let [x, y, z] = [inputs[0]?, inputs[1]?, inputs[2]?];
        guard(x == y && y == z, "other-input", "queries and keys are made of different rows")?;
        // The norm of the layer, unless it is one op with the sum before it.
        let _ = walk.one(x, |op| matches!(op, Op::RmsNorm { .. }));
        walk.add_parts();
        let nodes: Vec<NodeId> = walk.nodes.into_iter().collect();
        Replacement::composite(func, &nodes, "mla_preprocess", context.target)
    }
}

/// Goes against the data flow and takes along what it passes.
struct Walk<'a> {
    func: &'a Func,
    nodes: BTreeSet<NodeId>,
}

impl<'a> Walk<'a> {
    /// What makes `value`, which must be an op that `is_it`.
    fn one(&mut self, value: ValueId, is_it: impl Fn(&Op) -> bool) -> Result<&'a Node, Decline> {
        let value = self.moved(value);
        let (id, node) = producer(self.func, value)?;
        if !is_it(&node.op) {
            return Err(Decline::NoMatch);
        }
        self.nodes.insert(id);
        Ok(node)
    }

    /// What `value` is a part, another shape or a rounding of.
    fn moved(&mut self, mut value: ValueId) -> ValueId {
        while let Some((id, node)) = self.func.def_node(value)
            && matches!(node.op, Op::Reshape { .. } | Op::Slice { .. } | Op::Cast { .. })
        {
            self.nodes.insert(id);
            value = node.args[0];
        }
        value
    }

    /// The rows that the product `value` comes from multiplies, before they are quantised.
    fn input_of_product(&mut self, value: ValueId) -> Result<ValueId, Decline> {
        let not_a_product = Decline::Guard {
            code: "no-projection",
            why: "a part of the query or the key is not a projection with a constant weight",
        };
        let product = self.one(value, |op| op.matmul_weight().is_some());
        let product = product.map_err(|_| not_a_product)?;
        let weight = product.op.matmul_weight().map(|i| product.args[i]);
        guard(
            weight.is_some_and(|w| self.func.is_const(w)),
            "no-projection",
            "a part of the query or the key is not a projection with a constant weight",
        )?;
        let mut x = product.args[0];
        if let Some((id, node)) = self.func.def_node(x)
            && matches!(
                node.op,
                Op::QuantizeRows {} | Op::QuantizeStatic {} | Op::QuantizeFp8 { .. }
            )
        {
            self.nodes.insert(id);
            x = node.args[0];
        }
        // A rounding that only this product reads belongs to it.
        Ok(self.moved(x))
    }

    /// Other parts of the products: reading a part is all that others do with them.
    fn add_parts(&mut self) {
        let func = self.func;
        let is_product = |n: &&NodeId| func.nodes[**n].op.matmul_weight().is_some();
        let products: Vec<ValueId> =
            self.nodes.iter().filter(is_product).map(|&n| func.nodes[n].outs[0]).collect();
        for product in products {
            let part = |&n: &NodeId| matches!(func.nodes[n].op, Op::Slice { .. });
            self.nodes.extend(func.users(product).filter(part));
        }
    }
}
