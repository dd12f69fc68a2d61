//! Tokenizer and chat templates against what the Hugging Face libraries make of the same files.

use super::{Detokenizer, RenderOptions, Tokenizer};
use crate::model::{Model, ModelFiles, ModelInfo};
use proptest::prelude::*;
use serde_json::{Map, Value};
use std::{fs, path::Path, sync::Arc};

struct Family {
    model: Model,
    expected: Value,
}

fn family(name: &str) -> Family {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let read = |file: &str| fs::read(dir.join(file)).ok();
    let tokenizer = read("tokenizer.json").unwrap();
    let (config, template) = (read("tokenizer_config.json"), read("chat_template.jinja"));
    let files = ModelFiles {
        tokenizer: &tokenizer,
        tokenizer_config: config.as_deref(),
        generation_config: None,
        chat_template: template.as_deref(),
    };
    let info = ModelInfo {
        path: String::new(),
        model_type: String::new(),
        architecture: String::new(),
        vocab_size: 512,
        max_context: 64,
        eos_token_ids: Vec::new(),
        weights_bytes: 0,
        state_bytes: 0,
        arena_bytes: 0,
        max_running_requests: 1,
        config: Map::new(),
    };
    let model = Model::new(files, info, name).unwrap();
    let expected = serde_json::from_slice(&read("expected.json").unwrap()).unwrap();
    Family { model, expected }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn check_encode(name: &str) {
    let Family { model, expected } = family(name);
    let cases = expected["encode"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        assert_eq!(model.tokenizer.encode_rendered(text).unwrap(), expected, "{text:?}");
        assert_eq!(model.tokenizer.decode(&expected, false), case["decoded"].as_str().unwrap());
        assert_eq!(decode_in_steps(&model.tokenizer, &expected, false), case["decoded"]);
    }
}

fn check_chat(name: &str) {
    let Family { model, expected } = family(name);
    let cases = expected["chat"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let mut variables: Map<String, Value> = case["kwargs"].as_object().unwrap().clone();
        let messages = variables.shift_remove("messages").unwrap();
        let tools = variables.shift_remove("tools");
        let options = RenderOptions {
            add_generation_prompt: variables.shift_remove("add_generation_prompt").unwrap() == true,
            continue_final_message: false,
            variables,
            tools,
        };
        let template = model.template(options.tools.is_some()).unwrap();
        let text = template.render(&messages, &options).unwrap();
        assert_eq!(text, case["rendered"].as_str().unwrap(), "{}", case["name"]);
        let tokens = model.tokenizer.encode_rendered(&text).unwrap();
        assert_eq!(tokens, ids(&case["ids"]), "{}", case["name"]);
    }
}

fn decode_in_steps(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), skip_special);
    let mut text = String::new();
    for id in ids {
        detokenizer.push(*id, &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

macro_rules! families {
    ($($name:ident),*) => {
        mod encode {
            $(#[test] fn $name() { super::check_encode(stringify!($name)); })*
        }
        mod chat {
            $(#[test] fn $name() { super::check_chat(stringify!($name)); })*
        }
    };
}

families!(qwen2, qwen3, deepseek_v3, gpt_oss);

#[test]
fn a_raw_prompt_begins_as_the_configuration_says() {
    let bos = |name: &str| family(name).model.tokenizer.encode_prompt("Hello").unwrap()[0];
    assert_eq!(bos("deepseek_v3"), 0);
    let qwen = family("qwen3").model.tokenizer;
    assert_eq!(qwen.encode_prompt("Hello"), qwen.encode_rendered("Hello"));
}

#[test]
fn special_tokens_are_left_out_on_request() {
    let tokenizer = family("qwen3").model.tokenizer;
    let ids = tokenizer.encode_rendered("a<|im_end|>b").unwrap();
    assert_eq!(decode_in_steps(&tokenizer, &ids, true), "ab");
    assert_eq!(decode_in_steps(&tokenizer, &ids, false), "a<|im_end|>b");
}

#[test]
fn an_incomplete_character_is_held_back() {
    let tokenizer = family("qwen3").model.tokenizer;
    let ids = tokenizer.encode_rendered("😀").unwrap();
    assert!(ids.len() > 1);
    let mut detokenizer = Detokenizer::new(tokenizer, true);
    let mut text = String::new();
    for id in &ids[..ids.len() - 1] {
        detokenizer.push(*id, &mut text);
        assert_eq!(text, "");
    }
    detokenizer.push(ids[ids.len() - 1], &mut text);
    assert_eq!(text, "😀");
}

/// A vocabulary of pieces with `▁` for spaces and a byte for every byte that is no piece.
fn byte_fallback() -> Arc<Tokenizer> {
    let mut vocab: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    vocab.extend(["▁", "▁the", "▁a", "a", "b", "é", "▁天", "气", "<s>"].map(String::from));
    let special = vocab.len() - 1;
    let vocab: Map<String, Value> =
        vocab.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{
            "id": special, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }],
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
    });
    Arc::new(Tokenizer::new(json.to_string().as_bytes(), None).unwrap())
}

proptest! {
    #[test]
    fn steps_give_the_whole_text(
        ids in proptest::collection::vec(0u32..500, 0..64),
        skip_special in any::<bool>(),
    ) {
        for name in ["qwen3", "deepseek_v3"] {
            let tokenizer = family(name).model.tokenizer;
            let whole = tokenizer.decode(&ids, skip_special);
            prop_assert_eq!(decode_in_steps(&tokenizer, &ids, skip_special), whole);
        }
    }

    #[test]
    fn steps_give_the_whole_text_with_context(
        // Pieces and whole characters in bytes.
        parts in proptest::collection::vec(
            prop_oneof![(256u32..265).prop_map(|id| vec![id]), Just(vec![0xE4, 0xBD, 0xA0])],
            0..32,
        ),
        skip_special in any::<bool>(),
    ) {
        let tokenizer = byte_fallback();
        prop_assert!(!tokenizer.is_byte_level());
        let ids = parts.concat();
        let whole = tokenizer.decode(&ids, skip_special);
        prop_assert_eq!(decode_in_steps(&tokenizer, &ids, skip_special), whole);
    }
}
