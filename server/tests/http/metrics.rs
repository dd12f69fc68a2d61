//! `/metrics` and the page that explains it.

use crate::{
    scripted::Scripted,
    support::{app, get, ids, ok, post, saying},
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

/// The value of a sample on a page.
fn value(page: &str, sample: &str) -> f64 {
    let line = page.lines().find(|line| line.strip_prefix(sample).is_some_and(is_value));
    let line = line.unwrap_or_else(|| panic!("{sample} is not in {page}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn is_value(rest: &str) -> bool {
    rest.starts_with(' ')
}

#[tokio::test]
async fn a_page_is_in_prometheus_format() {
    let (app, _) = saying("abc");
    ok(&app, "/v1/completions", json!({"prompt": "Hi"})).await;
    let page = get(&app, "/metrics").await;
    assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    for line in page.text.lines() {
        let is_comment = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
        let value = line.rsplit_once(' ').map(|(_, value)| value.parse::<f64>());
        assert!(is_comment || value.is_some_and(|v| v.is_ok()), "{line}");
    }
    for (sample, expected) in [
        ("sglang:num_running_reqs{model_name=\"tiny\"}", 0.0),
        ("vllm:kv_cache_usage_perc{model_name=\"tiny\"}", 0.25),
        ("sglang:max_total_num_tokens{model_name=\"tiny\"}", 128.0),
        ("sglang:time_to_first_token_seconds_count{model_name=\"tiny\"}", 1.0),
        ("sglang:inter_token_latency_seconds_count{model_name=\"tiny\"}", 3.0),
        ("vllm:e2e_request_latency_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"}", 1.0),
        ("precast:decode_batch_size_total{size=\"3\",model_name=\"tiny\"}", 7.0),
        (
            "precast:graph_padded_rows_total{bucket=\"4\",context=\"64\",phase=\"decode\",\
             model_name=\"tiny\"}",
            5.0,
        ),
    ] {
        assert_eq!(value(&page.text, sample), expected, "{sample}");
    }
}

#[tokio::test]
async fn steps_and_replays_are_timed() {
    let (app, _) = saying("a");
    let page = get(&app, "/metrics").await.text;
    let plan = "bucket=\"4\",context=\"64\",phase=\"decode\",model_name=\"tiny\"";
    assert_eq!(value(&page, &format!("precast:graph_replay_seconds_total{{{plan}}}")), 3.5);
    let steps = |le: &str| {
        let labels = format!("model_name=\"tiny\",le=\"{le}\"");
        value(&page, &format!("precast:step_time_seconds_bucket{{{labels}}}"))
    };
    let cumulative = ["0.0001", "0.00025", "0.0005", "5", "+Inf"].map(steps);
    assert_eq!(cumulative, [4.0, 4.0, 6.0, 6.0, 9.0]);
    assert_eq!(value(&page, "precast:step_time_seconds_count{model_name=\"tiny\"}"), 9.0);
    assert_eq!(value(&page, "precast:step_time_seconds_sum{model_name=\"tiny\"}"), 20.0);
}

#[tokio::test]
async fn the_time_in_the_queue_is_measured() {
    let engine = Scripted::answering(ids("a")).queueing(Duration::from_millis(300)).into_arc();
    let app = app(engine);
    ok(&app, "/v1/completions", json!({"prompt": ["Hi", "Ho"]})).await;
    let page = get(&app, "/metrics").await.text;
    for name in ["sglang:queue_time_seconds", "vllm:request_queue_time_seconds"] {
        assert_eq!(value(&page, &format!("{name}_count{{model_name=\"tiny\"}}")), 2.0);
        assert_eq!(value(&page, &format!("{name}_sum{{model_name=\"tiny\"}}")), 0.6);
        let up_to =
            |le: &str| value(&page, &format!("{name}_bucket{{model_name=\"tiny\",le=\"{le}\"}}"));
        assert_eq!(["0.25", "0.5"].map(up_to), [0.0, 2.0]);
    }
}

#[tokio::test]
async fn a_counter_ends_in_total_once() {
    let (app, _) = saying("a");
    let page = get(&app, "/metrics").await.text;
    let mut counters = 0;
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(!name.ends_with("_total_total"), "{line}");
            counters += usize::from(kind == "counter");
        }
    }
    assert!(counters > 10);
}

#[tokio::test]
async fn responses_are_counted_by_route_and_status() {
    let (app, _) = saying("a");
    for path in ["/nowhere", "/v1/models/x", "/v1/models/y/z"] {
        get(&app, path).await;
    }
    post(&app, "/v1/completions", json!({})).await;
    let page = get(&app, "/metrics").await.text;
    let count = |path: &str, status: u16| {
        let labels = format!("path=\"{path}\",status=\"{status}\",model_name=\"tiny\"");
        value(&page, &format!("precast:http_responses_total{{{labels}}}"))
    };
    assert_eq!(count("other", 404), 1.0);
    assert_eq!(count("/v1/models/{*id}", 404), 2.0);
    assert_eq!(count("/v1/completions", 400), 1.0);
}

#[tokio::test]
async fn the_process_is_described() {
    let engine = Scripted::answering(ids("a")).into_arc();
    let page = get(&app(engine), "/metrics").await.text;
    let of = |name: &str| value(&page, &format!("{name}{{model_name=\"tiny\"}}"));
    assert!(of("process_resident_memory_bytes") > 1e6);
    assert!(of("process_open_fds") >= 3.0 && of("process_open_fds") < of("process_max_fds"));
    assert!(of("process_start_time_seconds") > 1.7e9);
    let before = of("process_cpu_seconds_total");
    let started = std::time::Instant::now();
    while started.elapsed().as_millis() < 50 {
        std::hint::spin_loop();
    }
    let engine = Scripted::answering(ids("a")).into_arc();
    let page = get(&app(engine), "/metrics").await.text;
    assert!(value(&page, "process_cpu_seconds_total{model_name=\"tiny\"}") > before);
}

/// Names and kinds of the metrics in the tables of `docs/metrics.md`.
fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, kind) = (cells[1].trim_matches('`'), cells[2]);
        assert!(cells[3].len() >= 9, "{name} needs a meaning");
        (name.to_owned(), kind.to_owned())
    })
    .collect()
}

#[tokio::test]
async fn every_metric_is_documented() {
    let (app, _) = saying("a");
    ok(&app, "/v1/completions", json!({"prompt": "Hi"})).await;
    let page = get(&app, "/metrics").await.text;
    let exposed: BTreeMap<String, String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    assert_eq!(exposed, documented());
}
