//! The results as a line of JSON, with the standard client's keys.

use crate::{
    error::BenchError,
    metrics::{Latency, Metrics},
    options::ServingArgs,
    output::Output,
    socket::SocketMetrics,
};
use serde_json::{Map, Value, json};
use std::{fs::OpenOptions, io::Write, path::Path};

/// The results. What the standard client has not is under `socket`. A rate without limit is the
/// text `inf`, for JSON has no such number.
pub(crate) fn record(
    args: &ServingArgs,
    server_info: Option<&Value>,
    metrics: &Metrics,
    socket: &SocketMetrics,
) -> Map<String, Value> {
    let m = metrics;
    let rate = if args.request_rate.is_finite() { json!(args.request_rate) } else { json!("inf") };
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("tag", json!(args.tag));
    put("backend", json!(args.backend.name()));
    put("dataset_name", json!(args.dataset_name.name()));
    put("request_rate", rate);
    put("max_concurrency", json!(args.max_concurrency));
    put("sharegpt_output_len", json!(args.sharegpt_output_len));
    put("random_input_len", json!(args.random_input_len));
    put("random_output_len", json!(args.random_output_len));
    put("random_range_ratio", json!(args.random_range_ratio));
    put("server_info", json!(server_info));
    put("duration", json!(m.duration));
    put("completed", json!(m.completed));
    put("total_input_tokens", json!(m.total_input));
    put("total_input_text_tokens", json!(m.total_input));
    put("total_input_vision_tokens", json!(0));
    put("total_output_tokens", json!(m.total_output));
    put("total_output_tokens_retokenized", json!(m.total_output_retokenized));
    put("request_throughput", json!(m.request_throughput));
    put("input_throughput", json!(m.input_throughput));
    put("output_throughput", json!(m.output_throughput));
    put("total_throughput", json!(m.total_throughput));
    let latencies = [("e2e_latency", m.e2e), ("ttft", m.ttft), ("tpot", m.tpot), ("itl", m.itl)];
    for (name, times) in latencies {
        put(&format!("mean_{name}_ms"), json!(times.mean));
        put(&format!("median_{name}_ms"), json!(times.median));
        put(&format!("std_{name}_ms"), json!(times.std));
        if name == "itl" {
            put("p95_itl_ms", json!(times.p95));
        }
        put(&format!("p99_{name}_ms"), json!(times.p99));
    }
    put("concurrency", json!(m.concurrency));
    put("accept_length", json!(m.accept_length));
    put("max_output_tokens_per_s", json!(m.max_output_tokens_per_s));
    put("max_concurrent_requests", json!(m.max_concurrent_requests));
    put("socket", socket_record(socket));
    map
}

fn socket_record(s: &SocketMetrics) -> Value {
    let times =
        |l: Latency| json!({"mean": l.mean, "median": l.median, "p99": l.p99, "max": l.max});
    json!({
        "connection_errors": s.connection_errors,
        "http_errors": s.http_errors,
        "stream_errors": s.stream_errors,
        "empty_answers": s.empty_answers,
        "connect_ms": times(s.connect),
        "first_byte_ms": times(s.first_byte),
        "gap_ms": times(s.gap),
        "tokens_per_read": s.tokens_per_read,
        "bytes": s.bytes,
        "prompt_tokens": s.prompt_tokens,
        "cached_tokens": s.cached_tokens,
        "completion_tokens": s.completion_tokens,
        "client_cpu_percent": s.cost.percent(),
        "client_lag_ms": times(s.lag),
        "late_ms": times(s.late),
    })
}

/// Lengths, times, texts and errors of every request.
pub(crate) fn details(outputs: &[Output]) -> Map<String, Value> {
    let list = |f: fn(&Output) -> Value| Value::Array(outputs.iter().map(f).collect());
    let length = |o: &Output| if o.failure.is_none() { json!(o.output_len) } else { json!(0) };
    let error = |o: &Output| json!(o.failure.as_ref().map_or("", |f| f.message.as_str()));
    let lists = [
        ("input_lens", list(|o| json!(o.prompt_len))),
        ("output_lens", list(length)),
        ("ttfts", list(|o| json!(o.ttft))),
        ("itls", list(|o| json!(o.itl))),
        ("generated_texts", list(|o| json!(o.text))),
        ("errors", list(error)),
    ];
    lists.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Appends a line to `path`.
pub(crate) fn append(path: &Path, record: Map<String, Value>) -> Result<(), BenchError> {
    let mut line = Value::Object(record).to_string();
    line.push('\n');
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|e| BenchError::file(path, e))
}
