//! Ops that go row by row, as one.

use crate::rewrite::{Context, Decline, Region, Replacement, Rewrite};
use ir::{Dim, EntityId, Func, NodeId, Op, ValueDef, ValueId, graph::Users};
use std::collections::{BTreeMap, HashSet};

/// Ops over the same rows, of which no other op must run in between, become a composite of kind
/// `rows`: a thread then computes all of them on one row after another, and what is between them
/// never leaves its cache.
///
/// Every op has a level: how often its rows were handed to an op that does not go row by row (or
/// over other rows) and back. Ops of one level that depend on each other, read the same result or
/// feed the same op are a group, so a group is convex. An op moves to the level of its readers where
/// what it reads is no larger than what it computes: better keep that until then. Views at the border
/// stay outside, where they cost nothing.
pub(crate) struct FuseRows;

impl Rewrite for FuseRows {
    fn name(&self) -> &'static str {
        "fuse-rows"
    }

    fn source(&self) -> &'static str {
        include_str!("rows.rs")
    }

    /// Composites that a target may run op by op.
    fn enters(&self, kind: &str) -> bool {
        matches!(kind, "mla_preprocess" | "moe")
    }

    /// Not one pattern after another: the function as a whole, see [`Rewrite::regions`].
    fn apply(&self, _: &mut Func, _: NodeId, _: &Context<'_>) -> Result<Replacement, Decline> {
        Err(Decline::NoMatch)
    }

    fn regions(&self, func: &Func, context: &Context<'_>) -> Vec<Region> {
        let levels = Levels::of(func, context);
        levels.groups().into_iter().map(|nodes| Region { nodes, kind: "rows" }).collect()
    }
}

/// Where an op may be grouped: its level and its rows.
type Place = (usize, Dim);

struct Levels<'a> {
    func: &'a Func,
    users: Users,
    /// By node; `None` for constants and for what does not go row by row.
    rows: Vec<Option<Dim>>,
    /// By node.
    level: Vec<usize>,
}

impl<'a> Levels<'a> {
    fn of(func: &'a Func, context: &Context<'_>) -> Self {
        let (mut rows, level) = (vec![None; func.nodes.len()], vec![0; func.nodes.len()]);
        let mut constant: Vec<bool> =
            func.values.iter().map(|(_, v)| matches!(v.def, ValueDef::Weight(_))).collect();
        for &n in &func.order {
            let node = &func.nodes[n];
            if node.args.iter().all(|a| constant[a.index()]) {
                node.outs.iter().for_each(|o| constant[o.index()] = true);
            } else if context.target.runs_rows_of(&node.op) && writes_unread(func, n) {
                rows[n.index()] = func.rows_of(n);
            }
        }
        let mut levels = Self { func, users: Users::of(func), rows, level };
        for &n in &func.order {
            let node = &func.nodes[n];
            let tables = node.op.row_wise().unwrap_or_default();
            let operands = node.args.iter().enumerate();
            let handed = operands.filter_map(|(i, &a)| {
                let source = func.def(a)?;
                // A table is complete when all of its rows are.
                let apart = tables.contains(&i) || !levels.together(source, n);
                Some(levels.level[source.index()] + usize::from(apart))
            });
            levels.level[n.index()] = handed.max().unwrap_or(0);
        }
        levels.sink();
        levels
    }

    fn sources(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.func.nodes[node].args.iter().filter_map(|&a| self.func.def(a))
    }

    /// Whether both go row by row over the same rows.
    fn together(&self, a: NodeId, b: NodeId) -> bool {
        self.rows[a.index()].is_some() && self.rows[a.index()] == self.rows[b.index()]
    }

    /// Whether `reader` reads a result of `node` as a whole.
    fn is_table(&self, node: NodeId, reader: NodeId) -> bool {
        let reader = &self.func.nodes[reader];
        let tables = reader.op.row_wise().unwrap_or_default().iter();
        tables.filter_map(|&i| reader.args.get(i)).any(|&a| self.func.def(a) == Some(node))
    }

    fn place(&self, node: NodeId) -> Option<Place> {
        self.rows[node.index()].clone().map(|rows| (self.level[node.index()], rows))
    }

    /// Moves ops to the level of their readers.
    fn sink(&mut self) {
        let returned: HashSet<ValueId> = self.func.results.iter().copied().collect();
        for &n in self.func.order.iter().rev() {
            let node = &self.func.nodes[n];
            let kept =
                !node.op.writes().is_empty() || node.outs.iter().any(|o| returned.contains(o));
            let mut readers = self.users.readers(n).iter();
            let Some(&first) = readers.next().filter(|_| !kept) else { continue };
            let level = self.level[first.index()];
            let alike = |&r: &NodeId| {
                self.together(n, r) && self.level[r.index()] == level && !self.is_table(n, r)
            };
            let all = alike(&first) && readers.all(alike);
            if all && level > self.level[n.index()] && self.keeps_less(n) {
                self.level[n.index()] = level;
            }
        }
    }

    /// Whether keeping the operands of `node` takes no more memory than keeping its results.
    fn keeps_less(&self, node: NodeId) -> bool {
        if is_view(self.func, node) {
            return true;
        }
        let ops = &self.func.nodes[node];
        let tables = ops.op.row_wise().unwrap_or_default();
        let rows = ops.args.iter().enumerate().filter(|(i, _)| !tables.contains(i));
        let read = rows.map(|(_, &a)| row_bytes(self.func, a)).sum::<Option<u64>>();
        let made = ops.outs.iter().map(|&o| row_bytes(self.func, o)).sum::<Option<u64>>();
        read.zip(made).is_some_and(|(read, made)| read <= made)
    }

    /// The groups of two and more ops that are no views, in order.
    fn groups(&self) -> Vec<Vec<NodeId>> {
        let mut joined = Joined((0..self.func.nodes.len()).collect());
        for &n in &self.func.order {
            // What depends on it, or reads the same result.
            let mut last: BTreeMap<Place, NodeId> =
                self.place(n).map(|p| (p, n)).into_iter().collect();
            for &reader in self.users.readers(n) {
                if let Some(place) = self.place(reader)
                    && let Some(other) = last.insert(place, reader)
                {
                    joined.join(other, reader);
                }
            }
            // What it reads.
            let mut last: BTreeMap<Place, NodeId> = BTreeMap::new();
            for source in self.sources(n) {
                if let Some(place) = self.place(source)
                    && let Some(other) = last.insert(place, source)
                {
                    joined.join(other, source);
                }
            }
        }
        let mut groups: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        for &n in self.func.order.iter().filter(|n| self.rows[n.index()].is_some()) {
            groups.entry(joined.first(n.index())).or_default().push(n);
        }
        let mut groups: Vec<_> = groups.into_values().map(|g| self.without_border(g)).collect();
        groups.retain(|g| g.iter().filter(|&&n| !is_view(self.func, n)).count() > 1);
        groups
    }

    /// `group` without views that nothing in it reads, and without views of what is outside that
    /// are read outside too.
    fn without_border(&self, mut group: Vec<NodeId>) -> Vec<NodeId> {
        let mut inside: HashSet<NodeId> = group.iter().copied().collect();
        let returned: HashSet<ValueId> = self.func.results.iter().copied().collect();
        for &n in group.iter().rev().filter(|&&n| is_view(self.func, n)) {
            if !self.users.readers(n).iter().any(|r| inside.contains(r)) {
                inside.remove(&n);
            }
        }
        for &n in group.iter().filter(|&&n| is_view(self.func, n)) {
            let from_outside = !self.sources(n).any(|s| inside.contains(&s));
            let read = self.users.readers(n).iter().any(|r| !inside.contains(r));
            let outside = read || self.func.nodes[n].outs.iter().any(|o| returned.contains(o));
            if from_outside && outside {
                inside.remove(&n);
            }
        }
        group.retain(|n| inside.contains(n));
        group
    }
}

/// Whether nothing but `node` reads the states that it overwrites: it may come earlier then.
fn writes_unread(func: &Func, node: NodeId) -> bool {
    let node = &func.nodes[node];
    node.op.writes().iter().all(|&(operand, _)| func.uses(node.args[operand]) == 1)
}

/// Whether `node` only cuts or renames what stays where it is: rows of the result are contiguous
/// parts of rows of the operand.
fn is_view(func: &Func, node: NodeId) -> bool {
    let node = &func.nodes[node];
    match node.op {
        Op::Reshape { .. } => true,
        Op::Slice { axis, .. } => {
            let dims = &func.values[node.args[0]].ty.dims;
            dims[1..(axis as usize).max(1)].iter().all(|d| *d == Dim::Const(1))
        }
        _ => false,
    }
}

fn row_bytes(func: &Func, value: ValueId) -> Option<u64> {
    let ty = &func.values[value].ty;
    let elements = ty.dims.iter().skip(1).map(Dim::as_const).product::<Option<u64>>()?;
    Some(ty.dtype.bytes_for(elements))
}

/// Sets of nodes that are joined one by one.
struct Joined(Vec<usize>);

impl Joined {
    /// The node that stands for the set of `i`.
    fn first(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    fn join(&mut self, a: NodeId, b: NodeId) {
        let (a, b) = (self.first(a.index()), self.first(b.index()));
        self.0[a.max(b)] = a.min(b);
    }
}
