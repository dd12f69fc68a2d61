//! From the engine's thread to the task that writes a response.

use crate::{ApiError, generation::End};
use runtime::{TokenEvent, TokenLogprob, TokenSink};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::mpsc;

/// What reaches the task of a response. One response may have several choices.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The engine did something for a choice.
    Event(usize, TokenEvent),
    /// The response is to end.
    End(End),
}

/// How much of a response nobody has taken yet, and how much that may be.
pub(crate) struct Unread {
    bytes: AtomicUsize,
    most: usize,
}

impl Unread {
    pub(crate) fn new(most: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), most }
    }

    /// Whether there was room for `event`. One event always fits.
    fn add(&self, event: &TokenEvent) -> bool {
        self.bytes.fetch_add(bytes(event), Relaxed) <= self.most
    }

    /// `event` has been taken.
    pub(crate) fn remove(&self, event: &TokenEvent) {
        self.bytes.fetch_sub(bytes(event), Relaxed);
    }
}

/// Memory of an event that waits.
fn bytes(event: &TokenEvent) -> usize {
    let of = |logprob: &TokenLogprob| {
        size_of::<TokenLogprob>() + logprob.top.len() * size_of::<(u32, f32)>()
    };
    let own = size_of::<Incoming>();
    match event {
        TokenEvent::Prompt { logprobs } => own + logprobs.iter().map(of).sum::<usize>(),
        TokenEvent::Token { logprob, .. } => own + logprob.as_ref().map_or(0, of),
        TokenEvent::Started { .. } | TokenEvent::Retracted | TokenEvent::Ended { .. } => own,
    }
}

/// Sends the events of one choice. The engine never waits for a reader: one that is too far behind
/// loses its response.
pub(crate) struct ChannelSink {
    choice: usize,
    events: mpsc::UnboundedSender<Incoming>,
    wanted: Arc<AtomicBool>,
    unread: Arc<Unread>,
}

impl ChannelSink {
    /// `wanted` turns false when the choice is complete although the engine could go on; `unread` is
    /// common to the choices of a response.
    pub(crate) fn new(
        choice: usize,
        events: mpsc::UnboundedSender<Incoming>,
        wanted: Arc<AtomicBool>,
        unread: Arc<Unread>,
    ) -> Self {
        Self { choice, events, wanted, unread }
    }
}

impl TokenSink for ChannelSink {
    fn push(&mut self, event: TokenEvent) -> bool {
        if !self.wanted.load(Relaxed) {
            return false;
        }
        if !self.unread.add(&event) {
            self.wanted.store(false, Relaxed);
            let why = "the answer was not read fast enough and was dropped";
            // Fails only when nobody reads at all.
            let _ = self.events.send(Incoming::End(End::Failed(ApiError::Failed(why.into()))));
            return false;
        }
        self.events.send(Incoming::Event(self.choice, event)).is_ok()
    }

    fn is_open(&self) -> bool {
        self.wanted.load(Relaxed) && !self.events.is_closed()
    }
}
