//! The served model computes what Hugging Face transformers computes, seen through HTTP alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use codegen_cpu::InstructionSet;
use precast_tests::{
    compile, fixture,
    http::Server,
    oracle::{Matrix, Oracle},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");
const FIXTURES: [&str; 2] = ["qwen2", "qwen3"];
/// The most alternatives the server reports for a position, out of 512.
const TOP: usize = 128;
const STEPS: usize = 32;

/// Chunks of 16 and 8 tokens cut the prompts of 40 and 23 into several pieces with a padded last.
const OPTIONS: &str = "--graph-bs 1 4 --prefill-chunks 8 16 --max-context 128 --kv-blocks 64";

struct Served {
    server: Server,
    oracle: Oracle,
    _dir: TempDir,
}

fn serve(name: &str, dtype: &str, options: &str) -> Served {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture(name), &out, &format!("{OPTIONS} --dtype {dtype}"));
    let server = Server::start(PRECAST, &out, options);
    Served { server, oracle: Oracle::open(&fixture(name)), _dir: dir }
}

/// Greedy continuation of `prompt`, with the log-probabilities of every token at every position.
fn generate(server: &Server, prompt: &[u32], top: usize) -> Value {
    server.ask(
        "/generate",
        &json!({
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": STEPS, "ignore_eos": true},
            "return_logprob": true,
            "logprob_start_len": 0,
            "top_logprobs_num": top,
        }),
    )
}

fn ids(answer: &Value) -> Vec<u32> {
    answer["output_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// `[logprob, token, text]` triples.
fn triples(list: &Value) -> Vec<(f32, usize)> {
    let list = list.as_array().unwrap();
    list.iter().map(|t| (t[0].as_f64().unwrap() as f32, t[1].as_u64().unwrap() as usize)).collect()
}

/// Log-probabilities and tokens, best first, after prompt position `i`.
fn after_position(answer: &Value, i: usize, prompt_len: usize) -> Vec<(f32, usize)> {
    let meta = &answer["meta_info"];
    let list = if i + 1 < prompt_len {
        &meta["input_top_logprobs"][i + 1]
    } else {
        &meta["output_top_logprobs"][0]
    };
    let list = triples(list);
    assert_eq!(list.len(), TOP);
    list
}

#[test]
fn f32_tokens_and_logprobs_are_those_of_the_oracle() {
    for name in FIXTURES {
        for set in InstructionSet::available() {
            compare_f32(name, set);
        }
    }
}

fn compare_f32(name: &str, set: InstructionSet) {
    let options = format!("--instruction-set {set}");
    let Served { server, oracle, .. } = serve(name, "f32", &options);
    for prompt_name in ["a", "b"] {
        let prompt = oracle.ids(&format!("input_ids_{prompt_name}"));
        let answer = generate(&server, &prompt, TOP);
        assert_eq!(ids(&answer), oracle.ids(&format!("gen_ids_f32_{prompt_name}")), "{name}");

        // A log-probability is a logit minus a sum of all, so it may be off twice as far.
        let logits = oracle.floats(&format!("logits_f32_{prompt_name}"));
        for i in 0..prompt.len() {
            let bound = 2.0 * 2e-4 * logits.largest(i);
            let expected = logits.log_softmax(i);
            for (got, token) in after_position(&answer, i, prompt.len()) {
                let want = expected[token];
                assert!((got - want).abs() <= bound, "{name} position {i}: {got} {want}");
            }
        }
        let given = triples_of_prompt(&answer);
        for (i, (got, token)) in given.iter().enumerate() {
            assert_eq!(*token, prompt[i + 1] as usize);
            let want = logits.log_softmax(i)[*token];
            assert!((got - want).abs() <= 4e-4 * logits.largest(i), "{name} {i}: {got} {want}");
        }

        let top_ids = oracle.ids(&format!("gen_top5_ids_f32_{prompt_name}"));
        let top = oracle.floats(&format!("gen_top5_logprobs_f32_{prompt_name}"));
        for step in 0..STEPS {
            let got = triples(&answer["meta_info"]["output_top_logprobs"][step]);
            for k in 0..5 {
                let (logprob, token) = got[k];
                assert!((logprob - top.row(step)[k]).abs() < 2e-3, "{name} step {step}");
                assert_eq!(token as u32, top_ids[step * 5 + k], "{name} step {step}");
            }
        }
    }
}

fn triples_of_prompt(answer: &Value) -> Vec<(f32, usize)> {
    let list = answer["meta_info"]["input_token_logprobs"].as_array().unwrap();
    assert!(list[0][0].is_null(), "nothing comes before the first token");
    triples(&Value::Array(list[1..].to_vec()))
}

/// Root of the mean square difference to `reference` over the reported tokens of all positions.
fn distance(rows: &[Vec<(f32, usize)>], reference: &Matrix) -> f64 {
    let mut sum = 0.0;
    for (i, row) in rows.iter().enumerate() {
        let exact = reference.log_softmax(i);
        sum += row.iter().map(|&(v, t)| f64::from(v - exact[t]).powi(2)).sum::<f64>();
    }
    (sum / (rows.len() * TOP) as f64).sqrt()
}

#[test]
fn bf16_is_as_close_to_f32_as_the_oracles_own_bf16() {
    let sets = InstructionSet::available();
    for (name, set) in FIXTURES.iter().flat_map(|n| sets.iter().map(move |s| (n, s))) {
        let Served { server, oracle, .. } =
            serve(name, "bf16", &format!("--instruction-set {set}"));
        for prompt_name in ["a", "b"] {
            let prompt = oracle.ids(&format!("input_ids_{prompt_name}"));
            let answer = generate(&server, &prompt, TOP);
            let exact = oracle.floats(&format!("logits_f32_{prompt_name}"));
            let bf16 = oracle.floats(&format!("logits_bf16_{prompt_name}"));
            let ours: Vec<_> =
                (0..prompt.len()).map(|i| after_position(&answer, i, prompt.len())).collect();
            // The oracle's values for the same tokens.
            let theirs: Vec<Vec<_>> = ours
                .iter()
                .enumerate()
                .map(|(i, row)| {
                    let values = bf16.log_softmax(i);
                    row.iter().map(|&(_, t)| (values[t], t)).collect()
                })
                .collect();
            let (ours, theirs) = (distance(&ours, &exact), distance(&theirs, &exact));
            println!("{name} {set} {prompt_name}: {ours:.5}, transformers {theirs:.5}");
            assert!(ours <= 1.25 * theirs, "{name} {prompt_name}: {ours} against {theirs}");
        }
    }
}

/// What a request gets does not depend on the company it keeps.
#[test]
fn a_batch_of_mixed_lengths_equals_single_runs() {
    for name in FIXTURES {
        let Served { server, oracle, .. } = serve(name, "bf16", "");
        let long = oracle.ids("input_ids_a");
        let prompts: Vec<&[u32]> = (1..9).map(|n| &long[..n * 5 - 2]).collect();
        let alone: Vec<Value> = prompts.iter().map(|p| generate(&server, p, 3)).collect();
        let together: Vec<Value> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                prompts.iter().map(|p| scope.spawn(|| generate(&server, p, 3))).collect();
            asked.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (a, b) in alone.iter().zip(&together) {
            assert_eq!(a["output_ids"], b["output_ids"], "{name}");
            for field in ["output_token_logprobs", "input_token_logprobs", "output_top_logprobs"] {
                assert_eq!(a["meta_info"][field], b["meta_info"][field], "{name} {field}");
            }
        }
    }
}
