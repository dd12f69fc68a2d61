//! A kernel that panics. Threads of the device work in step, and its memory is half written: the process
//! ends at once, and nothing waits for ever.

use precast_tests::{
    compile, contents, fixture,
    http::Server,
    raw::{Connection, post},
};
use serde_json::json;
use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::Command,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// `precast` with a kernel that panics when the file that `FAULT` names is there.
const FAULTY: &str = env!("CARGO_BIN_EXE_precast-with-faulty-kernel");

fn panics(threads: &str) {
    let dir = TempDir::new().unwrap();
    let (artifact, fault) = (dir.path().join("artifact"), dir.path().join("fault"));
    let build =
        "--graph-bs 1 4 --prefill-chunks 16 --max-context 32768 --kv-blocks 4096 --no-record";
    compile(FAULTY, &fixture("qwen3_next"), &artifact, build);
    let before = contents(&artifact);
    let mut command = Command::new(FAULTY);
    command.env("FAULT", &fault).arg("serve").arg(&artifact);
    let mut server = Server::spawn(command.args(["--port", "0", "--threads", threads]));
    let ask = |stream: bool| {
        let body = json!({
            "text": "add 17 and 25", "stream": stream,
            "sampling_params": {"temperature": 0, "max_new_tokens": 30000, "ignore_eos": true},
        });
        let mut connection = Connection::open(server.base()).unwrap();
        connection.send(&post("/generate", &body, true)).unwrap();
        connection
    };
    let (mut streamed, mut whole) = (ask(true), ask(false));
    assert_eq!(streamed.head().unwrap().status, 200);
    streamed.chunk().unwrap().unwrap();

    let start = Instant::now();
    fs::write(&fault, "").unwrap();
    assert!(whole.to_end().is_empty(), "no answer is better than a wrong one");
    let rest = streamed.to_end();
    assert!(
        !String::from_utf8_lossy(&rest).contains("[DONE]"),
        "a cut stream passes for a whole one"
    );
    let status = server.wait();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{}", server.log());
    assert!(server.log().contains("the kernel has a bug"), "{}", server.log());
    assert!(contents(&artifact) == before, "the artifact has changed");
}

#[test]
fn a_kernel_that_panics_ends_the_process() {
    panics("1");
}

/// The other threads would wait for it for ever.
#[test]
fn a_kernel_that_panics_on_a_worker_ends_the_process() {
    panics("2");
}
