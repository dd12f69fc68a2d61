//! Who runs next, and who holds which blocks.

use crate::{blocks::BlockPool, sequence::Sequence};
use std::collections::VecDeque;

/// Requests that wait, in the order they will run, and requests that hold blocks, oldest first.
pub(crate) struct Scheduler {
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Sequence>,
    pub(crate) pool: BlockPool,
    block_tokens: usize,
    max_running: usize,
    /// The last step was a prefill chunk: sequences that decode are next.
    prefilled_last: bool,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    /// A chunk of the running sequence with this index.
    Prefill(usize),
    /// Every running sequence that is not in prefill.
    Decode,
}

impl Scheduler {
    pub(crate) fn new(blocks: u32, block_tokens: u32, max_running: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(max_running as usize),
            pool: BlockPool::new(blocks),
            block_tokens: block_tokens as usize,
            max_running: max_running as usize,
            prefilled_last: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Puts a new sequence where its arrival says, behind every preempted one.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        let later =
            |other: &Sequence| !other.preempted && other.request.arrival > sequence.request.arrival;
        let behind = self.waiting.iter().rev().take_while(|other| later(other)).count();
        self.waiting.insert(self.waiting.len() - behind, sequence);
    }

    /// Starts the first waiting sequence if there is room. Its prompt's blocks must be free, and
    /// one more for each running sequence, so that starting it does not preempt it at once.
    ///
    /// Returns the sequence that was started. Nobody overtakes the first in the queue.
    pub(crate) fn start_next(&mut self) -> Option<&Sequence> {
        if self.running.len() == self.max_running {
            return None;
        }
        // One token past the prefill, so that the decode step after it has its block too.
        let needed = |s: &Sequence| (s.prefill_end() + 1).min(s.most_tokens());
        let blocks = needed(self.waiting.front()?).div_ceil(self.block_tokens);
        let spare = self.running.len();
        if !self.running.is_empty() && blocks + spare > self.pool.free() {
            return None;
        }
        let mut sequence = self.waiting.pop_front()?;
        let fits = self.pool.grow(&mut sequence.blocks, blocks);
        assert!(fits, "a sequence that is admitted fits all blocks");
        self.running.push(sequence);
        self.running.last()
    }

    /// Chooses the next step: prefill goes first, but never twice in a row while others decode.
    pub(crate) fn next(&mut self) -> Work {
        let decoding = self.running.iter().any(|s| !s.is_prefilling());
        let prefilling = self.running.iter().position(Sequence::is_prefilling);
        let work = match prefilling {
            Some(oldest) if !(decoding && self.prefilled_last) => Work::Prefill(oldest),
            _ if decoding => Work::Decode,
            _ => Work::Nothing,
        };
        self.prefilled_last = matches!(work, Work::Prefill(_));
        work
    }

    /// Fills `batch` with the indices of the running sequences that decode, each with a block for
    /// its next token. Preempts the newest sequences when blocks run out; returns how many.
    pub(crate) fn reserve_decode(&mut self, batch: &mut Vec<usize>) -> u64 {
        batch.clear();
        let mut preempted = 0;
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            if sequence.is_prefilling() {
                index += 1;
                continue;
            }
            let blocks = sequence.tokens.len().div_ceil(self.block_tokens);
            if self.pool.grow(&mut sequence.blocks, blocks) {
                batch.push(index);
                index += 1;
            } else {
                self.preempt_newest();
                preempted += 1;
            }
        }
        preempted
    }

    /// The newest running sequence gives its blocks back and waits in front of all others.
    fn preempt_newest(&mut self) {
        let mut newest = self.running.pop().expect("a sequence asked for a block");
        self.pool.give_back(&mut newest.blocks);
        newest.restart();
        self.waiting.push_front(newest);
    }

    /// Takes a running sequence out and frees its blocks.
    pub(crate) fn remove_running(&mut self, index: usize) -> Sequence {
        let mut sequence = self.running.remove(index);
        self.pool.give_back(&mut sequence.blocks);
        sequence
    }
}
