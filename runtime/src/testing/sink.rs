//! A sink that keeps what it gets.

use crate::{Finish, TokenEvent, TokenSink};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

#[derive(Default)]
struct State {
    events: Vec<TokenEvent>,
    closed: bool,
    /// The engine dropped its end.
    dropped: bool,
}

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end of a [`collector`].
#[derive(Clone, Default)]
pub struct Collected(Arc<Slot>);

struct CollectingSink(Arc<Slot>);

/// A sink, and where its events can be read.
pub fn collector() -> (Box<dyn TokenSink>, Collected) {
    let collected = Collected::default();
    (Box::new(CollectingSink(Arc::clone(&collected.0))), collected)
}

impl TokenSink for CollectingSink {
    fn push(&mut self, event: TokenEvent) -> bool {
        let mut state = self.0.lock();
        if state.closed {
            return false;
        }
        state.events.push(event);
        self.0.changed.notify_all();
        true
    }

    fn is_open(&self) -> bool {
        !self.0.lock().closed
    }
}

impl Drop for CollectingSink {
    fn drop(&mut self) {
        self.0.lock().dropped = true;
        self.0.changed.notify_all();
    }
}

impl Collected {
    /// Stops reading, as a client does that disconnects.
    pub fn close(&self) {
        self.0.lock().closed = true;
    }

    /// Room for `count` more events, so that taking them allocates nothing.
    pub fn reserve(&self, count: usize) {
        self.0.lock().events.reserve(count);
    }

    /// What was put out so far, in events other than [`TokenEvent::Started`] and
    /// [`TokenEvent::Retracted`].
    pub fn events(&self) -> Vec<TokenEvent> {
        let mut events = self.0.lock().events.clone();
        events.retain(|e| !matches!(e, TokenEvent::Started { .. } | TokenEvent::Retracted));
        events
    }

    /// How long it waited, once it was started: the first event of all.
    pub fn queued(&self) -> Option<Duration> {
        match self.0.lock().events.first()? {
            TokenEvent::Started { queued } => Some(*queued),
            _ => None,
        }
    }

    /// How often it gave its memory back.
    pub fn retractions(&self) -> usize {
        let events = &self.0.lock().events;
        events.iter().filter(|e| matches!(e, TokenEvent::Retracted)).count()
    }

    /// The output tokens so far.
    pub fn tokens(&self) -> Vec<u32> {
        let token = |event: &TokenEvent| match event {
            TokenEvent::Token { token, .. } => Some(*token),
            _ => None,
        };
        self.0.lock().events.iter().filter_map(token).collect()
    }

    /// How the output ended, once it has.
    pub fn finish(&self) -> Option<Finish> {
        match self.0.lock().events.last()? {
            TokenEvent::Token { finish, .. } => finish.clone(),
            TokenEvent::Ended { finish } => Some(finish.clone()),
            _ => None,
        }
    }

    /// Waits until the engine has let go of the request; `false` when `timeout` passes before.
    pub fn wait(&self, timeout: Duration) -> bool {
        let waited =
            self.0.changed.wait_timeout_while(self.0.lock(), timeout, |state| !state.dropped);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}
