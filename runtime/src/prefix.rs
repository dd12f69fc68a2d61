//! Which KV blocks hold which beginnings of token sequences, and which of them nobody uses.
//!
//! A tree with a node for each cached block: its path from the root is the tokens that the block's
//! places attend to, so whoever has the same tokens in front of him may use the block as it is.

mod idle;

use idle::Idle;
use std::hash::{BuildHasher, RandomState};

/// No block: the parent of a first block, or the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// A tree of full blocks. All memory is taken when it is made.
///
/// Who holds a block holds every block on the path to it. Nobody's blocks are kept in the order in
/// which they were let go, and a holder lets go of the deepest first: so the oldest of them never
/// has a child, and can be taken out.
pub(crate) struct PrefixCache {
    block_tokens: usize,
    /// One for each block of the device, cached or not.
    nodes: Vec<Node>,
    /// The tokens of each node, `block_tokens` each.
    tokens: Vec<u32>,
    /// First node of each list of nodes whose hashes are equal in the low bits.
    lists: Vec<u32>,
    /// Keyed anew for each engine, so that no client can choose prompts that share a list.
    hasher: RandomState,
    idle: Idle,
    evicted: u64,
}

#[derive(Clone, Copy)]
struct Node {
    /// The block before it, or [`NONE`].
    parent: u32,
    /// Next node of its list, or [`NONE`].
    next: u32,
    hash: u64,
    holders: u32,
}

impl PrefixCache {
    /// An empty cache for the blocks `0..blocks`.
    pub(crate) fn new(blocks: u32, block_tokens: usize) -> Self {
        let count = blocks as usize;
        Self {
            block_tokens,
            nodes: vec![Node { parent: NONE, next: NONE, hash: 0, holders: 0 }; count],
            tokens: vec![0; count * block_tokens],
            lists: vec![NONE; count.next_power_of_two()],
            hasher: RandomState::new(),
            idle: Idle::new(count),
            evicted: 0,
        }
    }

    /// Cached blocks that nobody holds.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Blocks that were taken out to be written anew.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(crate) fn is_held(&self, block: u32) -> bool {
        self.nodes[block as usize].holders > 0
    }

    /// The block that holds `tokens`, one block full, after those of `parent`.
    pub(crate) fn find(&self, parent: u32, tokens: &[u32]) -> Option<u32> {
        self.find_hashed(self.hash(parent, tokens), parent, tokens)
    }

    fn find_hashed(&self, hash: u64, parent: u32, tokens: &[u32]) -> Option<u32> {
        let mut block = self.lists[self.list_of(hash)];
        while block != NONE {
            let node = &self.nodes[block as usize];
            // Equal hashes are a hint only: wrong blocks must never be shared.
            if node.hash == hash && node.parent == parent && self.tokens_of(block) == tokens {
                return Some(block);
            }
            block = node.next;
        }
        None
    }

    /// Makes `block`, which its only holder has filled with `tokens`, the child of `parent`, unless
    /// a block with these tokens is there: that one is held once more then, and returned.
    pub(crate) fn insert(&mut self, parent: u32, tokens: &[u32], block: u32) -> Option<u32> {
        let hash = self.hash(parent, tokens);
        if let Some(other) = self.find_hashed(hash, parent, tokens) {
            self.hold(other);
            return Some(other);
        }
        debug_assert!(parent == NONE || self.is_held(parent), "a holder holds the whole path");
        let list = self.list_of(hash);
        self.nodes[block as usize] = Node { parent, next: self.lists[list], hash, holders: 1 };
        self.lists[list] = block;
        let start = block as usize * self.block_tokens;
        self.tokens[start..start + self.block_tokens].copy_from_slice(tokens);
        None
    }

    /// One more sequence uses the cached `block`.
    pub(crate) fn hold(&mut self, block: u32) {
        let node = &mut self.nodes[block as usize];
        if node.holders == 0 {
            self.idle.remove(block);
        }
        node.holders += 1;
    }

    /// A sequence uses the cached `block` no more; it must let go of those behind it first.
    pub(crate) fn release(&mut self, block: u32) {
        let node = &mut self.nodes[block as usize];
        node.holders = node.holders.checked_sub(1).expect("a block is released by its holders");
        if node.holders == 0 {
            self.idle.push(block);
        }
    }

    /// Takes out the block that nobody held for the longest time.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let block = self.drop_oldest()?;
        self.evicted += 1;
        Some(block)
    }

    /// [`PrefixCache::evict`] that is not counted.
    pub(crate) fn drop_oldest(&mut self) -> Option<u32> {
        let block = self.idle.pop_oldest()?;
        let Node { hash, next, .. } = self.nodes[block as usize];
        let list = self.list_of(hash);
        if self.lists[list] == block {
            self.lists[list] = next;
        } else {
            let mut before = self.lists[list];
            while self.nodes[before as usize].next != block {
                before = self.nodes[before as usize].next;
            }
            self.nodes[before as usize].next = next;
        }
        Some(block)
    }

    fn hash(&self, parent: u32, tokens: &[u32]) -> u64 {
        self.hasher.hash_one((parent, tokens))
    }

    fn list_of(&self, hash: u64) -> usize {
        hash as usize & (self.lists.len() - 1)
    }

    fn tokens_of(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * self.block_tokens..][..self.block_tokens]
    }
}

#[cfg(test)]
mod tests;
