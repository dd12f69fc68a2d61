use crate::support::{get, ok, saying};
use axum::http::StatusCode;
use serde_json::json;

#[tokio::test]
async fn the_model_is_listed() {
    let (app, _) = saying("a");
    let list = get(&app, "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let card = &list["data"][0];
    assert_eq!((&card["id"], &card["root"]), (&json!("tiny"), &json!("tiny")));
    assert_eq!((&card["object"], &card["max_model_len"]), (&json!("model"), &json!(256)));
    assert_eq!(get(&app, "/v1/models/tiny").await.json()["id"], "tiny");
    let missing = get(&app, "/v1/models/org/other").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(missing.json()["code"], "model_not_found");
    assert_eq!(missing.json()["param"], "model");
}

#[tokio::test]
async fn probes_answer() {
    let (app, engine) = saying("a");
    for path in ["/health", "/ping", "/version"] {
        assert_eq!(get(&app, path).await.status, StatusCode::OK, "{path}");
    }
    assert!(engine.seen.lock().unwrap().is_empty());
    assert_eq!(get(&app, "/health_generate").await.status, StatusCode::OK);
    assert_eq!(engine.last_seen().max_tokens, 1);
    engine.stopped.store(true, std::sync::atomic::Ordering::SeqCst);
    for path in ["/health", "/health_generate"] {
        assert_eq!(get(&app, path).await.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
}

#[tokio::test]
async fn model_and_server_describe_themselves() {
    let (app, _) = saying("a");
    for path in ["/model_info", "/get_model_info"] {
        let info = get(&app, path).await.json();
        assert_eq!(info["model_path"], "artifacts/tiny");
        assert_eq!(info["is_generation"], true);
        assert_eq!(info["model_type"], "qwen3");
        assert_eq!(info["architectures"], json!(["Qwen3ForCausalLM"]));
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = get(&app, path).await.json();
        assert_eq!(info["served_model_name"], "tiny");
        assert_eq!(info["device"], "scripted");
        assert_eq!(info["max_total_num_tokens"], 128);
        assert_eq!(info["max_req_input_len"], 255);
        assert_eq!(info["disable_radix_cache"], true);
        assert_eq!(info["prefix_cache"], "off: disabled");
        let state = &info["internal_states"][0];
        assert_eq!(state["memory_usage"]["weight"], 1.0);
        assert_eq!(state.get("avg_spec_accept_length"), None);
        assert!(!info.to_string().contains("api_key"));
    }
}

#[tokio::test]
async fn metrics_are_in_prometheus_format() {
    let (app, _) = saying("abc");
    ok(&app, "/v1/completions", json!({"prompt": "Hi"})).await;
    let page = get(&app, "/metrics").await;
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in page.text.lines() {
        let is_comment = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
        let value = line.rsplit_once(' ').map(|(_, value)| value.parse::<f64>());
        assert!(is_comment || value.is_some_and(|v| v.is_ok()), "{line}");
    }
    for sample in [
        "sglang:num_running_reqs{model_name=\"tiny\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.25",
        "sglang:time_to_first_token_seconds_count{model_name=\"tiny\"} 1",
        "sglang:inter_token_latency_seconds_count{model_name=\"tiny\"} 3",
        "vllm:e2e_request_latency_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"} 1",
    ] {
        assert!(page.text.contains(sample), "{sample} is not in {}", page.text);
    }
}
