use crate::{
    scripted::Scripted,
    support::{EOS, app, ids, ok, post, saying, text_of},
};
use axum::http::StatusCode;
use runtime::{Finish, TokenEvent};
use serde_json::{Value, json};

const PATH: &str = "/generate";

#[tokio::test]
async fn a_whole_answer_has_every_field() {
    let (app, engine) = saying("Say \"hi\"\n");
    let answer = ok(&app, PATH, json!({"text": "Hi", "rid": "r1"})).await;
    let mut tokens = ids("Say \"hi\"\n");
    tokens.push(EOS);
    assert_eq!(answer["text"], "Say \"hi\"\n");
    assert_eq!(answer["output_ids"], json!(tokens));
    let meta = &answer["meta_info"];
    assert_eq!(meta["id"], "r1");
    assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": EOS}));
    assert_eq!(meta["prompt_tokens"], ids("Hi").len());
    assert_eq!(meta["completion_tokens"], tokens.len());
    assert_eq!(meta["cached_tokens"], 0);
    assert!(meta["e2e_latency"].as_f64().unwrap() >= 0.0);
    assert_eq!(meta.get("input_token_logprobs"), None);
    let seen = engine.last_seen();
    assert_eq!(seen.max_tokens, 128);
    assert_eq!((seen.sampling.temperature, seen.sampling.top_k), (1.0, None));
}

#[tokio::test]
async fn a_stream_repeats_everything_so_far() {
    let (app, _) = saying("Hello, world!");
    let body = json!({
        "text": "Hi", "stream": true, "lora_path": null, "return_logprob": false,
        "logprob_start_len": -1,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 5, "ignore_eos": true},
    });
    let chunks = post(&app, PATH, body).await.chunks();
    assert_eq!(chunks.len(), 5);
    let tokens = ids("Hello, world!");
    for (i, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["output_ids"], json!(tokens[..=i]));
        let text: String = tokens[..=i].iter().map(|id| text_of(*id)).collect();
        assert_eq!(chunk["text"], text);
        assert_eq!(chunk["meta_info"]["completion_tokens"], i + 1);
        assert_eq!(chunk["meta_info"]["id"], chunks[0]["meta_info"]["id"]);
        let is_last = i == 4;
        let reason = if is_last { json!({"type": "length", "length": 5}) } else { Value::Null };
        assert_eq!(chunk["meta_info"]["finish_reason"], reason);
        assert_eq!(chunk["meta_info"].get("e2e_latency").is_some(), is_last);
        assert_eq!(chunk.get("index"), None);
    }
}

#[tokio::test]
async fn tokens_without_text_still_count() {
    let (app, _) = saying("😀");
    let body = json!({"text": "Hi", "stream": true});
    let chunks = post(&app, PATH, body).await.chunks();
    assert_eq!(chunks.len(), ids("😀").len() + 1);
    assert_eq!(chunks[0]["text"], "");
    assert_eq!(chunks[0]["meta_info"]["completion_tokens"], 1);
    assert_eq!(chunks.last().unwrap()["text"], "😀");
}

#[tokio::test]
async fn lists_answer_with_lists() {
    let (app, engine) = saying("x");
    let body = json!({
        "text": ["a", "b"], "rid": "r",
        "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
    });
    let answer = ok(&app, PATH, body).await;
    let answers = answer.as_array().unwrap();
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0]["meta_info"]["finish_reason"], json!({"type": "length", "length": 1}));
    assert_eq!(answers[1]["meta_info"]["finish_reason"]["type"], "stop");
    assert_eq!(answers[1]["meta_info"]["id"], "r_1");

    let answer = ok(&app, PATH, json!({"input_ids": [[1, 2, 3]]})).await;
    assert_eq!(answer[0]["meta_info"]["prompt_tokens"], 3);
    assert_eq!(engine.last_seen().prompt, [1, 2, 3]);

    let body = json!({"text": "a", "sampling_params": {"n": 2, "sampling_seed": 1}});
    let answer = ok(&app, PATH, body).await;
    assert_eq!(answer.as_array().unwrap().len(), 2);
    assert_eq!(engine.last_seen().sampling.seed, Some(2));

    let body = json!({"text": ["a", "b"], "stream": true});
    let chunks = post(&app, PATH, body).await.chunks();
    assert!(chunks.iter().any(|chunk| chunk["index"] == 0));
    assert!(chunks.iter().any(|chunk| chunk["index"] == 1));
}

#[tokio::test]
async fn logprobs_are_triples() {
    let (app, engine) = saying("ab");
    let prompt = ids("Hi there");
    let body = json!({
        "text": "Hi there", "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2,
        "return_text_in_logprobs": true, "sampling_params": {"max_new_tokens": 1},
    });
    let meta = ok(&app, PATH, body).await["meta_info"].clone();
    assert_eq!(engine.last_seen().logprobs.prompt_from, Some(0));
    let input = meta["input_token_logprobs"].as_array().unwrap();
    assert_eq!(input.len(), prompt.len());
    assert_eq!(input[0], json!([null, prompt[0], text_of(prompt[0])]));
    assert_eq!(input[1], json!([-1.0, prompt[1], text_of(prompt[1])]));
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
    assert_eq!(meta["input_top_logprobs"][1].as_array().unwrap().len(), 2);
    let first = ids("ab")[0];
    assert_eq!(meta["output_token_logprobs"], json!([[-0.5, first, text_of(first)]]));
    let top = &meta["output_top_logprobs"];
    assert_eq!(top[0][1], json!([-1.5, first + 1, text_of(first + 1)]));

    let body =
        json!({"text": "Hi", "return_logprob": true, "sampling_params": {"max_new_tokens": 1}});
    let meta = ok(&app, PATH, body).await["meta_info"].clone();
    assert_eq!(engine.last_seen().logprobs.prompt_from, None);
    assert_eq!(meta["input_token_logprobs"], json!([]));
    assert_eq!(meta["output_token_logprobs"], json!([[-0.5, first, null]]));
    assert_eq!(meta.get("output_top_logprobs"), None);

    let body = json!({
        "text": "Hi", "return_logprob": true, "stream": true,
        "sampling_params": {"max_new_tokens": 2},
    });
    let chunks = post(&app, PATH, body).await.chunks();
    let counts =
        chunks.iter().map(|c| c["meta_info"]["output_token_logprobs"].as_array().unwrap().len());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn stop_strings_are_cut_off() {
    let (app, _) = saying("one two three");
    let body = json!({"text": "Hi", "sampling_params": {"stop": ["two", "x"]}, "stream": true});
    let chunks = post(&app, PATH, body).await.chunks();
    let last = chunks.last().unwrap();
    assert_eq!(last["text"], "one ");
    assert_eq!(last["meta_info"]["finish_reason"], json!({"type": "stop", "matched": "two"}));
    let mut before = "";
    for chunk in &chunks {
        let text = chunk["text"].as_str().unwrap();
        assert!(text.starts_with(before) && "one ".starts_with(text), "{text:?}");
        before = text;
    }
}

/// A match of several tokens, the first of which looks like one twice before.
#[tokio::test]
async fn stop_patterns_are_cut_off() {
    let text = "one 1, two 22, three 333; four";
    let (app, _) = saying(text);
    assert!(ids(", three 333").len() > 4);
    let pattern = r", \w+ \d{3}";
    for (extra, cut) in [
        (json!({"stop_regex": pattern}), "one 1, two 22"),
        (json!({"stop_regex": ["^one 2", pattern], "stop": "four"}), "one 1, two 22"),
        (json!({"stop_regex": pattern, "no_stop_trim": true}), "one 1, two 22, three 333"),
        (json!({"stop_regex": [], "no_stop_trim": false}), text),
    ] {
        let matched = if cut == text { json!(EOS) } else { json!(pattern) };
        let body = json!({"text": "Hi", "sampling_params": extra});
        let whole = ok(&app, PATH, body.clone()).await;
        assert_eq!(whole["text"], cut);
        let reason = &whole["meta_info"]["finish_reason"];
        assert_eq!(*reason, json!({"type": "stop", "matched": matched}));

        let mut streamed = body;
        streamed["stream"] = true.into();
        let chunks = post(&app, PATH, streamed).await.chunks();
        let mut before = "";
        for chunk in &chunks {
            let text = chunk["text"].as_str().unwrap();
            assert!(text.starts_with(before) && cut.starts_with(text), "{text:?} {cut:?}");
            before = text;
        }
        let last = chunks.last().unwrap();
        assert_eq!(last["text"], cut);
        assert_eq!(last["output_ids"], whole["output_ids"]);
        assert_eq!(last["meta_info"]["finish_reason"], *reason);
    }
    // No later than the token that completes the match.
    let body = json!({"text": "Hi", "sampling_params": {"stop_regex": r"\d{2}"}});
    let answer = ok(&app, PATH, body).await;
    assert_eq!(answer["text"], "one 1, two ");
    let tokens = answer["output_ids"].as_array().unwrap().len();
    let of_tokens = |n: usize| ids(text)[..n].iter().map(|id| text_of(*id)).collect::<String>();
    assert!(of_tokens(tokens).contains("22") && !of_tokens(tokens - 1).contains("22"));
}

#[tokio::test]
async fn what_ended_an_answer_is_shown_if_asked_for() {
    let (app, _) = saying("a b c");
    let b = ids("a b c")[1];
    assert_eq!(text_of(b), " b");
    for (params, text) in [
        (json!({"stop": "b"}), "a "),
        (json!({"stop": "b", "no_stop_trim": true}), "a b"),
        (json!({"stop_token_ids": [b]}), "a"),
        (json!({"stop_token_ids": [b], "no_stop_trim": true}), "a b"),
        (json!({"no_stop_trim": true}), "a b c"),
        (json!({"skip_special_tokens": false}), "a b c"),
        (json!({"no_stop_trim": true, "skip_special_tokens": false}), "a b c<|im_end|>"),
        (
            json!({
                "no_stop_trim": true, "skip_special_tokens": false,
                "spaces_between_special_tokens": true,
            }),
            "a b c<|im_end|>",
        ),
    ] {
        let mut body = json!({"text": "Hi", "sampling_params": params});
        assert_eq!(ok(&app, PATH, body.clone()).await["text"], text, "{body}");
        body["stream"] = true.into();
        let chunks = post(&app, PATH, body.clone()).await.chunks();
        assert_eq!(chunks.last().unwrap()["text"], text, "{body}");
    }
}

#[tokio::test]
async fn patterns_stop_the_other_endpoints_too() {
    let (app, _) = saying("one 1, two 22, three");
    let stop = |body: Value| {
        let mut body = body;
        body["stop_regex"] = json!([r"\d\d"]);
        body
    };
    let answer = ok(&app, "/v1/completions", stop(json!({"prompt": "Hi", "max_tokens": 64}))).await;
    assert_eq!(answer["choices"][0]["text"], "one 1, two ");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let body = stop(json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true}));
    let chunks = post(&app, "/v1/chat/completions", body).await.chunks();
    let content = |chunk: &Value| {
        chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(chunks.iter().map(content).collect::<String>(), "one 1, two ");
    assert_eq!(chunks.last().unwrap()["choices"][0]["matched_stop"], r"\d\d");
}

#[tokio::test]
async fn retractions_are_counted_in_the_answer() {
    let engine = Scripted::holding().into_arc();
    let app = app(engine.clone());
    let body = json!({"text": "Hi", "stream": true});
    let response = tokio::spawn(async move { post(&app, PATH, body).await.chunks() });
    while engine.held.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    engine.push(0, ids("a")[0], None);
    engine.tell(0, TokenEvent::Retracted);
    engine.tell(0, TokenEvent::Retracted);
    engine.push(0, ids("b")[0], Some(Finish::Length));
    let chunks = response.await.unwrap();
    let counts = chunks.iter().map(|chunk| &chunk["meta_info"]["total_retractions"]);
    assert_eq!(counts.collect::<Vec<_>>(), [0, 2]);
    assert_eq!(chunks[1]["text"], "ab");
}

#[tokio::test]
async fn an_aborted_request_says_so() {
    let engine = Scripted::holding().into_arc();
    let app = app(engine.clone());
    let generate = app.clone();
    let body = json!({"text": "Hi", "rid": "mine"});
    let response = tokio::spawn(async move { ok(&generate, PATH, body).await });
    while engine.held.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    engine.push(0, ids("a")[0], None);
    let other = post(&app, "/abort_request", json!({"rid": "other"})).await;
    assert_eq!(other.status, StatusCode::OK);
    assert!(engine.is_open(0));
    post(&app, "/abort_request", json!({"rid": "mine"})).await;
    let answer = response.await.unwrap();
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    assert_eq!(answer["text"], "a");
    assert!(!engine.is_open(0));
    assert_eq!(
        post(&app, "/abort_request", json!({"abort_all": true})).await.status,
        StatusCode::OK
    );
    assert_eq!(post(&app, "/abort_request", json!({})).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn errors_have_their_own_shape_and_name_the_field() {
    let (app, _) = saying("a");
    for (body, field) in [
        (json!({}), "text"),
        (json!({"text": "a", "input_ids": [1]}), "input_ids"),
        (json!({"text": [1]}), "text"),
        (json!({"input_ids": ["a"]}), "input_ids"),
        (json!({"input_ids": [1, -1]}), "input_ids[1]"),
        (
            json!({"text": "a", "sampling_params": {"temperature": "hot"}}),
            "sampling_params.temperature",
        ),
        (json!({"text": "a", "sampling_params": {"top_p": 0}}), "sampling_params.top_p"),
        (json!({"text": "a", "sampling_params": {"n": 129}}), "sampling_params.n"),
        (json!({"text": "a", "sampling_params": {"regex": "(x"}}), "sampling_params.regex"),
        (
            json!({"text": "a", "sampling_params": {"max_new_tokens": 500}}),
            "sampling_params.max_new_tokens",
        ),
        (
            json!({"text": "a", "sampling_params": {"stop_regex": ["a", "(b"]}}),
            "sampling_params.stop_regex[1]",
        ),
        (
            json!({"text": "a", "sampling_params": [{"stop_regex": "a$"}]}),
            "sampling_params[0].stop_regex",
        ),
        (json!({"text": ["a", "b"], "sampling_params": [{}]}), "sampling_params"),
        (
            json!({"text": "a", "logprob_start_len": 99, "return_logprob": true}),
            "logprob_start_len",
        ),
        (json!({"text": "a", "rid": 3}), "rid"),
        (json!({"text": "a", "image_data": "x"}), "image_data"),
    ] {
        let answer = post(&app, PATH, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field}");
        let error = answer.json();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{field}`")), "{message}");
    }
}
