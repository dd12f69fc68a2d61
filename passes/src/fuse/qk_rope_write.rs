//! Norms and rotation of queries and keys, and the write to the cache, as one.

use super::{guard, kernel, producer};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op, ValueId};
use std::collections::BTreeSet;

/// What stands between the projection of queries, keys and values and attention becomes a composite
/// of kind `qk_rope_write`: the norms of q and k, if there are any, the rotation of both, partial or
/// interleaved alike, and `kv_write`; with the parts of the joined projection that they read.
///
/// The root is `attention` or `sink_attention`.
pub(crate) struct FuseQkRopeWrite;

impl Rewrite for FuseQkRopeWrite {
    fn name(&self) -> &'static str {
        "fuse-qk-rope-write"
    }

    fn source(&self) -> &'static str {
        include_str!("qk_rope_write.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        let (Op::Attention { .. } | Op::SinkAttention { .. }) = node.op else {
            return Err(Decline::NoMatch);
        };
        let &[q, state, ..] = &node.args[..] else { return Err(Decline::NoMatch) };
        // An attention that reads its query from the composite already, or has a memory that another
        // layer writes.
        let (write, kv_write) = producer(func, state)?;
        let (Op::KvWrite {}, &[_, k, v, _]) = (&kv_write.op, &kv_write.args[..]) else {
            return Err(Decline::NoMatch);
        };
        let mut found = Found { func, nodes: BTreeSet::from([write]) };
        let tables = [found.rotated(q), found.rotated(k)];
        let [Some(q_table), Some(k_table)] = tables else {
            return Err(Decline::Guard {
                code: "not-rotated",
                why: "queries or keys are not rotated before attention",
            });
        };
        kernel(context.target, "qk_rope_write")?;
        guard(q_table == k_table, "other-angles", "queries and keys are rotated by other angles")?;
        found.views(v);
        let nodes: Vec<NodeId> = found.nodes.into_iter().collect();
        Replacement::composite(func, &nodes, "qk_rope_write", context.target)
    }
}

/// The ops of the pattern so far.
struct Found<'a> {
    func: &'a Func,
    nodes: BTreeSet<NodeId>,
}

impl Found<'_> {
    /// Takes the rotation that makes `value`, the norm before it and the views around; returns the
    /// table of its angles.
    fn rotated(&mut self, value: ValueId) -> Option<ValueId> {
        let value = self.views(value);
        let (n, node) = self.func.def_node(value)?;
        let (Op::Rotary { .. }, &[x, table]) = (&node.op, &node.args[..]) else { return None };
        self.nodes.insert(n);
        let x = self.views(x);
        if let Some((n, norm)) = self.func.def_node(x)
            && matches!(norm.op, Op::RmsNorm { .. } | Op::L2Norm { .. } | Op::LayerNorm { .. })
        {
            self.nodes.insert(n);
            self.views(norm.args[0]);
        }
        Some(table)
    }

    /// Takes the reshapes and slices that `value` is made of and nothing else reads; returns what
    /// they are parts of.
    fn views(&mut self, mut value: ValueId) -> ValueId {
        while let Some((n, node)) = self.func.def_node(value) {
            let is_view = matches!(node.op, Op::Reshape { .. } | Op::Slice { .. });
            if !is_view || self.func.uses(value) != 1 {
                break;
            }
            self.nodes.insert(n);
            value = node.args[0];
        }
        value
    }
}
