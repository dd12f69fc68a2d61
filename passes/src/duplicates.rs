//! Common subexpressions.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId};

/// A node that repeats an earlier one (same op, same attributes, same operands) is replaced by it.
///
/// Operands are versions of a state, so two equal reads see the same memory; writers stay.
pub(crate) struct MergeDuplicates;

impl Rewrite for MergeDuplicates {
    fn name(&self) -> &'static str {
        "merge-duplicates"
    }

    fn source(&self) -> &'static str {
        include_str!("duplicates.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        // A repetition would read the same operands.
        let read_once = node.args.iter().any(|&a| func.uses(a) < 2);
        if !node.op.writes().is_empty() || read_once {
            return Err(Decline::NoMatch);
        }
        let rarest = node.args.iter().min_by_key(|&&a| func.uses(a)).ok_or(Decline::NoMatch)?;
        let repeats = |n: &NodeId| func.nodes[*n].args == node.args && func.nodes[*n].op == node.op;
        let earlier = func.users(*rarest).take_while(|n| *n != root).find(repeats);
        let first = &func.nodes[earlier.ok_or(Decline::NoMatch)?];
        let values = node.outs.iter().copied().zip(first.outs.iter().copied()).collect();
        Ok(Replacement { values, ..Replacement::default() })
    }
}
