//! What a user of the command line sees when something is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{compile, fixture, precast};
use std::{fs, path::Path};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// Exit status and stderr of a command line; `{}` stands for `path`.
fn fail(line: &str, path: &Path) -> (i32, String) {
    let args = line.split(' ').map(|w| w.replace("{}", path.to_str().unwrap()));
    let output = precast(PRECAST, args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A copy of the qwen2 fixture whose configuration was changed.
fn changed(dir: &TempDir, from: &str, to: &str) -> std::path::PathBuf {
    let copy = dir.path().join("model");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(fixture("qwen2")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let config = fs::read_to_string(copy.join("config.json")).unwrap();
    assert!(config.contains(from), "{from}");
    fs::write(copy.join("config.json"), config.replacen(from, to, 1)).unwrap();
    copy
}

#[test]
fn bad_usage_is_status_2() {
    let nowhere = Path::new("/nowhere");
    for line in ["", "frobnicate", "compile", "compile --model {} --graph-bs zero", "serve"] {
        let (status, error) = fail(line, nowhere);
        assert_eq!(status, 2, "{line}: {error}");
    }
    let help = precast(PRECAST, ["compile", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Example:") && help.contains("--cuda-graph-bs"), "{help}");
}

#[test]
fn a_checkpoint_that_cannot_be_compiled_says_why() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    for (from, to, said) in [
        ("Qwen2ForCausalLM", "MambaForCausalLM", "MambaForCausalLM"),
        ("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "gelu"),
        ("\"use_sliding_window\": false", "\"use_sliding_window\": true", "use_sliding_window"),
        ("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "model.layers.3"),
        ("\"intermediate_size\": 160", "\"intermediate_size\": 176", "176"),
        ("\"hidden_size\": 96", "\"hidden_size\": \"wide\"", "hidden_size"),
        ("{", "", "config.json"),
    ] {
        let model = changed(&dir, from, to);
        let line = format!("compile --model {{}} --out {}", out.display());
        let (status, error) = fail(&line, &model);
        assert_eq!(status, 1, "{to}: {error}");
        assert!(error.contains(said), "{to}: {error}");
        assert!(!out.exists());
    }
    let model = changed(&dir, "{", "{");
    fs::write(model.join("tokenizer.json"), "{}").unwrap();
    let (status, error) = fail(&format!("compile --model {{}} --out {}", out.display()), &model);
    assert!(status == 1 && error.contains("tokenizer.json") && !out.exists(), "{error}");
    let (status, error) = fail("compile --model {}", &dir.path().join("absent"));
    assert_eq!(status, 1);
    assert!(error.contains("absent"), "{error}");
}

#[test]
fn the_memory_plan_names_what_does_not_fit() {
    let model = fixture("qwen2");
    let line = "compile --model {} --dry-run --graph-bs 1 64 --max-context 1024 --memory 1M";
    let (status, error) = fail(line, &model);
    assert_eq!(status, 1);
    assert!(error.contains("decode-bs1-ctx1024 needs") && error.contains("1048576"), "{error}");
    let (_, error) = fail("compile --model {} --max-context 40000", &model);
    assert!(error.contains("--max-context 40000") && error.contains("32768"), "{error}");
    let (_, error) = fail("compile --model {} --dry-run --disable-pass fuse-everything", &model);
    assert!(error.contains("fuse-everything") && error.contains("fuse-qkv"), "{error}");
}

#[test]
fn a_missing_instruction_set_and_artifact_are_named() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, "--graph-bs 1 --max-context 64");
    let (status, error) = fail("serve {} --instruction-set sve", &out);
    assert_eq!(status, 1);
    assert!(error.contains("--instruction-set") && error.contains("portable"), "{error}");
    let (_, error) = fail("serve {}", &dir.path().join("nothing"));
    assert!(error.contains("not an artifact") && error.contains("precast compile"), "{error}");
}

#[test]
fn inspect_shows_the_artifact() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(
        PRECAST,
        &fixture("qwen2"),
        &out,
        "--graph-bs 1 8 --max-running-requests 6 --max-context 64",
    );
    let show = |flags: &[&str]| {
        let mut args = vec!["inspect", out.to_str().unwrap()];
        args.extend(flags);
        let output = precast(PRECAST, args);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let summary = show(&[]);
    assert!(summary.contains("decode        6  the admission ceiling"), "{summary}");
    assert!(summary.contains("8 (dropped)"), "{summary}");
    assert!(summary.contains("3 x attention_bf16_bf16"), "{summary}");
    assert!(show(&["--ir", "decode"]).contains("fused @linear"));
    assert!(show(&["--plan", "decode-bs6-ctx64"]).contains("linear_matmul_compact_f32"));
    assert!(summary.contains("steps (--ops)") && summary.contains("  prefill"), "{summary}");
    let passes = show(&["--passes"]);
    assert!(
        passes.starts_with("target cpu: weights in panels (compact for bf16 of grouped_matmul)")
            && passes.contains("gate/up block 32"),
        "{passes}"
    );
    assert!(
        passes.contains("  fuse-qkv\n") && passes.contains("@decode 3, @prefill 3"),
        "{passes}"
    );
    let ops = show(&["--ops"]);
    assert!(ops.contains("@decode, 6 rows") && ops.contains("activations moved"), "{ops}");
    assert!(show(&["--weights"]).contains("interleave32("));
    let json: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(json["max_running_requests"], 6);
    assert_eq!(json["config"]["graph_bs"], serde_json::json!([1, 6]));
}

/// Without fusions the same model computes the same tokens: primitives have kernels of their own.
#[test]
fn every_optional_pass_can_be_left_out() {
    let dir = TempDir::new().unwrap();
    let answer = |options: &str| {
        let out = dir.path().join("artifact");
        compile(PRECAST, &fixture("qwen2"), &out, &format!("--graph-bs 1 --dtype f32 {options}"));
        let line = ["generate", out.to_str().unwrap(), "--raw", "--prompt", "What is 12 + 30?"];
        let output = precast(PRECAST, line.iter().chain(&["--max-tokens", "12"]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let fused = answer("--max-context 64");
    let catalog = passes::Catalog::builtin();
    let is_optional = |name: &&str| catalog.pass(name).is_some_and(|p| p.required().is_none());
    let none: Vec<_> = catalog.names().into_iter().filter(is_optional).collect();
    for pass in &none {
        assert_eq!(answer(&format!("--max-context 64 --disable-pass {pass}")), fused, "{pass}");
    }
    let all = format!("--max-context 64 --disable-pass {}", none.join(" "));
    assert_eq!(answer(&all), fused);
    assert_eq!(answer("--max-context 64 --rewrite-limit 7"), fused);
}
