//! Listening, and stopping without losing an answer.

use crate::{Backend, Model, ServerOptions, app::AppState, router};
use std::{io, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Notify, time::Instant};

/// How often the end of running responses is looked for.
const DRAIN_POLL: Duration = Duration::from_millis(10);
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

/// Serves on `listener` until SIGINT or SIGTERM, or until the engine stops by itself. After a
/// signal new requests are answered with 503 while running ones finish, for at most
/// `drain_timeout`; a second signal ends them. The engine is shut down in the end.
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
    let drain_timeout = options.drain_timeout;
    let address = listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string());
    let state = AppState::new(Arc::clone(&engine), model, options);

    let close = Arc::new(Notify::new());
    let closed = Arc::clone(&close);
    let server = axum::serve(NoDelay(listener), router(state.clone()))
        .with_graceful_shutdown(async move { closed.notified().await });
    let server = tokio::spawn(async move { server.await });
    tracing::info!("{}", state.0.formats);
    tracing::info!("listening on http://{address}");
    tracing::info!("The server is fired up and ready to roll!");

    let failure = wait_for_end(&state, &mut signals).await;
    state.drain();
    if failure.is_none() {
        tracing::info!("stopping: running requests finish, new ones are refused");
        tokio::select! {
            is_idle = drained(&state, drain_timeout) => if !is_idle {
                let seconds = drain_timeout.as_secs();
                tracing::warn!("requests still ran after {seconds} seconds and are ended");
            },
            () = signals.next() => tracing::warn!("a second signal ends running requests"),
        }
    }
    let stop = Arc::clone(&engine);
    // Joining the engine's thread may take a step.
    let stopped = tokio::task::spawn_blocking(move || stop.shutdown()).await;
    if let Err(e) = stopped {
        tracing::error!("the engine did not stop: {e}");
    }
    close.notify_one();
    if tokio::time::timeout(CLOSE_TIMEOUT, server).await.is_err() {
        tracing::warn!("some connections stayed open and are cut");
    }
    tracing::info!("stopped");
    failure.map_or(Ok(()), |why| Err(ServeError::Engine(why)))
}

/// Waits for a signal, or for the engine to stop by itself; says why in that case.
async fn wait_for_end(state: &AppState, signals: &mut Signals) -> Option<String> {
    let mut check = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            () = signals.next() => return None,
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

/// Sends small chunks at once.
struct NoDelay(TcpListener);

impl axum::serve::Listener for NoDelay {
    type Io = tokio::net::TcpStream;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = axum::serve::Listener::accept(&mut self.0).await;
        // Only slower without.
        let _ = stream.set_nodelay(true);
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
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
