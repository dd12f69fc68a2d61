//! Dead code.

use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId};

/// A node whose results nobody reads is removed, and what only it read goes with it.
///
/// Writers of states stay: the verifier demands that their last version is returned.
pub(crate) struct RemoveDead;

impl Rewrite for RemoveDead {
    fn name(&self) -> &'static str {
        "remove-dead"
    }

    fn source(&self) -> &'static str {
        include_str!("dead.rs")
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        _: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let node = &func.nodes[root];
        if !node.op.writes().is_empty() || node.outs.iter().any(|&o| func.uses(o) > 0) {
            return Err(Decline::NoMatch);
        }
        // Nothing is replaced; the driver removes a root that nobody reads.
        Ok(Replacement::default())
    }
}
