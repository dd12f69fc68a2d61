//! Spans as a collector gets them.

use crate::{
    live::read,
    support::{ids, model},
};
use precast_server::{ServerOptions, listen, otlp_traces_url, serve_until};
use runtime::{
    EngineOptions,
    testing::{FakeModel, fake_engine},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, mpsc},
    time::Duration,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector: its address, and the bodies that it got.
fn collector() -> (SocketAddr, mpsc::Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, bodies) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            loop {
                let mut head = Vec::new();
                while reader.by_ref().read_until(b'\n', &mut head).unwrap() > 2 {}
                if head.is_empty() {
                    break;
                }
                let head = String::from_utf8(head).unwrap().to_lowercase();
                let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap();
                let mut body = vec![0; length.trim().parse().unwrap()];
                reader.read_exact(&mut body).unwrap();
                // Before the answer, after which the test looks.
                if sender.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                    return;
                }
                reader
                    .get_mut()
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                    .unwrap();
            }
        }
    });
    (address, bodies)
}

fn post(address: SocketAddr, path: &str, header: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    read(stream)
}

fn number(span: &Value, name: &str) -> u64 {
    span[name].as_str().unwrap().parse().unwrap()
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    &attributes.iter().find(|attribute| attribute["key"] == key).unwrap()["value"]
}

#[test]
fn requests_are_traced_part_by_part() {
    let (collector, bodies) = collector();
    let fake = FakeModel {
        vocab_size: 470,
        replay_time: Duration::from_millis(5),
        ..FakeModel::default()
    };
    let engine = Arc::new(fake_engine(&fake, EngineOptions::default()));
    let url = otlp_traces_url(&collector.to_string()).unwrap();
    let options = ServerOptions { port: 0, otlp_traces_url: Some(url), ..ServerOptions::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(listen(&options)).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stops) = tokio::sync::mpsc::channel(1);
    let served = runtime.spawn(serve_until(listener, engine, model(), options, stops));

    let generate =
        json!({"text": "Hi", "sampling_params": {"temperature": 0, "max_new_tokens": 6}});
    let traced = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\nx-request-id: mine\r\n");
    assert!(post(address, "/generate", &traced, &generate).starts_with("HTTP/1.1 200"));
    let silent = format!("traceparent: 00-{TRACE}-{PARENT}-00\r\n");
    assert!(post(address, "/generate", &silent, &generate).starts_with("HTTP/1.1 200"));
    assert!(post(address, "/generate", "", &json!({})).starts_with("HTTP/1.1 400"));
    stop.try_send(()).unwrap();
    runtime.block_on(served).unwrap().unwrap();

    let mut spans = Vec::new();
    while let Ok((head, body)) = bodies.try_recv() {
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "precast");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["POST /generate", "queue", "prefill", "decode", "POST /generate"]);
    let [whole, queue, prefill, decode, refused] = &spans[..] else { panic!("{names:?}") };
    assert_eq!((&whole["traceId"], &whole["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!((&whole["kind"], &decode["kind"]), (&json!(2), &json!(1)));
    for part in [queue, prefill, decode] {
        assert_eq!((&part["traceId"], &part["parentSpanId"]), (&json!(TRACE), &whole["spanId"]));
        assert!(number(part, "startTimeUnixNano") >= number(whole, "startTimeUnixNano"));
        assert!(number(part, "endTimeUnixNano") <= number(whole, "endTimeUnixNano"));
    }
    for (before, after) in [(queue, prefill), (prefill, decode)] {
        assert!(before["endTimeUnixNano"] == after["startTimeUnixNano"], "{before} {after}");
    }
    let time = |span: &Value| number(span, "endTimeUnixNano") - number(span, "startTimeUnixNano");
    assert!(time(decode) > 20_000_000 && time(prefill) > 4_000_000, "{prefill} {decode}");
    assert_eq!(attribute(whole, "precast.request_id")["stringValue"], "mine");
    let prompt = ids("Hi").len().to_string();
    assert_eq!(attribute(whole, "gen_ai.usage.input_tokens")["intValue"], prompt);
    assert_eq!(attribute(whole, "gen_ai.usage.output_tokens")["intValue"], "6");
    assert_eq!(attribute(whole, "gen_ai.response.finish_reason")["stringValue"], "length");
    assert_eq!(attribute(refused, "http.response.status_code")["intValue"], "400");
    assert_ne!(refused["traceId"], TRACE);
    assert_eq!(refused["traceId"].as_str().unwrap().len(), 32);
    assert_eq!(refused["parentSpanId"], "");
}
