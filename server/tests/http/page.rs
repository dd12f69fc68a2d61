//! The page at `/`.

use crate::support::{app_with, get, saying};
use precast_server::ServerOptions;
use std::collections::BTreeSet;

#[tokio::test]
async fn the_page_needs_no_key_and_may_only_talk_to_its_server() {
    let (_, engine) = saying("yes");
    let options = ServerOptions { api_key: Some("secret".into()), ..ServerOptions::default() };
    let answer = get(&app_with(engine, options), "/").await;
    assert_eq!(answer.status, 200);
    assert!(answer.text.starts_with("<!doctype html>"));
    assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(policy.contains("connect-src 'self'"), "{policy}");
}

/// The page draws nothing when a metric has another name.
#[tokio::test]
async fn every_metric_that_the_page_reads_exists() {
    let (app, _) = saying("yes");
    let page = get(&app, "/").await.text;
    let metrics = get(&app, "/metrics").await.text;
    let families: BTreeSet<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_whitespace().next())
        .flat_map(|name| [name, name.strip_suffix("_total").unwrap_or(name)])
        .collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let names: BTreeSet<&str> = page
        .split(|c| !is_name(c))
        .filter(|word| word.starts_with("sglang:") || word.starts_with("precast:"))
        .filter(|word| !word.ends_with(':'))
        .collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        let family = name.strip_suffix("_total").unwrap_or(name);
        assert!(families.contains(name) || families.contains(family), "{name} is not exposed");
    }
    for histogram in [
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
    ] {
        assert!(page.contains(histogram));
        assert!(families.contains(format!("sglang:{histogram}").as_str()), "{histogram}");
    }
}
