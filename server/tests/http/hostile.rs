//! Engines that fail and clients that stall, over sockets.

use crate::{
    access::{install_log, log_lines},
    live::{http, read},
    support::{ids, model_of},
};
use precast_server::{ServeError, ServerOptions, listen, serve_until};
use runtime::{
    EngineHandle, EngineOptions,
    testing::{Failure, FakeModel, fake_engine},
};
use serde_json::{Value, json};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, sync::mpsc, task::JoinHandle};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a port, with threads of its own.
struct Live {
    address: SocketAddr,
    engine: EngineHandle,
    stops: mpsc::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
    runtime: Runtime,
}

impl Live {
    fn start(fake: &FakeModel, options: ServerOptions) -> Self {
        let engine = fake_engine(fake, EngineOptions::default());
        let runtime = Runtime::new().unwrap();
        let options = ServerOptions { port: 0, ..options };
        let listener = runtime.block_on(listen(&options)).unwrap();
        let address = listener.local_addr().unwrap();
        let (stops, receiver) = mpsc::channel(4);
        let backend = Arc::new(engine.clone());
        let model = model_of(fake.max_context as usize);
        let served = runtime.spawn(serve_until(listener, backend, model, options, receiver));
        Self { address, engine, stops, served, runtime }
    }

    fn post(&self, body: &Value) -> TcpStream {
        let stream = http(self.address, "POST", "/generate", body);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn status(&self, path: &str) -> String {
        let head = read(http(self.address, "GET", path, &Value::Null));
        head.split(' ').nth(1).unwrap().to_owned()
    }

    fn stop(&self) {
        self.stops.try_send(()).unwrap();
    }

    /// Waits for the end of the server.
    fn end(self) -> Result<(), ServeError> {
        let Self { served, runtime, .. } = self;
        runtime.block_on(async { tokio::time::timeout(PATIENCE, served).await }).unwrap().unwrap()
    }
}

fn fake() -> FakeModel {
    FakeModel { vocab_size: 470, ..FakeModel::default() }
}

fn generate(max_new_tokens: u32, stream: bool) -> Value {
    json!({
        "text": "Hi", "stream": stream,
        "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens},
    })
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stuck_step_fails_its_requests_and_the_server_recovers() {
    let failure = Some(Failure::Stall { after: 5, time: Duration::from_millis(1500) });
    let options = ServerOptions {
        watchdog_timeout: Some(Duration::from_millis(200)),
        ..ServerOptions::default()
    };
    let live = Live::start(&FakeModel { failure, ..fake() }, options);
    assert_eq!(live.status("/health"), "200");
    let started = Instant::now();
    let (whole, streamed) = (live.post(&generate(40, false)), live.post(&generate(40, true)));
    let whole = read(whole);
    assert!(whole.starts_with("HTTP/1.1 500"), "{whole}");
    assert!(whole.contains("has not ended within 0.2 seconds"), "{whole}");
    let streamed = read(streamed);
    assert!(streamed.starts_with("HTTP/1.1 200"), "{streamed}");
    assert!(streamed.contains("{\"error\":{\"message\":\"a step of the engine"), "{streamed}");
    assert!(streamed.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{streamed}");
    for path in ["/health", "/ready", "/health_generate"] {
        assert_eq!(live.status(path), "503", "{path}");
    }
    let refused = read(live.post(&generate(1, false)));
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(started.elapsed() < Duration::from_millis(1400), "nobody waited for the step");
    assert_eq!(live.status("/metrics"), "200");
    wait_until("the server recovers", || live.status("/health") == "200");
    let after = read(live.post(&generate(4, false)));
    assert!(after.starts_with("HTTP/1.1 200"), "{after}");
    live.stop();
    live.end().unwrap();
}

/// On one thread, whose log is the test's own.
#[tokio::test]
async fn the_log_says_what_is_stuck_and_that_it_went_on() {
    install_log();
    let failure = Some(Failure::Stall { after: 5, time: Duration::from_millis(800) });
    let engine = fake_engine(&FakeModel { failure, ..fake() }, EngineOptions::default());
    let options = ServerOptions {
        port: 0,
        watchdog_timeout: Some(Duration::from_millis(200)),
        ..ServerOptions::default()
    };
    let listener = listen(&options).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stops, receiver) = mpsc::channel(4);
    let backend = Arc::new(engine.clone());
    let served = tokio::spawn(serve_until(listener, backend, model_of(256), options, receiver));
    let ask = move || read(http(address, "POST", "/generate", &generate(40, false)));
    let answer = tokio::task::spawn_blocking(ask).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    let health = move || read(http(address, "GET", "/health", &Value::Null));
    while !tokio::task::spawn_blocking(health).await.unwrap().starts_with("HTTP/1.1 200") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stops.send(()).await.unwrap();
    served.await.unwrap().unwrap();
    let lines = log_lines();
    let about = |level: &str, text: &str| {
        let is = |line: &&Value| line["message"].as_str().is_some_and(|m| m.contains(text));
        let found: Vec<&Value> = lines.iter().filter(is).collect();
        assert_eq!(found.len(), 1, "once: {lines:#?}");
        assert_eq!(found[0]["level"], level);
        found[0].clone()
    };
    let stuck =
        about("ERROR", "a step of the engine has not ended within 0.2 seconds: requests fail");
    assert_eq!((&stuck["failed"], &stuck["device"]), (&json!(1), &json!(engine.device_name())));
    assert!(stuck["message"].as_str().unwrap().contains("/health says so until it ends"));
    about("WARN", "the step that was stuck has ended; requests are taken again");
}

fn fails(failure: Failure, why: &str) {
    let live = Live::start(
        &FakeModel { failure: Some(failure), replay_time: Duration::from_millis(5), ..fake() },
        ServerOptions::default(),
    );
    let (whole, streamed) = (live.post(&generate(100, false)), live.post(&generate(100, true)));
    let whole = read(whole);
    assert!(whole.starts_with("HTTP/1.1 500"), "{whole}");
    assert!(whole.contains(why), "{whole}");
    let streamed = read(streamed);
    let has_begun = streamed.starts_with("HTTP/1.1 200") && streamed.contains("[DONE]");
    assert!(has_begun || streamed.starts_with("HTTP/1.1 503"), "{streamed}");
    assert!(streamed.contains(why), "{streamed}");
    let address = live.address;
    let ended = live.end().unwrap_err().to_string();
    assert!(ended.contains(why), "{ended}");
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
}

#[test]
fn an_engine_that_panics_fails_its_requests_and_ends_the_server() {
    fails(Failure::Panic { after: 20 }, "told to panic");
}

#[test]
fn a_device_that_fails_ends_the_server() {
    fails(Failure::Error { after: 20 }, "it was told to");
}

#[test]
fn a_second_stop_ends_running_requests() {
    let slow = FakeModel { replay_time: Duration::from_millis(50), ..fake() };
    let live = Live::start(&slow, ServerOptions::default());
    let mut running = live.post(&generate(200, true));
    assert!(running.read(&mut [0; 256]).unwrap() > 0);
    live.stop();
    wait_until("the server drains", || live.status("/health") == "503");
    let before = Instant::now();
    live.stop();
    live.end().unwrap();
    assert!(before.elapsed() < Duration::from_secs(3));
    assert!(read(running).contains("shutting down"));
}

#[test]
fn draining_is_bounded() {
    let slow = FakeModel { replay_time: Duration::from_millis(50), ..fake() };
    let options =
        ServerOptions { drain_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let live = Live::start(&slow, options);
    let mut running = live.post(&generate(200, true));
    assert!(running.read(&mut [0; 256]).unwrap() > 0);
    let before = Instant::now();
    live.stop();
    live.end().unwrap();
    assert!((200..3000).contains(&before.elapsed().as_millis()));
}

#[test]
fn a_stuck_engine_does_not_keep_the_process() {
    let failure = Some(Failure::Stall { after: 3, time: Duration::from_secs(8) });
    let live = Live::start(&FakeModel { failure, ..fake() }, ServerOptions::default());
    let running = live.post(&generate(50, false));
    wait_until("the step began", || {
        live.engine.current_step().is_some_and(|time| time.as_millis() > 100)
    });
    let before = Instant::now();
    // The first asks to drain, the second to end requests, the third to go.
    (0..3).for_each(|_| live.stop());
    let address = live.address;
    let Live { served, runtime, .. } = live;
    let ended = runtime.block_on(served).unwrap().unwrap_err().to_string();
    assert!(ended.contains("did not end"), "{ended}");
    assert!(before.elapsed() < Duration::from_secs(4));
    assert!(read(running).contains("did not end"));
    assert!(TcpStream::connect(address).is_err());
    runtime.shutdown_background();
}

#[test]
fn a_head_or_a_body_that_does_not_come_is_given_up() {
    let options = ServerOptions {
        header_timeout: Duration::from_millis(200),
        stall_timeout: Duration::from_millis(300),
        ..ServerOptions::default()
    };
    let live = Live::start(&fake(), options);
    let slow = |text: &str| {
        let mut stream = TcpStream::connect(live.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let before = Instant::now();
        let answer = read(stream);
        assert!(before.elapsed() < Duration::from_secs(5), "{answer}");
        answer
    };
    assert_eq!(slow(""), "");
    slow("POST /generate HTTP/1.1\r\nhost: x\r\n");
    let idle = slow("GET /ping HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(idle.starts_with("HTTP/1.1 200"), "{idle}");
    let body = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{\"text\"";
    let answer = slow(body);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("did not arrive in time"), "{answer}");
    live.stop();
    live.end().unwrap();
}

/// Each byte comes in time, the head as a whole does not.
#[test]
fn a_head_that_trickles_is_given_up() {
    let options =
        ServerOptions { header_timeout: Duration::from_millis(400), ..ServerOptions::default() };
    let live = Live::start(&fake(), options);
    let mut stream = TcpStream::connect(live.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\n").unwrap();
    let before = Instant::now();
    let is_closed = loop {
        // What is written to a closed connection is lost or fails; reading tells the end.
        let written = stream.write_all(b"x-a: b\r\n");
        match stream.read(&mut [0; 512]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break true,
        }
        if written.is_err() || before.elapsed() > PATIENCE {
            break written.is_err();
        }
    };
    assert!(is_closed, "it was still open after {:?}", before.elapsed());
    assert!(before.elapsed() >= Duration::from_millis(300));
    assert_eq!(live.status("/ping"), "200");
    live.stop();
    live.end().unwrap();
}

fn control(live: &Live, path: &str, body: Value) {
    let answer = read(http(live.address, "POST", path, &body));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"ok\""), "{answer}");
}

#[test]
fn generation_pauses_and_goes_on() {
    let slow = FakeModel { replay_time: Duration::from_millis(5), ..fake() };
    let live = Live::start(&slow, ServerOptions::default());
    let expected = json!(slow.greedy(&ids("Hi"), 60));
    for (mode, running, waiting) in [("in_place", 1, 0), ("retract", 0, 1)] {
        let before = live.engine.stats();
        let client = live.post(&generate(60, false));
        wait_until("it runs", || {
            live.engine.stats().generation_tokens_total > before.generation_tokens_total + 3
        });
        control(&live, "/pause_generation", json!({"mode": mode}));
        let paused = live.engine.stats();
        assert!(paused.is_paused);
        assert_eq!((paused.running, paused.waiting), (running, waiting), "{mode}");
        let other = live.post(&generate(3, false));
        wait_until("the other waits", || live.engine.stats().waiting == waiting + 1);
        std::thread::sleep(Duration::from_millis(100));
        let later = live.engine.stats();
        assert_eq!(later.generation_tokens_total, paused.generation_tokens_total);
        assert_eq!(live.status("/health"), "200");
        let flushed = live.status("/flush_cache");
        assert_eq!(flushed, if running == 0 { "200" } else { "400" });
        control(&live, "/continue_generation", json!({}));
        let body = read(client);
        let answer: Value = serde_json::from_str(body.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(answer["output_ids"], expected, "{mode}");
        assert_eq!(answer["meta_info"]["total_retractions"], waiting, "{mode}");
        assert!(read(other).starts_with("HTTP/1.1 200"));
        assert!(!live.engine.stats().is_paused);
    }
    live.stop();
    live.end().unwrap();
}

#[test]
fn a_pause_may_end_what_runs_and_never_keeps_the_server() {
    let slow = FakeModel { replay_time: Duration::from_millis(5), ..fake() };
    let live = Live::start(&slow, ServerOptions::default());
    let client = live.post(&generate(100, false));
    wait_until("it runs", || live.engine.stats().generation_tokens_total > 3);
    control(&live, "/pause_generation", json!({}));
    let ended = read(client);
    assert!(ended.contains("\"type\":\"abort\""), "{ended}");
    wait_until("it is gone", || live.engine.stats().running == 0);
    let wrong = read(http(live.address, "POST", "/pause_generation", &json!({"mode": "softly"})));
    assert!(wrong.starts_with("HTTP/1.1 400") && wrong.contains("`mode`"), "{wrong}");
    let waiting = live.post(&generate(4, false));
    wait_until("it waits", || live.engine.stats().waiting == 1);
    // What waits is answered before the server ends.
    live.stop();
    assert!(read(waiting).starts_with("HTTP/1.1 200"));
    live.end().unwrap();
}

#[test]
fn connections_beyond_the_most_wait() {
    let max_connections = NonZeroUsize::new(2).unwrap();
    let options = ServerOptions { max_connections, ..ServerOptions::default() };
    let live = Live::start(&fake(), options);
    let held: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(live.address).unwrap();
            stream.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            assert!(stream.read(&mut [0; 512]).unwrap() > 0);
            stream
        })
        .collect();
    let mut third = http(live.address, "GET", "/ping", &Value::Null);
    third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(third.read(&mut [0; 1]).is_err(), "nobody answers");
    drop(held);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(read(third).starts_with("HTTP/1.1 200"));
    live.stop();
    live.end().unwrap();
}

/// A model whose answers are larger than what sockets buffer.
fn talkative() -> FakeModel {
    FakeModel { max_context: 8192, blocks: 4096, context_tiers: vec![8192], ..fake() }
}

/// Lets a client ask for a long answer and read nothing of it until the engine is done with it,
/// while another is served.
fn unread(live: &Live) -> TcpStream {
    let lazy = live.post(&generate(6000, true));
    wait_until("the answer has begun", || live.engine.stats().prompt_tokens_total > 0);
    let before = Instant::now();
    let other = read(live.post(&generate(8, false)));
    assert!(other.starts_with("HTTP/1.1 200"), "{other}");
    assert!(before.elapsed() < Duration::from_secs(5));
    wait_until("the engine is done", || live.engine.stats().running == 0);
    lazy
}

fn chunks(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    lines.map(|line| serde_json::from_str(&format!("{{{line}")).unwrap()).collect()
}

#[test]
fn a_slow_reader_gets_fewer_and_longer_chunks() {
    let live = Live::start(&talkative(), ServerOptions::default());
    let text = read(unread(&live));
    let chunks = chunks(&text);
    assert!(chunks.len() < 6000, "{} chunks", chunks.len());
    let last = chunks.last().unwrap();
    assert_eq!(last["output_ids"], json!(talkative().greedy(&ids("Hi"), 6000)));
    assert!(text.contains("data: [DONE]"));
    live.stop();
    live.end().unwrap();
}

#[test]
fn what_a_reader_leaves_unread_is_bounded() {
    let options = ServerOptions { max_unread_bytes: 16 << 10, ..ServerOptions::default() };
    let live = Live::start(&talkative(), options);
    let text = read(unread(&live));
    let last = chunks(&text).pop().unwrap();
    let why = "the answer was not read fast enough and was dropped";
    assert_eq!(last, json!({"error": {"message": why}}));
    assert!(live.engine.stats().generation_tokens_total < 6000);
    live.stop();
    live.end().unwrap();
}

#[test]
fn a_connection_that_takes_nothing_is_cut() {
    let options =
        ServerOptions { stall_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let live = Live::start(&talkative(), options);
    let mut lazy = unread(&live);
    std::thread::sleep(Duration::from_millis(1000));
    let mut text = Vec::new();
    let _ = lazy.read_to_end(&mut text);
    assert!(!String::from_utf8_lossy(&text).contains("[DONE]"));
    live.stop();
    live.end().unwrap();
}
