//! HTTP/1.1 by hand, for clients that do what a library would not let them: leave in the middle,
//! stop reading, send half a request.

use serde_json::Value;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::fd::AsRawFd,
    time::Duration,
};

/// How long a server may be silent; generous, since test machines are busy.
const SILENCE: Duration = Duration::from_secs(120);

/// A connection to a server.
pub struct Connection(BufReader<TcpStream>);

/// Status and headers of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// Status.
    pub status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
}

impl Head {
    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Whether the body comes in chunks.
    pub fn is_chunked(&self) -> bool {
        self.get("transfer-encoding") == Some("chunked")
    }
}

/// A request as it is sent. The connection stays open afterwards unless `close`.
pub fn request(method: &str, path: &str, body: &[u8], close: bool) -> Vec<u8> {
    let connection = if close { "close" } else { "keep-alive" };
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: {connection}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A POST of JSON as it is sent.
pub fn post(path: &str, body: &Value, close: bool) -> Vec<u8> {
    request("POST", path, body.to_string().as_bytes(), close)
}

impl Connection {
    /// Connects to `base`, such as `http://127.0.0.1:8000`.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(base: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(base.trim_start_matches("http://"))?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::with_capacity(4096, stream)))
    }

    /// Holds little of what is sent to it, so that not reading is soon felt by the sender.
    ///
    /// # Errors
    /// What the system says.
    pub fn hold_little(&self) -> io::Result<()> {
        let bytes: libc::c_int = 4096;
        // SAFETY: the socket is open and the value is an int of the length that is given.
        let result = unsafe {
            libc::setsockopt(
                self.0.get_ref().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw const bytes).cast(),
                size_of_val(&bytes) as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Reads status and headers.
    ///
    /// # Errors
    /// When the connection ends or what comes is no answer.
    pub fn head(&mut self) -> io::Result<Head> {
        let status = self.line()?;
        let status = status.strip_prefix("HTTP/1.1 ").and_then(|s| s.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| bad("no status"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, headers });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("no header"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Reads the next chunk of a chunked body; `None` after the last.
    ///
    /// # Errors
    /// When the connection ends or what comes is no chunk.
    pub fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let length = usize::from_str_radix(&line, 16).map_err(|_| bad("no chunk"))?;
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        if !self.line()?.is_empty() {
            return Err(bad("a chunk of another length"));
        }
        Ok((length > 0).then_some(bytes))
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// As [`Connection::chunk`].
    pub fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if head.is_chunked() {
            while let Some(chunk) = self.chunk()? {
                bytes.extend(chunk);
            }
        } else {
            let length = head.get("content-length").and_then(|n| n.parse().ok());
            bytes.resize(length.ok_or_else(|| bad("no length"))?, 0);
            self.0.read_exact(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// Reads whatever comes until the connection ends, in whatever way.
    pub fn to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // What came before an error is kept.
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }

    /// Whether the server has closed the connection after what was read.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_at_end(&mut self) -> io::Result<bool> {
        self.0.fill_buf().map(<[u8]>::is_empty)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
