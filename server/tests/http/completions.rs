use crate::{
    scripted::Scripted,
    support::{EOS, app, ids, ok, post, saying, text_of},
};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn a_whole_answer_has_every_field() {
    let (app, engine) = saying("Hello, world!");
    let body = json!({"model": "any", "prompt": "Hi", "max_tokens": 50, "temperature": 0});
    let answer = ok(&app, PATH, body).await;
    let tokens = ids("Hello, world!").len() + 1;
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "any");
    assert_eq!(
        answer["choices"],
        json!([{
            "index": 0, "text": "Hello, world!", "logprobs": null, "finish_reason": "stop",
            "matched_stop": EOS,
        }])
    );
    let prompt = ids("Hi").len();
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    );
    let seen = engine.last_seen();
    assert_eq!(seen.prompt, ids("Hi"));
    assert_eq!(seen.max_tokens, 50);
    assert_eq!(seen.sampling.temperature, 0.0);
}

#[tokio::test]
async fn what_is_left_out_comes_from_the_checkpoint() {
    let (app, engine) = saying("a");
    ok(&app, PATH, json!({"prompt": "Hi", "logprobs": null, "unknown": {"x": 1}})).await;
    let seen = engine.last_seen();
    assert_eq!(seen.max_tokens, 16);
    assert_eq!(seen.sampling.temperature, 0.6);
    assert_eq!((seen.sampling.top_k, seen.sampling.top_p), (Some(20), 0.95));
    assert_eq!(seen.sampling.seed, None);
}

#[tokio::test]
async fn every_parameter_reaches_the_engine() {
    let (app, engine) = saying("abcdefgh");
    let body = json!({
        "prompt": [1, 2, 3], "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.25,
        "top_k": -1, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "seed": 7, "logit_bias": {"5": -100.0}, "ignore_eos": true,
        "stop_token_ids": [400],
    });
    ok(&app, PATH, body).await;
    let seen = engine.last_seen();
    assert_eq!(seen.prompt, [1, 2, 3]);
    assert_eq!((seen.max_tokens, seen.min_tokens), (9, 2));
    assert_eq!(seen.stop_token_ids, [400]);
    assert!(seen.ignore_eos);
    let s = seen.sampling;
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p), (0.5, 0.25, None, 0.125));
    assert_eq!((s.repetition_penalty, s.presence_penalty, s.frequency_penalty), (1.5, 0.5, -0.5));
    assert_eq!((s.seed, s.logit_bias), (Some(7), vec![(5, -100.0)]));
}

#[tokio::test]
async fn a_stream_has_one_chunk_for_each_token_and_no_empty_choices() {
    let (app, _) = saying("Hello, world!");
    let answer = post(&app, PATH, json!({"prompt": "Hi", "stream": true})).await;
    let chunks = answer.chunks();
    assert_eq!(chunks.len(), ids("Hello, world!").len() + 1);
    let mut text = String::new();
    for (i, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["object"], "text_completion");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk.get("usage"), None);
        let choices = chunk["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 1);
        let is_last = i + 1 == chunks.len();
        assert_eq!(choices[0]["finish_reason"], if is_last { json!("stop") } else { Value::Null });
        assert_eq!(choices[0]["matched_stop"], if is_last { json!(EOS) } else { Value::Null });
        text += choices[0]["text"].as_str().unwrap();
    }
    assert_eq!(text, "Hello, world!");
}

#[tokio::test]
async fn usage_is_streamed_only_on_request() {
    let (app, _) = saying("abc");
    let body = json!({"prompt": "Hi", "stream": true, "stream_options": {"include_usage": true}});
    let chunks = post(&app, PATH, body).await.chunks();
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], ids("abc").len() + 1);
    assert!(rest.iter().all(|chunk| chunk.get("usage").is_none()));

    let body = json!({
        "prompt": "Hi", "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    let chunks = post(&app, PATH, body).await.chunks();
    for (i, chunk) in chunks[..chunks.len() - 1].iter().enumerate() {
        assert_eq!(chunk["usage"]["completion_tokens"], i + 1);
    }
}

#[tokio::test]
async fn a_stop_string_is_found_across_tokens_and_cut_off() {
    let (app, engine) = saying("one two three four");
    assert!(ids("two thr").len() > 2);
    let body = json!({"prompt": "Hi", "stop": ["zzz", "wo thr"], "max_tokens": 40});
    let answer = ok(&app, PATH, body).await;
    assert_eq!(answer["choices"][0]["text"], "one t");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["matched_stop"], "wo thr");

    let body = json!({"prompt": "Hi", "stop": "wo thr", "max_tokens": 40, "stream": true});
    let chunks = post(&app, PATH, body).await.chunks();
    let text: String =
        chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "one t");
    assert_eq!(chunks.last().unwrap()["choices"][0]["matched_stop"], "wo thr");
    drop(engine);
}

#[tokio::test]
async fn a_matched_stop_string_closes_the_sink() {
    let engine = Scripted::holding().into_arc();
    let app = app(engine.clone());
    let body = json!({"prompt": "Hi", "stop": "b", "max_tokens": 40});
    let response = tokio::spawn(async move { ok(&app, PATH, body).await });
    while engine.held.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(engine.push(0, ids("a")[0], None));
    assert!(engine.push(0, ids("b")[0], None));
    let answer = response.await.unwrap();
    assert_eq!(answer["choices"][0]["text"], "a");
    assert!(!engine.is_open(0));
    assert!(!engine.push(0, ids("c")[0], None));
}

#[tokio::test]
async fn lists_of_prompts_give_numbered_choices() {
    let (app, engine) = saying("x");
    let answer = ok(&app, PATH, json!({"prompt": ["a", "b"], "n": 2, "seed": 10})).await;
    let indices: Vec<u64> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let seeds: Vec<_> = engine.seen.lock().unwrap().iter().map(|s| s.sampling.seed).collect();
    assert_eq!(seeds, [Some(10), Some(11), Some(10), Some(11)]);
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    assert_eq!(answer["usage"]["completion_tokens"], 8);

    let answer = ok(&app, PATH, json!({"prompt": [[1, 2], [3]]})).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn a_stream_of_several_choices_numbers_its_chunks() {
    let (app, _) = saying("xy");
    let body = json!({"prompt": ["a", "b"], "stream": true});
    let chunks = post(&app, PATH, body).await.chunks();
    for index in 0..2 {
        let of_choice = chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index);
        let text: String = of_choice.map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(text, "xy");
    }
}

#[tokio::test]
async fn logprobs_are_parallel_lists() {
    let (app, engine) = saying("ab");
    let body = json!({"prompt": "Hi", "max_tokens": 2, "logprobs": 2});
    let answer = ok(&app, PATH, body).await;
    let tokens = engine.last_seen();
    assert_eq!((tokens.logprobs.output, tokens.logprobs.top_n), (true, 2));
    let first = ids("ab")[0];
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"][0], text_of(first));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -1.0]));
    assert_eq!(logprobs["text_offset"], json!([0, text_of(first).len()]));
    let top = logprobs["top_logprobs"][0].as_object().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top[&text_of(first)], -0.5);
    assert_eq!(top[&text_of(first + 1)], -1.5);
}

#[tokio::test]
async fn echo_puts_the_prompt_before_the_answer() {
    let (app, engine) = saying("ab");
    let body = json!({"prompt": "Hi", "max_tokens": 1, "echo": true, "logprobs": 0});
    let answer = ok(&app, PATH, body).await;
    assert_eq!(engine.last_seen().logprobs.prompt_from, Some(0));
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], format!("Hi{}", text_of(ids("ab")[0])));
    let prompt = ids("Hi").len();
    assert_eq!(choice["logprobs"]["token_logprobs"][0], Value::Null);
    assert_eq!(choice["logprobs"]["top_logprobs"][0], Value::Null);
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), prompt + 1);
    assert_eq!(choice["logprobs"]["text_offset"][prompt], 2);

    let body = json!({"prompt": "Hi", "max_tokens": 1, "echo": true, "stream": true});
    let chunks = post(&app, PATH, body).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["text"], format!("Hi{}", text_of(ids("ab")[0])));
}

#[tokio::test]
async fn no_tokens_at_all_can_be_asked_for() {
    let (app, engine) = saying("ab");
    let body = json!({"prompt": "Hi", "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = ok(&app, PATH, body).await;
    assert_eq!(engine.last_seen().max_tokens, 1);
    assert_eq!(answer["choices"][0]["text"], "Hi");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let logprobs = &answer["choices"][0]["logprobs"]["tokens"];
    assert_eq!(logprobs.as_array().unwrap().len(), ids("Hi").len());
}

#[tokio::test]
async fn special_tokens_show_on_request() {
    let mut answer = ids("a<|im_start|>b");
    answer.push(EOS);
    let app = app(Scripted::answering(answer).into_arc());
    let hidden = ok(&app, PATH, json!({"prompt": "Hi"})).await;
    assert_eq!(hidden["choices"][0]["text"], "ab");
    let body = json!({"prompt": "Hi", "skip_special_tokens": false});
    let shown = ok(&app, PATH, body).await;
    assert_eq!(shown["choices"][0]["text"], "a<|im_start|>b");
}

#[tokio::test]
async fn characters_are_never_split() {
    let (app, _) = saying("今😀é");
    let body = json!({"prompt": "Hi", "stream": true, "max_tokens": 40});
    let chunks = post(&app, PATH, body).await.chunks();
    let pieces: Vec<&str> =
        chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
    assert_eq!(pieces.concat(), "今😀é");
}

#[tokio::test]
async fn the_best_answers_are_those_with_the_best_mean_logprob() {
    let (app, engine) = saying("ab");
    let answer = ok(&app, PATH, json!({"prompt": "Hi", "best_of": 3, "n": 1})).await;
    assert_eq!(engine.seen.lock().unwrap().len(), 3);
    assert!(engine.last_seen().logprobs.output);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1);
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["prompt_tokens"], ids("Hi").len());
    assert_eq!(answer["usage"]["completion_tokens"], 3 * (ids("ab").len() + 1));
}
