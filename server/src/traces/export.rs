//! Sending spans, on a thread of its own. Requests never wait for a collector: what it does not take in time
//! is dropped and counted.

use super::span::{Span, body};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Traces that may wait to be sent.
const MOST_WAITING: usize = 2048;
/// The most spans in one message.
const MOST_SENT: usize = 512;
/// How long spans wait for others to be sent with.
const GATHER: Duration = Duration::from_secs(2);
/// How long a collector may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Traces are sent, or not.
#[derive(Default)]
pub(crate) struct Traces {
    exporter: Option<Exporter>,
}

impl Traces {
    /// Sends to `url`; nowhere without one, or when there can be no thread for it.
    pub(crate) fn new(url: Option<&str>) -> Self {
        let exporter = url.and_then(|url| match Exporter::start(url.to_owned()) {
            Ok(exporter) => Some(exporter),
            Err(e) => {
                tracing::error!("traces are not sent: cannot start a thread: {e}");
                None
            }
        });
        Self { exporter }
    }

    pub(crate) fn exporter(&self) -> Option<&Exporter> {
        self.exporter.as_ref()
    }

    /// Spans that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.exporter.as_ref().map_or(0, |exporter| exporter.dropped.load(Relaxed))
    }

    /// Sends what waits; gives up after `timeout`.
    pub(crate) fn flush(&self, timeout: Duration) {
        let Some(exporter) = &self.exporter else { return };
        let (done, is_done) = sync_channel(1);
        if exporter.messages.try_send(Message::Flush(done)).is_ok() {
            // Either way, the server ends now.
            let _ = is_done.recv_timeout(timeout);
        }
    }
}

enum Message {
    Spans(Vec<Span>),
    Flush(SyncSender<()>),
}

/// Takes spans for a collector. Clones are the same.
#[derive(Clone)]
pub(crate) struct Exporter {
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Exporter {
    fn start(url: String) -> std::io::Result<Self> {
        let (messages, receiver) = sync_channel(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let sender = Sender::new(url, Arc::clone(&dropped));
        thread::Builder::new().name("traces".into()).spawn(move || sender.run(&receiver))?;
        Ok(Self { messages, dropped })
    }

    /// Hands spans over.
    pub(crate) fn send(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.messages.try_send(Message::Spans(spans)).is_err() {
            self.dropped.fetch_add(count, Relaxed);
        }
    }
}

struct Sender {
    url: String,
    agent: ureq::Agent,
    dropped: Arc<AtomicU64>,
    /// The last message was not taken, and the log says so.
    has_failed: bool,
}

impl Sender {
    fn new(url: String, dropped: Arc<AtomicU64>) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(SEND_TIMEOUT));
        Self { url, agent: config.build().into(), dropped, has_failed: false }
    }

    fn run(mut self, messages: &Receiver<Message>) {
        let mut waiting = Vec::new();
        let mut due = None;
        loop {
            let patience = due.map_or(Duration::MAX, |due: Instant| {
                due.saturating_duration_since(Instant::now())
            });
            match messages.recv_timeout(patience) {
                Ok(Message::Spans(spans)) => {
                    due.get_or_insert_with(|| Instant::now() + GATHER);
                    waiting.extend(spans);
                    if waiting.len() < MOST_SENT {
                        continue;
                    }
                    self.send(&mut waiting);
                }
                Ok(Message::Flush(done)) => {
                    self.send(&mut waiting);
                    let _ = done.try_send(());
                }
                Err(RecvTimeoutError::Timeout) => self.send(&mut waiting),
                Err(RecvTimeoutError::Disconnected) => return self.send(&mut waiting),
            }
            due = None;
        }
    }

    fn send(&mut self, spans: &mut Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        match self.agent.post(&self.url).send_json(body(spans)) {
            Ok(_) => {
                if std::mem::take(&mut self.has_failed) {
                    tracing::info!("traces are sent again");
                }
            }
            Err(e) => {
                self.dropped.fetch_add(spans.len() as u64, Relaxed);
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!("traces are dropped: {} does not take them: {e}", self.url);
                }
            }
        }
        spans.clear();
    }
}
