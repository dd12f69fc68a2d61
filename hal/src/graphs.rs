//! Captured graphs by size.

use std::collections::BTreeMap;

/// One captured graph per pair of context tier and rows.
pub struct GraphSet<G> {
    /// Context tier in tokens, then rows.
    by_size: BTreeMap<(u32, u32), G>,
}

impl<G> GraphSet<G> {
    /// Graphs with their context tier and rows.
    pub fn new(graphs: impl IntoIterator<Item = ((u32, u32), G)>) -> Self {
        Self { by_size: graphs.into_iter().collect() }
    }

    /// The smallest graph that holds `rows` rows with contexts of up to `context` tokens, with its
    /// rows; those past `rows` are padding. `None` when no graph is large enough.
    pub fn pick(&self, context: u32, rows: u32) -> Option<(u32, &G)> {
        let tier = self.by_size.range((context, 0)..).next()?.0.0;
        self.by_size.range((tier, rows)..=(tier, u32::MAX)).next().map(|(&(_, r), g)| (r, g))
    }

    /// The most rows of any graph; 0 when there is none.
    pub fn max_rows(&self) -> u32 {
        self.by_size.keys().map(|&(_, rows)| rows).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_graph_that_fits_is_picked() {
        let set = GraphSet::new([
            ((2048, 1), 'a'),
            ((2048, 8), 'b'),
            ((32768, 1), 'c'),
            ((32768, 8), 'd'),
        ]);
        assert_eq!(set.pick(100, 1), Some((1, &'a')));
        assert_eq!(set.pick(2048, 2), Some((8, &'b')));
        assert_eq!(set.pick(2049, 1), Some((1, &'c')));
        assert_eq!(set.pick(2049, 8), Some((8, &'d')));
        assert_eq!(set.pick(10, 9), None);
        assert_eq!(set.pick(40000, 1), None);
        assert_eq!(set.max_rows(), 8);
    }
}
