//! A server that is killed under load.

use crate::PRECAST;
use precast_tests::{
    compile, contents,
    http::Server,
    raw::{Connection, post},
    root,
};
use serde_json::json;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn a_killed_server_leaves_the_artifact_whole_and_starts_again_at_once() {
    let dir = TempDir::new().unwrap();
    let artifact = dir.path().join("demo");
    compile(PRECAST, &root("demo"), &artifact, "--graph-bs 1 4 8");
    let before = contents(&artifact);
    let body = json!({
        "text": "add 17 and 25", "stream": true,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1000, "ignore_eos": true},
    });
    let mut starts = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        let mut server = Server::start(PRECAST, &artifact, "");
        assert_eq!(server.get("/health").0, 200);
        starts.push(start.elapsed());
        let mut clients: Vec<Connection> = (0..12)
            .map(|_| {
                let mut connection = Connection::open(server.base()).unwrap();
                connection.send(&post("/generate", &body, true)).unwrap();
                connection
            })
            .collect();
        clients[0].head().unwrap();
        clients[0].chunk().unwrap().unwrap();
        // SIGKILL.
        server.kill();
        // Nobody is left waiting, and nobody takes what came for a whole answer.
        for connection in &mut clients {
            let rest = connection.to_end();
            assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
        }
        assert!(contents(&artifact) == before, "the artifact has changed");
    }
    println!("starts, until /health answers: {starts:.0?}");
    // Of three, for other tests run beside this one.
    let best = starts.iter().min().unwrap();
    assert!(*best < Duration::from_secs(1), "{starts:?}");
}
