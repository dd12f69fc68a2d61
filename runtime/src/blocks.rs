//! Numbered pieces of device memory: which are free.

/// The pieces that no sequence holds. All memory is taken when it is made.
pub(crate) struct Pool {
    /// What the pieces are, for reports.
    what: &'static str,
    free: Vec<u32>,
    taken: Vec<bool>,
}

impl Pool {
    /// A pool of the pieces `0..count`; low numbers are handed out first.
    pub(crate) fn new(what: &'static str, count: u32) -> Self {
        Self { what, free: (0..count).rev().collect(), taken: vec![false; count as usize] }
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// A free piece; `None` when all are taken.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let piece = self.free.pop()?;
        self.taken[piece as usize] = true;
        Some(piece)
    }

    /// Takes `piece` back.
    ///
    /// # Panics
    /// When it is given back twice: two sequences would then write over each other.
    pub(crate) fn give_back(&mut self, piece: u32) {
        assert!(self.taken[piece as usize], "{} {piece} given back twice", self.what);
        self.taken[piece as usize] = false;
        self.free.push(piece);
    }

    /// Moves free pieces into `held` until it has `count`, in the order in which they lie, which attention reads
    /// fastest. Takes what there is when there are too few, and says whether `held` has them all.
    pub(crate) fn grow(&mut self, held: &mut Vec<u32>, count: usize) -> bool {
        let before = held.len();
        held.extend(std::iter::from_fn(|| self.take()).take(count.saturating_sub(before)));
        held[before..].sort_unstable();
        held.len() >= count
    }

    #[cfg(test)]
    pub(crate) fn is_taken(&self, piece: u32) -> bool {
        self.taken[piece as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_out_once_and_come_back() {
        let mut pool = Pool::new("block", 3);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.grow(&mut a, 2));
        assert!(!pool.grow(&mut b, 2), "one is left");
        assert_eq!((a.as_slice(), b.as_slice(), pool.free()), (&[0, 1][..], &[2][..], 0));
        a.drain(..).for_each(|block| pool.give_back(block));
        assert!(pool.grow(&mut b, 3));
        assert_eq!(pool.free(), 0);
        b.drain(..).for_each(|block| pool.give_back(block));
        assert_eq!(pool.free(), 3);
        assert!(pool.grow(&mut b, 2));
        assert_eq!(b, [0, 1], "in order, though the last given back comes first");
    }

    #[test]
    #[should_panic(expected = "block 0 given back twice")]
    fn a_block_given_back_twice_is_a_bug() {
        let mut pool = Pool::new("block", 1);
        pool.give_back(0);
    }
}
