//! The description at `/openapi.json` against the router and the handlers.

use crate::support::{get, post, saying};
use precast_server::{Route, routes};
use serde_json::{Value, json};
use std::collections::BTreeSet;

async fn description() -> Value {
    let (app, _) = saying("a");
    let answer = get(&app, "/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.json()
}

#[tokio::test]
async fn every_route_is_described_and_no_other() {
    let description = description().await;
    assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
    let paths = description["paths"].as_object().unwrap();
    let described: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let routed: BTreeSet<(String, String)> = routes()
        .into_iter()
        .map(|Route { path, method }| (path.replace("{*", "{"), method.to_owned()))
        .collect();
    assert_eq!(described, routed);
}

/// The schema that `reference` points to.
fn schema<'a>(description: &'a Value, reference: &Value) -> &'a Value {
    let pointer = reference["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
    description.pointer(pointer).unwrap_or_else(|| panic!("{pointer}"))
}

/// Bodies that are read are described, and a field of a wrong type is refused if it is described.
#[tokio::test]
async fn described_fields_are_read() {
    let description = description().await;
    let (app, _) = saying("a");
    let required = json!({
        "prompt": "a", "messages": [{"role": "user", "content": "a"}], "text": "a", "tokens": [1],
        "rid": "x",
    });
    // These are accepted for the sake of clients and not read, or take any type.
    let unread = ["model", "tool_choice", "input_ids"];
    let mut checked = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let Some(body) = methods["post"].get("requestBody") else { continue };
        let schema = schema(&description, &body["content"]["application/json"]["schema"]);
        for field in schema["properties"].as_object().unwrap().keys() {
            if unread.contains(&field.as_str()) {
                continue;
            }
            let mut body = required.clone();
            if path == "/parse_function_call" {
                body["tool_call_parser"] = "hermes".into();
            }
            // No field is described as an object with this key, or a list of lists of lists.
            body[field] = json!([[[{"wrong": [[]]}]]]);
            let answer = post(&app, path, body).await;
            assert_eq!(answer.status, 400, "{path} {field}: {}", answer.text);
            assert!(answer.text.contains(field.as_str()), "{path} {field}: {}", answer.text);
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

/// What is shown as an example can be sent as it is.
#[tokio::test]
async fn examples_are_answered() {
    let description = description().await;
    let (app, _) = saying("2026");
    let mut described = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let Some(body) = methods["post"].get("requestBody") else { continue };
        let schema = schema(&description, &body["content"]["application/json"]["schema"]);
        let Some(examples) = schema["examples"].as_array() else { continue };
        for example in examples {
            let answer = post(&app, path, example.clone()).await;
            assert_eq!(answer.status, 200, "{path} {example}: {}", answer.text);
        }
        described += 1;
    }
    assert!(described >= 8, "{described}");
}
