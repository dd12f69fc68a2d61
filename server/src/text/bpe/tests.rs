//! [`Bpe`] beside the library's model of the same file.

use super::Bpe;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokenizers::{Model, models::bpe::BPE};

const LETTERS: [&str; 5] = ["a", "b", "c", "é", "語"];

/// A model of the letters and of what `picks` merge: each is two of the tokens so far. Several pairs
/// may make the same token, and a pair may come twice.
fn model(picks: &[(prop::sample::Index, prop::sample::Index)], as_pairs: bool) -> Value {
    let mut tokens: Vec<String> = LETTERS.map(str::to_owned).to_vec();
    let mut merges = Vec::new();
    for (left, right) in picks {
        let (left, right) = (left.get(&tokens).clone(), right.get(&tokens).clone());
        let both = format!("{left}{right}");
        if !tokens.contains(&both) {
            tokens.push(both);
        }
        merges.push(if as_pairs { json!([left, right]) } else { json!(format!("{left} {right}")) });
    }
    // Ids are not in the order of the text, and some are left out.
    let vocab: serde_json::Map<String, Value> =
        tokens.into_iter().enumerate().map(|(i, token)| (token, json!(3 * (i ^ 1)))).collect();
    json!({ "type": "BPE", "continuing_subword_prefix": "", "vocab": vocab, "merges": merges })
}

fn check(model: &Value, words: &[String]) -> Result<(), TestCaseError> {
    let json = model.to_string();
    let (ours, library): (Bpe, BPE) =
        (serde_json::from_str(&json).unwrap(), serde_json::from_str(&json).unwrap());
    for word in words {
        prop_assert_eq!(ours.tokenize(word).unwrap(), library.tokenize(word).unwrap(), "{}", word);
        prop_assert_eq!(ours.token_to_id(word), library.token_to_id(word));
    }
    for id in 0..300 {
        prop_assert_eq!(ours.id_to_token(id), library.id_to_token(id));
    }
    prop_assert_eq!(ours.get_vocab_size(), library.get_vocab_size());
    prop_assert_eq!(ours.get_vocab(), library.get_vocab());
    Ok(())
}

proptest! {
    #[test]
    fn words_become_the_tokens_of_the_library(
        picks in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..60),
        words in prop::collection::vec("[abcé語x]{0,40}", 1..20),
        as_pairs: bool,
        ignore_merges: Option<bool>,
    ) {
        let mut model = model(&picks, as_pairs);
        model["ignore_merges"] = json!(ignore_merges);
        check(&model, &words)?;
    }
}

#[test]
fn a_line_with_a_version_is_no_merge() {
    let mut model = model(&[], false);
    model["vocab"]["ab"] = json!(100);
    model["merges"] = json!(["#version: 0.2", "a b"]);
    check(&model, &["abab".to_owned()]).unwrap();
}

/// What [`Bpe`] does not do is left to the library, so reading it has to fail.
#[test]
fn what_byte_level_models_do_not_use_is_refused() {
    let plain = model(&[], false);
    assert!(serde_json::from_value::<Bpe>(plain.clone()).is_ok());
    let changes = [
        ("type", json!("WordPiece")),
        ("dropout", json!(0.1)),
        ("unk_token", json!("a")),
        ("continuing_subword_prefix", json!("##")),
        ("end_of_word_suffix", json!("</w>")),
        ("byte_fallback", json!(true)),
        ("merges", json!(["a b"])),
        ("merges", json!(["a"])),
        ("merges", json!(["a b c"])),
        ("merges", json!([["a", "b", "c"]])),
        ("merges", json!(null)),
        ("vocab", json!({ "a": 0, "b": 0 })),
        ("vocab", json!({ "a": 1 << 24 })),
        ("vocab", json!({ "a": -1 })),
    ];
    let mut seen = BTreeSet::new();
    for (key, value) in changes {
        let mut changed = plain.clone();
        changed[key] = value.clone();
        let error = serde_json::from_value::<Bpe>(changed).err();
        seen.insert(error.unwrap_or_else(|| panic!("{key}: {value}")).to_string());
    }
    assert!(seen.len() > 8, "{seen:?}");
    let twice = r#"{"vocab": {"a": 0, "a": 1}, "merges": []}"#;
    assert!(serde_json::from_str::<Bpe>(twice).is_err());
    for missing in ["vocab", "merges"] {
        let mut changed = plain.clone();
        changed.as_object_mut().unwrap().remove(missing);
        assert!(serde_json::from_value::<Bpe>(changed).is_err(), "{missing}");
    }
}
