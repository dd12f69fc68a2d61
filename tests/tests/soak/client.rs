//! Clients, good and bad.

use crate::cases::{Answer, Case};
use precast_tests::{
    random::Random,
    raw::{Connection, Head, post, request},
};
use serde_json::Value;
use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A request and what an idle server answered.
pub(crate) struct Expected {
    /// The request.
    pub(crate) case: Case,
    /// What a server without company said.
    pub(crate) answer: Answer,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Answered whole and as expected.
    pub(crate) answered: AtomicU64,
    /// Answers (choices) of those.
    pub(crate) choices: AtomicU64,
    /// Of those, streamed and read slowly.
    pub(crate) slow: AtomicU64,
    /// Refused for want of room, with `Retry-After`.
    pub(crate) refused: AtomicU64,
    /// Left in the middle of a stream.
    pub(crate) cancelled: AtomicU64,
    /// Left before the headers came.
    pub(crate) left_early: AtomicU64,
    /// Left before the request was sent whole.
    pub(crate) halves: AtomicU64,
    /// Bad requests, each told so.
    pub(crate) bad: AtomicU64,
    /// Other endpoints asked.
    pub(crate) others: AtomicU64,
    /// Answers (choices) that might have run for clients that left or were refused.
    pub(crate) abandoned: AtomicU64,
}

/// Bodies that must be refused, with the path and the status.
const BAD: &[(&str, &str, u16)] = &[
    ("/generate", "{", 400),
    ("/generate", "", 400),
    ("/generate", "[1, 2]", 400),
    ("/generate", "{\"text\": \"x\", \"sampling_params\": {\"top_p\": 7}}", 400),
    ("/generate", "{\"input_ids\": [123456]}", 400),
    ("/generate", "{\"text\": \"\\ud800\"}", 400),
    ("/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": -1}", 400),
    ("/v1/completions", "{\"prompt\": \"x\", \"temperature\": \"hot\"}", 400),
    ("/v1/completions", "{}", 400),
    ("/v1/chat/completions", "{\"messages\": []}", 400),
    ("/v1/chat/completions", "{\"messages\": [{\"role\": \"king\", \"content\": \"x\"}]}", 400),
    ("/v1/chat/completions", "\u{0}\u{1}\u{2}", 400),
    ("/tokenize", "{\"prompt\": 3}", 400),
    ("/nowhere", "{}", 404),
    ("/health", "{}", 405),
];

const OTHERS: &[&str] = &["/metrics", "/health", "/v1/models", "/flush_cache", "/get_server_info"];

/// One client that asks again and again.
pub(crate) struct Client<'a> {
    base: &'a str,
    random: Random,
    tally: &'a Tally,
    /// Kept open after the last answer.
    open: Option<Connection>,
}

impl<'a> Client<'a> {
    /// A client with its own habits.
    pub(crate) fn new(base: &'a str, seed: u64, tally: &'a Tally) -> Self {
        Self { base, random: Random::new(seed), tally, open: None }
    }

    /// Does one thing.
    ///
    /// # Errors
    /// When the server does not behave.
    pub(crate) fn act(&mut self, cases: &[Expected]) -> Result<(), String> {
        let expected = &cases[self.random.below(cases.len())];
        let case = &expected.case;
        let done = match self.random.below(100) {
            0..35 => self.stream(expected, false),
            35..63 => self.whole(expected),
            63..70 => self.stream(expected, true),
            70..80 => self.cancel(case),
            80..85 => self.leave(case),
            85..88 => self.send_half(case),
            88..95 => self.ask_badly(),
            _ => self.ask_other(),
        };
        done.map_err(|e| format!("{} {}: {e}", case.path(), case.body))
    }

    /// Asks on a connection, often the one that is open already, and reads the head.
    fn ask(&mut self, bytes: &[u8]) -> Result<(Connection, Head), String> {
        let mut connection = match self.open.take() {
            Some(open) => open,
            None => Connection::open(self.base).map_err(|e| format!("connecting: {e}"))?,
        };
        connection.send(bytes).map_err(|e| format!("sending: {e}"))?;
        let head = connection.head().map_err(|e| format!("reading the head: {e}"))?;
        Ok((connection, head))
    }

    /// Reads the rest and keeps the connection, or sees it closed.
    fn finish(&mut self, (mut connection, head): (Connection, Head), close: bool) -> Read {
        let body = connection.body(&head).map_err(|e| format!("reading the body: {e}"))?;
        if close {
            let at_end = connection.is_at_end().map_err(|e| format!("at the end: {e}"))?;
            if !at_end {
                return Err("more comes after the answer".into());
            }
        } else {
            self.open = Some(connection);
        }
        Ok((head.status, body))
    }

    fn whole(&mut self, expected: &Expected) -> Result<(), String> {
        let close = self.random.below(2) == 0;
        let asked = self.ask(&post(expected.case.path(), &expected.case.body(false), close))?;
        let retry = asked.1.get("retry-after").is_some();
        let (status, body) = self.finish(asked, close)?;
        self.judge(expected, status, retry, || {
            let json: Value = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
            expected.case.whole(&json)
        })
    }

    fn stream(&mut self, expected: &Expected, slow: bool) -> Result<(), String> {
        let close = self.random.below(2) == 0;
        let mut asked = self.ask(&post(expected.case.path(), &expected.case.body(true), close))?;
        let retry = asked.1.get("retry-after").is_some();
        if slow && asked.1.is_chunked() {
            let mut bytes = Vec::new();
            while let Some(chunk) = asked.0.chunk().map_err(|e| format!("reading slowly: {e}"))? {
                std::thread::sleep(Duration::from_millis(self.random.below(20) as u64));
                bytes.extend(chunk);
            }
            self.tally.slow.fetch_add(1, Relaxed);
            return self.judge(expected, asked.1.status, retry, || expected.case.streamed(&bytes));
        }
        let (status, body) = self.finish(asked, close)?;
        self.judge(expected, status, retry, || expected.case.streamed(&body))
    }

    /// Compares an answer with what was expected. A full queue is the only other answer.
    fn judge(
        &mut self,
        expected: &Expected,
        status: u16,
        retry: bool,
        answer: impl FnOnce() -> Result<Answer, String>,
    ) -> Result<(), String> {
        let choices = expected.case.choices as u64;
        if status == 429 {
            self.tally.refused.fetch_add(1, Relaxed);
            self.tally.abandoned.fetch_add(choices, Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            return if retry { Ok(()) } else { Err("429 without Retry-After".into()) };
        }
        if status != 200 {
            return Err(format!("status {status}"));
        }
        let answer = answer()?;
        if answer != expected.answer {
            let alone = &expected.answer;
            return Err(format!("the answer is {answer:?}, alone it was {alone:?}"));
        }
        self.tally.answered.fetch_add(1, Relaxed);
        self.tally.choices.fetch_add(choices, Relaxed);
        Ok(())
    }

    /// Reads a few chunks of a stream and leaves.
    fn cancel(&mut self, case: &Case) -> Result<(), String> {
        self.tally.abandoned.fetch_add(case.choices as u64, Relaxed);
        let (mut connection, head) = self.ask(&post(case.path(), &case.body(true), false))?;
        if head.status == 200 {
            for _ in 0..self.random.below(6) {
                if connection.chunk().map_err(|e| format!("the first chunks: {e}"))?.is_none() {
                    break;
                }
            }
        }
        self.tally.cancelled.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Asks and leaves before the answer begins.
    fn leave(&mut self, case: &Case) -> Result<(), String> {
        self.tally.abandoned.fetch_add(case.choices as u64, Relaxed);
        let stream = self.random.below(2) == 0;
        let connection = self.send_alone(&post(case.path(), &case.body(stream), false))?;
        std::thread::sleep(Duration::from_millis(self.random.below(30) as u64));
        drop(connection);
        self.tally.left_early.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Leaves before the request is whole.
    fn send_half(&mut self, case: &Case) -> Result<(), String> {
        let bytes = post(case.path(), &case.body(true), false);
        let length = self.random.below(bytes.len());
        drop(self.send_alone(&bytes[..length])?);
        self.tally.halves.fetch_add(1, Relaxed);
        Ok(())
    }

    fn send_alone(&self, bytes: &[u8]) -> Result<Connection, String> {
        let connect = || -> io::Result<Connection> {
            let mut connection = Connection::open(self.base)?;
            connection.send(bytes)?;
            Ok(connection)
        };
        connect().map_err(|e| format!("sending: {e}"))
    }

    fn ask_badly(&mut self) -> Result<(), String> {
        let &(path, body, wanted) = self.random.pick(BAD);
        let asked = self.ask(&request("POST", path, body.as_bytes(), false))?;
        let (status, _) = self.finish(asked, false)?;
        if status != wanted {
            return Err(format!("{path} {body:?}: status {status} instead of {wanted}"));
        }
        self.tally.bad.fetch_add(1, Relaxed);
        Ok(())
    }

    fn ask_other(&mut self) -> Result<(), String> {
        let path = *self.random.pick(OTHERS);
        let asked = self.ask(&request("GET", path, b"", false))?;
        let (status, _) = self.finish(asked, false)?;
        // A busy engine does not flush.
        if status != 200 && !(path == "/flush_cache" && status == 400) {
            return Err(format!("{path}: status {status}"));
        }
        self.tally.others.fetch_add(1, Relaxed);
        Ok(())
    }
}

type Read = Result<(u16, Vec<u8>), String>;
