//! One answer's way through its grammar.

use super::workers::{Task, Workers};
use llguidance::{Matcher, toktrie::SimpleVob};
use runtime::{Allowed, Constraint};
use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// How long to wait before work is offered again to threads that have too much of it.
const RETRY: Duration = Duration::from_micros(100);

/// Where an answer is in its grammar. Either its constraint has it, or a thread that works out what
/// comes next.
pub(super) struct State {
    matcher: Matcher,
    /// Chosen, but not yet taken.
    token: Option<u32>,
    next: Next,
    /// Tokens that are never allowed.
    hidden: Vec<u32>,
    back: Option<SyncSender<Box<State>>>,
}

/// What may come next.
#[derive(Clone)]
pub(super) enum Next {
    Tokens(SimpleVob),
    Complete,
    Failed(String),
}

impl Next {
    /// What `matcher` allows.
    pub(super) fn of(matcher: &mut Matcher) -> Self {
        if matcher.is_stopped() && !matcher.is_error() {
            return Self::Complete;
        }
        match matcher.compute_mask() {
            Ok(tokens) => Self::Tokens(tokens),
            Err(e) => Self::Failed(plain(&e.to_string())),
        }
    }

    fn hide(&mut self, hidden: &[u32]) {
        if let Self::Tokens(tokens) = self {
            for &token in hidden {
                tokens.disallow_token(token);
            }
        }
    }
}

/// The most characters of a message; some quote the grammar.
const MAX_MESSAGE: usize = 300;

/// The message without the state that is printed behind it, and not too long.
pub(super) fn plain(error: &str) -> String {
    let end = error.find("\n<").unwrap_or(error.len());
    let message = error[..end].trim();
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((cut, _)) => format!("{}...", &message[..cut]),
        None => message.to_owned(),
    }
}

impl State {
    /// Takes the token that was chosen and works out what may follow.
    pub(super) fn advance(&mut self) {
        let Some(token) = self.token.take() else { return };
        self.next = match self.matcher.consume_token(token) {
            Ok(()) => Next::of(&mut self.matcher),
            Err(e) => Next::Failed(plain(&e.to_string())),
        };
        self.next.hide(&self.hidden);
    }

    /// Returns to the constraint; if that is gone, so is the state.
    pub(super) fn send_back(self: Box<Self>) {
        if let Some(back) = self.back.clone() {
            let _ = back.try_send(self);
        }
    }
}

/// Restricts one answer to the texts of a grammar.
pub(super) struct GrammarConstraint {
    /// `None` while a thread has it.
    state: Option<Box<State>>,
    returned: Receiver<Box<State>>,
    workers: Workers,
}

impl GrammarConstraint {
    /// Begins at the start of what `matcher` matches, where `first` may come. `hidden` tokens are
    /// never allowed.
    pub(super) fn new(matcher: Matcher, first: Next, hidden: Vec<u32>, workers: Workers) -> Self {
        let (back, returned) = sync_channel(1);
        let mut next = first;
        next.hide(&hidden);
        let state = State { matcher, token: None, next, hidden, back: Some(back) };
        Self { state: Some(Box::new(state)), returned, workers }
    }

    /// Gives the state to a thread if it has a token to take.
    fn offer(&mut self) {
        if let Some(state) = self.state.take_if(|state| state.token.is_some())
            && let Err(Task::Advance(state) | Task::Discard(state)) =
                self.workers.give(Task::Advance(state))
        {
            self.state = Some(state);
        }
    }

    /// Takes the state back from a thread; `Some` says why there is none.
    fn take_back(&mut self, patience: Duration) -> Option<Allowed<'static>> {
        let returned = if patience.is_zero() {
            self.returned.try_recv().map_err(|e| e == TryRecvError::Empty)
        } else {
            self.returned.recv_timeout(patience).map_err(|e| e == RecvTimeoutError::Timeout)
        };
        match returned {
            Ok(state) => {
                self.state = Some(state);
                None
            }
            Err(true) => Some(Allowed::Pending),
            Err(false) => Some(Allowed::Failed("the grammar's matcher failed")),
        }
    }
}

impl Constraint for GrammarConstraint {
    fn advance(&mut self, token: u32) {
        if let Some(state) = &mut self.state {
            state.token = Some(token);
        }
        self.offer();
    }

    fn allowed(&mut self, patience: Duration) -> Allowed<'_> {
        let deadline = Instant::now() + patience;
        self.offer();
        while self.state.is_some() && self.is_held_up() {
            if Instant::now() >= deadline {
                return Allowed::Pending;
            }
            thread::sleep(RETRY);
            self.offer();
        }
        if self.state.is_none()
            && let Some(missing) =
                self.take_back(deadline.saturating_duration_since(Instant::now()))
        {
            return missing;
        }
        match self.state.as_deref().map(|state| &state.next) {
            Some(Next::Tokens(tokens)) => Allowed::Tokens(tokens.as_slice()),
            Some(Next::Complete) => Allowed::Complete,
            Some(Next::Failed(why)) => Allowed::Failed(why),
            None => Allowed::Pending,
        }
    }
}

impl GrammarConstraint {
    /// Whether the threads have too much to do to take the state.
    fn is_held_up(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.token.is_some())
    }
}

impl Drop for GrammarConstraint {
    fn drop(&mut self) {
        let state = self.state.take().or_else(|| self.returned.try_recv().ok());
        if let Some(state) = state {
            // Freeing a matcher takes longer than the engine's thread has. When there is no room
            // it has to.
            let _ = self.workers.give(Task::Discard(state));
        }
    }
}
