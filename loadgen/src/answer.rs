//! Reads an answer as it arrives.

mod chunk;

use crate::{
    connection::Connection,
    endpoint::Endpoint,
    options::Api,
    output::{Failure, FailureKind, Output},
};
use bytes::Bytes;
use chunk::Chunk;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode, body::Incoming};
use std::time::Instant;

/// Bytes of an error's body that are told.
const TOLD: usize = 2000;

/// A request to send.
pub(crate) struct Question<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) api: Api,
    pub(crate) streams: bool,
    pub(crate) body: Bytes,
    pub(crate) prompt_len: usize,
    pub(crate) output_len: usize,
}

impl Question<'_> {
    /// Sends it and reads the answer. Times count from `epoch`.
    pub(crate) async fn ask(self, epoch: Instant) -> Output {
        let start = Instant::now();
        let mut reader = Reader::new(&self, start);
        reader.output.start = start.duration_since(epoch).as_secs_f64();
        if let Err(failure) = self.exchange(&mut reader).await {
            reader.output.failure = Some(failure);
        }
        reader.output
    }

    async fn exchange(self, reader: &mut Reader) -> Result<(), Failure> {
        let failed = |e: hyper::Error| Failure::new(FailureKind::Connection, chain(&e));
        let mut connection = Connection::open(&self.endpoint.addresses)
            .await
            .map_err(|e| Failure::new(FailureKind::Connection, e))?;
        reader.output.socket.connect = reader.start.elapsed().as_secs_f64();
        let request = self.endpoint.request(Method::POST, self.api.path(), self.body);
        let answer = connection.send(request).await.map_err(failed)?;
        let status = answer.status();
        let mut body = answer.into_body();
        if status != StatusCode::OK {
            return Err(refusal(status, &mut connection, body).await);
        }
        while let Some(frame) = connection.run(body.frame()).await {
            let frame = frame.map_err(|e| Failure::new(FailureKind::Stream, chain(&e)))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let arrived = connection.clock.last.get().unwrap_or_else(Instant::now);
            reader.arrive(&bytes, arrived)?;
            reader.output.socket.lags.push(arrived.elapsed().as_secs_f32());
        }
        let socket = &mut reader.output.socket;
        socket.bytes = connection.clock.bytes.get();
        let first = connection.clock.first.get();
        socket.first_byte =
            first.map_or(0.0, |first| first.duration_since(reader.start).as_secs_f64());
        reader.end()
    }
}

/// What an answer with another status than 200 says.
async fn refusal(status: StatusCode, connection: &mut Connection, body: Incoming) -> Failure {
    let text = match connection.run(body.collect()).await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(e) => chain(&e),
    };
    let text: String = text.trim().chars().take(TOLD).collect();
    Failure::new(FailureKind::Status, format!("{status}: {text}"))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

/// Turns bytes into an [`Output`].
struct Reader {
    output: Output,
    api: Api,
    streams: bool,
    start: Instant,
    /// Of a line that has not ended.
    pending: Vec<u8>,
    /// When bytes came last.
    arrived: Option<Instant>,
    /// When the last text came.
    last_text: f64,
    /// Tokens until then, where the server counts them.
    last_tokens: usize,
}

impl Reader {
    fn new(question: &Question<'_>, start: Instant) -> Self {
        let output = Output {
            prompt_len: question.prompt_len,
            output_len: question.output_len,
            ..Output::default()
        };
        Self {
            output,
            api: question.api,
            streams: question.streams,
            start,
            pending: Vec::new(),
            arrived: None,
            last_text: 0.0,
            last_tokens: 0,
        }
    }

    fn arrive(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Failure> {
        match self.arrived.replace(now) {
            Some(before) if before != now => {
                self.output.socket.gaps.push(now.duration_since(before).as_secs_f32());
            }
            _ => {}
        }
        while self.streams
            && let Some(end) = bytes.iter().position(|&b| b == b'\n')
        {
            self.pending.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.pending);
            let result = self.line(&line);
            self.pending = line;
            self.pending.clear();
            result?;
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Failure> {
        let rest = std::mem::take(&mut self.pending);
        self.line(&rest)?;
        if self.arrived.is_none() {
            return Err(Failure::new(FailureKind::Stream, "the answer is empty"));
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line = line.trim_ascii();
        let data = line.strip_prefix(b"data:").unwrap_or(line).trim_ascii();
        // Lines that begin with a colon are comments of server-sent events.
        if data.is_empty() || line.starts_with(b":") {
            return Ok(());
        }
        let now = self.arrived.unwrap_or(self.start).duration_since(self.start).as_secs_f64();
        self.output.latency = now;
        if data == b"[DONE]" {
            return Ok(());
        }
        let chunk = Chunk::read(self.api, data)?;
        self.chunk(&chunk, now);
        Ok(())
    }

    fn chunk(&mut self, chunk: &Chunk<'_>, now: f64) {
        let output = &mut self.output;
        output.usage.prompt = chunk.usage.prompt.or(output.usage.prompt);
        output.usage.cached = chunk.usage.cached.or(output.usage.cached);
        output.usage.completion = chunk.usage.completion.or(output.usage.completion);
        let counted = chunk.usage.completion.map(|tokens| tokens as usize);
        let is_text = !chunk.text.is_empty();
        if (is_text || self.api == Api::Chat)
            && let Some(tokens) = counted
        {
            output.output_len = tokens;
        }
        if !is_text {
            return;
        }
        if output.ttft == 0.0 {
            output.ttft = now;
        } else if self.api == Api::Generate {
            let tokens = output.output_len.saturating_sub(self.last_tokens);
            if tokens == 0 {
                output.text.clear();
                output.text.push_str(&chunk.text);
                return;
            }
            let gap = (now - self.last_text) / tokens as f64;
            output.itl.extend(std::iter::repeat_n(gap, tokens));
        } else {
            output.itl.push(now - self.last_text);
        }
        self.last_text = now;
        self.last_tokens = output.output_len;
        if self.api == Api::Generate {
            output.text.clear();
        }
        output.text.push_str(&chunk.text);
        output.chunk_ends.push(output.text.len());
    }
}
