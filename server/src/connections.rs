//! Taking connections: as many as allowed, and none that makes no progress for ever.

use crate::ServerOptions;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{num::NonZeroUsize, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_io_timeout::TimeoutStream;

/// How long accepting pauses when it fails, as it does without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// What connections may do.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    max_connections: NonZeroUsize,
    header_timeout: Duration,
    stall_timeout: Duration,
}

impl Limits {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let &ServerOptions { max_connections, header_timeout, stall_timeout, .. } = options;
        Self { max_connections, header_timeout, stall_timeout }
    }
}

/// Serves connections until `closing` says so; then no more are taken, and those there are end with
/// their present response.
pub(crate) async fn serve_connections(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(limits.max_connections.get()));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room, limits.max_connections) => accepted,
            // An error means that nobody can say so any more.
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let (stream, permit) = accepted;
        let (router, closing) = (router.clone(), closing.clone());
        connections.spawn(async move {
            connection(stream, router, limits, closing).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Waits for room, then for a connection.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    max_connections: NonZeroUsize,
) -> (TcpStream, tokio::sync::OwnedSemaphorePermit) {
    if room.available_permits() == 0 {
        tracing::warn!(
            "{max_connections} connections are open; further ones wait (`--max-connections`)"
        );
    }
    let permit = Arc::clone(room).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(e) => {
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    // Only slower without.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.stall_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    // How a connection ends is the client's business.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = closing.wait_for(|closing| *closing) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
