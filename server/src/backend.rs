//! What the server needs of an engine.

use runtime::{
    EngineHandle, FlushError, Flushed, Pause, Request, StartupReport, Stats, SubmitError,
};
use std::time::Duration;

/// An engine that takes requests from any thread. [`EngineHandle`] is the real one; tests have
/// others.
pub trait Backend: Send + Sync {
    /// Queues a request and returns at once; its events go to its sink.
    ///
    /// # Errors
    /// [`SubmitError`]; the sink is dropped without an event then.
    fn submit(&self, request: Request) -> Result<(), SubmitError>;
    /// A snapshot of the counters.
    fn stats(&self) -> Stats;
    /// How long the present step has taken so far; `None` between steps.
    fn current_step(&self) -> Option<Duration>;
    /// How long the start took.
    fn startup(&self) -> StartupReport;
    /// Name of the device with what distinguishes its speed, for reports.
    fn device_name(&self) -> String;
    /// The most tokens of prompt and answer together.
    fn context_tokens(&self) -> usize;
    /// Drops what is cached across requests.
    ///
    /// # Errors
    /// [`FlushError`] when the engine is busy or has stopped.
    fn flush_cache(&self) -> Result<Flushed, FlushError>;
    /// Takes no more steps until [`Backend::resume`]; waits for the present one.
    fn pause(&self, what: Pause);
    /// Takes steps again.
    fn resume(&self);
    /// Takes no further requests; what was accepted is finished.
    fn drain(&self);
    /// Waits until every accepted request has ended; `false` when `timeout` passes before.
    fn wait_idle(&self, timeout: Duration) -> bool;
    /// Stops; requests that have not ended are told so.
    fn shutdown(&self);
    /// Whether it has left its loop.
    fn is_stopped(&self) -> bool;
    /// Why it stopped by itself.
    fn failure(&self) -> Option<String>;
}

impl Backend for EngineHandle {
    fn submit(&self, request: Request) -> Result<(), SubmitError> {
        self.submit(request)
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn current_step(&self) -> Option<Duration> {
        self.current_step()
    }

    fn startup(&self) -> StartupReport {
        self.startup().clone()
    }

    fn device_name(&self) -> String {
        self.device_name().to_owned()
    }

    fn context_tokens(&self) -> usize {
        self.context_tokens()
    }

    fn flush_cache(&self) -> Result<Flushed, FlushError> {
        self.flush_cache()
    }

    fn pause(&self, what: Pause) {
        self.pause(what);
    }

    fn resume(&self) {
        self.resume();
    }

    fn drain(&self) {
        self.drain();
    }

    fn wait_idle(&self, timeout: Duration) -> bool {
        self.wait_idle(timeout)
    }

    fn shutdown(&self) {
        self.shutdown();
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped()
    }

    fn failure(&self) -> Option<String> {
        self.failure().map(str::to_owned)
    }
}
