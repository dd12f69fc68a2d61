//! Blocks in the order in which they were let go.

use super::NONE;

/// A list through an array, so that any block leaves it at once and nothing is allocated.
pub(super) struct Idle {
    /// Neighbours of each block: the one let go before and the one after, or [`NONE`].
    links: Vec<Links>,
    oldest: u32,
    newest: u32,
    len: usize,
}

#[derive(Clone, Copy)]
struct Links {
    older: u32,
    newer: u32,
}

impl Idle {
    pub(super) fn new(blocks: usize) -> Self {
        let links = vec![Links { older: NONE, newer: NONE }; blocks];
        Self { links, oldest: NONE, newest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a block that is not in the list.
    pub(super) fn push(&mut self, block: u32) {
        self.links[block as usize] = Links { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = block,
            newest => self.links[newest as usize].newer = block,
        }
        self.newest = block;
        self.len += 1;
    }

    /// Takes out a block that is in the list.
    pub(super) fn remove(&mut self, block: u32) {
        let Links { older, newer } = self.links[block as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.len -= 1;
    }

    pub(super) fn pop_oldest(&mut self) -> Option<u32> {
        let block = self.oldest;
        if block == NONE {
            return None;
        }
        self.remove(block);
        Some(block)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let first = (self.oldest != NONE).then_some(self.oldest);
        std::iter::successors(first, |&block| {
            let newer = self.links[block as usize].newer;
            (newer != NONE).then_some(newer)
        })
    }
}
