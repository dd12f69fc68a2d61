//! A port, sockets, signals and an engine of the runtime.

use crate::support::{ids, model};
use precast_server::{ServerOptions, listen, serve};
use runtime::{
    EngineOptions,
    testing::{FakeModel, fake_engine},
};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::Arc,
    time::Duration,
};

pub(crate) fn http(address: SocketAddr, method: &str, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream
}

pub(crate) fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_lets_running_requests_finish() {
    /// Enough that they take longer than what else the test does, also on a busy machine.
    const TOKENS: u32 = 200;
    let fake = FakeModel {
        vocab_size: 470,
        replay_time: Duration::from_millis(10),
        ..FakeModel::default()
    };
    let expected = fake.greedy(&ids("Hi"), TOKENS as usize);
    let engine = fake_engine(&fake, EngineOptions::default());
    let options = ServerOptions { port: 0, ..ServerOptions::default() };
    let listener = listen(&options).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(serve(listener, Arc::new(engine.clone()), model(), options));

    let client = tokio::task::spawn_blocking(move || {
        let generate = |max_new_tokens: u32| {
            json!({
                "text": "Hi", "stream": true,
                "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens},
            })
        };
        let mut running = http(address, "POST", "/generate", &generate(TOKENS));
        let mut first = [0; 512];
        assert!(running.read(&mut first).unwrap() > 0);
        let gone = http(address, "POST", "/generate", &generate(100));
        drop(gone);
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        std::thread::sleep(Duration::from_millis(100));
        let refused = read(http(address, "POST", "/generate", &generate(1)));
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains("retry-after: 1"), "{refused}");
        read(running)
    });
    let text = client.await.unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    let last = text.lines().rfind(|line| line.starts_with("data: {")).unwrap();
    let last: Value = serde_json::from_str(&last["data: ".len()..]).unwrap();
    assert_eq!(last["output_ids"], json!(expected));
    assert_eq!(last["meta_info"]["finish_reason"], json!({"type": "length", "length": TOKENS}));
    served.await.unwrap().unwrap();
    assert!(engine.is_stopped());
    assert_eq!(engine.stats().free_blocks, engine.stats().total_blocks);
}
