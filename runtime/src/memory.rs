//! What sequences hold of the device's memories: KV blocks, window blocks, a recurrent slot.

use crate::{
    blocks::Pool,
    kv::{HeldBlocks, KvBlocks},
};
use artifact::Manifest;

/// What one sequence holds.
pub(crate) struct Held {
    pub(crate) kv: HeldBlocks,
    /// Window blocks: block `i` has the places `i * block_tokens..`; the spare block stands for those that no later token sees.
    pub(crate) window: Vec<u32>,
    /// Entries of `window` that were given back.
    window_passed: usize,
    /// Slot of recurrent memory.
    pub(crate) slot: Option<u32>,
    /// Which of all stays in memory this is: another number whenever a sequence starts or starts again.
    /// While it stays, what it holds for tokens so far changes only in steps that feed it.
    pub(crate) stay: u64,
}

impl Held {
    /// Nothing yet, with room for `tokens` tokens, so that growing takes no memory.
    pub(crate) fn with_room(tokens: usize, block_tokens: usize, has_window: bool) -> Self {
        let blocks = tokens.div_ceil(block_tokens);
        let window = if has_window { Vec::with_capacity(blocks) } else { Vec::new() };
        Self { kv: HeldBlocks::with_room(blocks), window, window_passed: 0, slot: None, stay: 0 }
    }

    /// Its KV blocks: block `i` has the places `i * block_tokens..`.
    pub(crate) fn blocks(&self) -> &[u32] {
        &self.kv.blocks
    }
}

/// The memories of the device and what is free in them.
///
/// KV blocks may run out. Window blocks and slots cannot: [`crate::capacity`] lets no more sequences
/// run than there is room for.
pub(crate) struct Memories {
    block_tokens: usize,
    kv: KvBlocks,
    window: Option<Window>,
    slots: Option<Pool>,
    /// Sequences that started.
    stays: u64,
}

struct Window {
    /// Tokens that a token sees, itself included.
    tokens: usize,
    pool: Pool,
    spare_block: u32,
}

impl Memories {
    /// Everything that `manifest` has is free, of the KV blocks the first `blocks`.
    pub(crate) fn new(manifest: &Manifest, blocks: u32, prefix_cache: bool) -> Self {
        let block_tokens = manifest.kv.block_tokens as usize;
        Self {
            block_tokens,
            kv: KvBlocks::new(blocks, block_tokens, prefix_cache),
            window: manifest.window.map(|window| Window {
                tokens: window.tokens as usize,
                pool: Pool::new("window block", window.blocks),
                spare_block: window.blocks,
            }),
            slots: manifest.sequences.map(|s| Pool::new("slot of recurrent memory", s.slots)),
            stays: 0,
        }
    }

    pub(crate) fn kv(&self) -> &KvBlocks {
        &self.kv
    }

    /// Frees the KV blocks that keep a prefix for nobody; returns how many.
    pub(crate) fn flush(&mut self) -> u64 {
        self.kv.flush()
    }

    /// 0 without layers that have a window.
    pub(crate) fn free_window_blocks(&self) -> usize {
        self.window.as_ref().map_or(0, |window| window.pool.free())
    }

    /// 0 without recurrent memory.
    pub(crate) fn free_slots(&self) -> usize {
        self.slots.as_ref().map_or(0, Pool::free)
    }

    /// Gives a sequence that begins its slot.
    pub(crate) fn start(&mut self, held: &mut Held) {
        self.stays += 1;
        held.stay = self.stays;
        if let Some(slots) = &mut self.slots {
            held.slot = Some(slots.take().expect("no more sequences run than there are slots"));
        }
    }

    /// Lets a sequence have the cached KV blocks that hold the first tokens of `prefix`; returns how
    /// many tokens those are.
    pub(crate) fn reuse(&mut self, held: &mut Held, prefix: &[u32]) -> usize {
        self.kv.reuse(&mut held.kv, prefix)
    }

    /// Lets others have the KV blocks that are full with `fed`, all tokens the sequence was fed.
    pub(crate) fn share(&mut self, held: &mut Held, fed: &[u32]) {
        self.kv.share(&mut held.kv, fed);
    }

    /// KV blocks for `tokens` tokens; says whether there were enough.
    pub(crate) fn grow(&mut self, held: &mut Held, tokens: usize) -> bool {
        self.kv.grow(&mut held.kv, tokens.div_ceil(self.block_tokens))
    }

    /// As [`Memories::grow`], of free KV blocks alone: no prefix is lost.
    pub(crate) fn grow_free(&mut self, held: &mut Held, tokens: usize) -> bool {
        let missing = tokens.div_ceil(self.block_tokens).saturating_sub(held.kv.blocks.len());
        missing <= self.kv.free() && self.grow(held, tokens)
    }

    /// Window blocks for `tokens` tokens, those that were given back not counted anew.
    pub(crate) fn grow_window(&mut self, held: &mut Held, tokens: usize) {
        let Some(window) = &mut self.window else { return };
        let enough = window.pool.grow(&mut held.window, tokens.div_ceil(self.block_tokens));
        assert!(enough, "no more sequences run than there are window blocks for");
    }

    /// The first tokens of a sequence, `tokens` or fewer, that window memory has room for now.
    pub(crate) fn window_room(&self, held: &Held, tokens: usize) -> usize {
        let Some(window) = &self.window else { return tokens };
        tokens.min((held.window.len() + window.pool.free()) * self.block_tokens)
    }

    /// Takes back the window blocks that no token after the first `fed` sees.
    pub(crate) fn pass_window(&mut self, held: &mut Held, fed: usize) {
        let Some(window) = &mut self.window else { return };
        // The next token is at `fed` and sees the places after `fed - tokens`.
        let unseen = (fed + 1).saturating_sub(window.tokens) / self.block_tokens;
        let unseen = unseen.min(held.window.len());
        for block in held.window.iter_mut().take(unseen).skip(held.window_passed) {
            window.pool.give_back(std::mem::replace(block, window.spare_block));
        }
        held.window_passed = held.window_passed.max(unseen);
    }

    /// Takes back everything.
    pub(crate) fn give_back(&mut self, held: &mut Held) {
        self.kv.give_back(&mut held.kv);
        if let Some(window) = &mut self.window {
            for block in held.window.drain(..).skip(held.window_passed).rev() {
                window.pool.give_back(block);
            }
            held.window_passed = 0;
        }
        if let Some((slots, slot)) = self.slots.as_mut().zip(held.slot.take()) {
            slots.give_back(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeModel;

    fn memories(window_tokens: u32, blocks: u32) -> Memories {
        let model = FakeModel {
            block_tokens: 4,
            sliding_window: Some(window_tokens),
            window_blocks: Some(blocks),
            sequence_slots: Some(2),
            ..FakeModel::default()
        };
        Memories::new(&model.manifest(), model.blocks, false)
    }

    #[test]
    fn a_window_block_stays_exactly_as_long_as_a_later_token_sees_it() {
        for tokens in 1..14 {
            let mut memories = memories(tokens, 100);
            let mut held = Held::with_room(80, 4, true);
            for fed in 0..80usize {
                memories.grow_window(&mut held, fed + 1);
                memories.pass_window(&mut held, fed + 1);
                let next = fed + 1;
                let first_seen = (next + 1).saturating_sub(tokens as usize);
                for (block, &id) in held.window.iter().enumerate() {
                    let seen = (block + 1) * 4 > first_seen;
                    assert_eq!(id != 100, seen, "window {tokens}, {next} fed, block {block}");
                }
                let live = held.window.iter().filter(|&&id| id != 100).count();
                assert_eq!(memories.free_window_blocks(), 100 - live);
            }
            memories.give_back(&mut held);
            assert_eq!(memories.free_window_blocks(), 100);
        }
    }

    #[test]
    fn everything_comes_back_once() {
        let mut memories = memories(5, 3);
        let mut held = Held::with_room(12, 4, true);
        memories.start(&mut held);
        assert!(memories.grow(&mut held, 12));
        memories.grow_window(&mut held, 12);
        assert_eq!((memories.free_window_blocks(), memories.free_slots()), (0, 1));
        memories.pass_window(&mut held, 8);
        memories.pass_window(&mut held, 8);
        assert_eq!((&held.window[..], memories.free_window_blocks()), (&[3, 1, 2][..], 1));
        for _ in 0..2 {
            memories.give_back(&mut held);
            let free = (memories.kv().available(), memories.free_window_blocks());
            assert_eq!((free, memories.free_slots()), ((128, 3), 2));
        }
    }
}
