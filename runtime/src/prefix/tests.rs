use super::*;
use std::{collections::HashSet, hint::black_box, time::Instant};

impl PrefixCache {
    /// What each cached block holds: its parent and holders. Panics when the tree contradicts itself.
    pub(crate) fn cached(&self) -> Vec<(u32, u32, u32)> {
        let mut all = Vec::new();
        for (list, &first) in self.lists.iter().enumerate() {
            let mut block = first;
            while block != NONE {
                let node = self.nodes[block as usize];
                assert_eq!(self.list_of(node.hash), list);
                all.push((block, node.parent, node.holders));
                block = node.next;
            }
        }
        let blocks: HashSet<u32> = all.iter().map(|&(block, ..)| block).collect();
        let keys: HashSet<_> =
            all.iter().map(|&(block, parent, _)| (parent, self.tokens_of(block))).collect();
        assert_eq!((blocks.len(), keys.len()), (all.len(), all.len()), "a block or prefix twice");
        let idle: Vec<u32> = self.idle.iter().collect();
        assert_eq!(idle.len(), self.idle.len());
        for &(block, parent, holders) in &all {
            assert!(parent == NONE || blocks.contains(&parent), "{block} lost its parent");
            let at = |block| idle.iter().position(|&other| other == block);
            assert_eq!(at(block).is_some(), holders == 0, "who is idle has no holder");
            if let Some(parent_at) = at(parent) {
                assert!(at(block).is_some_and(|at| at < parent_at), "{parent} goes before {block}");
            }
        }
        all
    }

    pub(crate) fn holds(&self, block: u32, tokens: &[u32]) -> bool {
        self.tokens_of(block) == tokens
    }
}

#[test]
fn equal_hashes_never_share_a_block() {
    let mut cache = PrefixCache::new(4, 2);
    assert_eq!(cache.insert(NONE, &[1, 2], 0), None);
    let hash = cache.nodes[0].hash;
    assert_eq!(cache.find_hashed(hash, NONE, &[1, 2]), Some(0));
    assert_eq!(cache.find_hashed(hash, NONE, &[1, 3]), None);
    assert_eq!(cache.find_hashed(hash, 0, &[1, 2]), None, "the same tokens elsewhere");
    assert_eq!(cache.find_hashed(hash ^ 4, NONE, &[1, 2]), None, "in the list, of another hash");
}

#[test]
fn the_block_let_go_first_goes_first_and_a_child_before_its_parent() {
    let mut cache = PrefixCache::new(8, 1);
    for (parent, token, block) in [(NONE, 1, 5), (5, 2, 3), (5, 3, 1), (NONE, 9, 0)] {
        assert_eq!(cache.insert(parent, &[token], block), None);
    }
    // The holder of 5 and 3, that of 0, and that of 5 and 1, who found 5.
    cache.hold(5);
    [3, 5, 0, 1, 5].into_iter().for_each(|block| cache.release(block));
    assert_eq!(cache.idle(), 4);
    // Somebody uses 0 again.
    cache.hold(0);
    cache.release(0);
    let order: Vec<u32> = std::iter::from_fn(|| cache.evict()).collect();
    assert_eq!((order, cache.evicted()), (vec![3, 1, 5, 0], 4));
    assert_eq!(cache.find(NONE, &[1]), None);
    assert!(cache.cached().is_empty());
}

/// Prints how long it takes to find a prompt of 8,192 tokens; run with `--nocapture` to see it.
#[test]
fn a_long_prompt_is_found() {
    let tokens: Vec<u32> = (0..8192).collect();
    for block_tokens in [16, 128] {
        let blocks = tokens.len() / block_tokens;
        let mut cache = PrefixCache::new(1 << 16, block_tokens);
        let mut parent = NONE;
        for (part, block) in tokens.chunks(block_tokens).zip((0..).step_by(7)) {
            cache.insert(parent, part, block);
            parent = block;
        }
        let find = || {
            let mut parent = NONE;
            for part in tokens.chunks(block_tokens) {
                parent = cache.find(parent, part).expect("it was put there");
            }
            parent
        };
        let start = Instant::now();
        for _ in 0..100 {
            assert_eq!(black_box(find()), parent);
        }
        let us = start.elapsed().as_secs_f64() * 1e4;
        println!("8192 tokens in {blocks} blocks of {block_tokens}: {us:.1} us");
    }
}
