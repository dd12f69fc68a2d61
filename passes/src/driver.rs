//! Applies one rewrite until nothing changes.

use crate::rewrite::{Context, Decline, NearMiss, Replacement, Rewrite};
use ir::{Body, Func, NodeId, Op, ValueDef, ValueId, VerifyError};
use std::collections::HashSet;

/// What one rewrite did to one function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// How many replacements were made.
    pub(crate) fired: usize,
    /// Matches that a guard declined, as they stand at the end.
    pub(crate) near_misses: Vec<NearMiss>,
    /// Where the last replacement was made.
    pub(crate) last_root: Option<String>,
}

impl Outcome {
    /// What became of a match at `root`.
    fn note(&mut self, func: &Func, root: NodeId, applied: Result<String, Decline>) {
        match applied {
            Ok(root) => {
                self.fired += 1;
                self.last_root = Some(root);
            }
            Err(Decline::NoMatch) => {}
            Err(Decline::Guard { code, why }) => {
                self.near_misses.push(NearMiss { code, why, at: func.describe(root) });
            }
        }
    }
}

/// A rewrite that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// It keeps firing.
    NoFixpoint {
        /// Replacements made before giving up.
        fired: usize,
    },
    /// It broke the body of a composite.
    Body(Vec<VerifyError>),
}

/// Applies `rewrite` in program order, sweep after sweep, until nothing changes or `budget`
/// replacements were made.
///
/// # Errors
/// [`Failure`] when it fires more often than any terminating rewrite could, or breaks a body.
pub(crate) fn run(
    rewrite: &dyn Rewrite,
    func: &mut Func,
    context: &Context<'_>,
    budget: usize,
) -> Result<Outcome, Failure> {
    let mut outcome = run_here(rewrite, func, context, budget)?;
    let mut known: Vec<(Body, Body, Outcome)> = Vec::new();
    for n in func.order.clone() {
        let Op::Fused { body } = &func.nodes[n].op else { continue };
        if !rewrite.enters(body.kind()) {
            continue;
        }
        let left = budget - outcome.fired;
        let done = known.iter().find(|(old, _, inner)| old == body && inner.fired <= left);
        let (new, inner) = match done {
            Some((_, new, inner)) => (new.clone(), inner.clone()),
            None => {
                let mut inside = body.func().clone();
                let inner = run(rewrite, &mut inside, context, left)?;
                let new = Body::new(inside).map_err(Failure::Body)?;
                known.push((body.clone(), new.clone(), inner.clone()));
                (new, inner)
            }
        };
        let place = func.describe(n);
        func.nodes[n].op = Op::Fused { body: new };
        outcome.fired += inner.fired;
        if let Some(root) = inner.last_root {
            outcome.last_root = Some(format!("{root} in {place}"));
        }
        let at = |miss: NearMiss| NearMiss { at: format!("{} in {place}", miss.at), ..miss };
        outcome.near_misses.extend(inner.near_misses.into_iter().map(at));
    }
    Ok(outcome)
}

/// [`run`] without the bodies of composites.
fn run_here(
    rewrite: &dyn Rewrite,
    func: &mut Func,
    context: &Context<'_>,
    budget: usize,
) -> Result<Outcome, Failure> {
    let bound = 64 + 16 * func.order.len();
    let mut outcome = Outcome::default();
    loop {
        outcome.near_misses.clear();
        let before = outcome.fired;
        for region in rewrite.regions(func, context) {
            let Some(&last) = region.nodes.last().filter(|_| outcome.fired < budget) else { break };
            let made = Replacement::composite(func, &region.nodes, region.kind, context.target);
            let applied = made.and_then(|replacement| replace(func, last, &replacement));
            outcome.note(func, last, applied);
        }
        for root in func.order.clone() {
            if outcome.fired == budget {
                return Ok(outcome);
            }
            // Until something fires in this sweep, what it lists is live.
            if outcome.fired > before && !func.is_live(root) {
                continue;
            }
            let applied = rewrite
                .apply(func, root, context)
                .and_then(|replacement| replace(func, root, &replacement));
            outcome.note(func, root, applied);
            if outcome.fired > bound {
                return Err(Failure::NoFixpoint { fired: outcome.fired });
            }
        }
        if outcome.fired == before {
            return Ok(outcome);
        }
    }
}

/// Makes a replacement; what the replaced `root` was.
fn replace(func: &mut Func, root: NodeId, new: &Replacement) -> Result<String, Decline> {
    substitute(func, root, new)?;
    Ok(replaced(func, root, new))
}

/// What the replaced `root` was, and its first result, whose name a new value may have now.
fn replaced(func: &Func, root: NodeId, new: &Replacement) -> String {
    let node = &func.nodes[root];
    let is_new = |value: ValueId| func.def(value).is_some_and(|n| new.nodes.contains(&n));
    let now = |&old: &ValueId| {
        let taken = new.values.iter().find(|(from, to)| *from == old && is_new(*to));
        taken.map_or(old, |&(_, to)| to)
    };
    match node.outs.first().map(now) {
        Some(value) => format!("{} %{}", node.op.mnemonic(), func.values[value].name),
        None => node.op.mnemonic().to_owned(),
    }
}

/// Lists the new nodes before the first reader of a replaced value, moves readers over, and
/// removes what nobody reads any more.
fn substitute(func: &mut Func, root: NodeId, new: &Replacement) -> Result<(), Decline> {
    let first = |a: NodeId, b: NodeId| if func.precedes(b, a) { b } else { a };
    let readers = new.values.iter().flat_map(|&(old, _)| func.users(old).next());
    let anchor = readers.fold(root, first);

    let needed = new.nodes.iter().flat_map(|&n| &func.nodes[n].args).copied();
    let needed = needed.chain(new.values.iter().map(|&(_, to)| to)).collect();
    for node in late_definitions(func, anchor, needed, root, new)? {
        func.move_before(node, anchor);
    }
    for &node in &new.nodes {
        func.insert(node, Some(anchor));
    }
    let mut unread = if new.outlined.is_empty() { vec![root] } else { Vec::new() };
    for &(old, to) in &new.values {
        func.replace_uses(old, to);
        unread.extend(func.def(old));
        if func.def(to).is_some_and(|n| new.nodes.contains(&n)) {
            func.swap_names(old, to);
        }
    }
    for &n in new.outlined.iter().rev() {
        func.remove(n);
    }
    remove_unread(func, unread);
    Ok(())
}

/// Nodes listed at or after `anchor` that the new nodes depend on, in program order.
fn late_definitions(
    func: &Func,
    anchor: NodeId,
    mut needed: Vec<ValueId>,
    root: NodeId,
    new: &Replacement,
) -> Result<Vec<NodeId>, Decline> {
    const CYCLE: Decline =
        Decline::Guard { code: "cycle", why: "an operand depends on a result of the pattern" };
    let mut late = HashSet::new();
    while let Some(value) = needed.pop() {
        let Some(n) = func.def(value) else { continue };
        if !func.is_live(n) || func.precedes(n, anchor) || !late.insert(n) {
            continue;
        }
        let node = &func.nodes[n];
        let reads_replaced = node.args.iter().any(|a| new.values.iter().any(|(old, _)| old == a));
        if n == root || reads_replaced || !node.op.writes().is_empty() {
            return Err(CYCLE);
        }
        needed.extend(&node.args);
    }
    let mut late: Vec<NodeId> = late.into_iter().collect();
    late.sort_unstable_by_key(|&n| func.place(n));
    Ok(late)
}

/// Removes those of `nodes` that have no readers, then what only they read. Writers of states stay.
fn remove_unread(func: &mut Func, mut nodes: Vec<NodeId>) {
    while let Some(n) = nodes.pop() {
        let node = &func.nodes[n];
        let read = node.outs.iter().any(|&o| func.uses(o) > 0);
        if read || !node.op.writes().is_empty() || !func.is_live(n) {
            continue;
        }
        func.remove(n);
        for a in func.nodes[n].args.clone() {
            match func.values[a].def {
                ValueDef::Result { node, .. } => nodes.push(node),
                ValueDef::Weight(_) if func.uses(a) == 0 => func.remove_weight(a),
                _ => {}
            }
        }
    }
}
