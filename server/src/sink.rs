//! From the engine's thread to the task that writes a response.

use runtime::{TokenEvent, TokenSink};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::sync::mpsc;

/// What reaches the task of a response. One response may have several choices.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The engine did something for a choice.
    Event(usize, TokenEvent),
    /// Somebody asked to end the response.
    Cancelled,
}

/// Sends the events of one choice. The channel has no capacity of its own, so that a push never
/// fails for want of room; what it may hold is bounded by the request's `max_tokens`.
pub(crate) struct ChannelSink {
    choice: usize,
    events: mpsc::UnboundedSender<Incoming>,
    wanted: Arc<AtomicBool>,
}

impl ChannelSink {
    /// `wanted` turns false when the choice is complete although the engine could go on.
    pub(crate) fn new(
        choice: usize,
        events: mpsc::UnboundedSender<Incoming>,
        wanted: Arc<AtomicBool>,
    ) -> Self {
        Self { choice, events, wanted }
    }
}

impl TokenSink for ChannelSink {
    fn push(&mut self, event: TokenEvent) -> bool {
        self.wanted.load(Relaxed) && self.events.send(Incoming::Event(self.choice, event)).is_ok()
    }

    fn is_open(&self) -> bool {
        self.wanted.load(Relaxed) && !self.events.is_closed()
    }
}
