//! KV blocks: free ones, those of sequences, and those that keep a prefix for later.

use crate::{
    blocks::Pool,
    prefix::{NONE, PrefixCache},
};

/// Every KV block is free, or a sequence's own, or in the prefix cache, where any number of
/// sequences hold it.
pub(crate) struct KvBlocks {
    block_tokens: usize,
    pool: Pool,
    prefix: Option<PrefixCache>,
}

/// The KV blocks of one sequence.
#[derive(Default)]
pub(crate) struct HeldBlocks {
    /// Block `i` has the places `i * block_tokens..`.
    pub(crate) blocks: Vec<u32>,
    /// This many from the first on are in the prefix cache; they are full and not written again.
    shared: usize,
}

impl HeldBlocks {
    /// None yet, with room for `blocks`.
    pub(crate) fn with_room(blocks: usize) -> Self {
        Self { blocks: Vec::with_capacity(blocks), shared: 0 }
    }

    fn last_shared(&self) -> u32 {
        self.shared.checked_sub(1).map_or(NONE, |last| self.blocks[last])
    }
}

impl KvBlocks {
    /// The blocks `0..count`, all free.
    pub(crate) fn new(count: u32, block_tokens: usize, prefix_cache: bool) -> Self {
        Self {
            block_tokens,
            pool: Pool::new("KV block", count),
            prefix: prefix_cache.then(|| PrefixCache::new(count, block_tokens)),
        }
    }

    /// Blocks that a sequence can have: free ones, and cached ones that nobody holds.
    pub(crate) fn available(&self) -> usize {
        self.pool.free() + self.cached()
    }

    /// Blocks that hold nothing.
    pub(crate) fn free(&self) -> usize {
        self.pool.free()
    }

    /// Cached blocks that nobody holds.
    pub(crate) fn cached(&self) -> usize {
        self.prefix.as_ref().map_or(0, PrefixCache::idle)
    }

    /// Blocks that lost their prefix because a sequence needed them.
    pub(crate) fn evicted(&self) -> u64 {
        self.prefix.as_ref().map_or(0, PrefixCache::evicted)
    }

    /// Whether `count` blocks can be had, of which the first hold `prefix` and need not be had twice.
    pub(crate) fn has_room(&self, prefix: &[u32], count: usize) -> bool {
        // Idle blocks of the prefix are available too: taking or finding them is the same. Those
        // that others hold come on top, and lie before the idle ones.
        let missing = count.saturating_sub(self.available());
        if missing == 0 {
            return true;
        }
        let Some(cache) = &self.prefix else { return false };
        let mut parent = NONE;
        let held = prefix.chunks_exact(self.block_tokens).map_while(|tokens| {
            parent = cache.find(parent, tokens).filter(|&block| cache.is_held(block))?;
            Some(())
        });
        held.take(missing).count() == missing
    }

    /// Lets `held` have the cached blocks that hold `prefix` as far as there are such, in place of
    /// its own. Returns the tokens of `prefix` that are in cached blocks then.
    pub(crate) fn reuse(&mut self, held: &mut HeldBlocks, prefix: &[u32]) -> usize {
        let Some(cache) = &mut self.prefix else { return 0 };
        for tokens in prefix.chunks_exact(self.block_tokens).skip(held.shared) {
            let Some(block) = cache.find(held.last_shared(), tokens) else { break };
            cache.hold(block);
            match held.blocks.get_mut(held.shared) {
                Some(own) => self.pool.give_back(std::mem::replace(own, block)),
                None => held.blocks.push(block),
            }
            held.shared += 1;
        }
        held.shared * self.block_tokens
    }

    /// Puts the blocks of `held` that `fed`, all tokens it was fed, fill into the cache.
    pub(crate) fn share(&mut self, held: &mut HeldBlocks, fed: &[u32]) {
        let Some(cache) = &mut self.prefix else { return };
        if fed.len() / self.block_tokens == held.shared {
            return;
        }
        for tokens in fed.chunks_exact(self.block_tokens).skip(held.shared) {
            let own = held.blocks[held.shared];
            // Two sequences fed the same: one block stays, for the cache has no block twice.
            if let Some(block) = cache.insert(held.last_shared(), tokens, own) {
                held.blocks[held.shared] = block;
                self.pool.give_back(own);
            }
            held.shared += 1;
        }
    }

    /// Own blocks until `held` has `count`; takes what there is and says whether that is enough.
    pub(crate) fn grow(&mut self, held: &mut HeldBlocks, count: usize) -> bool {
        let before = held.blocks.len();
        while held.blocks.len() < count {
            let evict = || self.prefix.as_mut().and_then(PrefixCache::evict);
            let Some(block) = self.pool.take().or_else(evict) else { break };
            held.blocks.push(block);
        }
        // Attention reads memory faster in the order in which it lies; the cache gives the end of a sequence first.
        held.blocks[before..].sort_unstable();
        held.blocks.len() >= count
    }

    /// Takes everything in `held` back; what is in the cache stays there.
    pub(crate) fn give_back(&mut self, held: &mut HeldBlocks) {
        // The last first, as the cache wants it.
        while let Some(block) = held.blocks.pop() {
            match &mut self.prefix {
                Some(cache) if held.blocks.len() < held.shared => cache.release(block),
                _ => self.pool.give_back(block),
            }
        }
        held.shared = 0;
    }

    /// Frees the cached blocks that nobody holds; returns how many.
    pub(crate) fn flush(&mut self) -> u64 {
        let mut dropped = 0;
        while let Some(block) = self.prefix.as_mut().and_then(PrefixCache::drop_oldest) {
            self.pool.give_back(block);
            dropped += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests;
