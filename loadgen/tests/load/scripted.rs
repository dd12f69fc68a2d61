//! A socket that says what the test says, when it says so.

use crate::support::{bench, row};
use precast_loadgen::{BenchError, FailureKind};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

const IDS: &str = "--dataset-name random-ids --vocab-size 100 --random-input-len 5 \
                   --random-output-len 3 --random-range-ratio 1 --num-prompts 2 --warmup-requests 0";

/// Answers every POST with `script`, and questions with 404. Pieces go out one by one, each after
/// `pause`.
fn serve(script: &[&str], pause: Duration) -> SocketAddr {
    let script: Arc<[String]> = script.iter().map(|&piece| piece.to_owned()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let script = Arc::clone(&script);
            std::thread::spawn(move || answer(stream.unwrap(), &script, pause));
        }
    });
    address
}

fn answer(mut stream: TcpStream, script: &[String], pause: Duration) {
    stream.set_nodelay(true).unwrap();
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let text = loop {
        let read = stream.read(&mut buffer).unwrap();
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |n| n.parse().unwrap()) {
            break text;
        }
    };
    if text.starts_with("GET") {
        let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(none.as_bytes()).unwrap();
        return;
    }
    for piece in script {
        sleep(pause);
        stream.write_all(piece.as_bytes()).unwrap();
    }
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";

fn line(backend: &str) -> String {
    format!("{IDS} --model m --backend {backend}")
}

/// Two tokens in one chunk count twice, lines are found across pieces, and comments are no chunks.
#[test]
fn a_stream_of_generate_is_timed_token_by_token() {
    let pause = Duration::from_millis(40);
    let address = serve(
        &[
            HEAD,
            ": comment\n\ndata: {\"text\": \"a\", \"meta_info\": {\"completion_tokens\": 1, \"prompt_tokens\": 5, \"cached_tokens\": 2}}\n\n",
            "data: {\"text\": \"a b ",
            "c\", \"meta_info\": {\"completion_tokens\": 3}}\n\n",
            "data: [DONE]\n\n",
        ],
        pause,
    );
    let (report, table) = bench(address, &line("sglang")).unwrap();
    report.check().unwrap();
    for output in &report.outputs {
        assert_eq!((output.text.as_str(), output.output_len), ("a b c", 3));
        assert_eq!(output.usage.cached, Some(2));
        let [x, y] = output.itl[..] else { panic!("{output:?}") };
        assert_eq!(x, y);
        // Sleeps are never shorter, and a machine may be slow.
        let times = [
            (output.socket.first_byte, 1.0),
            (output.ttft, 2.0),
            (x * 2.0, 2.0),
            (output.latency, 5.0),
        ];
        for (time, pauses) in times {
            let least = pause.as_secs_f64() * pauses;
            assert!(time > least - 0.002 && time < least + 0.5, "{time} {least} {output:?}");
        }
        assert_eq!(output.socket.gaps.len(), 3);
    }
    assert_eq!(row(&table, "Total generated tokens:"), "6");
    assert_eq!(row(&table, "Total generated tokens (retokenized):"), "n/a");
    assert_eq!(row(&table, "Cached of these:"), "4");
}

/// A chunk without choices has the usage, whether it was asked for or not.
#[test]
fn a_stream_of_completions_may_end_with_its_usage() {
    let script = &[
        HEAD,
        "data: {\"choices\": [{\"text\": \"a\", \"finish_reason\": null}]}\n\ndata: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}\n\n",
        "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 1, \"prompt_tokens_details\": null}}\n\ndata: [DONE]\n\n",
    ];
    let address = serve(script, Duration::ZERO);
    let (report, _) = bench(address, &line("vllm")).unwrap();
    report.check().unwrap();
    // As many as were asked for: only a chunk with text tells the standard client otherwise.
    assert_eq!(report.metrics.total_output, 6);
    assert_eq!(report.socket.completion_tokens, Some(2));
    assert_eq!(report.socket.prompt_tokens, Some(14));
}

fn failure(script: &[&str], backend: &str) -> (FailureKind, String) {
    let (report, table) = bench(serve(script, Duration::ZERO), &line(backend)).unwrap();
    assert_eq!(row(&table, "Successful requests:"), "0");
    let error = report.check().unwrap_err();
    assert!(matches!(error, BenchError::Failed { failed: 2, all: 2, .. }), "{error}");
    let failure = report.outputs[0].failure.clone().unwrap();
    assert!(error.to_string().contains(&failure.message), "{error}");
    (failure.kind, failure.message)
}

#[test]
fn refusals_are_told_in_the_servers_words() {
    let full = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 12\r\n\r\nqueue is full";
    let (kind, message) = failure(&[full], "sglang-oai");
    assert_eq!(kind, FailureKind::Status);
    assert_eq!(message, "429 Too Many Requests: queue is ful");
}

#[test]
fn answers_that_break_off_or_make_no_sense_are_failures() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\ndata: {\"text\": \"a\"}\n\n";
    let cases: [(&[&str], &str); 5] = [
        (&[cut], "sglang"),
        (&[HEAD, "data: {\"error\": {\"message\": \"gone\"}}\n\n"], "sglang-oai"),
        (&[HEAD, "<html>"], "vllm"),
        (
            &[
                HEAD,
                "data: {\"text\": \"\", \"meta_info\": {\"finish_reason\": {\"type\": \"abort\", \"message\": \"gone\"}}}\n\n",
            ],
            "sglang",
        ),
        (&[HEAD], "sglang"),
    ];
    let messages = ["", "gone", "<html>", "gone", "the answer is empty"];
    for ((script, backend), expected) in cases.into_iter().zip(messages) {
        let (kind, message) = failure(script, backend);
        assert_eq!(kind, FailureKind::Stream, "{message}");
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(failure(&[], "sglang").0, FailureKind::Connection);
}

#[test]
fn a_failed_warm_up_ends_it() {
    let full = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
    let line = format!("{} --warmup-requests 2", line("sglang").replace("--warmup-requests 0", ""));
    let error = bench(serve(&[full], Duration::ZERO), &line);
    let error = error.unwrap_err();
    assert!(matches!(&error, BenchError::WarmUp(why) if why.contains("busy")), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = bench(address, &line("sglang")).unwrap_err();
    assert!(matches!(error, BenchError::NoServer { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
