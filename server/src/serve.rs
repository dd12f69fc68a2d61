//! Listening, and stopping without losing an answer.

use crate::{
    Backend, Model, ServerOptions,
    app::AppState,
    connections::{Limits, serve_connections},
    router, watchdog,
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::Instant,
};

/// How often the end of running responses is looked for.
const DRAIN_POLL: Duration = Duration::from_millis(10);
/// How long the engine's last step may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take when somebody is in a hurry. Not nothing: a signal often comes twice, to the process and
/// to its group, and an engine that has nothing to do stops in a moment.
const HURRY: Duration = Duration::from_secs(1);
/// How long connections may stay open after the last response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {host}:{port}: {source}; choose others with `--host` and `--port`")]
    Listen {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// What the operating system said.
        source: io::Error,
    },
    /// The threads cannot be started.
    #[error("cannot start the server's threads: {0}")]
    Threads(#[source] io::Error),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// The engine stopped by itself.
    #[error("the engine has stopped: {0}")]
    Engine(String),
}

/// Serves until a signal to stop or the engine's end, on threads of its own; blocks the caller. See
/// [`serve()`].
///
/// # Errors
/// [`ServeError`].
pub fn serve_blocking(
    engine: Arc<dyn Backend>,
    model: Model,
    options: ServerOptions,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.worker_threads.get())
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(ServeError::Threads)?;
    let result = runtime.block_on(async {
        let listener = listen(&options).await?;
        serve(listener, engine, model, options).await
    });
    // A tokeniser may still be busy for a client that left.
    runtime.shutdown_background();
    result
}

/// Listens on the address of `options`.
///
/// # Errors
/// [`ServeError::Listen`].
pub async fn listen(options: &ServerOptions) -> Result<TcpListener, ServeError> {
    let ServerOptions { host, port, .. } = options;
    TcpListener::bind((host.as_str(), *port)).await.map_err(|source| ServeError::Listen {
        host: host.clone(),
        port: *port,
        source,
    })
}

/// Serves on `listener` until SIGINT or SIGTERM, or until the engine stops by itself; see
/// [`serve_until`].
///
/// # Errors
/// [`ServeError`]; a signal is no error.
pub async fn serve(
    listener: TcpListener,
    engine: Arc<dyn Backend>,
    model: Model,
    options: ServerOptions,
) -> Result<(), ServeError> {
    let mut signals = Signals::new().map_err(ServeError::Signals)?;
    let (sender, stops) = mpsc::channel(2);
    let forward = tokio::spawn(async move {
        loop {
            signals.next().await;
            // More than two signals say nothing new.
            let _ = sender.try_send(());
        }
    });
    let result = serve_until(listener, engine, model, options, stops).await;
    forward.abort();
    result
}

/// Serves on `listener` until something comes through `stops`, or until the engine stops by itself.
/// After the first stop new requests are answered with 503 while running ones finish, for at most
/// `drain_timeout`; a second stop ends them. The engine is shut down in the end, unless a step of it
/// never ends.
///
/// # Errors
/// [`ServeError`]; a stop is no error.
pub async fn serve_until(
    listener: TcpListener,
    engine: Arc<dyn Backend>,
    model: Model,
    options: ServerOptions,
    mut stops: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let (drain_timeout, watchdog_timeout) = (options.drain_timeout, options.watchdog_timeout);
    let limits = Limits::new(&options);
    let address = listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string());
    let state = AppState::new(Arc::clone(&engine), model, options);

    let (close, closing) = watch::channel(false);
    let server = tokio::spawn(serve_connections(listener, router(state.clone()), limits, closing));
    let watchdog =
        watchdog_timeout.map(|timeout| tokio::spawn(watchdog::watch(state.clone(), timeout)));
    tracing::info!("listening on http://{address}");
    tracing::info!("The server is fired up and ready to roll!");

    let mut failure = wait_for_end(&state, &mut stops).await;
    state.drain();
    if failure.is_none() {
        tracing::info!("stopping: running requests finish, new ones are refused");
        tokio::select! {
            is_idle = drained(&state, drain_timeout) => if !is_idle {
                let seconds = drain_timeout.as_secs();
                tracing::warn!("requests still ran after {seconds} seconds and are ended");
            },
            () = next(&mut stops) => tracing::warn!("a second signal ends running requests"),
        }
    }
    if let Some(why) = stop_engine(&state, &mut stops).await {
        failure = failure.or(Some(why));
    }
    close.send_replace(true);
    if tokio::time::timeout(CLOSE_TIMEOUT, server).await.is_err() {
        tracing::warn!("some connections stayed open and are cut");
    }
    if let Some(watchdog) = watchdog {
        watchdog.abort();
    }
    let flushed = tokio::task::spawn_blocking(move || state.0.traces.flush(CLOSE_TIMEOUT));
    // What is not sent now is lost; it was bounded in time.
    let _ = flushed.await;
    tracing::info!("stopped");
    failure.map_or(Ok(()), |why| Err(ServeError::Engine(why)))
}

/// Stops the engine, which takes a step at most. When the step does not end, requests are told and
/// the engine is left behind; says so in that case.
async fn stop_engine(state: &AppState, stops: &mut mpsc::Receiver<()>) -> Option<String> {
    let engine = Arc::clone(&state.0.engine);
    let stopped = tokio::task::spawn_blocking(move || engine.shutdown());
    let is_stuck = tokio::select! {
        result = tokio::time::timeout(STOP_TIMEOUT, stopped) => result.is_err(),
        () = async { next(stops).await; tokio::time::sleep(HURRY).await } => true,
    };
    if !is_stuck {
        return None;
    }
    let why = "its last step did not end".to_owned();
    state.0.requests.fail_all(&why);
    tracing::error!("the engine does not stop: {why}");
    Some(why)
}

/// The next stop; never, when nobody can say so any more.
async fn next(stops: &mut mpsc::Receiver<()>) {
    if stops.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Waits for a stop, or for the engine to stop by itself; says why in that case.
async fn wait_for_end(state: &AppState, stops: &mut mpsc::Receiver<()>) -> Option<String> {
    let mut check = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            () = next(stops) => return None,
            _ = check.tick() => if state.0.engine.is_stopped() {
                return Some(state.0.engine.failure().unwrap_or_else(|| "no reason is known".into()));
            },
        }
    }
}

/// Waits until every response has been written; `false` when `timeout` passes before.
async fn drained(state: &AppState, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while state.0.requests.count() > 0 {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(DRAIN_POLL).await;
    }
    true
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
