//! The two kinds of step: a piece of a prompt, and a token for every sequence that decodes.

use crate::{
    Allowed, Constraint, Engine, Finish, LogprobOptions, Request, StepOutcome, TokenEvent,
    TokenLogprob,
    inputs::Row,
    replay::{Chunk, Outputs},
    sampler::{Choice, History, adjusts, logprob, top_k},
    sequence::Sequence,
};
use hal::{Device, DeviceError};
use std::{ops::Range, sync::atomic::Ordering::Relaxed, time::Duration};

/// Consecutive tokens of one sequence that a decode replay feeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Among the running.
    index: usize,
    from: usize,
    count: u32,
}

impl Piece {
    fn end(&self) -> usize {
        self.from + self.count as usize
    }
}

impl<D: Device> Engine<D> {
    /// Feeds the next chunk of the running sequence `index`, and chooses its first token when that
    /// was the end of its prompt.
    pub(crate) fn prefill_step(&mut self, index: usize) -> Result<StepOutcome, DeviceError> {
        let sequence = &self.scheduler.running[index];
        let start = sequence.fed;
        let end = sequence.prefill_end();
        let chunk = self.replayer.chunk(start as u32, (end - start) as u32);
        let fed = start + chunk.live as usize;
        self.scheduler.reserve_window(index, fed);
        let sequence = &self.scheduler.running[index];
        self.replayer.prefill(
            chunk,
            start as u32,
            &sequence.tokens[start..fed],
            &sequence.held,
            &self.shared.counters,
        )?;
        self.shared.counters.prefill_steps.fetch_add(1, Relaxed);
        self.prompt_logprobs(index, start, chunk)?;

        self.scheduler.advance(index, fed);
        self.scheduler.count_passed(|other| other == index);
        let sequence = &self.scheduler.running[index];
        if fed == sequence.prompt_len && sequence.output_len() == 0 {
            let ended = match self.end_prompt(index) {
                Some(false) => {
                    let outputs = self.head(index, start, (chunk.live - 1, 1))?;
                    self.choose(index, outputs, 0)?
                }
                Some(true) | None => true,
            };
            if ended {
                self.remove_ended(index);
            }
        }
        Ok(StepOutcome::Prefill { tokens: chunk.live })
    }

    /// Collects the log-probabilities of the prompt tokens that `chunk`, just fed from `start` on,
    /// predicts.
    fn prompt_logprobs(
        &mut self,
        index: usize,
        start: usize,
        chunk: Chunk,
    ) -> Result<(), DeviceError> {
        let mut positions = self.scored(index, start, start + chunk.live as usize);
        while !positions.is_empty() {
            let count = positions.len().min(self.replayer.head_rows() as usize);
            let first = (positions.start - start) as u32;
            let outputs = self.head(index, start, (first, count as u32))?;
            for row in 0..count {
                self.score(index, positions.start + row, outputs, row as u32)?;
            }
            positions.start += count;
        }
        Ok(())
    }

    /// Logits of rows, the first and how many, of the prefill that fed the running sequence `index` from
    /// position `start` on.
    fn head(
        &mut self,
        index: usize,
        start: usize,
        rows: (u32, u32),
    ) -> Result<Outputs, DeviceError> {
        let held = &self.scheduler.running[index].held;
        self.replayer.head(rows, start as u32, held, &self.shared.counters)
    }

    /// Positions of `start..end`, which are fed now, whose outputs predict a prompt token that has to
    /// be reported. (Position p predicts the token at p + 1.)
    fn scored(&mut self, index: usize, start: usize, end: usize) -> Range<usize> {
        let sequence = &mut self.scheduler.running[index];
        let from = sequence.request.logprobs.prompt_from;
        let (Some(from), Some(entries)) = (from, &mut sequence.prompt_logprobs) else {
            return 0..0;
        };
        if start == 0 && from == 0 {
            let token = sequence.tokens[0];
            entries.push(TokenLogprob { token, logprob: None, top: Vec::new() });
        }
        start.max(from.saturating_sub(1))..end.min(sequence.prompt_len - 1)
    }

    /// Takes the log-probability of the prompt token after `position` from row `row`.
    fn score(
        &mut self,
        index: usize,
        position: usize,
        outputs: Outputs,
        row: u32,
    ) -> Result<(), DeviceError> {
        self.replayer.logits(outputs, row, &mut self.scratch.logits)?;
        let sequence = &mut self.scheduler.running[index];
        let (token, top_n) = (sequence.tokens[position + 1], sequence.request.logprobs.top_n);
        let scratch = self.sampler.scratch();
        let entry = logprob::of_token(&self.scratch.logits, token, top_n, scratch);
        if let Some(entries) = &mut sequence.prompt_logprobs {
            entries.push(entry);
        }
        Ok(())
    }

    /// The prompt of the running sequence `index` is fed: reports its log-probabilities. Returns
    /// whether that was all the client wants; `None` when it has left.
    fn end_prompt(&mut self, index: usize) -> Option<bool> {
        let sequence = &mut self.scheduler.running[index];
        if let Some(logprobs) = sequence.prompt_logprobs.take()
            && !sequence.request.sink.push(TokenEvent::Prompt { logprobs })
        {
            return None;
        }
        if sequence.max_output == 0 {
            sequence.end(Finish::Length);
        }
        Some(sequence.max_output == 0)
    }

    /// Feeds the last token of every sequence that decodes and chooses the next. Up to `rows` rows
    /// of the last replay that none of them needs feed tokens of prompts.
    pub(crate) fn decode_step(&mut self, rows: u32) -> Result<StepOutcome, DeviceError> {
        let preempted = self.scheduler.reserve_decode(&mut self.scratch.batch);
        let counters = &self.shared.counters;
        counters.preemptions.count(preempted, || {
            format!(
                "KV memory is full with {} requests running: the newest gave its memory back and is \
                 computed again; serve with fewer `--max-running-requests` or more \
                 `--max-total-tokens`, or compile with more `--kv-blocks`",
                self.scheduler.running.len() as u64 + preempted
            )
        });
        let batch = self.scratch.batch.len();
        if batch == 0 {
            counters.prefill_steps.fetch_add(1, Relaxed);
        } else {
            counters.count_decode(batch);
        }
        self.scratch.ended.clear();
        let (mut done, mut tokens) = (0, 0);
        loop {
            done += self.take_rows(done);
            let is_last = done == batch;
            if is_last {
                tokens = self.take_prompts(rows);
            } else {
                self.shared.counters.fallback_split.count(1, || {
                    format!(
                        "{batch} requests decode at once and a replay takes {done} of them, so that a \
                         step reads all weights more than once; compile with `--graph-bs` ... {batch}, \
                         or serve with `--max-running-requests {done}`"
                    )
                });
            }
            self.decode_replay()?;
            if is_last {
                break;
            }
        }
        if tokens > 0 {
            let pieces = &self.scratch.pieces;
            self.scheduler.count_passed(|index| pieces.iter().any(|p| p.index == index));
            self.shared.counters.mixed_tokens.fetch_add(tokens.into(), Relaxed);
        }
        self.scratch.ended.sort_unstable();
        while let Some(index) = self.scratch.ended.pop() {
            self.remove_ended(index);
        }
        let rows = batch as u32;
        Ok(match tokens {
            0 => StepOutcome::Decode { rows },
            _ => StepOutcome::Mixed { rows, tokens },
        })
    }

    /// Begins a replay with as much of the batch from `first` on as a graph takes; returns how much.
    fn take_rows(&mut self, first: usize) -> usize {
        let left = &self.scratch.batch[first..];
        let running = &self.scheduler.running;
        let context = left.iter().map(|&i| running[i].tokens.len()).max().unwrap_or(0);
        let most = self.replayer.costs.most_decode_rows(context as u32) as usize;
        let count = left.len().min(most);
        self.scratch.pieces.clear();
        self.scratch.pieces.extend(left[..count].iter().map(|&index| {
            let from = running[index].tokens.len() - 1;
            Piece { index, from, count: 1 }
        }));
        count
    }

    /// Adds pieces of prompts, in the order in which they are served, until the replay has `rows`
    /// rows; returns their tokens.
    fn take_prompts(&mut self, rows: u32) -> u32 {
        let taken = self.scratch.pieces.len() as u32;
        let mut spare = rows.saturating_sub(taken).min(self.scheduler.limits.chunk);
        let mut total = 0;
        for prompt in &self.scratch.prompts {
            // Preemption takes the newest away.
            let is_gone = prompt.index >= self.scheduler.running.len();
            let wanted = prompt.takes(spare);
            if is_gone || wanted == 0 {
                continue;
            }
            let from = prompt.fed as usize;
            let end = self.scheduler.window_room(prompt.index, from + wanted as usize);
            let count = end.saturating_sub(from) as u32;
            let context = self.scratch.pieces.iter().map(Piece::end).chain([end]).max();
            let context = context.unwrap_or(0) as u32;
            if count == 0 || !self.replayer.takes(context, taken + total + count) {
                continue;
            }
            self.scheduler.reserve_window(prompt.index, end);
            self.scratch.pieces.push(Piece { index: prompt.index, from, count });
            spare -= count;
            total += count;
        }
        total
    }

    /// Replays the pieces that were taken and chooses a token for each sequence that is fed whole.
    fn decode_replay(&mut self) -> Result<(), DeviceError> {
        let (pieces, running) = (&self.scratch.pieces, &self.scheduler.running);
        let live: u32 = pieces.iter().map(|p| p.count).sum();
        if live == 0 {
            return Ok(());
        }
        let rows = pieces.iter().flat_map(|piece| {
            let sequence = &running[piece.index];
            (piece.from..piece.end()).map(|position| Row {
                token: sequence.tokens[position],
                position: position as u32,
                held: &sequence.held,
            })
        });
        let context = pieces.iter().map(Piece::end).max().unwrap_or(0) as u32;
        let started = self.replayer.start_decode((context, live), rows, &self.shared.counters)?;
        for piece in &self.scratch.pieces {
            self.scheduler.advance(piece.index, piece.end());
        }
        if self.replayer.prepares() {
            self.prepare_next();
        }
        let outputs = self.replayer.finish(&started, &self.shared.counters)?;
        let mut row = 0;
        for i in 0..self.scratch.pieces.len() {
            let piece = self.scratch.pieces[i];
            for position in self.scored(piece.index, piece.from, piece.end()) {
                let at = row + (position - piece.from) as u32;
                self.score(piece.index, position, outputs, at)?;
            }
            row += piece.count;
            if self.after(piece, outputs, row - 1)? {
                self.scratch.ended.push(piece.index);
            }
        }
        Ok(())
    }

    /// Makes the inputs of the next decode replay while the device is busy with this one: of the
    /// sequences that are fed whole and do not reach their length now. If it feeds others, they are made
    /// again.
    fn prepare_next(&mut self) {
        let next = &mut self.scratch.next;
        next.clear();
        let (scheduler, pieces) = (&mut self.scheduler, &self.scratch.pieces);
        for piece in pieces {
            let sequence = &scheduler.running[piece.index];
            let is_whole = piece.end() == sequence.tokens.len();
            if !is_whole || sequence.output_len() + 1 >= sequence.max_output {
                continue;
            }
            if !scheduler.reserve_next(piece.index) {
                return;
            }
            next.push(piece.index);
        }
        if next.is_empty() {
            return;
        }
        next.sort_unstable();
        let running = &scheduler.running;
        let rows = next.iter().map(|&index| {
            let Sequence { tokens, held, .. } = &running[index];
            Row { token: 0, position: tokens.len() as u32, held }
        });
        let context = rows.clone().map(|row| row.position + 1).max().unwrap_or(0);
        self.replayer.prepare_decode((context, next.len() as u32), rows);
    }

    /// What follows when `piece` was fed and its last token is row `row` of the replay. Returns
    /// whether its sequence ended.
    fn after(&mut self, piece: Piece, outputs: Outputs, row: u32) -> Result<bool, DeviceError> {
        let sequence = &self.scheduler.running[piece.index];
        if piece.end() < sequence.tokens.len() {
            return Ok(false);
        }
        if sequence.output_len() == 0 && self.end_prompt(piece.index) != Some(false) {
            return Ok(true);
        }
        self.choose(piece.index, outputs, row)
    }

    /// Chooses the next token of the running sequence `index` from row `row` of the last replay and
    /// pushes it, or parks the sequence when nobody knows yet which tokens it may have. Returns whether
    /// the sequence ended.
    fn choose(&mut self, index: usize, outputs: Outputs, row: u32) -> Result<bool, DeviceError> {
        if self.is_late(index, outputs.time) {
            self.park(index, outputs, row)?;
            return Ok(false);
        }
        let sequence = &self.scheduler.running[index];
        let Request { sampling, logprobs, constraint, .. } = &sequence.request;
        let is_adjusted = sequence.holds_back_terminators()
            || constraint.is_some()
            || adjusts(sampling, &Choice::default());
        let (is_greedy, logprobs) = (sampling.is_greedy() && !is_adjusted, *logprobs);
        if !is_adjusted
            && !logprobs.output
            && let Some(token) = self.draw_of_best(index, outputs, row)?
        {
            return Ok(self.take(index, Some(token), None));
        }
        if logprobs.output || !is_greedy {
            self.replayer.logits(outputs, row, &mut self.scratch.logits)?;
        }
        if !is_greedy {
            return Ok(self.choose_from_logits(index));
        }
        let token = self.replayer.most_probable(row);
        let logprob = self.logprob_of(token, logprobs);
        Ok(self.take(index, token, logprob))
    }

    /// Draws the next token of the running sequence `index`, whose logits nothing changes, from the best
    /// that the device found in row `row` of the last replay. `None` when these do not decide.
    fn draw_of_best(
        &mut self,
        index: usize,
        outputs: Outputs,
        row: u32,
    ) -> Result<Option<u32>, DeviceError> {
        let sequence = &self.scheduler.running[index];
        let sampling = &sequence.request.sampling;
        let count = top_k(sampling, self.scratch.logits.len());
        let Some(count) = count.filter(|&count| count <= outputs.ranked()) else {
            return Ok(None);
        };
        if !self.replayer.best(outputs, row, count, self.sampler.scratch())? {
            return Ok(None);
        }
        Ok(self.sampler.choose_of_best(sampling, sequence.draw()))
    }

    /// Chooses the next token of the running sequence `index` from the row of logits that was read and
    /// pushes it. Returns whether the sequence ended.
    pub(crate) fn choose_from_logits(&mut self, index: usize) -> bool {
        let sequence = &mut self.scheduler.running[index];
        let draw = sequence.draw();
        let forbidden: &[u32] =
            if sequence.holds_back_terminators() { &sequence.terminators } else { &[] };
        let Request { sampling, logprobs, constraint, .. } = &mut sequence.request;
        let logprobs = *logprobs;
        let allowed = match constraint.as_mut().map(|constraint| allowed(&mut **constraint)) {
            None => None,
            Some(Ok(tokens)) => Some(tokens),
            Some(Err(finish)) => {
                sequence.end(finish);
                return true;
            }
        };
        let choice = Choice { allowed, forbidden };
        if choice.is_empty(self.scratch.logits.len()) {
            sequence.end(Finish::Complete);
            return true;
        }
        let (prompt, output) = sequence.tokens.split_at(sequence.prompt_len);
        let history = History { prompt, output, choice };
        let token = self.sampler.choose(sampling, &history, draw, &self.scratch.logits);
        let logprob = self.logprob_of(token, logprobs);
        self.take(index, token, logprob)
    }

    /// The log-probability of `token` by the row of logits that was read, if asked for.
    fn logprob_of(&mut self, token: Option<u32>, asked: LogprobOptions) -> Option<TokenLogprob> {
        let scratch = self.sampler.scratch();
        let token = token.filter(|_| asked.output)?;
        Some(logprob::of_token(&self.scratch.logits, token, asked.top_n, scratch))
    }

    /// Gives the running sequence `index` its next token. Returns whether it ended.
    fn take(&mut self, index: usize, token: Option<u32>, logprob: Option<TokenLogprob>) -> bool {
        let sequence = &mut self.scheduler.running[index];
        let Some(token) = token else {
            sequence.end(Finish::Abort(NO_TOKEN.into()));
            return true;
        };
        self.shared.counters.generation_tokens.fetch_add(1, Relaxed);
        push(sequence, token, logprob)
    }

    /// Takes out a sequence that ended and was told so.
    pub(crate) fn remove_ended(&mut self, index: usize) {
        let sequence = self.scheduler.remove_running(index);
        self.count_end(&sequence, sequence.ended.as_ref().unwrap_or(&crate::engine::CLIENT_LEFT));
    }
}

/// The tokens that `constraint` allows next, or how the output ends.
fn allowed(constraint: &mut dyn Constraint) -> Result<&[u32], Finish> {
    match constraint.allowed(Duration::ZERO) {
        Allowed::Tokens(tokens) => Ok(tokens),
        Allowed::Complete => Err(Finish::Complete),
        Allowed::Failed(why) => Err(Finish::Constraint(why.to_owned())),
        Allowed::Pending => Err(Finish::Constraint(TOO_SLOW.into())),
    }
}

const TOO_SLOW: &str =
    "the grammar is too complex: its next tokens were not known within five seconds";
const NO_TOKEN: &str = "the model's output for this request is not a number";

/// Appends a token and tells the client. Returns whether the sequence ended.
fn push(sequence: &mut Sequence, token: u32, logprob: Option<TokenLogprob>) -> bool {
    sequence.tokens.push(token);
    let finish = sequence.finish_after(token);
    sequence.ended.clone_from(&finish);
    let ended = finish.is_some();
    if let Some(constraint) = &mut sequence.request.constraint
        && !ended
    {
        constraint.advance(token);
    }
    let event = TokenEvent::Token { token, logprob, cached_tokens: sequence.cached, finish };
    let reads = sequence.request.sink.push(event);
    ended || !reads
}
