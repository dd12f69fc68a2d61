//! Drafts on the interpreter against what the reference recorded of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/drafting.rs"]
mod drafting;
#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/run.rs"]
mod run;
mod support;

use drafting::Drafting;
use precast_models::{
    Checkpoint,
    draft::{Capture, Draft},
};
use recorded::Oracle;
use run::{Session, distance};
use serde_json::{Value, json};
use std::{fs, path::Path};
use support::{F32, Scratch, fixture};

/// Share of the largest magnitude of a row that f32 results may be off by.
const TOLERANCE: f64 = 2e-4;

fn mtp(name: &str) -> (Checkpoint, Draft) {
    let target = Checkpoint::open(fixture(name)).unwrap();
    let draft = Draft::mtp(&target).unwrap().unwrap();
    (target, draft)
}

fn eagle3(name: &str, target: &str) -> (Checkpoint, Draft) {
    let target = Checkpoint::open(fixture(target)).unwrap();
    let draft = Draft::eagle3(fixture(name), &target).unwrap();
    (target, draft)
}

/// The prompt and the first token after it.
fn prompt(oracle: &Oracle, which: &str) -> (Vec<usize>, Vec<usize>) {
    (oracle.ids(&format!("input_ids_{which}")), oracle.ids(&format!("gen_ids_f32_{which}")))
}

#[test]
fn mtp_layers_predict_what_was_recorded() {
    for name in ["deepseek_v3", "deepseek_v32", "qwen3_next", "deepseek_v3_w8a8", "deepseek_v3_fp8"]
    {
        let (target, draft) = mtp(name);
        assert_eq!(draft.capture(), &Capture::FinalNorm);
        let oracle = Oracle::of(name);
        let info = target.info();
        for which in ["a", "b"] {
            let (ids, next) = prompt(&oracle, which);
            let mut main = Session::capturing(&target, &F32, draft.capture());
            main.prefill(&ids);
            let pairs: Vec<usize> = ids[1..].iter().chain(&next[..1]).copied().collect();
            let mut drafting = Drafting::new(&draft, info.hidden);
            let features = main.features.as_ref();
            let results = drafting.step("draft_prefill", &pairs, 0, features, 0);
            let expected = oracle.get(&format!("mtp_logits_f32_{which}"));
            let off = distance(results[0].data(), expected, info.vocab_size as usize);
            assert!(off < TOLERANCE, "{name} {which}: logits are off by {off}");
            if which == "a" {
                let width = info.hidden as usize;
                let found = &drafting.hidden.data()[..pairs.len() * width];
                let off = distance(found, oracle.get("mtp_hidden_f32_a"), width);
                assert!(off < TOLERANCE, "{name}: states are off by {off}");
            }
        }
    }
}

#[test]
fn eagle_heads_predict_what_was_recorded() {
    for (name, of) in [("eagle3_qwen3", "qwen3"), ("eagle3_qwen3_moe", "qwen3_moe")] {
        let (target, draft) = eagle3(name, of);
        let (main_oracle, oracle) = (Oracle::of(of), Oracle::of(name));
        let hidden = target.info().hidden as usize;
        let vocab = draft.target_ids().unwrap().len();
        for which in ["a", "b"] {
            let (ids, next) = prompt(&main_oracle, which);
            let mut main = Session::capturing(&target, &F32, draft.capture());
            main.prefill(&ids);
            let features = main.features.as_ref().unwrap();
            let get = |what: &str| oracle.get(&format!("eagle3_{what}_f32_{which}"));
            let captured = &features.data()[..ids.len() * 3 * hidden];
            assert!(distance(captured, get("aux"), 3 * hidden) < TOLERANCE, "{name} {which}");
            let pairs: Vec<usize> = ids[1..].iter().chain(&next[..1]).copied().collect();
            let mut drafting = Drafting::new(&draft, hidden as u64);
            drafting.expose("reduced");
            let results = drafting.step("draft_prefill", &pairs, 0, Some(features), 0);
            assert!(distance(results[0].data(), get("fc"), hidden) < TOLERANCE, "{name} {which}");
            let states = &drafting.hidden.data()[..ids.len() * hidden];
            assert!(distance(states, get("hidden"), hidden) < TOLERANCE, "{name} {which}");
            let off = distance(results[1].data(), get("logits"), vocab);
            assert!(off < TOLERANCE, "{name} {which}: logits are off by {off}");
        }
    }
}

/// The recorded rounds of `which` prompt, under `key` of `name`.
fn trace(name: &str, which: &str, key: &str) -> Value {
    let text = fs::read_to_string(fixture(name).join("oracle.json")).unwrap();
    let oracle: Value = serde_json::from_str(&text).unwrap();
    oracle["prompts"][which][key]["rounds"].clone()
}

/// Drafts three tokens at a time and keeps those that the main model would have said, up to `limit`
/// tokens: the rounds in the form in which they are recorded.
fn rounds(target: &Checkpoint, draft: &Draft, ids: &[usize], limit: usize) -> Value {
    const STEPS: usize = 3;
    let mut main = Session::capturing(target, &F32, draft.capture());
    let mut drafting = Drafting::new(draft, target.info().hidden);
    let best = |main: &Session, rows: usize| -> Vec<usize> {
        main.head(rows).1.data().iter().map(|&id| id as usize).collect()
    };
    main.prefill(ids);
    let mut newest = *best(&main, ids.len()).last().unwrap();
    let mut pairs: Vec<usize> = ids[1..].iter().copied().chain([newest]).collect();
    let (mut first, mut known, mut function) = (0, 1, "draft_prefill");
    let mut rounds = Vec::new();
    while known < limit {
        let features = main.features.clone().unwrap();
        let drafted = drafting.chain(function, &pairs, first, &features, STEPS);
        first += pairs.len();
        let before = main.save();
        let tried: Vec<usize> = [newest].iter().chain(&drafted).copied().collect();
        main.prefill(&tried);
        let said = best(&main, tried.len());
        let agree = drafted.iter().zip(&said).take_while(|(d, s)| d == s).count();
        let accepted = agree.min(limit - known);
        let emitted = &said[..(accepted + 1).min(limit - known)];
        rounds.push(json!({ "draft": drafted, "accepted": accepted, "emitted": emitted }));
        // Memories, recurrent ones too, hold accepted tokens only.
        main.restore(before);
        main.prefill(&tried[..accepted + 1]);
        newest = said[accepted];
        known += accepted + 1;
        pairs = said[..accepted + 1].to_vec();
        function = "draft_start";
    }
    Value::Array(rounds)
}

#[test]
fn mtp_layers_are_accepted_as_recorded() {
    for (name, which) in [
        ("deepseek_v3", "a"),
        ("deepseek_v32", "b"),
        ("qwen3_next", "b"),
        ("deepseek_v3_w8a8", "b"),
    ] {
        let (target, draft) = mtp(name);
        let (ids, _) = prompt(&Oracle::of(name), which);
        let expected = trace(name, which, "mtp_trace");
        assert_eq!(rounds(&target, &draft, &ids, 32), expected, "{name} {which}");
    }
}

#[test]
fn eagle_heads_are_accepted_as_recorded() {
    for (name, of, which) in
        [("eagle3_qwen3", "qwen3", "a"), ("eagle3_qwen3_moe", "qwen3_moe", "b")]
    {
        let (target, draft) = eagle3(name, of);
        let (ids, _) = prompt(&Oracle::of(of), which);
        let expected = trace(name, which, "trace");
        assert_eq!(rounds(&target, &draft, &ids, 32), expected, "{name} {which}");
    }
}

#[test]
fn heads_read_the_layers_that_they_name_and_use_every_tensor() {
    let (_, usual) = eagle3("eagle3_qwen3", "qwen3");
    assert_eq!(usual.capture(), &Capture::Residuals(vec![2, 3, 4]));
    let (_, named) = eagle3("eagle3_qwen3_moe", "qwen3_moe");
    assert_eq!(named.capture(), &Capture::Residuals(vec![1, 2, 3]));
    let ignored: Vec<_> = usual.ignored().iter().map(|i| (&i.name[..], i.reason)).collect();
    assert_eq!(ignored, [("t2d", "`d2t` says the same")]);
    let ids = usual.target_ids().unwrap();
    assert!(ids.is_sorted() && ids.len() == 320 && *ids.last().unwrap() < 512);

    let (_, draft) = mtp("deepseek_v3");
    let ignored: Vec<_> = draft.ignored().iter().map(|i| (&i.name[..], i.reason)).collect();
    let copy = "a copy of the main model's tensor";
    let (embed, head) =
        ("model.layers.4.embed_tokens.weight", "model.layers.4.shared_head.head.weight");
    assert_eq!(ignored, [(embed, copy), (head, copy)]);
    assert!(Draft::mtp(&Checkpoint::open(fixture("qwen3")).unwrap()).unwrap().is_none());
}

/// A head whose configuration is that of a fixture with `changes` made to it.
fn changed(changes: &Value) -> String {
    let scratch = Scratch::new();
    let from = fixture("eagle3_qwen3");
    fs::copy(from.join("model.safetensors"), scratch.file("model.safetensors")).unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    scratch.write_json("config.json", &config);
    let target = Checkpoint::open(fixture("qwen3")).unwrap();
    let error = Draft::eagle3(scratch.path(), &target).unwrap_err().to_string();
    error.replace(&format!("{}/", scratch.path().display()), "")
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    let starts = |changes: Value, message: &str| {
        let found = changed(&changes);
        assert!(found.starts_with(message), "{found}");
    };
    starts(
        json!({ "architectures": ["LlamaForCausalLM"] }),
        "config.json: `architectures` is [\"LlamaForCausalLM\"]; supported: [\"LlamaForCausalLMEagle3\"]",
    );
    starts(
        json!({ "hidden_size": 128 }),
        "config.json: `hidden_size` is 128; supported: 64, as in the model it drafts for",
    );
    starts(
        json!({ "vocab_size": 600 }),
        "config.json: `vocab_size` is 600; supported: 512, as in the model it drafts for",
    );
    starts(
        json!({ "num_hidden_layers": 2 }),
        "config.json: `num_hidden_layers` is 2; supported: 1",
    );
    starts(
        json!({ "draft_vocab_size": 513 }),
        "config.json: `draft_vocab_size` is 513; supported: whole numbers from 1 to 512",
    );
    let layers =
        |ids: Value| json!({ "eagle_config": { "eagle_aux_hidden_state_layer_ids": ids } });
    let supported = "supported: a list of 3 layers of the model, below 7";
    for (ids, shown) in [(json!([1, 2, 7]), "[1,2,7]"), (json!([1, 2]), "[1,2]"), (json!(3), "3")] {
        let key = "config.json: `eagle_config.eagle_aux_hidden_state_layer_ids`";
        starts(layers(ids), &format!("{key} is {shown}; {supported}"));
    }
    starts(json!({ "eagle_config": { "depth": 3 } }), "config.json: `eagle_config.depth` is not");
    let message = changed(&json!({ "draft_vocab_size": 300 }));
    assert!(message.contains("`d2t` has shape [320], expected [300]"), "{message}");
    let message = changed(&json!({ "draft_vocab_size": null }));
    assert!(message.contains("`lm_head.weight` is stored but no part"), "{message}");
}

/// Numbers of the layer alone, as published: without the copies of embedding and head.
#[test]
fn released_mtp_layers_count_as_published() {
    for (name, parameters) in [
        ("deepseek-v3", 11_610_068_224),
        ("deepseek-v3.2", 11_624_027_648),
        ("qwen3-next-80b-a3b", 1_650_471_424),
    ] {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/configs");
        let target = Checkpoint::config_only(configs.join(format!("{name}.json"))).unwrap();
        let draft = Draft::mtp(&target).unwrap().unwrap();
        assert_eq!(draft.parameters(), parameters, "{name}");
    }
}
