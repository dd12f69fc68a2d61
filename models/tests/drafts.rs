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
use ir::{DType, interp::Tensor};
use precast_models::{
    BuildOptions, Checkpoint, Precision,
    draft::{Capture, Draft},
};
use recorded::Oracle;
use run::{Session, distance};
use serde_json::{Value, json};
use std::{fs, ops::Range, path::Path};
use support::{F32, Scratch, fixture};

/// Share of the largest magnitude of a row that f32 results may be off by.
const TOLERANCE: f64 = 2e-4;

const BF16: BuildOptions = BuildOptions {
    precision: Precision { weights: DType::BF16, activations: DType::F32 },
    kv_dtype: DType::BF16,
    ..F32
};

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

/// Rows of prompts where an input between two codes is rounded the other way in single precision. In
/// the first the main model's own record has it at token 35, and what later rows are fed differs.
const FLIPS: [(&str, &str, Range<usize>); 2] =
    [("qwen3_next_w8a8", "a", 34..usize::MAX), ("deepseek_v3_w8a8_dynamic", "b", 8..9)];

/// What a draft knows of a prompt and of the token after it: the main model runs on the prompt, then
/// the draft on its pairs. `extra` names a value that comes before the logits.
fn predicted(
    (target, draft): &(Checkpoint, Draft),
    options: &BuildOptions,
    ids: &[usize],
    next: usize,
    extra: Option<&str>,
) -> (Vec<Tensor>, Drafting, Session) {
    let mut main = Session::capturing(target, options, draft.capture());
    main.prefill(ids);
    let pairs: Vec<usize> = ids[1..].iter().copied().chain([next]).collect();
    let mut drafting = Drafting::built(draft, target.info().hidden, options);
    if let Some(value) = extra {
        drafting.expose(value);
    }
    let results = drafting.step("draft_prefill", &pairs, 0, main.features.as_ref(), 0);
    (results, drafting, main)
}

fn mtp_predicts(name: &str) {
    let both = mtp(name);
    assert_eq!(both.1.capture(), &Capture::FinalNorm);
    let (oracle, info) = (Oracle::of(name), both.0.info());
    for which in ["a", "b"] {
        let (ids, next) = prompt(&oracle, which);
        let (results, drafting, _) = predicted(&both, &F32, &ids, next[0], None);
        let flips = FLIPS.iter().find(|flip| (flip.0, flip.1) == (name, which));
        let flipped = |row: &usize| flips.is_some_and(|flip| flip.2.contains(row));
        let close = |found: &[f64], tensor: &str, columns: u64| {
            let (expected, columns) = (oracle.get(tensor), columns as usize);
            for row in (0..ids.len()).filter(|row| !flipped(row)) {
                let at = row * columns..(row + 1) * columns;
                let off = distance(&found[at.clone()], &expected[at], columns);
                assert!(off < TOLERANCE, "{name}: {tensor} row {row} is off by {off}");
            }
        };
        let tensor = |what: &str, kind: &str| format!("mtp_{what}_{kind}_{which}");
        let logits = results[0].data();
        close(logits, &tensor("logits", "f32"), info.vocab_size);
        if oracle.has(&tensor("hidden", "f32")) {
            close(drafting.hidden.data(), &tensor("hidden", "f32"), info.hidden);
        }
        let [exact, coarse] = ["f32", "bf16"].map(|kind| oracle.get(&tensor("logits", kind)));
        let (mut far, columns) = (Distances::default(), info.vocab_size as usize);
        for row in (0..ids.len()).filter(flipped) {
            let at = row * columns..(row + 1) * columns;
            far.add(&logits[at.clone()], &exact[at.clone()], &coarse[at], columns);
        }
        if flips.is_some() {
            far.check(&format!("{name} {which}"), 1.0, None);
        }
    }
}

/// Distances of rows from what is recorded of them in f32, ours and those of the reference's own bf16:
/// means of squares.
#[derive(Default)]
struct Distances {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Distances {
    fn add(&mut self, found: &[f64], exact: &[f64], coarse: &[f64], columns: usize) {
        assert_eq!((found.len(), coarse.len()), (exact.len(), exact.len()));
        let square = |(found, exact): (&[f64], &[f64])| {
            let squares = found.iter().zip(exact).map(|(f, e)| (f - e).powi(2));
            squares.sum::<f64>() / columns as f64
        };
        let squares = |of: &[f64]| -> Vec<f64> {
            of.chunks(columns).zip(exact.chunks(columns)).map(square).collect()
        };
        self.ours.extend(squares(found));
        self.theirs.extend(squares(coarse));
    }

    /// Checks that ours are at most `share` of theirs, without the furthest row in `ties` of each.
    fn check(self, what: &str, share: f64, ties: Option<usize>) {
        let mean = |mut rows: Vec<f64>| {
            rows.sort_by(f64::total_cmp);
            rows.truncate(ties.map_or(rows.len(), |n| rows.len() * (n - 1) / n));
            (rows.iter().sum::<f64>() / rows.len() as f64).sqrt()
        };
        let (ours, theirs) = (mean(self.ours), mean(self.theirs));
        println!("{what}: {ours:.5}, the reference {theirs:.5}");
        assert!(ours > 0.0 && ours <= share * theirs, "{what}: {ours} against {theirs}");
    }
}

/// What distances from f32 in bf16 may be of the reference's.
const COARSE: f64 = 1.25;

/// Of logits in bf16, over both prompts.
fn mtp_is_as_good_in_bf16(name: &str) {
    let (both, oracle) = (mtp(name), Oracle::of(name));
    let mut distances = Distances::default();
    for which in ["a", "b"] {
        let ids = oracle.ids(&format!("input_ids_{which}"));
        let next = oracle.ids(&format!("gen_ids_bf16_{which}"))[0];
        let (results, ..) = predicted(&both, &BF16, &ids, next, None);
        let recorded = |kind: &str| oracle.get(&format!("mtp_logits_{kind}_{which}"));
        let columns = both.0.info().vocab_size as usize;
        distances.add(results[0].data(), recorded("f32"), recorded("bf16"), columns);
    }
    // Scores of two experts that are nearly equal decide elsewhere here than in the reference: each has
    // rows of its own that are ten times as far off as most.
    let ties = ["deepseek_v3", "deepseek_v3_w8a8_dynamic"].contains(&name).then_some(10);
    distances.check(name, COARSE, ties);
}

macro_rules! mtp_layers {
    ($($name:ident)*) => {
        const MTP: &[&str] = &[$(stringify!($name)),*];

        mod mtp_layers {
            $(#[test] fn $name() {
                super::mtp_predicts(stringify!($name));
                super::mtp_is_as_good_in_bf16(stringify!($name));
            })*
        }
    };
}

mtp_layers! {
    deepseek_v3 deepseek_v3_fp8 deepseek_v3_w8a8 deepseek_v3_w8a8_dynamic deepseek_v3_w4a8_dynamic
    deepseek_v32 deepseek_v32_fp8 deepseek_v32_w8a8 qwen3_next qwen3_next_w8a8
}

const EAGLE: [(&str, &str); 2] = [("eagle3_qwen3", "qwen3"), ("eagle3_qwen3_moe", "qwen3_moe")];

#[test]
fn every_recorded_draft_is_compared() {
    let names = fs::read_dir(fixture("")).unwrap().map(|e| e.unwrap().file_name());
    let names = names.map(|n| n.into_string().unwrap()).filter(|n| n != "README.md");
    for name in names {
        let oracle = Oracle::of(&name);
        let listed = MTP.contains(&&name[..]);
        assert_eq!(oracle.has("mtp_logits_f32_a"), listed, "{name}");
        assert_eq!(oracle.has("mtp_logits_bf16_b"), listed, "{name}");
        let listed = EAGLE.iter().any(|(head, _)| *head == name);
        assert_eq!(oracle.has("eagle3_logits_f32_a"), listed, "{name}");
    }
}

/// What an EAGLE-3 head computes of a prompt, by the names under which it is recorded.
fn head_values(
    both: &(Checkpoint, Draft),
    options: &BuildOptions,
    ids: &[usize],
    next: usize,
) -> Vec<(&'static str, Vec<f64>, usize)> {
    let hidden = both.0.info().hidden as usize;
    let (results, drafting, main) = predicted(both, options, ids, next, Some("reduced"));
    let captured = main.features.unwrap().data()[..ids.len() * 3 * hidden].to_vec();
    let states = drafting.hidden.data()[..ids.len() * hidden].to_vec();
    vec![
        ("aux", captured, 3 * hidden),
        ("fc", results[0].data().to_vec(), hidden),
        ("hidden", states, hidden),
        ("logits", results[1].data().to_vec(), both.1.target_ids().unwrap().len()),
    ]
}

#[test]
fn eagle_heads_predict_what_was_recorded() {
    for (name, of) in EAGLE {
        let both = eagle3(name, of);
        let (main_oracle, oracle) = (Oracle::of(of), Oracle::of(name));
        for which in ["a", "b"] {
            let (ids, next) = prompt(&main_oracle, which);
            for (what, found, columns) in head_values(&both, &F32, &ids, next[0]) {
                let tensor = format!("eagle3_{what}_f32_{which}");
                let off = distance(&found, oracle.get(&tensor), columns);
                assert!(off < TOLERANCE, "{name}: {tensor} is off by {off}");
            }
        }
    }
}

#[test]
fn eagle_heads_are_as_good_in_bf16() {
    for (name, of) in EAGLE {
        let both = eagle3(name, of);
        let (main_oracle, oracle) = (Oracle::of(of), Oracle::of(name));
        let mut distances: [(&str, Distances); 4] = Default::default();
        for which in ["a", "b"] {
            // The reference fed both the same token, that of single precision.
            let (ids, next) = prompt(&main_oracle, which);
            let values = head_values(&both, &BF16, &ids, next[0]);
            for ((known, sum), (what, found, columns)) in distances.iter_mut().zip(values) {
                let recorded = |kind: &str| oracle.get(&format!("eagle3_{what}_{kind}_{which}"));
                sum.add(&found, recorded("f32"), recorded("bf16"), columns);
                *known = what;
            }
        }
        for (what, sum) in distances {
            sum.check(&format!("{name} {what}"), COARSE, None);
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
