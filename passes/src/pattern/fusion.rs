//! A pattern with its guards and what takes its place: a pass.

use super::{IsOp, Match, Pattern, Shape, matcher::each_match};
use crate::rewrite::{Context, Decline, Replacement, Rewrite};
use ir::{Func, NodeId, Op, TensorType};

type Condition = Box<dyn Fn(&Match<'_>, &Context<'_>) -> bool + Send + Sync>;
type Build = Box<dyn Fn(&Match<'_>) -> Option<Op> + Send + Sync>;

struct Guard {
    code: &'static str,
    why: &'static str,
    holds: Condition,
}

/// What takes the place of what was found.
enum Ending {
    /// An op: the values that its results replace, its operands, and the op itself.
    Op { results: Vec<&'static str>, operands: Vec<&'static str>, build: Build },
    /// A composite of this kind that stands for the ops that were found.
    Composite(&'static str),
}

/// An op that may follow the root.
struct Follower {
    is: IsOp,
    name: &'static str,
}

/// A pass that replaces a pattern: the product of [`fusion`].
pub struct Fusion {
    draft: FusionBuilder,
    ending: Ending,
}

/// A pass that has a pattern and guards, and nothing yet to replace it by.
pub struct FusionBuilder {
    name: &'static str,
    source: &'static str,
    pattern: Pattern,
    follower: Option<Follower>,
    guards: Vec<Guard>,
}

/// A pass called `name`, a verb in kebab-case, that looks for `pattern`.
///
/// # Panics
/// When the pattern is no [`op`](super::op).
pub fn fusion(name: &'static str, pattern: Pattern) -> FusionBuilder {
    assert!(matches!(pattern.shape, Shape::Op { .. }), "{name}: the root of a pattern is an op");
    FusionBuilder { name, source: "", pattern, follower: None, guards: Vec::new() }
}

impl FusionBuilder {
    /// The text that says what it does: `include_str!("this_file.rs")`, see [`Rewrite::source`].
    pub fn source(self, text: &'static str) -> Self {
        Self { source: text, ..self }
    }

    /// Takes along an op that reads the root's value, and `name` for its result, if such an op is
    /// the only reader; otherwise `name` is the root's value.
    pub fn followed_by(self, is: IsOp, name: &'static str) -> Self {
        Self { follower: Some(Follower { is, name }), ..self }
    }

    /// Declines unless `holds`. `code` is kebab-case and never changes: people count by it; `why` is
    /// for reading.
    pub fn guard(
        mut self,
        code: &'static str,
        why: &'static str,
        holds: impl Fn(&Match<'_>, &Context<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.guards.push(Guard { code, why, holds: Box::new(holds) });
        self
    }

    /// Declines with `no-kernel` unless the target has a kernel for `op`, the mnemonic of a fused op
    /// or the kind of a composite.
    pub fn kernel(self, op: &'static str) -> Self {
        self.guard("no-kernel", "the target has no kernel for the fused op", move |_, context| {
            context.target.has(op)
        })
    }

    /// Declines with `other-reader` if the value called `name` is read more than once: fused, it
    /// would be computed twice.
    ///
    /// # Panics
    /// When nothing is called so.
    pub fn only_reader(self, name: &'static str, why: &'static str) -> Self {
        self.check(name);
        self.guard("other-reader", why, move |m, _| m.func().uses(m[name]) == 1)
    }

    /// Declines with `weight-not-constant` unless the value called `name` is known at compile time.
    ///
    /// # Panics
    /// When nothing is called so.
    pub fn constant(self, name: &'static str, why: &'static str) -> Self {
        self.check(name);
        self.guard("weight-not-constant", why, move |m, _| m.func().is_const(m[name]))
    }

    /// Declines with `code` unless the type of the value called `name` is as `holds` wants it.
    ///
    /// # Panics
    /// When nothing is called so.
    pub fn typed(
        self,
        name: &'static str,
        code: &'static str,
        why: &'static str,
        holds: impl Fn(&TensorType) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.check(name);
        self.guard(code, why, move |m, _| holds(&m.func().values[m[name]].ty))
    }

    /// The pass that puts an op in the place of the pattern: its results replace the values called
    /// `results`, in order, its operands are those called `operands`. `build` makes it of what was
    /// found; `None` says that this is not the pattern after all.
    ///
    /// # Panics
    /// When nothing has one of these names.
    pub fn replace<const R: usize, const N: usize>(
        self,
        results: [&'static str; R],
        operands: [&'static str; N],
        build: impl Fn(&Match<'_>) -> Option<Op> + Send + Sync + 'static,
    ) -> Fusion {
        results.iter().chain(&operands).for_each(|name| self.check(name));
        let (results, operands) = (results.to_vec(), operands.to_vec());
        Fusion { draft: self, ending: Ending::Op { results, operands, build: Box::new(build) } }
    }

    /// The pass that makes the ops of the pattern one composite of `kind`: their meaning stays what it
    /// was, and the target computes them with one kernel. Constants become operands, and values that
    /// are read elsewhere too become results. Declines with `no-kernel` first of all if the target
    /// does not know `kind`.
    pub fn outline(self, kind: &'static str) -> Fusion {
        let mut draft = self.kernel(kind);
        draft.guards.rotate_right(1);
        Fusion { draft, ending: Ending::Composite(kind) }
    }

    fn check(&self, name: &str) {
        let known =
            self.pattern.has(name) || self.follower.as_ref().is_some_and(|f| f.name == name);
        assert!(known, "{}: nothing in the pattern is called `{name}`", self.name);
    }

    /// The match that every guard accepts.
    ///
    /// # Errors
    /// The first guard that declined the first match, or that there is none.
    fn find<'a>(
        &self,
        func: &'a Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Match<'a>, Decline> {
        let mut found = Err(Decline::NoMatch);
        each_match(func, &self.pattern, root, &mut |mut m| {
            if let Some(follower) = &self.follower {
                follow(&mut m, root, follower);
            }
            match self.guards.iter().find(|g| !(g.holds)(&m, context)) {
                None => found = Ok(m),
                Some(&Guard { code, why, .. }) if matches!(found, Err(Decline::NoMatch)) => {
                    found = Err(Decline::Guard { code, why });
                }
                Some(_) => {}
            }
            found.is_ok()
        });
        found
    }
}

/// Takes along the op that follows the root, if it is there and nothing else reads the root.
fn follow(m: &mut Match<'_>, root: NodeId, follower: &Follower) {
    let func = m.func();
    let &[value] = &func.nodes[root].outs[..] else { return };
    let mut readers = func.users(value);
    let reader =
        readers.next().filter(|&n| func.uses(value) == 1 && (follower.is)(&func.nodes[n].op));
    let last = reader.and_then(|n| {
        m.add(n);
        func.nodes[n].outs.first().copied()
    });
    m.bind(Some(follower.name), last.unwrap_or(value));
}

impl Rewrite for Fusion {
    fn name(&self) -> &'static str {
        self.draft.name
    }

    fn source(&self) -> &'static str {
        self.draft.source
    }

    fn apply(
        &self,
        func: &mut Func,
        root: NodeId,
        context: &Context<'_>,
    ) -> Result<Replacement, Decline> {
        let found = self.draft.find(func, root, context)?;
        match &self.ending {
            Ending::Op { results, operands, build } => {
                let op = build(&found).ok_or(Decline::NoMatch)?;
                let old: Vec<_> = results.iter().map(|&name| found[name]).collect();
                let operands: Vec<_> = operands.iter().map(|&name| found[name]).collect();
                let new = func.create(op, &operands, "").map_err(|_| Decline::Guard {
                    code: "type-rule",
                    why: "the operands break the typing rule of the fused op",
                })?;
                let values = old.into_iter().zip(func.nodes[new].outs.iter().copied()).collect();
                Ok(Replacement { nodes: vec![new], values, ..Replacement::default() })
            }
            Ending::Composite(kind) => {
                let is_constant = |n: NodeId| func.nodes[n].outs.iter().all(|&o| func.is_const(o));
                let nodes: Vec<NodeId> =
                    found.nodes().iter().copied().filter(|&n| !is_constant(n)).collect();
                Replacement::composite(func, &nodes, kind, context.target)
            }
        }
    }
}
