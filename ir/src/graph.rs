//! The data-flow graph of a function as petgraph sees it.

use crate::{
    entity::{EntityId, NodeId},
    func::Func,
};
use petgraph::{
    Direction,
    visit::{
        GraphBase, GraphRef, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers, VisitMap,
        Visitable,
    },
};
use std::collections::HashSet;

/// Readers of every node of a function, which an edge list of operands does not give.
#[derive(Clone, Debug)]
pub struct Users(Vec<Vec<NodeId>>);

impl Users {
    /// Readers of the results of each live node of `func`, in program order.
    pub fn of(func: &Func) -> Self {
        let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); func.nodes.len()];
        for &reader in &func.order {
            for source in sources(func, reader) {
                users[source.index()].push(reader);
            }
        }
        Self(users)
    }

    /// Nodes that read a result of `node`, in program order.
    pub fn readers(&self, node: NodeId) -> &[NodeId] {
        &self.0[node.index()]
    }
}

/// Live nodes whose results `node` reads, each once.
fn sources(func: &Func, node: NodeId) -> Vec<NodeId> {
    let mut found: Vec<NodeId> =
        func.nodes[node].args.iter().filter_map(|&a| func.def(a)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// A borrowed view with petgraph's visit traits: its algorithms run on the function without a copy,
/// and the function stays the only owner of the program.
#[derive(Clone, Copy)]
pub struct DataFlow<'a> {
    func: &'a Func,
    users: &'a Users,
}

impl<'a> DataFlow<'a> {
    /// The view of `func`; `users` must be [`Users::of`] it as it is now.
    pub fn new(func: &'a Func, users: &'a Users) -> Self {
        Self { func, users }
    }
}

impl GraphBase for DataFlow<'_> {
    type NodeId = NodeId;
    type EdgeId = (NodeId, NodeId);
}

impl GraphRef for DataFlow<'_> {}

impl IntoNodeIdentifiers for DataFlow<'_> {
    type NodeIdentifiers = std::vec::IntoIter<NodeId>;
    fn node_identifiers(self) -> Self::NodeIdentifiers {
        self.func.order.clone().into_iter()
    }
}

impl IntoNeighbors for DataFlow<'_> {
    type Neighbors = std::vec::IntoIter<NodeId>;
    fn neighbors(self, n: NodeId) -> Self::Neighbors {
        self.neighbors_directed(n, Direction::Outgoing)
    }
}

impl IntoNeighborsDirected for DataFlow<'_> {
    type NeighborsDirected = std::vec::IntoIter<NodeId>;
    fn neighbors_directed(self, n: NodeId, direction: Direction) -> Self::NeighborsDirected {
        match direction {
            Direction::Outgoing => self.users.0[n.index()].clone(),
            Direction::Incoming => sources(self.func, n),
        }
        .into_iter()
    }
}

/// Nodes that a traversal has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen(HashSet<NodeId>);

impl VisitMap<NodeId> for Seen {
    fn visit(&mut self, n: NodeId) -> bool {
        self.0.insert(n)
    }
    fn is_visited(&self, n: &NodeId) -> bool {
        self.0.contains(n)
    }
    fn unvisit(&mut self, n: NodeId) -> bool {
        self.0.remove(&n)
    }
}

impl Visitable for DataFlow<'_> {
    type Map = Seen;
    fn visit_map(&self) -> Seen {
        Seen::default()
    }
    fn reset_map(&self, map: &mut Seen) {
        map.0.clear();
    }
}

/// Whether `region` can become one kernel: no path leaves it and comes back.
pub fn is_convex(graph: DataFlow<'_>, region: &HashSet<NodeId>) -> bool {
    let leaving = |&n: &NodeId| graph.neighbors(n).filter(|m| !region.contains(m));
    let mut outside: Vec<NodeId> = region.iter().flat_map(leaving).collect();
    let mut seen = Seen::default();
    while let Some(n) = outside.pop() {
        if region.contains(&n) {
            return false;
        }
        if seen.visit(n) {
            outside.extend(graph.neighbors(n));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;
    use petgraph::algo::{is_cyclic_directed, toposort};

    /// `a` feeds `b` and `c`, which feed `d`; `c` also reads `b`.
    const DIAMOND: &str = "func @diamond(%x: f32[T,4]) {
  %a = silu %x : f32[T,4]
  %b = silu %a : f32[T,4]
  %c = add %a, %b : f32[T,4]
  %d = mul %c, %c : f32[T,4]
  return %d
}
";

    fn diamond() -> Func {
        text::parse("test.ir", DIAMOND).unwrap().funcs.remove(0)
    }

    #[test]
    fn petgraph_orders_the_program() {
        let mut func = diamond();
        func.order.reverse();
        let users = Users::of(&func);
        let graph = DataFlow::new(&func, &users);
        assert!(!is_cyclic_directed(graph));
        func.order = toposort(graph, None).unwrap();
        assert_eq!(text::print(&func), DIAMOND);
    }

    #[test]
    fn petgraph_finds_a_cycle() {
        let mut func = diamond();
        let [a, .., d] = func.order[..] else { unreachable!() };
        func.nodes[a].args[0] = func.nodes[d].outs[0];
        let users = Users::of(&func);
        let graph = DataFlow::new(&func, &users);
        assert!(is_cyclic_directed(graph));
        assert!(toposort(graph, None).is_err());
    }

    #[test]
    fn each_edge_is_seen_from_both_ends() {
        let func = diamond();
        let users = Users::of(&func);
        let graph = DataFlow::new(&func, &users);
        for n in graph.node_identifiers() {
            for m in graph.neighbors(n) {
                let back: Vec<_> = graph.neighbors_directed(m, Direction::Incoming).collect();
                assert_eq!(back.iter().filter(|&&s| s == n).count(), 1);
            }
        }
        let [_, _, c, d] = func.order[..] else { unreachable!() };
        let readers: Vec<_> = graph.neighbors(c).collect();
        assert_eq!(readers, [d], "an operand read twice is one edge");
    }

    #[test]
    fn a_region_with_a_detour_is_not_convex() {
        let func = diamond();
        let users = Users::of(&func);
        let graph = DataFlow::new(&func, &users);
        let [a, b, c, d] = func.order[..] else { unreachable!() };
        assert!(is_convex(graph, &HashSet::from([a, b])));
        assert!(is_convex(graph, &HashSet::from([b, c, d])));
        assert!(!is_convex(graph, &HashSet::from([a, c])), "a reaches c through b");
        assert!(!is_convex(graph, &HashSet::from([a, d])));
    }
}
