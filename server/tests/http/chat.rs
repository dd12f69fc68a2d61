use crate::support::{EOS, ids, ok, post, saying, text_of};
use axum::http::StatusCode;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[tokio::test]
async fn a_whole_answer_has_every_field() {
    let (app, engine) = saying("Hello!");
    let answer = ok(&app, PATH, json!({"model": "m", "messages": user("Hi")})).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "m");
    assert_eq!(
        answer["choices"],
        json!([{
            "index": 0,
            "message": {
                "role": "assistant", "content": "Hello!", "reasoning_content": null,
                "tool_calls": null,
            },
            "logprobs": null, "finish_reason": "stop", "matched_stop": EOS,
        }])
    );
    let prompt = ids("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let seen = engine.last_seen();
    assert_eq!(seen.prompt, prompt);
    assert_eq!(seen.max_tokens, 256 - prompt.len());
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_ends_with_the_reason() {
    let (app, _) = saying("Hello!");
    let body = json!({
        "messages": user("Hi"), "stream": true, "max_completion_tokens": 30,
        "stream_options": {"include_usage": true},
    });
    let chunks = post(&app, PATH, body).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let [content @ .., last, usage] = &chunks[1..] else { panic!("{chunks:?}") };
    let text: String = content
        .iter()
        .map(|chunk| {
            assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null);
            chunk["choices"][0]["delta"]["content"].as_str().unwrap()
        })
        .collect();
    assert_eq!(text, "Hello!");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"][0]["matched_stop"], EOS);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], ids("Hello!").len() + 1);
}

#[tokio::test]
async fn parts_variables_and_tools_reach_the_template() {
    let (app, engine) = saying("a");
    let body = json!({
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "Hi"},
        ],
        "chat_template_kwargs": {"enable_thinking": false},
    });
    ok(&app, PATH, body).await;
    let text = "<|im_start|>system\nBe\nbrief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                <|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(engine.last_seen().prompt, ids(text));

    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]);
    let body = json!({"messages": messages, "tools": [tool], "tool_choice": "auto"});
    ok(&app, PATH, body).await;
    let text = "<|im_start|>system\n# Tools\n\n<tools>\n\
        {\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}\n</tools>\
        <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\
        <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(engine.last_seen().prompt, ids(text));

    let body = json!({"messages": user("Hi"), "tools": [tool], "tool_choice": "none"});
    ok(&app, PATH, body).await;
    let text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(engine.last_seen().prompt, ids(text));
}

#[tokio::test]
async fn an_answer_can_be_continued() {
    let (app, engine) = saying("a");
    let messages = json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "One, two,"},
    ]);
    ok(&app, PATH, json!({"messages": messages, "continue_final_message": true})).await;
    let text =
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nOne, two,";
    assert_eq!(engine.last_seen().prompt, ids(text));
}

#[tokio::test]
async fn logprobs_are_objects_with_bytes() {
    let (app, _) = saying("é");
    let body = json!({
        "messages": user("Hi"), "logprobs": true, "top_logprobs": 2, "max_tokens": 1,
    });
    let answer = ok(&app, PATH, body.clone()).await;
    let first = ids("é")[0];
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 1);
    assert_eq!(content[0]["token"], text_of(first));
    assert_eq!(content[0]["logprob"], -0.5);
    assert_eq!(content[0]["bytes"][0], "é".as_bytes()[0]);
    let top = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top[1]["logprob"], -1.5);
    assert_eq!(top[1]["token"], text_of(first + 1));

    let mut streamed = body;
    streamed["stream"] = true.into();
    let chunks = post(&app, PATH, streamed).await.chunks();
    let reported = chunks.iter().filter(|c| !c["choices"][0]["logprobs"].is_null());
    assert_eq!(reported.count(), 1);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let (app, engine) = saying("a");
    let cases = [
        (json!({"messages": []}), "messages"),
        (json!({}), "messages"),
        (json!({"messages": ["x"]}), "messages[0]"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 3}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"messages": user("x"), "tool_choice": "required"}), "tool_choice"),
        (
            json!({"messages": user("x"), "response_format": {"type": "yaml"}}),
            "response_format.type",
        ),
        (json!({"messages": user("x"), "regex": "(a"}), "regex"),
        (json!({"messages": user("x"), "lora_path": "l"}), "lora_path"),
        (json!({"messages": user("x"), "top_logprobs": 1}), "top_logprobs"),
        (json!({"messages": user("x"), "max_tokens": 1000}), "max_tokens"),
        (json!({"messages": user("x"), "stop_token_ids": [9999]}), "stop_token_ids"),
    ];
    for (body, field) in cases {
        let answer = post(&app, PATH, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field}");
        let error = answer.json();
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().unwrap().contains(&format!("`{field}`")), "{error}");
    }
    assert!(engine.seen.lock().unwrap().is_empty());
}
