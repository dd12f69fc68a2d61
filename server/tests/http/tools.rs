//! Tools and reasoning: real-looking outputs of each family, streamed and not.

use crate::{
    scripted::Scripted,
    support::{Answer, get, ok, post},
};
use axum::{Router, http::StatusCode};
use precast_server::{
    AppState, Model, ModelFiles, ModelInfo, ParserOption, ServerOptions, ToolFormat, router,
};
use serde_json::{Map, Value, json};
use std::{fs, path::Path, sync::Arc};

const PATH: &str = "/v1/chat/completions";

/// A test model of a family, served with `options`, which answers `answer`. The last token of the
/// answer ends it.
fn serving(family: &str, options: ServerOptions, answer: &str) -> (Router, Arc<Scripted>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
    let read = |file: &str| fs::read(dir.join(file)).ok();
    let tokenizer = read("tokenizer.json").unwrap();
    let (config, template) = (read("tokenizer_config.json"), read("chat_template.jinja"));
    let files = ModelFiles {
        tokenizer: &tokenizer,
        tokenizer_config: config.as_deref(),
        generation_config: None,
        chat_template: template.as_deref(),
    };
    let tokens = ids(family, answer);
    let eos = tokens.last().copied().into_iter().collect();
    let info = ModelInfo {
        path: family.into(),
        model_type: family.into(),
        architecture: String::new(),
        vocab_size: 512,
        max_context: 4096,
        eos_token_ids: Vec::new(),
        weights_bytes: 0,
        state_bytes: 0,
        arena_bytes: 0,
        max_running_requests: 4,
        config: Map::new(),
    };
    let model = Model::new(files, info, family).unwrap();
    let engine = Scripted::answering(tokens).ending_with(eos).into_arc();
    (router(AppState::new(Arc::clone(&engine) as _, model, options)), engine)
}

fn ids(family: &str, text: &str) -> Vec<u32> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
    let tokenizer = tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap();
    tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
}

fn body() -> Value {
    let weather = json!({"type": "function", "function": {
        "name": "get_weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }});
    json!({"messages": [{"role": "user", "content": "Weather in Rome and Oslo?"}], "tools": [weather]})
}

fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// The message that the chunks of a stream add up to, put together as clients do, and the reason
/// for its end.
fn joined(answer: &Answer) -> (Value, Value) {
    let (mut message, mut reason) = (json!({"calls": []}), Value::Null);
    for chunk in answer.chunks() {
        let Some(choice) = chunk["choices"].get(0) else { continue };
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
        let delta = choice["delta"].as_object().unwrap();
        for name in ["content", "reasoning_content"] {
            if let Some(text) = delta.get(name) {
                let before = message[name].as_str().unwrap_or_default();
                message[name] = format!("{before}{}", text.as_str().unwrap()).into();
            }
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let calls = message["calls"].as_array_mut().unwrap();
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(call["id"].as_str().unwrap().starts_with("call_"));
                assert_eq!(call["type"], "function");
                assert_eq!(call["function"]["arguments"], "");
                calls.push(json!([call["function"]["name"], ""]));
            } else {
                assert_eq!(index + 1, calls.len());
                assert!(call.get("id").is_none() && call["function"].get("name").is_none());
                let before = calls[index][1].as_str().unwrap();
                let added = call["function"]["arguments"].as_str().unwrap();
                calls[index][1] = format!("{before}{added}").into();
            }
        }
    }
    (message, reason)
}

/// Asks twice, once for a stream, and expects the same of both.
async fn check(
    app: &Router,
    body: Value,
    (reasoning, content, calls): (Option<&str>, Option<&str>, Value),
) -> Value {
    let answer = ok(app, PATH, body.clone()).await;
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    assert_eq!(message["reasoning_content"], json!(reasoning), "{answer}");
    assert_eq!(message["content"], json!(content), "{answer}");
    let found: Vec<Value> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            assert!(call["id"].as_str().unwrap().starts_with("call_"));
            assert_eq!(call["type"], "function");
            assert!(call.get("index").is_none());
            json!([call["function"]["name"], call["function"]["arguments"]])
        })
        .collect();
    assert_eq!(json!(found), calls, "{answer}");
    let has_calls = calls != json!([]);
    assert_eq!(message["tool_calls"].is_null(), !has_calls);
    assert_eq!(choice["finish_reason"], if has_calls { "tool_calls" } else { "stop" });

    let stream = post(app, PATH, with(body, json!({"stream": true}))).await;
    let (message, reason) = joined(&stream);
    assert_eq!(message["reasoning_content"], json!(reasoning));
    assert_eq!(message["content"], content.unwrap_or_default());
    assert_eq!(message["calls"], calls);
    assert_eq!(reason, choice["finish_reason"]);
    answer
}

fn two_calls() -> Value {
    json!([["get_weather", "{\"city\": \"Rome\"}"], ["get_weather", "{\"city\": \"Oslo\"}"]])
}

#[tokio::test]
async fn qwen3() {
    let answer = "<think>\nTwo cities.\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \
                  \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n\
                  {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call><|im_end|>";
    let (app, engine) = serving("qwen3", ServerOptions::default(), answer);
    let whole = (Some("Two cities."), Some("Let me look."), two_calls());
    let answer = check(&app, body(), whole).await;
    let usage = &answer["usage"];
    let reasoning = ids("qwen3", "<think>\nTwo cities.\n</think>").len();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], reasoning);
    assert_eq!(usage["reasoning_tokens"], reasoning);
    assert!(engine.last_seen().prompt.contains(&ids("qwen3", "<|im_start|>")[0]));

    // Without thinking the tags are what the prompt says: closed.
    let body = with(body(), json!({"reasoning_effort": "none"}));
    let text = "<think>\nTwo cities.\n</think>\n\nLet me look.";
    check(&app, body, (None, Some(text), two_calls())).await;
}

#[tokio::test]
async fn one_call_where_several_are_not_wanted() {
    let answer = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
                  </tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n\
                  </tool_call><|im_end|>";
    let (app, _) = serving("qwen2", ServerOptions::default(), answer);
    let body = with(body(), json!({"parallel_tool_calls": false}));
    let calls = json!([["get_weather", "{\"city\": \"Rome\"}"]]);
    check(&app, body, (None, None, calls)).await;
}

#[tokio::test]
async fn deepseek() {
    let call = |city: &str| {
        format!(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{{\"city\": \"{city}\"}}\n\
             ```<｜tool▁call▁end｜>"
        )
    };
    let answer = format!(
        "Two cities.\n</think>\n\n<｜tool▁calls▁begin｜>{}\n{}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        call("Rome"),
        call("Oslo")
    );
    let options = ServerOptions {
        reasoning_parser: "deepseek-r1".parse().unwrap(),
        ..ServerOptions::default()
    };
    let (app, _) = serving("deepseek_v3", options, &answer);
    check(&app, body(), (Some("Two cities."), None, two_calls())).await;
}

#[tokio::test]
async fn gpt_oss() {
    let answer = "<|channel|>analysis<|message|>Two cities.<|end|><|start|>assistant<|channel|>\
                  commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \
                  \"Rome\"}<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather \
                  <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>";
    let (app, _) = serving("gpt_oss", ServerOptions::default(), answer);
    check(&app, body(), (Some("Two cities."), None, two_calls())).await;

    let answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final\
                  <|message|>Rome is warm.<|return|>";
    let (app, _) = serving("gpt_oss", ServerOptions::default(), answer);
    check(&app, body(), (Some("Hm."), Some("Rome is warm."), json!([]))).await;
    let plain = json!({"messages": body()["messages"], "separate_reasoning": false});
    check(&app, plain, (None, Some("Hm.Rome is warm."), json!([]))).await;
}

#[tokio::test]
async fn formats_are_detected_or_named() {
    for (family, tools, reasoning) in [
        ("qwen2", json!("qwen25"), json!(null)),
        ("qwen3", json!("qwen25"), json!("qwen3")),
        ("deepseek_v3", json!("deepseekv3"), json!("qwen3")),
        ("gpt_oss", json!("gpt-oss"), json!("gpt-oss")),
    ] {
        let (app, _) = serving(family, ServerOptions::default(), "a");
        let info = get(&app, "/server_info").await.json();
        assert_eq!(info["tool_call_parser"], tools, "{family}");
        assert_eq!(info["reasoning_parser"], reasoning, "{family}");
    }
    let named = ServerOptions {
        tool_call_parser: ParserOption::Format(ToolFormat::Llama3),
        reasoning_parser: ParserOption::None,
        ..ServerOptions::default()
    };
    let answer = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}<|im_end|>";
    let (app, _) = serving("qwen3", named, answer);
    let calls = json!([["get_weather", "{\"city\": \"Rome\"}"]]);
    check(&app, body(), (None, None, calls)).await;
    assert_eq!(get(&app, "/server_info").await.json()["reasoning_parser"], Value::Null);
}

#[tokio::test]
async fn a_forced_call_is_a_call_in_any_format() {
    let calls = || json!([["get_weather", "{\"city\": \"Rome\"}"]]);
    let json = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}";
    for (family, parser, answer) in [
        ("gpt_oss", "auto", format!("{json}<|return|>")),
        ("qwen3", "qwen3_coder", format!("{json}<|im_end|>")),
        ("qwen3", "none", format!("{json}<|im_end|>")),
        ("qwen3", "auto", format!("<tool_call>\n{json}\n</tool_call><|im_end|>")),
    ] {
        let options =
            ServerOptions { tool_call_parser: parser.parse().unwrap(), ..ServerOptions::default() };
        let (app, engine) = serving(family, options, &answer);
        for choice in
            [json!("required"), json!({"type": "function", "function": {"name": "get_weather"}})]
        {
            let body = with(body(), json!({"tool_choice": choice}));
            check(&app, body, (None, None, calls())).await;
            assert!(engine.last_seen().is_constrained);
        }
        check(
            &app,
            json!({"messages": body()["messages"]}),
            (
                None,
                Some(match parser {
                    "auto" if family == "qwen3" => answer.strip_suffix("<|im_end|>").unwrap(),
                    _ => json,
                }),
                json!([]),
            ),
        )
        .await;
        assert!(!engine.last_seen().is_constrained);
    }
}

#[tokio::test]
async fn what_is_no_call_is_content() {
    for text in [
        "<tool_call>\n{\"name\": \"nope\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>get_weather(Rome)</tool_call>",
        "1 < 2 </tool_call>",
    ] {
        let (app, _) = serving("qwen3", ServerOptions::default(), &format!("{text}<|im_end|>"));
        check(&app, body(), (None, Some(text), json!([]))).await;
    }
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>";
    let (app, _) = serving("qwen3", ServerOptions::default(), &format!("{text}<|im_end|>"));
    let none = with(body(), json!({"tool_choice": "none"}));
    check(&app, none, (None, Some(text), json!([]))).await;
}

#[tokio::test]
async fn a_call_that_is_cut_off_has_the_arguments_so_far() {
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ro";
    let (app, _) = serving("qwen3", ServerOptions::default(), &format!("{text}me\"}}}}"));
    let body = with(body(), json!({"max_tokens": ids("qwen3", text).len()}));
    let answer = ok(&app, PATH, body.clone()).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments = call["arguments"].as_str().unwrap().to_owned();
    assert!(arguments.starts_with("{\"city\": \"R"), "{arguments}");
    let stream = post(&app, PATH, with(body, json!({"stream": true}))).await;
    let (message, reason) = joined(&stream);
    assert_eq!(message["calls"], json!([["get_weather", arguments]]));
    assert_eq!(reason, "length");
}

#[tokio::test]
async fn reasoning_may_come_at_once() {
    let answer = "<think>\nOne, two, three.\n</think>\n\nThree.<|im_end|>";
    let (app, _) = serving("qwen3", ServerOptions::default(), answer);
    let messages = body()["messages"].clone();
    let body = json!({"messages": messages, "stream": true, "stream_reasoning": false,
        "stream_options": {"include_usage": true}});
    let chunks = post(&app, PATH, body).await.chunks();
    let reasoning: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["reasoning_content"])
        .filter(|text| !text.is_null())
        .collect();
    assert_eq!(reasoning, [&json!("One, two, three.")]);
    let tokens = ids("qwen3", "<think>\nOne, two, three.\n</think>").len();
    assert_eq!(chunks.last().unwrap()["usage"]["reasoning_tokens"], tokens);
}

#[tokio::test]
async fn a_whole_conversation_with_tools_is_rendered() {
    let messages = json!([
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": null, "reasoning_content": "Look.", "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "get_weather", "arguments": "{\"city\":\"Rome\"}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Warm."},
        {"role": "assistant", "content": "It is warm."},
        {"role": "user", "content": "Thanks."},
    ]);
    for family in ["qwen2", "qwen3", "deepseek_v3", "gpt_oss"] {
        let (app, engine) = serving(family, ServerOptions::default(), "a");
        let body = with(body(), json!({"messages": messages, "max_tokens": 1}));
        ok(&app, PATH, body).await;
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
        let tokenizer = tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap();
        let prompt = tokenizer.decode(&engine.last_seen().prompt, false).unwrap();
        assert!(prompt.contains("Weather in Rome?") && prompt.contains("It is warm."), "{prompt}");
        if family.starts_with("qwen") {
            let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
                        </tool_call>";
            assert!(prompt.contains(call), "{prompt}");
            assert!(prompt.contains("<tool_response>\nWarm.\n</tool_response>"), "{prompt}");
            assert!(prompt.contains("\"name\": \"get_weather\", \"description\""), "{prompt}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_tools_is_refused_by_name() {
    let (app, engine) = serving("qwen3", ServerOptions::default(), "a");
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (fields, field) in [
        (json!({"tools": [function("a b")]}), "tools[0].function.name"),
        (json!({"tools": [function("f"), function("")]}), "tools[1].function.name"),
        (json!({"tools": "f"}), "tools"),
        (
            json!({"tools": [function("f")], "tool_choice": function("g")}),
            "tool_choice.function.name",
        ),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (
            json!({"tool_choice": "required", "response_format": {"type": "json_object"}}),
            "tool_choice",
        ),
        (json!({"tool_choice": 3}), "tool_choice"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls"),
        (json!({"separate_reasoning": 1}), "separate_reasoning"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [
                {"function": {"name": "f", "arguments": "{"}},
            ]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        let answer = post(&app, PATH, with(body(), fields)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field}");
        assert_eq!(answer.json()["param"], field);
    }
    assert!(engine.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn parsers_are_endpoints_too() {
    let (app, _) = serving("qwen3", ServerOptions::default(), "a");
    let text = "So.\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>";
    let request =
        json!({"text": text, "tools": body()["tools"], "tool_call_parser": "qwen3_coder"});
    let parsed = ok(&app, "/parse_function_call", request).await;
    let call =
        json!({"tool_index": 0, "name": "get_weather", "parameters": "{\"city\": \"Rome\"}"});
    assert_eq!(parsed, json!({"normal_text": "So.", "calls": [call]}));

    let request = json!({"text": "Hm.</think>Yes.", "reasoning_parser": "deepseek-r1"});
    let parsed = ok(&app, "/separate_reasoning", request).await;
    assert_eq!(parsed, json!({"reasoning_text": "Hm.", "text": "Yes."}));

    for (path, body, field) in [
        ("/parse_function_call", json!({"text": "a", "tool_call_parser": "x"}), "tool_call_parser"),
        ("/parse_function_call", json!({}), "text"),
        ("/separate_reasoning", json!({"text": "a", "reasoning_parser": 3}), "reasoning_parser"),
    ] {
        let answer = post(&app, path, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        assert_eq!(answer.json()["param"], field);
    }
}

#[tokio::test]
async fn what_is_not_offered_says_so() {
    let (app, _) = serving("qwen3", ServerOptions::default(), "a");
    for path in
        ["/v1/embeddings", "/v1/rerank", "/v1/score", "/encode", "/classify", "/v1/responses"]
    {
        let answer = post(&app, path, json!({"input": "a"})).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED);
        assert!(answer.json()["message"].as_str().unwrap().starts_with(path), "{}", answer.text);
    }
}
