use crate::support::{get, saying};
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
    for path in ["/health", "/ready", "/ping", "/version"] {
        assert_eq!(get(&app, path).await.status, StatusCode::OK, "{path}");
    }
    assert!(engine.seen.lock().unwrap().is_empty());
    assert_eq!(get(&app, "/health_generate").await.status, StatusCode::OK);
    assert_eq!(engine.last_seen().max_tokens, 1);
    engine.stopped.store(true, std::sync::atomic::Ordering::SeqCst);
    for path in ["/health", "/ready", "/health_generate"] {
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
async fn load_is_told_as_routers_read_it() {
    let (app, _) = saying("a");
    let load = get(&app, "/get_load").await.json();
    let expected = json!([{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 3, "num_tokens": 32}]);
    assert_eq!(load, expected);
    let loads = get(&app, "/v1/loads").await.json();
    assert_eq!(loads["accelerator"], "scripted");
    let rank = &loads["loads"][0];
    assert_eq!((&rank["token_usage"], &rank["num_waiting_reqs"]), (&json!(0.25), &json!(3)));
    assert_eq!(rank["queues"], json!({"waiting": 2, "retracted": 1}));
}

#[tokio::test]
async fn what_there_is_not_says_so() {
    let (app, _) = saying("a");
    let weights = get(&app, "/weight_version").await.json();
    assert_eq!(weights, json!({"weight_version": "default"}));
    for path in ["/start_profile", "/stop_profile"] {
        let answer = get(&app, path).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED);
        assert!(answer.text.contains("no profiler"), "{}", answer.text);
    }
}
