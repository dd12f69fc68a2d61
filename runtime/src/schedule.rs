//! Who runs next, and who holds which memory.

use crate::{memory::Memories, sequence::Sequence};
use std::collections::VecDeque;

/// Requests that wait, in the order they will run, and requests that hold memory, oldest first.
pub(crate) struct Scheduler {
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Sequence>,
    pub(crate) memories: Memories,
    block_tokens: usize,
    max_running: usize,
    /// The last step was a prefill chunk: sequences that decode are next.
    prefilled_last: bool,
    /// Prompt tokens that were in cached blocks, of requests that ran for the first time.
    pub(crate) reused_tokens: u64,
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
    pub(crate) fn new(memories: Memories, block_tokens: u32, max_running: u32) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(max_running as usize),
            memories,
            block_tokens: block_tokens as usize,
            max_running: max_running as usize,
            prefilled_last: false,
            reused_tokens: 0,
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

    /// Starts the first waiting sequence if there is room. Its prompt's blocks must be available, and
    /// one more for each running sequence, so that starting it does not preempt it at once.
    ///
    /// Returns the sequence that was started. Nobody overtakes the first in the queue.
    pub(crate) fn start_next(&mut self) -> Option<&Sequence> {
        if self.running.len() == self.max_running {
            return None;
        }
        // One token past the prefill, so that the decode step after it has its block too.
        let needed = |s: &Sequence| (s.prefill_end() + 1).min(s.most_tokens());
        let first = self.waiting.front()?;
        let blocks = needed(first).div_ceil(self.block_tokens) + self.running.len();
        if !self.running.is_empty() && !self.memories.kv().has_room(first.reusable(), blocks) {
            return None;
        }
        let mut sequence = self.waiting.pop_front()?;
        self.memories.start(&mut sequence.held);
        self.reused_tokens += sequence.reuse(&mut self.memories);
        let tokens = needed(&sequence);
        let fits = self.memories.grow(&mut sequence.held, tokens);
        assert!(fits, "a sequence that is admitted fits all blocks");
        self.running.push(sequence);
        self.running.last()
    }

    /// Chooses the next step: prefill goes first, but never twice in a row while others decode.
    pub(crate) fn next(&mut self) -> Work {
        self.reuse_prefixes();
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

    /// The sequences that prefill next skip what others that run have fed since they started.
    fn reuse_prefixes(&mut self) {
        for sequence in self.running.iter_mut().filter(|s| s.is_prefilling()) {
            self.reused_tokens += sequence.reuse(&mut self.memories);
            if sequence.is_prefilling() {
                break;
            }
        }
    }

    /// Fills `batch` with the indices of the running sequences that decode, each with blocks for
    /// its next token. Preempts the newest sequences when KV blocks run out; returns how many.
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
            let tokens = sequence.tokens.len();
            if self.memories.grow(&mut sequence.held, tokens) {
                self.memories.grow_window(&mut sequence.held, tokens);
                batch.push(index);
                index += 1;
            } else {
                self.preempt_newest();
                preempted += 1;
            }
        }
        preempted
    }

    /// The newest running sequence gives back what it holds and waits in front of all others.
    fn preempt_newest(&mut self) {
        let mut newest = self.running.pop().expect("a sequence asked for a block");
        self.memories.give_back(&mut newest.held);
        newest.restart();
        self.waiting.push_front(newest);
    }

    /// Gives the running sequence `index` window blocks for its first `tokens` tokens, which are
    /// about to be fed.
    pub(crate) fn reserve_prefill(&mut self, index: usize, tokens: usize) {
        self.memories.grow_window(&mut self.running[index].held, tokens);
    }

    /// The first `tokens` tokens of the running sequence `index` were fed: takes back what no later
    /// one sees, and lets others have the blocks that are full.
    pub(crate) fn advance(&mut self, index: usize, tokens: usize) {
        let sequence = &mut self.running[index];
        sequence.fed = tokens;
        self.memories.pass_window(&mut sequence.held, tokens);
        self.memories.share(&mut sequence.held, &sequence.tokens[..tokens]);
    }

    /// Takes a running sequence out and frees what it holds.
    pub(crate) fn remove_running(&mut self, index: usize) -> Sequence {
        let mut sequence = self.running.remove(index);
        self.memories.give_back(&mut sequence.held);
        sequence
    }
}
