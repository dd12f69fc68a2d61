//! Nodes that a rewrite creates before it lists them.

use ir::{Func, NodeId, Op, TypeError, ValueId};

/// Nodes in the making, in order.
pub(crate) struct NewNodes<'a> {
    pub(crate) func: &'a mut Func,
    pub(crate) nodes: Vec<NodeId>,
}

impl<'a> NewNodes<'a> {
    /// None yet.
    pub(crate) fn new(func: &'a mut Func) -> Self {
        Self { func, nodes: Vec::new() }
    }

    /// The first result of a new node.
    ///
    /// # Errors
    /// [`TypeError`] when the operands break the op's typing rule.
    pub(crate) fn op(
        &mut self,
        op: Op,
        args: &[ValueId],
        name: &str,
    ) -> Result<ValueId, TypeError> {
        let node = self.func.create(op, args, name)?;
        self.nodes.push(node);
        Ok(self.func.nodes[node].outs[0])
    }
}
