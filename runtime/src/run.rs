//! The engine thread: commands in, steps while there is work, parked otherwise.

use crate::{
    Engine, EngineError, EngineHandle, Finish, Pause,
    handle::{Command, Shared},
    limits::Checked,
};
use hal::Device;
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    thread,
    time::Duration,
};

impl<D: Device + 'static> Engine<D>
where
    D::Graph: 'static,
{
    /// Moves the engine to a thread of its own.
    ///
    /// # Errors
    /// [`EngineError::Thread`] when the system starts no thread.
    pub fn spawn(mut self) -> Result<EngineHandle, EngineError> {
        let (sender, commands) = mpsc::channel();
        let shared = Arc::clone(&self.shared);
        let startup = self.startup().clone();
        let thread = thread::Builder::new()
            .name("precast-engine".into())
            .spawn(move || self.run_to_end(&commands))
            .map_err(EngineError::Thread)?;
        Ok(EngineHandle::new(shared, sender, thread, startup))
    }

    /// Runs until told to stop or until something fails, then ends what is left.
    fn run_to_end(&mut self, commands: &mpsc::Receiver<Command>) {
        // A panic is a bug, but clients must hear of it and later ones must be refused. Nothing
        // of the engine but its queues is used afterwards.
        let why = match catch_unwind(AssertUnwindSafe(|| self.run(commands))) {
            Ok(Ok(())) => "the server is shutting down".to_owned(),
            Ok(Err(error)) => self.fail(error.to_string()),
            Err(panic) => self.fail(format!("the engine panicked: {}", message(&*panic))),
        };
        let shared = Arc::clone(&self.shared);
        shared.stopped.store(true, SeqCst);
        // Requests that were sent before the flag was seen.
        while let Ok(command) = commands.try_recv() {
            if let Command::Submit(request) = command {
                refuse(*request, &shared, &why);
            }
        }
        // After a panic inside the scheduler this may panic again; the flag is set by then.
        let ended = catch_unwind(AssertUnwindSafe(|| self.abort_all(&why)));
        if ended.is_err() {
            tracing::error!("requests could not be told that the engine stopped");
        }
        shared.notify_idle();
    }

    fn fail(&self, why: String) -> String {
        tracing::error!("the engine stopped: {why}");
        // Set once: nothing runs after the first failure.
        let _ = self.shared.failure.set(why.clone());
        why
    }

    fn run(&mut self, commands: &mpsc::Receiver<Command>) -> Result<(), hal::DeviceError> {
        loop {
            if self.is_paused() {
                if !self.rest(commands) {
                    return Ok(());
                }
                continue;
            }
            if self.is_idle() {
                self.shared.notify_idle();
                let Ok(command) = commands.recv() else { return Ok(()) };
                if !self.obey(command) {
                    return Ok(());
                }
            }
            // When nobody can send any more, what was accepted is finished first.
            while let Ok(command) = commands.try_recv() {
                if !self.obey(command) {
                    return Ok(());
                }
            }
            if !self.is_paused() {
                self.step()?;
            }
        }
    }
}

/// How long a paused engine does not look whether clients have left.
const REST: Duration = Duration::from_millis(20);

impl<D: Device> Engine<D> {
    fn is_paused(&self) -> bool {
        self.shared.paused.load(SeqCst) && !self.shared.draining.load(SeqCst)
    }

    /// Waits for a command and obeys it; `false` when that is to stop.
    fn rest(&mut self, commands: &mpsc::Receiver<Command>) -> bool {
        let goes_on = match commands.recv_timeout(REST) {
            Ok(command) => self.obey(command),
            Err(mpsc::RecvTimeoutError::Timeout) => true,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                self.shared.paused.store(false, SeqCst);
                true
            }
        };
        self.drop_closed();
        self.publish();
        if self.is_idle() {
            self.shared.notify_idle();
        }
        goes_on
    }

    fn pause(&mut self, what: Pause) {
        self.shared.paused.store(true, SeqCst);
        if what == Pause::Retract {
            let retracted = self.scheduler.preempt_all();
            self.shared.counters.preemptions.count_asked(retracted);
        }
        self.publish();
    }

    /// Does what another thread asks for, between two steps; `false` when that is to stop.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Submit(request) => self.enqueue(*request),
            Command::Flush(answer) => {
                // Fails only when nobody waits for the answer any more.
                let _ = answer.try_send(self.flush_cache());
            }
            Command::Pause(what, answer) => {
                self.pause(what);
                let _ = answer.try_send(());
            }
            Command::Continue => self.shared.paused.store(false, SeqCst),
            Command::Stop => return false,
        }
        true
    }
}

/// Ends a request that never reached the scheduler.
fn refuse(Checked(mut request): Checked, shared: &Shared, why: &str) {
    request.sink.push(crate::TokenEvent::Ended { finish: Finish::Abort(why.to_owned()) });
    shared.requests.fetch_sub(1, SeqCst);
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
