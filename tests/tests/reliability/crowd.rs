//! Many connections at once.

use crate::{PRECAST, tiny};
use precast_tests::{
    http::Server,
    process::{Limit, limit, open_files, raise_open_files},
    raw::{Connection, post, request},
};
use serde_json::{Value, json};
use std::{
    process::Command,
    time::{Duration, Instant},
};

const BUILD: &str = "--graph-bs 1 4 16 --prefill-chunks 16 --max-context 64 --kv-blocks 64";

/// More connections than the server's soft limit of open files, and more than its queue takes.
#[test]
fn a_crowd_is_answered_or_told_to_come_back() {
    crowd(300, 128);
}

/// The same with as many as a large service has at once.
#[test]
#[ignore = "needs more open files than some systems allow: ulimit -Hn"]
fn two_thousand_connections_are_answered_or_told_to_come_back() {
    crowd(2000, 1024);
}

fn crowd(connections: usize, queue: usize) {
    let hard = raise_open_files();
    assert!(hard as usize > connections + 100, "the hard limit of open files is {hard}");
    let (_dir, artifact) = tiny(BUILD);
    let mut command = Command::new(PRECAST);
    command.arg("serve").arg(&artifact).args(["--port", "0", "--max-queued-requests"]);
    command.arg(queue.to_string());
    let server = Server::spawn(limit(&mut command, Limit::SoftFiles(64)));
    let body = json!({
        "input_ids": [1, 2, 3, 4],
        "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": true},
    });
    let alone = server.ask("/generate", &body)["output_ids"].clone();

    let start = Instant::now();
    let mut open: Vec<Connection> =
        (0..connections).map(|_| Connection::open(server.base()).unwrap()).collect();
    // Every connection is accepted and served while all others are open.
    for connection in &mut open {
        connection.send(&request("GET", "/health", b"", false)).unwrap();
    }
    for connection in &mut open {
        let head = connection.head().unwrap();
        connection.body(&head).unwrap();
        assert_eq!(head.status, 200);
    }
    let accepted = start.elapsed();
    assert!(open_files(server.pid()) >= connections);

    let bytes = post("/generate", &body, false);
    for connection in &mut open {
        connection.send(&bytes).unwrap();
    }
    let (mut answered, mut refused) = (0, 0);
    for connection in &mut open {
        let head = connection.head().unwrap();
        let text = connection.body(&head).unwrap();
        match head.status {
            200 => {
                let json: Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(json["output_ids"], alone);
                answered += 1;
            }
            429 | 503 => {
                assert!(head.get("retry-after").is_some());
                refused += 1;
            }
            status => panic!("{status}: {}", String::from_utf8_lossy(&text)),
        }
    }
    println!(
        "{connections} connections accepted and served in {accepted:.1?}; {answered} requests \
         answered, {refused} told to come back, after {:.1?}",
        start.elapsed()
    );
    assert!(answered >= queue, "as many as may wait are taken");

    drop(open);
    let files = || open_files(server.pid());
    let start = Instant::now();
    while files() > 60 {
        assert!(start.elapsed() < Duration::from_secs(20), "{} files stay open", files());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the hard limit is low, connections wait, and the server goes on when there is room.
#[test]
fn a_server_without_free_descriptors_goes_on_when_there_are_some() {
    let (_dir, artifact) = tiny(BUILD);
    let mut command = Command::new(PRECAST);
    command.arg("serve").arg(&artifact).args(["--port", "0"]);
    let server = Server::spawn(limit(&mut command, Limit::Files(48)));
    let mut first = Connection::open(server.base()).unwrap();
    let crowd: Vec<Connection> =
        (0..100).map(|_| Connection::open(server.base()).unwrap()).collect();
    // Who is in is served although nobody else gets in.
    let body = json!({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}});
    first.send(&post("/generate", &body, true)).unwrap();
    let head = first.head().unwrap();
    first.body(&head).unwrap();
    assert_eq!(head.status, 200);
    drop(crowd);
    server.ask("/generate", &body);
}
