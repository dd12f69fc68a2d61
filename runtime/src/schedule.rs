//! Who runs next, and who holds which memory.

use crate::{TokenEvent, choice::Prompt, memory::Memories, sequence::Sequence};
use std::collections::VecDeque;

/// Requests that wait, in the order they will run, and requests that hold memory, oldest first.
pub(crate) struct Scheduler {
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Sequence>,
    pub(crate) memories: Memories,
    block_tokens: usize,
    pub(crate) limits: StepLimits,
    /// The last step was a prefill chunk: sequences that decode are next.
    pub(crate) prefilled_last: bool,
    /// Prompt tokens that were in cached blocks, of requests that ran for the first time.
    pub(crate) reused_tokens: u64,
}

/// How much runs at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLimits {
    pub(crate) max_running: usize,
    /// Tokens of prompts that a step feeds.
    pub(crate) chunk: u32,
    /// Tokens of prompts whose prefill has begun, as far as one step can feed them.
    pub(crate) prefill_tokens: usize,
    /// Decode replays feed tokens of prompts too.
    pub(crate) mixes: bool,
    /// Requests of a higher priority start first.
    pub(crate) by_priority: bool,
    /// A replay may feed one token of a sequence only, since rows read the recurrent memory that
    /// the row before wrote.
    pub(crate) has_slots: bool,
}

impl Scheduler {
    pub(crate) fn new(memories: Memories, block_tokens: u32, limits: StepLimits) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(limits.max_running),
            memories,
            block_tokens: block_tokens as usize,
            limits,
            prefilled_last: false,
            reused_tokens: 0,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Puts a new sequence where its priority and arrival say, behind every preempted one.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        let rank = |s: &Sequence| {
            let priority = if self.limits.by_priority { s.request.priority } else { 0 };
            (std::cmp::Reverse(priority), s.request.arrival)
        };
        let later = |other: &Sequence| !other.was_preempted() && rank(other) > rank(&sequence);
        let behind = self.waiting.iter().rev().take_while(|other| later(other)).count();
        self.waiting.insert(self.waiting.len() - behind, sequence);
    }

    /// Starts the first waiting sequence if there is room. Its prompt's blocks must be available, and
    /// one more for each running sequence, so that starting it does not preempt it at once.
    ///
    /// Returns the sequence that was started. Nobody overtakes the first in the queue.
    pub(crate) fn start_next(&mut self) -> Option<&mut Sequence> {
        if self.running.len() == self.limits.max_running {
            return None;
        }
        let chunk = self.limits.chunk as usize;
        let begun: usize = self.running.iter().map(|s| s.prefill_left().min(chunk)).sum();
        let more = self.waiting.front()?.prefill_left().min(chunk);
        if begun > 0 && begun + more > self.limits.prefill_tokens {
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
        self.running.last_mut()
    }

    /// How many running sequences decode, and the most tokens that one of them has.
    pub(crate) fn decoding(&self) -> (u32, u32) {
        let decoding = self.running.iter().filter(|s| s.is_decoding());
        decoding.fold((0, 0), |(n, context), s| (n + 1, context.max(s.tokens.len() as u32)))
    }

    /// Fills `out` with the running sequences that are in prefill.
    pub(crate) fn prompts(&self, out: &mut Vec<Prompt>) {
        let most = if self.limits.has_slots { 1 } else { u32::MAX };
        let prefilling = self.running.iter().enumerate().filter(|(_, s)| s.is_prefilling());
        out.clear();
        out.extend(prefilling.map(|(index, s)| Prompt {
            index,
            fed: s.fed as u32,
            prefill_end: s.prefill_end() as u32,
            tokens: s.tokens.len() as u32,
            most,
            passed: s.passed,
        }));
    }

    /// A step fed tokens of the prompts that satisfy `fed`, and passed the others over.
    pub(crate) fn count_passed(&mut self, fed: impl Fn(usize) -> bool) {
        for (index, sequence) in self.running.iter_mut().enumerate() {
            sequence.passed = if fed(index) { 0 } else { sequence.passed.saturating_add(1) };
        }
    }

    /// Sequences in prefill skip what others that run have fed since they started.
    pub(crate) fn reuse_prefixes(&mut self) {
        for sequence in self.running.iter_mut().filter(|s| s.is_prefilling()) {
            self.reused_tokens += sequence.reuse(&mut self.memories);
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
            if !sequence.is_decoding() {
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

    /// Gives the running sequence `index` blocks for the token that is being chosen, if there are free
    /// ones; says whether there were.
    pub(crate) fn reserve_next(&mut self, index: usize) -> bool {
        let tokens = self.running[index].tokens.len() + 1;
        let fits = self.window_room(index, tokens) == tokens;
        let held = &mut self.running[index].held;
        if fits && self.memories.grow_free(held, tokens) {
            self.memories.grow_window(held, tokens);
            return true;
        }
        false
    }

    /// All running sequences give back what they hold and wait, in their order; returns how many.
    pub(crate) fn preempt_all(&mut self) -> u64 {
        let count = self.running.len() as u64;
        (0..count).for_each(|_| self.preempt_newest());
        count
    }

    /// The newest running sequence gives back what it holds and waits in front of all others.
    fn preempt_newest(&mut self) {
        let mut newest = self.running.pop().expect("some sequence runs");
        self.memories.give_back(&mut newest.held);
        newest.restart();
        // Whoever has left is dropped in the next step.
        newest.request.sink.push(TokenEvent::Retracted);
        self.waiting.push_front(newest);
    }

    /// The first tokens of the running sequence `index`, `tokens` or fewer, that window memory has
    /// room for now.
    pub(crate) fn window_room(&self, index: usize, tokens: usize) -> usize {
        self.memories.window_room(&self.running[index].held, tokens)
    }

    /// Gives the running sequence `index` window blocks for its first `tokens` tokens, which are
    /// about to be fed.
    pub(crate) fn reserve_window(&mut self, index: usize, tokens: usize) {
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
