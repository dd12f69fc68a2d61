//! Artifacts are reproducible, appear whole or not at all, and are refused when anything is wrong.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use codegen_cpu::InstructionSet;
use precast_tests::{compile, contents, fixture, http::Server, precast};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");
const OPTIONS: &str = "--graph-bs 1 4 --prefill-chunks 16 --max-context 64 --kv-blocks 16";

/// A manifest without the checksum of itself, to be changed by one who knows what they do.
fn unsealed(artifact: &Path) -> String {
    let sealed = fs::read_to_string(artifact.join("manifest.json")).unwrap();
    let (first, rest) = sealed.strip_prefix("{\n").unwrap().split_once('\n').unwrap();
    assert!(first.contains("\"checksum\""));
    format!("{{\n{rest}")
}

fn serve_error(artifact: &Path) -> String {
    let output = precast(PRECAST, ["serve".as_ref(), artifact.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    let dir = TempDir::new().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for out in [&a, &b] {
        compile(PRECAST, &fixture("qwen3"), out, &format!("{OPTIONS} --dump-ir"));
    }
    let (a, b) = (contents(&a), contents(&b));
    assert!(a.len() > 20, "plans, weights, texts: {:?}", a.keys());
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (path, bytes) in &a {
        assert!(bytes == &b[path], "{} differs", path.display());
    }
}

#[test]
fn an_older_artifact_is_replaced_and_other_directories_are_not() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, OPTIONS);
    compile(PRECAST, &fixture("qwen3"), &out, OPTIONS);
    let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
    assert!(manifest.contains("Qwen3ForCausalLM"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");

    let mine = dir.path().join("mine");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("thesis.txt"), "years of work").unwrap();
    let model = fixture("qwen2");
    let args = ["compile", "--model", model.to_str().unwrap(), "--out", mine.to_str().unwrap()];
    let output = precast(PRECAST, args);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(mine.join("thesis.txt")).unwrap(), "years of work");
}

/// Killed at many moments, a compile leaves either nothing or a whole artifact.
#[test]
fn a_killed_compile_leaves_nothing_that_looks_whole() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    let (mut whole, mut absent) = (0, 0);
    for wait_ms in [5, 10, 15, 20, 30, 40, 60, 90, 130, 200, 2000] {
        let mut child = Command::new(PRECAST)
            .args(["compile", "--model"])
            .arg(fixture("qwen3"))
            .arg("--out")
            .arg(&out)
            .args(OPTIONS.split(' '))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait_ms));
        let _ = child.kill();
        child.wait().unwrap();
        if out.exists() {
            let artifact = artifact::Artifact::open(&out).unwrap();
            artifact.plans().unwrap();
            artifact.check_weights(&artifact.map_weights().unwrap()).unwrap();
            fs::remove_dir_all(&out).unwrap();
            whole += 1;
        } else {
            assert!(serve_error(&out).contains("not an artifact"));
            absent += 1;
        }
    }
    assert!(absent > 0, "at least the first is killed before it ends");
    assert!(whole + absent == 11);
    // What killed compiles left is cleared by the next one.
    compile(PRECAST, &fixture("qwen3"), &out, OPTIONS);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn damage_is_refused_with_the_file_and_the_remedy() {
    let dir = TempDir::new().unwrap();
    let whole = dir.path().join("whole");
    compile(PRECAST, &fixture("qwen2"), &whole, OPTIONS);
    let files = contents(&whole);
    let damaged = dir.path().join("damaged");
    let lay = |skip: Option<&str>| {
        let _ = fs::remove_dir_all(&damaged);
        for (path, bytes) in &files {
            if Some(path.to_str().unwrap()) != skip {
                let path = damaged.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
        }
    };
    let plan = files.keys().find(|p| p.starts_with("plans")).unwrap().to_str().unwrap();
    for name in ["weights/weights.bin", plan, "tokenizer.json"] {
        let original = &files[Path::new(name)];
        lay(None);
        fs::write(damaged.join(name), &original[..original.len() - 1]).unwrap();
        let error = serve_error(&damaged);
        assert!(error.contains(name) && error.contains("precast compile"), "truncated: {error}");

        lay(None);
        let mut flipped = original.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        fs::write(damaged.join(name), flipped).unwrap();
        let error = serve_error(&damaged);
        assert!(error.contains(name) && error.contains("checksum"), "altered: {error}");

        lay(Some(name));
        let error = serve_error(&damaged);
        assert!(error.contains(name) && error.contains("missing"), "missing: {error}");
    }

    let manifest = unsealed(&whole);
    let version = format!("\"format_version\": {}", artifact::FORMAT_VERSION);
    for (from, to, said) in [
        (&*version, "\"format_version\": 99", "format 99"),
        ("\"device\": \"cpu\"", "\"device\": \"tpu9\"", "compiled for device tpu9"),
        // A target there is, with the rest of a plan for the CPU.
        ("\"device\": \"cpu\"", "\"device\": \"ascend910b\"", "instruction set portable"),
        (
            "\"instruction_set\": \"portable\"",
            "\"instruction_set\": \"sve2\"",
            "instruction set sve2",
        ),
        ("\"kv_block_tokens\": 16", "\"kv_block_tokens\": 128", "KV block size 128"),
        ("\"tensor_parallel\": 1", "\"tensor_parallel\": 8", "tensor parallel size 8"),
        ("\"format_version\"", "\"former_version\"", "format_version"),
        (": ", "; ", "not JSON"),
    ] {
        assert!(manifest.contains(from));
        lay(None);
        let changed = artifact::seal_manifest(&manifest.replacen(from, to, 1));
        fs::write(damaged.join("manifest.json"), changed).unwrap();
        let error = serve_error(&damaged);
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn verify_repeats_the_recorded_run() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("artifact");
    compile(PRECAST, &fixture("qwen2"), &out, OPTIONS);
    for set in InstructionSet::available() {
        drop(Server::start(PRECAST, &out, &format!("--verify --instruction-set {set}")));
    }

    let mut manifest: serde_json::Value = serde_json::from_str(&unsealed(&out)).unwrap();
    let id = manifest["recorded"]["tokens"][3]["id"].as_u64().unwrap();
    manifest["recorded"]["tokens"][3]["id"] = (id ^ 1).into();
    let changed = artifact::seal_manifest(&manifest.to_string());
    fs::write(out.join("manifest.json"), changed).unwrap();
    let output = precast(PRECAST, ["serve".as_ref(), out.as_os_str(), "--verify".as_ref()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--verify"));
}
