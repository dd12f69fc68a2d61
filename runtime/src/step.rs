//! The two kinds of step: a piece of a prompt, and a token for every sequence that decodes.

use crate::{
    Allowed, Constraint, Engine, Finish, Request, StepOutcome, TokenEvent, TokenLogprob,
    inputs::Row,
    replay::{Chunk, Outputs},
    sampler::{Choice, Draw, History, adjusts, logprob},
    sequence::Sequence,
    stats::Counters,
};
use hal::{Device, DeviceError};
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

impl<D: Device> Engine<D> {
    /// Feeds the next chunk of the running sequence `index`, and chooses its first token when that
    /// was the end of its prompt.
    pub(crate) fn prefill_step(&mut self, index: usize) -> Result<StepOutcome, DeviceError> {
        let sequence = &self.scheduler.running[index];
        let start = sequence.fed;
        let end = sequence.prefill_end();
        let chunk = self.replayer.chunk(start as u32, (end - start) as u32);
        let fed = start + chunk.live as usize;
        self.scheduler.reserve_prefill(index, fed);
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
        let sequence = &self.scheduler.running[index];
        if fed == sequence.prompt_len && sequence.output_len() == 0 {
            self.end_prompt(index, chunk)?;
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
        let sequence = &mut self.scheduler.running[index];
        let options = sequence.request.logprobs;
        let (Some(from), Some(entries)) = (options.prompt_from, &mut sequence.prompt_logprobs)
        else {
            return Ok(());
        };
        if start == 0 && from == 0 {
            let token = sequence.tokens[0];
            entries.push(TokenLogprob { token, logprob: None, top: Vec::new() });
        }
        // Position p predicts the token at p + 1.
        let mut position = start.max(from.saturating_sub(1));
        let last = (start + chunk.live as usize).min(sequence.prompt_len - 1);
        while position < last {
            let count = (last - position).min(self.replayer.head_rows() as usize);
            let first = (position - start) as u32;
            let outputs = self.replayer.head(first, count as u32, &self.shared.counters)?;
            for row in 0..count {
                self.replayer.logits(outputs, row as u32, &mut self.scratch.logits)?;
                let token = sequence.tokens[position + row + 1];
                entries.push(logprob::of_token(
                    &self.scratch.logits,
                    token,
                    options.top_n,
                    self.sampler.scratch(),
                ));
            }
            position += count;
        }
        Ok(())
    }

    /// Reports the prompt's log-probabilities and chooses the first token from the last row of
    /// `chunk`.
    fn end_prompt(&mut self, index: usize, chunk: Chunk) -> Result<(), DeviceError> {
        let sequence = &mut self.scheduler.running[index];
        if let Some(logprobs) = sequence.prompt_logprobs.take()
            && !sequence.request.sink.push(TokenEvent::Prompt { logprobs })
        {
            self.end(index, None);
            return Ok(());
        }
        if sequence.max_output == 0 {
            self.end(index, Some(Finish::Length));
            return Ok(());
        }
        let outputs = self.replayer.head(chunk.live - 1, 1, &self.shared.counters)?;
        self.scratch.argmax.clear();
        self.scratch.argmax.resize(1, None);
        self.replayer.argmax(outputs, &mut self.scratch.argmax)?;
        if self.choose(index, outputs, 0)? {
            self.remove_ended(index);
        }
        Ok(())
    }

    /// Ends the running sequence `index` without a further token; `None` when nobody reads.
    fn end(&mut self, index: usize, finish: Option<Finish>) {
        let mut sequence = self.scheduler.remove_running(index);
        match finish {
            Some(finish) => {
                self.count_end(&sequence, &finish);
                sequence.end(finish);
            }
            None => self.count_end(&sequence, &crate::engine::CLIENT_LEFT),
        }
    }

    /// Feeds the last token of every sequence that decodes and chooses the next.
    pub(crate) fn decode_step(&mut self) -> Result<StepOutcome, DeviceError> {
        let preempted = self.scheduler.reserve_decode(&mut self.scratch.batch);
        self.shared.counters.preemptions.fetch_add(preempted, Relaxed);
        let rows = self.scratch.batch.len();
        self.shared.counters.count_decode(rows);
        self.scratch.ended.clear();
        let mut done = 0;
        while done < rows {
            done += self.decode_replay(done)?;
        }
        while let Some(index) = self.scratch.ended.pop() {
            self.remove_ended(index);
        }
        Ok(StepOutcome::Decode { rows: rows as u32 })
    }

    /// One replay over as much of the batch from `first` on as a graph takes; returns how much.
    fn decode_replay(&mut self, first: usize) -> Result<usize, DeviceError> {
        let running = &self.scheduler.running;
        let left = &self.scratch.batch[first..];
        let context = |batch: &[usize]| {
            batch.iter().map(|&i| running[i].tokens.len()).max().unwrap_or(0) as u32
        };
        let count = self.replayer.decode_rows(context(left), left.len() as u32) as usize;
        let batch = &left[..count];
        let rows = batch.iter().map(|&i| {
            let sequence = &running[i];
            let position = sequence.tokens.len() - 1;
            Row {
                token: sequence.tokens[position],
                position: position as u32,
                held: &sequence.held,
            }
        });
        let outputs = self.replayer.decode(context(batch), rows, &self.shared.counters)?;
        self.scratch.argmax.clear();
        self.scratch.argmax.resize(count, None);
        self.replayer.argmax(outputs, &mut self.scratch.argmax)?;
        for row in 0..count {
            let index = self.scratch.batch[first + row];
            self.scheduler.advance(index, self.scheduler.running[index].fed + 1);
            if self.choose(index, outputs, row as u32)? {
                self.scratch.ended.push(index);
            }
        }
        Ok(count)
    }

    /// Chooses the next token of the running sequence `index` from row `row` of the last replay and
    /// pushes it. Returns whether the sequence ended.
    fn choose(&mut self, index: usize, outputs: Outputs, row: u32) -> Result<bool, DeviceError> {
        let sequence = &mut self.scheduler.running[index];
        let forbidden: &[u32] =
            if sequence.holds_back_terminators() { &sequence.terminators } else { &[] };
        let Request { id, sampling, logprobs, constraint, .. } = &mut sequence.request;
        let wants_logprob = logprobs.output;
        let top_n = logprobs.top_n;
        let allowed = match constraint {
            None => None,
            Some(constraint) => match allowed(&mut **constraint, &self.shared.counters) {
                Ok(tokens) => Some(tokens),
                Err(finish) => {
                    sequence.end(finish);
                    return Ok(true);
                }
            },
        };
        let choice = Choice { allowed, forbidden };
        if choice.is_empty(self.scratch.logits.len()) {
            sequence.end(Finish::Complete);
            return Ok(true);
        }
        let adjusts = adjusts(sampling, &choice);
        if wants_logprob || adjusts || !sampling.is_greedy() {
            self.replayer.logits(outputs, row, &mut self.scratch.logits)?;
        }
        let logits = &self.scratch.logits;
        let token = if sampling.is_greedy() && !adjusts {
            self.scratch.argmax[row as usize]
        } else {
            let (prompt, output) = sequence.tokens.split_at(sequence.prompt_len);
            let draw = Draw { seed: sampling.seed.unwrap_or(id.0), count: output.len() as u64 };
            let history = History { prompt, output, choice };
            self.sampler.choose(sampling, &history, draw, logits)
        };
        let Some(token) = token else {
            sequence.end(Finish::Abort(NO_TOKEN.into()));
            return Ok(true);
        };
        let logprob =
            wants_logprob.then(|| logprob::of_token(logits, token, top_n, self.sampler.scratch()));
        self.shared.counters.generation_tokens.fetch_add(1, Relaxed);
        Ok(push(sequence, token, logprob))
    }

    /// Takes out a sequence that [`Engine::choose`] ended and told so.
    fn remove_ended(&mut self, index: usize) {
        let sequence = self.scheduler.remove_running(index);
        self.count_end(&sequence, sequence.ended.as_ref().unwrap_or(&crate::engine::CLIENT_LEFT));
    }
}

/// How long the engine waits to hear what a request may choose; all others wait with it.
/// Sets of tokens are bounded to take milliseconds, so this long only a starved thread takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The tokens that `constraint` allows next, or how the output ends.
fn allowed<'a>(
    constraint: &'a mut dyn Constraint,
    counters: &Counters,
) -> Result<&'a [u32], Finish> {
    if constraint.allowed(Duration::ZERO) == Allowed::Pending {
        let start = Instant::now();
        constraint.allowed(PATIENCE);
        counters.constraint_waits.fetch_add(1, Relaxed);
        counters.constraint_wait_ns.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
    }
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
