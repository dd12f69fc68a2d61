//! KV blocks: who has which.

/// The blocks that no sequence holds. All memory is taken when it is made.
pub(crate) struct BlockPool {
    free: Vec<u32>,
    taken: Vec<bool>,
}

impl BlockPool {
    /// A pool of blocks `0..blocks`; low numbers are handed out first.
    pub(crate) fn new(blocks: u32) -> Self {
        Self { free: (0..blocks).rev().collect(), taken: vec![false; blocks as usize] }
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Moves free blocks into `held` until it has `count`. Takes what there is when there are too
    /// few, and says whether `held` has them all.
    pub(crate) fn grow(&mut self, held: &mut Vec<u32>, count: usize) -> bool {
        while held.len() < count {
            let Some(block) = self.free.pop() else { return false };
            self.taken[block as usize] = true;
            held.push(block);
        }
        true
    }

    /// Takes back everything in `held`.
    ///
    /// # Panics
    /// When a block is given back twice: two sequences would then write over each other.
    pub(crate) fn give_back(&mut self, held: &mut Vec<u32>) {
        for block in held.drain(..).rev() {
            assert!(self.taken[block as usize], "KV block {block} given back twice");
            self.taken[block as usize] = false;
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_out_once_and_come_back() {
        let mut pool = BlockPool::new(3);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.grow(&mut a, 2));
        assert!(!pool.grow(&mut b, 2), "one is left");
        assert_eq!((a.as_slice(), b.as_slice(), pool.free()), (&[0, 1][..], &[2][..], 0));
        pool.give_back(&mut a);
        assert!(pool.grow(&mut b, 3));
        assert_eq!(pool.free(), 0);
        pool.give_back(&mut b);
        assert_eq!(pool.free(), 3);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_block_given_back_twice_is_a_bug() {
        let mut pool = BlockPool::new(1);
        pool.give_back(&mut vec![0]);
    }
}
