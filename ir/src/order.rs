//! Finding nodes in the order of a function without searching it.

use crate::entity::{EntityId, NodeId};

/// A number for each listed node, ascending in the order, so that of two nodes it is known which
/// comes first. Neighbours leave a gap for what is listed between them later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks(Vec<u64>);

/// Between neighbours: 2^24 nodes can be listed one after the other, and about 40 in one place
/// before all ranks are given anew.
const GAP: u64 = 1 << 40;

impl Ranks {
    /// The rank of a listed node.
    pub(crate) fn of(&self, node: NodeId) -> u64 {
        self.0[node.index()]
    }

    /// Where `order` lists `node`, if it does.
    pub(crate) fn place(&self, order: &[NodeId], node: NodeId) -> Option<usize> {
        let rank = *self.0.get(node.index())?;
        let near = order.binary_search_by_key(&rank, |n| self.of(*n)).ok();
        let found = near.filter(|&at| order[at] == node);
        // The order may have been changed by other means, as tests of the verifier do.
        found.or_else(|| order.iter().position(|&n| n == node))
    }

    /// Lists `node` at `at`.
    pub(crate) fn insert(&mut self, order: &mut Vec<NodeId>, at: usize, node: NodeId) {
        if self.0.len() <= node.index() {
            self.0.resize(node.index() + 1, 0);
        }
        order.insert(at, node);
        if !self.fits(order, at) {
            for (i, n) in order.iter().enumerate() {
                self.0[n.index()] = (i as u64 + 1) * GAP;
            }
        }
    }

    /// Gives the node at `at` a rank between its neighbours', if there is one.
    fn fits(&mut self, order: &[NodeId], at: usize) -> bool {
        let before = at.checked_sub(1).map_or(0, |i| self.of(order[i]));
        let rank = match order.get(at + 1) {
            Some(&next) => {
                let after = self.of(next);
                if after < before.saturating_add(2) {
                    return false;
                }
                before + (after - before) / 2
            }
            None => match before.checked_add(GAP) {
                Some(rank) => rank,
                None => return false,
            },
        };
        self.0[order[at].index()] = rank;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(places: impl IntoIterator<Item = usize>) -> (Ranks, Vec<NodeId>) {
        let (mut ranks, mut order) = (Ranks::default(), Vec::new());
        for (i, place) in places.into_iter().enumerate() {
            let at = place.min(order.len());
            ranks.insert(&mut order, at, NodeId::from_index(i));
        }
        (ranks, order)
    }

    fn check(ranks: &Ranks, order: &[NodeId]) {
        assert!(order.is_sorted_by(|&a, &b| ranks.of(a) < ranks.of(b)));
        for (i, &n) in order.iter().enumerate() {
            assert_eq!(ranks.place(order, n), Some(i));
        }
    }

    /// More often in one place than the gap has room for.
    #[test]
    fn ranks_ascend_wherever_nodes_are_listed() {
        for places in [vec![usize::MAX; 300], vec![0; 300], vec![7; 300]] {
            let (ranks, order) = listed(places);
            assert_eq!(order.len(), 300);
            check(&ranks, &order);
        }
        let (ranks, order) = listed((0..500).map(|i| i * 7 % 31));
        check(&ranks, &order);
    }

    #[test]
    fn a_node_that_is_not_listed_has_no_place() {
        let (ranks, mut order) = listed([0, 1, 2, 3]);
        let gone = order.remove(2);
        assert_eq!(ranks.place(&order, gone), None);
        check(&ranks, &order);
        assert_eq!(ranks.place(&order, NodeId::from_index(9)), None);
    }

    #[test]
    fn an_order_that_was_changed_by_hand_is_searched() {
        let (ranks, mut order) = listed([0, 1, 2, 3]);
        order.reverse();
        for (i, &n) in order.iter().enumerate() {
            assert_eq!(ranks.place(&order, n), Some(i));
        }
    }
}
