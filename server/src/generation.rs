//! One response on its way: events of the engine in, text out.

use crate::{
    ApiError,
    abort::Registration,
    access::Record,
    app::App,
    params::Params,
    sink::{ChannelSink, Incoming, Unread},
    text::{Detokenizer, StopMatcher},
};
use runtime::{Constraint, Finish, LogprobOptions, Request, TokenEvent, TokenLogprob};
use serde::Serialize;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Events that may wait before a stream puts several tokens into a chunk.
const BEHIND: usize = 512;

/// One answer to generate.
pub(crate) struct Job {
    /// Name of the answer, see [`App::requests`].
    pub(crate) name: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: Params,
    /// Length when the client did not say; `None` fills the context.
    pub(crate) default_max_tokens: Option<usize>,
    pub(crate) logprobs: LogprobOptions,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// A stop id or an end-of-sequence id.
    StopToken(u32),
    /// A stop string, or the pattern that matched.
    StopText(String),
    /// The grammar lets nothing follow.
    Complete,
    /// The length that was asked for, or the context.
    Length,
    /// Somebody asked to end it.
    Cancelled,
    /// It cannot be answered.
    Failed(ApiError),
}

/// What stopped a choice: a token id or a string.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Matched {
    Token(u32),
    Text(String),
}

impl Matched {
    /// What `end` was caused by, if by anything in the output.
    pub(crate) fn of(end: &End) -> Option<Self> {
        match end {
            End::StopToken(token) => Some(Self::Token(*token)),
            End::StopText(text) => Some(Self::Text(text.clone())),
            _ => None,
        }
    }
}

/// What an event brought for a choice.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Which answer.
    pub(crate) choice: usize,
    /// Its new token.
    pub(crate) token: Option<u32>,
    /// Text that is now certain.
    pub(crate) text: String,
    pub(crate) logprob: Option<TokenLogprob>,
    pub(crate) prompt_logprobs: Option<Vec<TokenLogprob>>,
    /// Set on the last step of a choice.
    pub(crate) end: Option<End>,
}

/// What a choice has taken so far, in tokens but for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) cached_tokens: usize,
    /// How often it gave its memory to others and was computed again.
    pub(crate) retractions: usize,
}

/// One response on its way. Dropping it makes the engine drop its requests.
pub(crate) struct Generation {
    app: Arc<App>,
    events: mpsc::UnboundedReceiver<Incoming>,
    unread: Arc<Unread>,
    choices: Vec<Choice>,
    /// Steps that are known but not taken.
    ready: VecDeque<Step>,
    live: usize,
    arrival: Instant,
    record: Option<Arc<Record>>,
    _registration: Registration,
}

struct Choice {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    /// Tokens that end the output have text.
    shows_stop: bool,
    wanted: Arc<AtomicBool>,
    min_tokens: usize,
    /// No token was asked for; the engine makes one nevertheless.
    is_prompt_only: bool,
    /// The field that asks for a grammar.
    grammar_field: Option<String>,
    counts: Counts,
    last_token: Option<Instant>,
    is_done: bool,
}

impl Generation {
    /// Submits `jobs`, which become the choices of one response.
    ///
    /// # Errors
    /// Whatever is wrong with the first job that is not taken; none runs then.
    pub(crate) async fn start(app: &Arc<App>, jobs: Vec<Job>) -> Result<Self, ApiError> {
        app.check_ready()?;
        let arrival = Instant::now();
        let mut constraints = Vec::with_capacity(jobs.len());
        for job in &jobs {
            constraints.push(job.constraint(app).await?);
        }
        app.check_ready()?;
        let (sender, events) = mpsc::unbounded_channel();
        let unread = Arc::new(Unread::new(app.options.max_unread_bytes));
        let names = jobs.iter().map(|job| job.name.clone()).collect();
        let registration = app.requests.register(names, sender.downgrade());
        let mut choices = Vec::with_capacity(jobs.len());
        let mut requests = Vec::with_capacity(jobs.len());
        for ((index, job), constraint) in jobs.into_iter().enumerate().zip(constraints) {
            let max_tokens = job.max_tokens(app)?;
            let wanted = Arc::new(AtomicBool::new(true));
            let sink =
                ChannelSink::new(index, sender.clone(), Arc::clone(&wanted), Arc::clone(&unread));
            choices.push(Choice::new(app, &job, wanted, max_tokens == 0));
            let request = job.request(app, max_tokens.max(1), arrival, sink);
            requests.push(Request { constraint, ..request });
        }
        for request in requests {
            app.engine.submit(request)?;
        }
        let live = choices.len();
        let record = Record::current();
        if let Some(record) = &record {
            record.arrive();
        }
        Ok(Self {
            app: Arc::clone(app),
            events,
            unread,
            choices,
            ready: VecDeque::new(),
            live,
            arrival,
            record,
            _registration: registration,
        })
    }

    /// The next step of any choice; `None` when all have ended. Losing the future loses no event.
    pub(crate) async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Some(step);
            }
            if self.live == 0 {
                return None;
            }
            match self.events.recv().await {
                Some(Incoming::Event(choice, event)) => {
                    self.unread.remove(&event);
                    self.take(choice, event);
                }
                Some(Incoming::End(end)) => self.end_all(&end),
                None => {
                    let why = "the engine has stopped";
                    self.end_all(&End::Failed(ApiError::Failed(why.into())));
                }
            }
        }
    }

    /// Whether the client reads more slowly than the engine answers.
    pub(crate) fn is_behind(&self) -> bool {
        self.events.len() > BEHIND
    }

    /// Whether no step is left.
    pub(crate) fn is_finished(&self) -> bool {
        self.live == 0 && self.ready.is_empty()
    }

    /// Tokens of `choice` so far.
    pub(crate) fn counts(&self, choice: usize) -> Counts {
        self.choices[choice].counts
    }

    /// Time since the request came.
    pub(crate) fn elapsed(&self) -> Duration {
        self.arrival.elapsed()
    }

    fn take(&mut self, index: usize, event: TokenEvent) {
        let choice = &mut self.choices[index];
        if choice.is_done {
            return;
        }
        let mut step = Step { choice: index, ..Step::default() };
        match event {
            TokenEvent::Started { queued } => {
                self.app.metrics.start(queued);
                if let Some(record) = &self.record {
                    record.start(queued);
                }
                return;
            }
            TokenEvent::Retracted => {
                choice.counts.retractions += 1;
                return;
            }
            TokenEvent::Prompt { logprobs } => step.prompt_logprobs = Some(logprobs),
            TokenEvent::Token { token, logprob, cached_tokens, finish } => {
                choice.counts.cached_tokens = cached_tokens;
                if choice.last_token.is_none()
                    && let Some(record) = &self.record
                {
                    record.first_token();
                }
                self.app.metrics.token(self.arrival, &mut choice.last_token);
                if choice.is_prompt_only {
                    step.end = finish.map(|_| End::Length);
                } else {
                    step.token = Some(token);
                    step.logprob = logprob;
                    choice.push(token, finish, &mut step);
                }
            }
            TokenEvent::Ended { finish } => {
                choice.release(&mut step.text);
                let end = match (finish, &choice.grammar_field) {
                    // What the client asked for cannot be had, although it was accepted.
                    (Finish::Constraint(why), Some(field)) => {
                        End::Failed(ApiError::field(field, format!("failed: {why}")))
                    }
                    (finish, _) => finish.into(),
                };
                step.end.get_or_insert(end);
            }
        }
        if step.end.is_some() {
            self.end(index, &step);
        }
        self.ready.push_back(step);
    }

    fn end(&mut self, index: usize, step: &Step) {
        let choice = &mut self.choices[index];
        choice.is_done = true;
        choice.wanted.store(false, Relaxed);
        self.live -= 1;
        if let (Some(record), Some(end)) = (&self.record, &step.end) {
            record.end(end);
        }
        if matches!(step.end, Some(End::StopText(_))) {
            self.app.metrics.count_stop_text();
        }
        self.app.metrics.end(self.arrival.elapsed());
    }

    fn end_all(&mut self, end: &End) {
        for index in 0..self.choices.len() {
            if !self.choices[index].is_done {
                let mut step = Step { choice: index, end: Some(end.clone()), ..Step::default() };
                self.choices[index].release(&mut step.text);
                self.end(index, &step);
                self.ready.push_back(step);
            }
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let Some(record) = &self.record else { return };
        let mut all = Counts::default();
        for Choice { counts, .. } in &self.choices {
            all.prompt_tokens += counts.prompt_tokens;
            all.completion_tokens += counts.completion_tokens;
            all.cached_tokens += counts.cached_tokens;
            all.retractions += counts.retractions;
        }
        record.close(all, self.live == 0);
    }
}

impl Job {
    /// Output tokens to ask for: never more than the context holds.
    fn max_tokens(&self, app: &App) -> Result<usize, ApiError> {
        let context = app.context_tokens();
        let prompt = self.prompt.len();
        if prompt == 0 {
            return Err(ApiError::Prompt("the prompt is empty; give at least one token".into()));
        }
        let vocab_size = app.model.info.vocab_size;
        if let Some(token) = self.params.stop_token_ids.iter().find(|&&id| id >= vocab_size) {
            let problem = format!("names token {token}, but the vocabulary has {vocab_size}");
            return Err(ApiError::field("stop_token_ids", problem));
        }
        let left = context.checked_sub(prompt).filter(|left| *left > 0).ok_or_else(|| {
            ApiError::Prompt(format!(
                "the prompt has {prompt} tokens, but prompt and answer together may have \
                 {context}; shorten the prompt"
            ))
        })?;
        match self.params.max_tokens {
            Some(max) if max > left => {
                let problem = format!(
                    "is {max}, but after the prompt's {prompt} tokens {left} of the context's \
                     {context} are left"
                );
                Err(ApiError::field(&self.params.max_tokens_field, problem))
            }
            Some(max) => Ok(max),
            None => Ok(self.default_max_tokens.map_or(left, |max| max.min(left))),
        }
    }

    /// What restricts the answer, if anything does.
    async fn constraint(&self, app: &App) -> Result<Option<Box<dyn Constraint>>, ApiError> {
        let Some(grammar) = &self.params.grammar else { return Ok(None) };
        let compiled = app.grammars.compile(grammar).await?;
        Ok(Some(compiled.constraint(self.params.ignore_eos)))
    }

    fn request(self, app: &App, max_tokens: usize, arrival: Instant, sink: ChannelSink) -> Request {
        Request {
            id: app.next_request_id(),
            prompt: self.prompt,
            sampling: self.params.sampling,
            max_tokens,
            min_tokens: self.params.min_tokens,
            stop_token_ids: self.params.stop_token_ids,
            ignore_eos: self.params.ignore_eos,
            logprobs: self.logprobs,
            constraint: None,
            arrival,
            priority: self.params.priority,
            sink: Box::new(sink),
        }
    }
}

impl Choice {
    fn new(app: &App, job: &Job, wanted: Arc<AtomicBool>, is_prompt_only: bool) -> Self {
        let tokenizer = Arc::clone(&app.model.tokenizer);
        Self {
            detokenizer: Detokenizer::new(tokenizer, job.params.skip_special_tokens)
                .showing(Arc::clone(&job.params.shown_tokens)),
            stop: StopMatcher::new(job.params.stop.clone()),
            shows_stop: job.params.stop.are_kept,
            wanted,
            min_tokens: job.params.min_tokens,
            is_prompt_only,
            grammar_field: job.params.grammar.as_ref().map(|g| g.field().to_owned()),
            counts: Counts { prompt_tokens: job.prompt.len(), ..Counts::default() },
            last_token: None,
            is_done: false,
        }
    }

    /// Adds the text of `token`; of a token that ends the output there is none unless asked for.
    fn push(&mut self, token: u32, finish: Option<Finish>, step: &mut Step) {
        self.counts.completion_tokens += 1;
        let mut piece = String::new();
        if self.shows_stop || !matches!(finish, Some(Finish::Stop { .. })) {
            self.detokenizer.push(token, &mut piece);
        }
        if finish.is_some() {
            self.detokenizer.finish(&mut piece);
        }
        if self.counts.completion_tokens < self.min_tokens {
            self.stop.pass(&piece, &mut step.text);
        } else if let Some(stop) = self.stop.push(&piece, &mut step.text) {
            step.end = Some(End::StopText(stop));
            return;
        }
        if let Some(finish) = finish {
            self.stop.finish(&mut step.text);
            step.end = Some(finish.into());
        }
    }

    /// Adds text that was held back and now has nothing to wait for.
    fn release(&mut self, text: &mut String) {
        let mut piece = String::new();
        self.detokenizer.finish(&mut piece);
        self.stop.pass(&piece, text);
    }
}

impl From<Finish> for End {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop { token } => Self::StopToken(token),
            Finish::Length => Self::Length,
            Finish::Complete => Self::Complete,
            Finish::Abort(why) | Finish::Constraint(why) => Self::Failed(ApiError::Failed(why)),
        }
    }
}
