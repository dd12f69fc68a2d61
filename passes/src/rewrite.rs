//! Local rewrites: what a pass is.

use crate::{TargetInfo, constants::ProductWeights, quantize::Quantize};
use ir::{Func, NodeId, ValueId};

/// Why a rewrite left a node alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// The node is not the pattern's root; expected for almost every node.
    NoMatch,
    /// The pattern matched but a precondition failed; `--explain-passes` prints it.
    Guard {
        /// Kebab-case, to count by.
        code: &'static str,
        /// For people.
        why: &'static str,
    },
}

/// What takes the place of nodes.
#[derive(Clone, Debug, Default)]
pub struct Replacement {
    /// New nodes, made by [`Func::create`] and not listed, definitions before uses.
    pub nodes: Vec<NodeId>,
    /// Each replaced value with what its readers read from now on. Types must agree. Nodes whose
    /// results lose their last reader are removed by the driver.
    pub values: Vec<(ValueId, ValueId)>,
}

impl Replacement {
    /// The results of `old` become those of the new `node`, one by one.
    pub fn node(func: &Func, old: NodeId, node: NodeId) -> Self {
        let (from, to) = (&func.nodes[old].outs, &func.nodes[node].outs);
        Self { nodes: vec![node], values: from.iter().copied().zip(to.iter().copied()).collect() }
    }

    /// Readers of `old` read the existing `new`.
    pub fn value(old: ValueId, new: ValueId) -> Self {
        Self { nodes: Vec::new(), values: vec![(old, new)] }
    }
}

/// What a rewrite may know beyond the function.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The target.
    pub target: &'a TargetInfo,
    /// Facts about the whole module, as they were when the pass began.
    pub product_weights: &'a ProductWeights,
    /// Whether products of floats are to be quantised, and how.
    pub quantize: Option<Quantize>,
}

/// A local rewrite rooted at one op.
pub trait Rewrite: Sync {
    /// Kebab-case verb; the name used by pipelines, dumps and tests.
    fn name(&self) -> &'static str;

    /// Whether the target cannot do without it: it is then never limited nor disabled.
    fn required(&self) -> bool {
        false
    }

    /// The replacement for the pattern at `root`. Changes nothing in `func` but to create nodes.
    ///
    /// # Errors
    /// [`Decline`] says why `root` stays.
    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline>;
}

/// A pattern that matched and was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearMiss {
    /// Kebab-case reason.
    pub code: &'static str,
    /// The reason for people.
    pub why: &'static str,
    /// Operation and first result of the root.
    pub at: String,
}
