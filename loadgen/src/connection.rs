//! A connection of its own for each request, with the times at which bytes left the socket.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use std::{
    cell::Cell,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
    time::Instant,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// What the socket gave.
#[derive(Default)]
pub(crate) struct SocketClock {
    /// When its first bytes came.
    pub(crate) first: Cell<Option<Instant>>,
    /// When its latest bytes came.
    pub(crate) last: Cell<Option<Instant>>,
    /// All of them.
    pub(crate) bytes: Cell<u64>,
}

/// A connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
    pub(crate) clock: Rc<SocketClock>,
}

impl Connection {
    pub(crate) async fn open(addresses: &[SocketAddr]) -> io::Result<Self> {
        let stream = TcpStream::connect(addresses).await?;
        stream.set_nodelay(true)?;
        let clock = Rc::<SocketClock>::default();
        let timed = Timed { stream, clock: Rc::clone(&clock) };
        let (sender, connection) =
            http1::handshake(TokioIo::new(timed)).await.map_err(io::Error::other)?;
        Ok(Self { sender, driver: Driver(Some(Box::pin(connection))), clock })
    }

    /// Sends `request`; the head of the answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        let answer = self.sender.send_request(request);
        self.driver.run(answer).await
    }

    /// Waits for `future` while the connection works.
    pub(crate) async fn run<F: Future>(&mut self, future: F) -> F::Output {
        self.driver.run(future).await
    }
}

/// The connection's own work, done between looks at what waits for it. On a task of its own it
/// could read on before the last bytes are dealt with, and their time would be lost.
struct Driver(Option<Pin<Box<Work>>>);

type Work = http1::Connection<TokioIo<Timed>, Full<Bytes>>;

impl Driver {
    async fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            // An error of the connection reaches the future too.
            if let Some(connection) = &mut self.0
                && connection.as_mut().poll(context).is_ready()
            {
                self.0 = None;
            }
            future.as_mut().poll(context)
        })
        .await
    }
}

/// A socket that notes when bytes come.
struct Timed {
    stream: TcpStream,
    clock: Rc<SocketClock>,
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        if read > 0 {
            let now = Some(Instant::now());
            let clock = &self.clock;
            clock.last.set(now);
            clock.first.set(clock.first.get().or(now));
            clock.bytes.set(clock.bytes.get() + read as u64);
        }
        result
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
