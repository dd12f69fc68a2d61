//! An engine that answers with what the test says, at once or when told.

use artifact::Phase;
use precast_server::Backend;
use runtime::{
    BucketStats, Finish, FlushError, Flushed, LogprobOptions, Pause, Request, Sampling,
    StartupReport, Stats, StepTimes, SubmitError, TokenEvent, TokenLogprob,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

/// What the server asked for.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) min_tokens: usize,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) logprobs: LogprobOptions,
    pub(crate) is_constrained: bool,
}

/// The engine.
#[derive(Default)]
pub(crate) struct Scripted {
    /// Answer to every request, repeated as long as needed.
    answer: Vec<u32>,
    eos: Vec<u32>,
    /// Keep requests for the test instead of answering.
    holds: bool,
    /// How long requests are said to have waited.
    queued: Duration,
    /// Requests that are taken before the queue is full.
    room: Option<usize>,
    pub(crate) held: Mutex<Vec<Request>>,
    pub(crate) seen: Mutex<Vec<Seen>>,
    draining: AtomicBool,
    pub(crate) stopped: AtomicBool,
}

impl Scripted {
    pub(crate) fn answering(answer: Vec<u32>) -> Self {
        Self { answer, eos: vec![478, 480], ..Self::default() }
    }

    pub(crate) fn ending_with(self, eos: Vec<u32>) -> Self {
        Self { eos, ..self }
    }

    pub(crate) fn queueing(self, queued: Duration) -> Self {
        Self { queued, ..self }
    }

    pub(crate) fn holding() -> Self {
        Self { holds: true, ..Self::default() }
    }

    pub(crate) fn with_room(self, room: usize) -> Self {
        Self { room: Some(room), ..self }
    }

    pub(crate) fn into_arc(self) -> Arc<Self> {
        Arc::new(self)
    }

    pub(crate) fn last_seen(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    /// Tells the held request `index` of something; whether its client still reads.
    pub(crate) fn tell(&self, index: usize, event: TokenEvent) -> bool {
        self.held.lock().unwrap()[index].sink.push(event)
    }

    /// Pushes a token to the held request `index`; whether its client still reads.
    pub(crate) fn push(&self, index: usize, token: u32, finish: Option<Finish>) -> bool {
        self.tell(index, TokenEvent::Token { token, logprob: None, cached_tokens: 0, finish })
    }

    pub(crate) fn is_open(&self, index: usize) -> bool {
        self.held.lock().unwrap()[index].sink.is_open()
    }

    fn play(&self, mut request: Request) {
        let options = request.logprobs;
        request.sink.push(TokenEvent::Started { queued: self.queued });
        if let Some(from) = options.prompt_from {
            let logprobs = (from..request.prompt.len())
                .map(|position| TokenLogprob {
                    logprob: (position > 0).then_some(-(position as f32)),
                    ..logprob(request.prompt[position], position, options.top_n)
                })
                .collect();
            request.sink.push(TokenEvent::Prompt { logprobs });
        }
        for (index, &token) in self.answer.iter().cycle().enumerate().take(request.max_tokens) {
            let may_end = index + 1 > request.min_tokens;
            let is_eos = self.eos.contains(&token) && !request.ignore_eos;
            let finish = if may_end && (is_eos || request.stop_token_ids.contains(&token)) {
                Some(Finish::Stop { token })
            } else {
                (index + 1 == request.max_tokens).then_some(Finish::Length)
            };
            let logprob = options.output.then(|| logprob(token, index, options.top_n));
            let ends = finish.is_some();
            let event = TokenEvent::Token { token, logprob, cached_tokens: 0, finish };
            if !request.sink.push(event) || ends {
                return;
            }
        }
    }
}

/// Position `p` has log-probability -(p+1)/2; the next id is half as likely and so on.
fn logprob(token: u32, position: usize, top_n: usize) -> TokenLogprob {
    let logprob = -(position as f32 + 1.0) / 2.0;
    let top = (0..top_n as u32).map(|i| (token + i, logprob - i as f32)).collect();
    TokenLogprob { token, logprob: Some(logprob), top }
}

impl Backend for Scripted {
    fn submit(&self, request: Request) -> Result<(), SubmitError> {
        if self.draining.load(SeqCst) || self.stopped.load(SeqCst) {
            return Err(SubmitError::Stopped);
        }
        request.sampling.validate().map_err(|e| SubmitError::Invalid(e.into()))?;
        let mut seen = self.seen.lock().unwrap();
        if self.room.is_some_and(|room| seen.len() >= room) {
            return Err(SubmitError::QueueFull { limit: self.room.unwrap() as u32 });
        }
        seen.push(Seen {
            prompt: request.prompt.clone(),
            sampling: request.sampling.clone(),
            max_tokens: request.max_tokens,
            min_tokens: request.min_tokens,
            stop_token_ids: request.stop_token_ids.clone(),
            ignore_eos: request.ignore_eos,
            logprobs: request.logprobs,
            is_constrained: request.constraint.is_some(),
        });
        if self.holds {
            self.held.lock().unwrap().push(request);
        } else {
            self.play(request);
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        let bucket = BucketStats {
            phase: Phase::Decode,
            rows: 4,
            context_tokens: 64,
            replays: 7,
            padded_rows: 5,
            replay_time: Duration::from_millis(3500),
        };
        let mut step_times = StepTimes { sum: Duration::from_secs(20), ..StepTimes::default() };
        (step_times.counts[0], step_times.counts[2]) = (4, 2);
        step_times.counts[StepTimes::BOUNDS.len()] = 3;
        Stats {
            waiting: 3,
            preempted: 1,
            max_running_requests: 4,
            total_blocks: 8,
            free_blocks: 6,
            block_tokens: 16,
            decode_batch_sizes: vec![0, 0, 7, 0],
            step_times,
            buckets: vec![bucket],
            ..Stats::default()
        }
    }

    fn current_step(&self) -> Option<Duration> {
        None
    }

    fn startup(&self) -> StartupReport {
        StartupReport::default()
    }

    fn device_name(&self) -> String {
        "scripted".into()
    }

    fn context_tokens(&self) -> usize {
        usize::MAX
    }

    fn flush_cache(&self) -> Result<Flushed, FlushError> {
        match self.held.lock().unwrap().len() as u64 {
            0 => Ok(Flushed::default()),
            requests => Err(FlushError::Busy { requests }),
        }
    }

    fn pause(&self, _what: Pause) {}

    fn resume(&self) {}

    fn drain(&self) {
        self.draining.store(true, SeqCst);
    }

    fn wait_idle(&self, _timeout: Duration) -> bool {
        self.held.lock().unwrap().is_empty()
    }

    fn shutdown(&self) {
        self.stopped.store(true, SeqCst);
        self.held.lock().unwrap().clear();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    fn failure(&self) -> Option<String> {
        None
    }
}
