//! Clients that stop reading.

use crate::{PRECAST, tiny};
use precast_tests::{
    http::Server,
    process::resident_bytes,
    raw::{Connection, post},
};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const CLIENTS: usize = 50;
/// Tokens of a long answer: as an event stream far more than the buffers of a connection hold.
const TOKENS: usize = 700;
/// Memory that unread answers of all clients together may take.
const ROOM: u64 = 96 << 20;
const BUILD: &str = "--graph-bs 1 16 64 --prefill-chunks 16 --max-context 2048 --kv-blocks 7000 --max-running-requests 64";

#[test]
fn who_stops_reading_does_not_slow_others() {
    let (_dir, artifact) = tiny(BUILD);
    let server = Server::start(PRECAST, &artifact, "");
    let quiet = latency(&server);
    let reading = {
        let readers = Readers::start(&server, false);
        let latency = latency(&server);
        assert!(readers.run_still(&server), "the others are there all the time");
        latency
    };
    at_rest(&server);
    let before = resident_bytes(server.pid());
    let stalled = Readers::start(&server, true);
    let while_stalled = latency(&server);
    assert!(stalled.run_still(&server), "the others are there all the time");
    // The engine finishes or ends them all the same: nothing waits for who does not read.
    at_rest(&server);
    let held = resident_bytes(server.pid()).saturating_sub(before);
    println!(
        "latency of others: {quiet:.1?} alone, {reading:.1?} beside {CLIENTS} clients that read, \
         {while_stalled:.1?} beside as many that do not; unread answers hold {} KiB",
        held >> 10
    );
    assert!(while_stalled < 4 * reading + Duration::from_millis(200));
    assert!(held < ROOM, "{held} bytes are held for clients that do not read");
    // Nor does it matter to who comes later.
    assert!(latency(&server) < 4 * quiet + Duration::from_millis(200));
    drop(stalled);
    server.ask("/generate", &request(4));
}

/// Clients that ask for long answers, and read them or not.
struct Readers {
    stalled: Vec<Connection>,
    reading: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Readers {
    fn start(server: &Server, stall: bool) -> Self {
        let stop = Arc::default();
        let mut readers = Self { stalled: Vec::new(), reading: Vec::new(), stop };
        let mut body = request(TOKENS);
        body["stream"] = true.into();
        let ask = |_| {
            let mut connection = Connection::open(server.base()).unwrap();
            if stall {
                connection.hold_little().unwrap();
            }
            connection.send(&post("/generate", &body, true)).unwrap();
            connection
        };
        let connections: Vec<Connection> = (0..CLIENTS).map(ask).collect();
        for mut connection in connections {
            assert_eq!(connection.head().unwrap().status, 200);
            connection.chunk().unwrap().unwrap();
            if stall {
                readers.stalled.push(connection);
                continue;
            }
            let stop = Arc::clone(&readers.stop);
            readers.reading.push(std::thread::spawn(move || {
                while !stop.load(Relaxed) && connection.chunk().unwrap().is_some() {}
            }));
        }
        readers
    }

    /// Whether most of them are not done.
    fn run_still(&self, server: &Server) -> bool {
        server.metric("sglang:num_running_reqs") as usize > CLIENTS / 2
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.reading.drain(..) {
            let _ = thread.join();
        }
    }
}

fn request(tokens: usize) -> serde_json::Value {
    json!({
        "input_ids": [1, 2, 3, 4],
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true},
    })
}

/// The shortest time of a few short answers: what else the machine does only adds to it.
fn latency(server: &Server) -> Duration {
    let times = (0..7).map(|_| {
        let start = Instant::now();
        server.ask("/generate", &request(4));
        start.elapsed()
    });
    times.min().unwrap()
}

fn at_rest(server: &Server) {
    let start = Instant::now();
    while server.metric("sglang:num_running_reqs") + server.metric("sglang:num_queue_reqs") > 0.0 {
        assert!(start.elapsed() < Duration::from_secs(100), "the engine does not come to rest");
        std::thread::sleep(Duration::from_millis(20));
    }
}
