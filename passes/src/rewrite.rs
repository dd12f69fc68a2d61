//! Local rewrites: what a pass is.

use crate::{TargetInfo, constants::ProductWeights, quantize::Quantize};
use ir::{Func, NodeId, OutlineError, ValueId};

/// Why a rewrite left a node alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// The node is not the pattern's root; expected for almost every node.
    NoMatch,
    /// The pattern matched but a precondition failed; `--explain-passes` prints it.
    Guard {
        /// Kebab-case, to count by; `docs/decline-codes.md` lists those of this crate.
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
    /// Ops that a composite among the new nodes stands for; they are removed even if they write
    /// states.
    pub outlined: Vec<NodeId>,
}

impl Replacement {
    /// The results of `old` become those of the new `node`, one by one.
    pub fn node(func: &Func, old: NodeId, node: NodeId) -> Self {
        let (from, to) = (&func.nodes[old].outs, &func.nodes[node].outs);
        let values = from.iter().copied().zip(to.iter().copied()).collect();
        Self { nodes: vec![node], values, ..Self::default() }
    }

    /// One composite in the place of `nodes`.
    ///
    /// # Errors
    /// [`Decline`] when they cannot run as one, or the target has no kernel for composites of `kind`.
    pub fn composite(
        func: &mut Func,
        nodes: &[NodeId],
        kind: &str,
        target: &TargetInfo,
    ) -> Result<Self, Decline> {
        if !target.has(kind) {
            let why = "the target has no kernel for the fused op";
            return Err(Decline::Guard { code: "no-kernel", why });
        }
        let made = func.outline(nodes, kind).map_err(|e| match e {
            OutlineError::NotConvex { .. } => Decline::Guard {
                code: "not-convex",
                why: "an op in between depends on some of the ops and feeds others",
            },
            OutlineError::StateRead { .. } => Decline::Guard {
                code: "state-read",
                why: "another op reads a state before the ops overwrite it",
            },
            OutlineError::Body { .. } => {
                Decline::Guard { code: "no-body", why: "the ops make no function of their own" }
            }
            OutlineError::Nothing | OutlineError::Constant { .. } => Decline::NoMatch,
        })?;
        let new = func.nodes[made.node].outs.iter().copied();
        let values = made.results.into_iter().zip(new).collect();
        Ok(Self { nodes: vec![made.node], values, outlined: made.nodes })
    }

    /// Readers of `old` read the existing `new`.
    pub fn value(old: ValueId, new: ValueId) -> Self {
        Self { values: vec![(old, new)], ..Self::default() }
    }
}

/// Ops that are to become a composite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The ops, in the order of the function.
    pub nodes: Vec<NodeId>,
    /// What computes the composite.
    pub kind: &'static str,
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
pub trait Rewrite: Send + Sync {
    /// Kebab-case verb; the name used by pipelines, dumps and tests.
    fn name(&self) -> &'static str;

    /// Why the target cannot do without it, if so: it is then never limited nor disabled.
    fn required(&self) -> Option<&'static str> {
        None
    }

    /// How far what it puts in the place of a value may be from that value, as
    /// [`numeric_distance`](crate::numeric_distance) measures, for a pass that computes the same with
    /// other roundings. 0 for one that keeps every bit.
    fn distance(&self) -> f64 {
        0.0
    }

    /// Whether it also rewrites the bodies of composites of `kind`, which a target runs op by op.
    fn enters(&self, _kind: &str) -> bool {
        false
    }

    /// The text that says what it does, for its hash in the manifest of an artifact: the file it is
    /// in, `include_str!("this_file.rs")`. Empty when it is not known.
    fn source(&self) -> &'static str {
        ""
    }

    /// The composites to make, for a pass that divides a function as a whole. They are made before
    /// [`Rewrite::apply`] is called, and asked for again until none can be made.
    fn regions(&self, _func: &Func, _context: &Context<'_>) -> Vec<Region> {
        Vec::new()
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
