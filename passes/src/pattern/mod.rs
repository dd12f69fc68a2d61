//! Fusions written down instead of programmed: what to look for, when to leave it alone, and what
//! takes its place.
//!
//! ```
//! use ir::Op;
//! use precast_passes::{is, pattern::{any, fusion, op}};
//!
//! let sum = op(is!(Op::Add {}), [any("a"), any("b")]).named("sum");
//! let norm = op(is!(Op::RmsNorm { .. }), [sum, any("weight")]).named("norm");
//! let pass = fusion("fuse-add-rms-norm", norm)
//!     .kernel("add_rms_norm")
//!     .replace(["sum", "norm"], ["a", "b", "weight"], |m| match *m.op("norm") {
//!         Op::RmsNorm { eps, out } => Some(Op::AddRmsNorm { eps, out }),
//!         _ => None,
//!     });
//! ```
//!
//! A pattern is matched from the op whose result comes last, the root, towards the operands. Operands
//! of `add` and `mul` match in either order. A name stands for one value: where it occurs twice, both
//! places must hold the same value. Guards are asked in the order they are written, once the whole
//! pattern has matched; the first that fails is what `--explain-passes` reports. If operands match
//! in several ways, one that every guard accepts is taken.

mod fusion;
mod matcher;
#[cfg(test)]
mod tests;

pub use fusion::{Fusion, FusionBuilder, fusion};
pub use matcher::Match;

use ir::Op;

/// Whether an op is one that is looked for.
pub type IsOp = fn(&Op) -> bool;

/// The ops that the Rust pattern describes, as a condition for [`op`](crate::pattern::op):
/// `is!(Op::RmsNorm { .. })`, `is!(Op::Cast { .. } | Op::Reshape { .. })`.
#[macro_export]
macro_rules! is {
    ($ops:pat) => {
        |op| matches!(op, $ops)
    };
}

/// What a value must be made of.
#[derive(Clone, Debug)]
pub struct Pattern {
    shape: Shape,
    name: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum Shape {
    Any,
    Op {
        is: IsOp,
        operands: Vec<Pattern>,
        result: usize,
    },
    /// The inner pattern, or one of these ops on it.
    Optional {
        is: IsOp,
        inner: Box<Pattern>,
    },
}

/// Any value, called `name`.
pub fn any(name: &'static str) -> Pattern {
    Pattern { shape: Shape::Any, name: Some(name) }
}

/// The first result of an op with exactly these operands.
pub fn op(is: IsOp, operands: impl IntoIterator<Item = Pattern>) -> Pattern {
    let operands = operands.into_iter().collect();
    Pattern { shape: Shape::Op { is, operands, result: 0 }, name: None }
}

/// `inner`, or the first result of a one-operand op on it: a cast or reshape that may stand between.
pub fn optional(is: IsOp, inner: Pattern) -> Pattern {
    Pattern { shape: Shape::Optional { is, inner: Box::new(inner) }, name: None }
}

impl Pattern {
    /// The same, called `name`. An [`optional`] op's name is that of what its reader reads.
    pub fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// The same, made by result `index` of the op instead of the first.
    ///
    /// # Panics
    /// When the pattern is no [`op`].
    pub fn result(mut self, index: usize) -> Self {
        match &mut self.shape {
            Shape::Op { result, .. } => *result = index,
            _ => panic!("only an op has results"),
        }
        self
    }

    /// Whether something in it is called `name`.
    fn has(&self, name: &str) -> bool {
        self.name == Some(name)
            || match &self.shape {
                Shape::Any => false,
                Shape::Op { operands, .. } => operands.iter().any(|p| p.has(name)),
                Shape::Optional { inner, .. } => inner.has(name),
            }
    }
}

/// Whether the operands of `op` can change places: they match in either order.
fn is_commutative(op: &Op) -> bool {
    matches!(op, Op::Add {} | Op::Mul {})
}
