//! Answers of a model that knows nothing, held to a grammar.

use crate::support::{Answer, ids, model_of, ok, post};
use axum::{Router, http::StatusCode};
use precast_server::{AppState, ServerOptions, router};
use runtime::{
    EngineHandle, EngineOptions,
    testing::{FakeModel, fake_engine},
};
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc};

const CONTEXT: u32 = 2048;

/// A server whose model chooses at random, and its engine.
fn serve(fake: FakeModel) -> (Router, EngineHandle) {
    let fake = FakeModel {
        vocab_size: 512,
        max_context: CONTEXT,
        context_tiers: vec![256, CONTEXT],
        eos_token_ids: vec![480, 478],
        ..fake
    };
    let engine = fake_engine(&fake, EngineOptions::default());
    let model = model_of(CONTEXT as usize);
    let state = AppState::new(Arc::new(engine.clone()), model, ServerOptions::default());
    (router(state), engine)
}

fn roomy() -> (Router, EngineHandle) {
    serve(FakeModel {
        blocks: 4096,
        decode_rows: vec![1, 4, 8, 24],
        max_running_requests: 24,
        ..FakeModel::default()
    })
}

/// A schema, and whether a value is valid under it.
type Case = (Value, fn(&Value) -> bool);

fn object(properties: Value) -> Value {
    let required: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false
    })
}

fn has_keys(value: &Value, keys: &[&str]) -> bool {
    value.as_object().is_some_and(|o| o.keys().eq(keys))
}

fn schemas() -> Vec<Case> {
    let cases: Vec<Case> = vec![
        (json!({"enum": ["red", 3, null, {"deep": [true]}]}), |v| {
            [json!("red"), json!(3), Value::Null, json!({"deep": [true]})].contains(v)
        }),
        (
            object(json!({"name": {"type": "string", "maxLength": 12}, "ok": {"type": "boolean"}})),
            |v| {
                has_keys(v, &["name", "ok"])
                    && v["name"].as_str().is_some_and(|s| s.chars().count() <= 12)
                    && v["ok"].is_boolean()
            },
        ),
        (
            object(json!({
                "box": object(json!({
                    "sides": {
                        "type": "array", "minItems": 2, "maxItems": 4,
                        "items": {"type": "integer", "minimum": -5, "maximum": 250}
                    },
                    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}
                })),
                "unit": {"anyOf": [{"const": "cm"}, {"type": "null"}]}
            })),
            |v| {
                let code = v["box"]["code"].as_str().unwrap_or_default().as_bytes();
                let sides = v["box"]["sides"].as_array();
                has_keys(v, &["box", "unit"])
                    && has_keys(&v["box"], &["sides", "code"])
                    && sides.is_some_and(|s| (2..=4).contains(&s.len()))
                    && sides.unwrap().iter().all(|n| (-5.0..=250.0).contains(&n.as_f64().unwrap()))
                    && code.len() == 6
                    && code[..2].iter().all(u8::is_ascii_uppercase)
                    && code[2] == b'-'
                    && code[3..].iter().all(u8::is_ascii_digit)
                    && (v["unit"] == "cm" || v["unit"].is_null())
            },
        ),
        (
            object(json!({
                "at": {"type": "string", "format": "date"},
                "list": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/pair"}}
            })),
            |v| {
                let at = v["at"].as_str().unwrap_or_default();
                at.len() == 10 && v["list"].as_array().is_some_and(|l| l.len() <= 2)
            },
        ),
    ];
    let pair = |(mut schema, is_valid): Case| {
        schema["$defs"] = json!({"pair": {
            "type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2
        }});
        (schema, is_valid)
    };
    cases.into_iter().map(pair).collect()
}

fn sampled(prompt: &str, seed: u64) -> Value {
    json!({"prompt": prompt, "max_tokens": 1900, "temperature": 1.0, "seed": seed})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    choice["text"].as_str().unwrap()
}

async fn complete(app: &Router, body: Value) -> Value {
    ok(app, "/v1/completions", body).await
}

async fn together(app: &Router, bodies: &[Value]) -> Vec<Value> {
    let ask = |body: &Value| {
        let (app, body) = (app.clone(), body.clone());
        tokio::spawn(async move { complete(&app, body).await })
    };
    let asked: Vec<_> = bodies.iter().map(ask).collect();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await.unwrap());
    }
    answers
}

fn schema_requests(schemas: &[Case]) -> Vec<Value> {
    let of_seed = |seed| {
        schemas.iter().map(move |(schema, _)| {
            let format = json!({"name": "x", "schema": schema});
            let format = json!({"type": "json_schema", "json_schema": format});
            with(sampled("Answer: ", seed), "response_format", format)
        })
    };
    (0..4).flat_map(of_seed).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_valid_whoever_else_runs() {
    let (app, engine) = roomy();
    let schemas = schemas();
    let bodies = schema_requests(&schemas);
    let free: Vec<Value> = (0..6)
        .map(|seed| {
            with(with(sampled("Once", seed), "max_tokens", json!(60)), "logprobs", json!(2))
        })
        .collect();
    let mut alone = Vec::new();
    for body in &free {
        alone.push(complete(&app, body.clone()).await);
    }
    let all: Vec<Value> = bodies.iter().chain(&free).cloned().collect();
    let (first, second) = (together(&app, &all).await, together(&app, &all).await);
    for (i, answer) in first[..bodies.len()].iter().enumerate() {
        let is_valid = schemas[i % schemas.len()].1;
        let value: Value = serde_json::from_str(text(answer))
            .unwrap_or_else(|e| panic!("{e}: {:?}", text(answer)));
        assert!(is_valid(&value), "{value}");
        assert_eq!(answer["choices"], second[i]["choices"], "the same seed, the same answer");
    }
    let texts: HashSet<&str> = first[..bodies.len()].iter().map(text).collect();
    assert!(texts.len() > schemas.len(), "seeds make a difference: {texts:?}");
    for (i, want) in alone.iter().enumerate() {
        assert_eq!(want["choices"], first[bodies.len() + i]["choices"]);
    }
    assert_eq!(engine.stats().requests_aborted_total, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preempted_answers_go_on_in_their_grammar() {
    let schemas = schemas();
    let shorter = |body| with(body, "max_tokens", json!(950));
    let bodies: Vec<Value> = schema_requests(&schemas).into_iter().map(shorter).collect();
    let (app, _engine) = roomy();
    let want = together(&app, &bodies).await;
    // Room for one answer of that length, which four share.
    let (app, engine) = serve(FakeModel { blocks: 128, ..FakeModel::default() });
    let long = |seed| shorter(with(sampled("x", seed), "regex", json!("[a-z]{900}")));
    let long: Vec<Value> = (0..4).map(long).collect();
    let all: Vec<Value> = long.iter().chain(&bodies).cloned().collect();
    let got = together(&app, &all).await;
    assert!(engine.stats().preemptions_total > 0, "the memory is too small for all");
    for answer in &got[..long.len()] {
        let text = text(answer);
        assert!(text.len() == 900 && text.bytes().all(|c| c.is_ascii_lowercase()), "{text}");
    }
    for (want, got) in want.iter().zip(&got[long.len()..]) {
        assert_eq!(want["choices"], got["choices"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regular_expressions_and_grammars_bind_every_endpoint() {
    let (app, _engine) = roomy();
    for seed in 0..4 {
        let regex = json!("(yes|no), [0-9]{2,4} (Ω|µm)");
        let answer = complete(&app, with(sampled("x", seed), "regex", regex)).await;
        let said = text(&answer);
        let (word, rest) = said.split_once(", ").unwrap();
        let (number, unit) = rest.split_once(' ').unwrap();
        assert!(["yes", "no"].contains(&word) && ["Ω", "µm"].contains(&unit), "{said}");
        assert!((2..=4).contains(&number.len()) && number.parse::<u32>().is_ok(), "{said}");

        let chat = json!({
            "messages": [{"role": "user", "content": "x"}], "seed": seed, "temperature": 1.0,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", 7]}}}
        });
        let answer = ok(&app, "/v1/chat/completions", chat).await;
        let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(["\"a\"", "7"].contains(&said), "{answer}");

        let list = "root ::= \"(\" item* \")\"\nitem ::= [ab] | \"[\" [0-9]{1,3} \"]\"";
        let mut body = json!({"text": "x", "sampling_params": {
            "ebnf": list, "temperature": 1.0, "max_new_tokens": 1500, "sampling_seed": seed
        }});
        let answer = ok(&app, "/generate", body.clone()).await;
        assert_eq!(answer["meta_info"]["finish_reason"]["type"], "stop", "{answer}");
        let said = answer["text"].as_str().unwrap();
        let inner = said.strip_prefix('(').unwrap().strip_suffix(')').unwrap();
        assert!(inner.chars().all(|c| "ab[]0123456789".contains(c)), "{said}");
        body["stream"] = true.into();
        let chunks = post(&app, "/generate", body).await.chunks();
        assert_eq!(chunks.last().unwrap()["text"], said, "a stream brings the same text");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_in_free_text_begins_a_structure() {
    let (app, _engine) = roomy();
    let structures = json!([{
        "begin": "e=<<", "end": ">>", "schema": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}
    }]);
    let tag = json!({"structures": structures, "triggers": ["e"]});
    let mut structured = 0;
    for seed in 0..6 {
        let body =
            with(with(sampled("x", seed), "structural_tag", tag.clone()), "max_tokens", json!(300));
        let answer = complete(&app, body).await;
        let said = answer["choices"][0]["text"].as_str().unwrap();
        for rest in said.split('e').skip(1) {
            // The length may end the answer anywhere.
            let Some(rest) = rest.strip_prefix("=<<") else {
                assert!("=<<".starts_with(rest), "{said}");
                continue;
            };
            if let Some((list, _)) = rest.split_once(">>") {
                let list: Vec<u8> = serde_json::from_str(list).unwrap();
                assert!(list.len() <= 3 && list.iter().all(|n| [1, 2].contains(n)), "{said}");
                structured += 1;
            }
        }
    }
    assert!(structured > 0);
}

const NUMBERS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_parameters_keep_their_meaning() {
    let (app, _engine) = roomy();
    // Log-probabilities are the model's; every answer has its own seed; what must not end ends.
    let mut many = with(sampled("x", 1), "json_schema", json!({"enum": NUMBERS}));
    many["n"] = 8.into();
    many["temperature"] = 20.into();
    many["ignore_eos"] = true.into();
    many["min_tokens"] = 500.into();
    many["logprobs"] = 1.into();
    let answer = complete(&app, many).await;
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<&str> = choices.iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert!(texts.iter().collect::<HashSet<_>>().len() > 1, "{texts:?}");
    assert!(texts.iter().all(|t| NUMBERS.contains(&t.trim_matches('"'))), "{texts:?}");
    for choice in choices {
        assert_eq!(choice["finish_reason"], "stop");
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert!(logprobs.iter().all(|p| p.as_f64().unwrap() < 0.0));
    }
    // A bias chooses among what is allowed and allows nothing.
    for (wanted, unwanted) in [("a", "b"), ("b", "a")] {
        let id = |text: &str| ids(text)[0].to_string();
        let body = json!({
            "prompt": "x", "max_tokens": 40, "temperature": 0, "regex": "[ab]{5}",
            "logit_bias": {id(wanted): 100, id("c"): 100, id(unwanted): -100}
        });
        assert_eq!(text(&complete(&app, body).await), wanted.repeat(5));
    }
    // A stop string cuts a text short, and so does the length.
    let date = with(sampled("x", 3), "regex", json!("[0-9]{4}-[0-9]{4}"));
    let cut = complete(&app, with(date, "stop", json!("-"))).await;
    assert!(text(&cut).len() == 4 && text(&cut).bytes().all(|c| c.is_ascii_digit()));
    let short = json!({"prompt": "x", "max_tokens": 2, "json_schema": {"type": "object"}});
    assert_eq!(complete(&app, short).await["choices"][0]["finish_reason"], "length");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grammars_that_cannot_be_used_are_refused_and_harm_nobody() {
    let (app, _engine) = roomy();
    let body = |field: &str, value: Value| with(sampled("x", 1), field, value);
    let format = |format: Value| body("response_format", format);
    let two = |i: usize, name: &str| json!({"properties": {format!("{name}{i}"): {}}});
    let both: Vec<Value> = (0..400).map(|i| json!({"anyOf": [two(i, "a"), two(i, "b")]})).collect();
    for (body, field) in [
        (format(json!({"type": "json_schema"})), "response_format.json_schema"),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "x"}})),
            "response_format.json_schema.schema",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {"schema": {"type": "list"}}})),
            "response_format.json_schema.schema",
        ),
        (format(json!({"type": "json"})), "response_format.type"),
        (body("regex", json!("(")), "regex"),
        (body("regex", json!(["a"])), "regex"),
        (body("ebnf", json!("root ::= missing")), "ebnf"),
        (body("json_schema", json!("{")), "json_schema"),
        (body("json_schema", json!({"allOf": both})), "json_schema"),
        (body("structural_tag", json!({"structures": []})), "structural_tag"),
        (with(body("regex", json!("a")), "ebnf", json!("start: \"a\"")), "ebnf"),
    ] {
        let answer: Answer = post(&app, "/v1/completions", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        assert_eq!(answer.json()["param"], field, "{}", answer.text);
    }
    assert_eq!(text(&complete(&app, body("regex", json!("fine"))).await), "fine");
    complete(&app, json!({"prompt": "x", "response_format": {"type": "text"}})).await;
}
