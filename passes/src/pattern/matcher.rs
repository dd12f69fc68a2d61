//! Finding a pattern in a function.

use super::{Pattern, Shape, is_commutative};
use ir::{Func, NodeId, Op, ValueDef, ValueId};
use std::ops::Index;

/// A place where a pattern was found.
#[derive(Clone, Debug)]
pub struct Match<'a> {
    func: &'a Func,
    names: Vec<(&'static str, ValueId)>,
    nodes: Vec<NodeId>,
}

impl<'a> Match<'a> {
    /// The function.
    pub fn func(&self) -> &'a Func {
        self.func
    }

    /// The ops that the pattern consists of, the root first.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The op that computes the value called `name`.
    ///
    /// # Panics
    /// When nothing has that name or no op computes it.
    pub fn op(&self, name: &str) -> &'a Op {
        match self.func.def_node(self[name]) {
            Some((_, node)) => &node.op,
            None => panic!("`{name}` is computed by no op"),
        }
    }

    fn value(&self, name: &str) -> Option<ValueId> {
        self.names.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
    }

    /// Calls `value` by `name`, unless something else is called so.
    pub(super) fn bind(&mut self, name: Option<&'static str>, value: ValueId) -> bool {
        let Some(name) = name else { return true };
        match self.value(name) {
            Some(known) => known == value,
            None => {
                self.names.push((name, value));
                true
            }
        }
    }

    pub(super) fn add(&mut self, node: NodeId) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }
}

/// The value called so. Panics when nothing is.
impl Index<&str> for Match<'_> {
    type Output = ValueId;
    fn index(&self, name: &str) -> &ValueId {
        match self.names.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => value,
            None => panic!("nothing in the pattern is called `{name}`"),
        }
    }
}

/// Parts of a pattern that are still to be found, each with the value that must be it.
type Goals<'p> = Vec<(&'p Pattern, ValueId)>;

/// Passes each way in which `pattern` matches at `root` to `found` until it says that one is enough.
pub(super) fn each_match<'a>(
    func: &'a Func,
    pattern: &Pattern,
    root: NodeId,
    found: &mut dyn FnMut(Match<'a>) -> bool,
) {
    let node = &func.nodes[root];
    let Shape::Op { is, result, .. } = &pattern.shape else { return };
    if !is(&node.op) {
        return;
    }
    if let Some(&value) = node.outs.get(*result) {
        let start = Match { func, names: Vec::new(), nodes: Vec::new() };
        solve(vec![(pattern, value)], start, found);
    }
}

/// Whether one match was enough.
fn solve<'a>(
    mut goals: Goals<'_>,
    mut m: Match<'a>,
    found: &mut dyn FnMut(Match<'a>) -> bool,
) -> bool {
    while let Some((pattern, value)) = goals.pop() {
        if !m.bind(pattern.name, value) {
            return false;
        }
        match &pattern.shape {
            Shape::Any => {}
            Shape::Op { is, operands, result } => {
                let ValueDef::Result { node, index } = m.func.values[value].def else {
                    return false;
                };
                let args = &m.func.nodes[node].args;
                let op = &m.func.nodes[node].op;
                if index != *result || !is(op) || args.len() != operands.len() {
                    return false;
                }
                m.add(node);
                if let (true, [first, second], &[a, b]) =
                    (is_commutative(op), &operands[..], &args[..])
                {
                    let ways = [[(first, a), (second, b)], [(first, b), (second, a)]];
                    // Equal operands are one way.
                    let ways = if a == b { &ways[..1] } else { &ways[..] };
                    return ways.iter().any(|&[first, second]| {
                        let goals = goals.iter().copied().chain([second, first]).collect();
                        solve(goals, m.clone(), found)
                    });
                }
                goals.extend(operands.iter().zip(args.iter().copied()).rev());
            }
            Shape::Optional { is, inner } => {
                let wrapper =
                    m.func.def_node(value).filter(|(_, n)| is(&n.op) && n.args.len() == 1);
                if let Some((node, wrapped)) = wrapper {
                    let mut with = m.clone();
                    with.add(node);
                    let rest = goals.iter().copied().chain([(&**inner, wrapped.args[0])]).collect();
                    if solve(rest, with, found) {
                        return true;
                    }
                }
                goals.push((inner, value));
            }
        }
    }
    found(m)
}
