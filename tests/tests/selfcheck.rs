//! `precast selfcheck`: a device that computes what an artifact means, and one that does not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{compile, fixture, precast};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");
const OPTIONS: &str = "--graph-bs 1 3 --prefill-chunks 8 --max-context 64 --kv-blocks 12";

fn compiled(dir: &TempDir, name: &str, options: &str) -> PathBuf {
    let out = dir.path().join(options.replace(' ', ""));
    compile(PRECAST, &fixture(name), &out, &format!("{OPTIONS} {options}"));
    out
}

/// The report, and whether everything in it holds.
fn selfcheck(artifact: &Path, options: &[&str]) -> (Value, bool) {
    let mut args = vec!["selfcheck", artifact.to_str().unwrap(), "--json"];
    args.extend(options);
    let output = precast(PRECAST, args);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.success())
}

fn outcomes(report: &Value, which: &str) -> usize {
    report["ops"].as_array().unwrap().iter().filter(|l| l["outcome"] == which).count()
}

#[test]
fn every_op_agrees_with_the_interpreter() {
    let dir = TempDir::new().unwrap();
    for name in ["qwen3_moe_w4a8_dynamic", "deepseek_v32_w8a8", "qwen3_next", "gpt_oss"] {
        let artifact = compiled(&dir, name, "--dtype bf16");
        let (report, holds) = selfcheck(&artifact, &[]);
        assert!(holds, "{name}: {report:#}");
        assert!(outcomes(&report, "agrees") > 20, "{name}: {report:#}");
        assert_eq!(outcomes(&report, "agrees"), report["ops"].as_array().unwrap().len(), "{name}");
    }
}

#[test]
fn buckets_are_compared_with_another_artifact() {
    let dir = TempDir::new().unwrap();
    let narrow = compiled(&dir, "qwen3", "--dtype bf16");
    let wide = compiled(&dir, "qwen3", "--dtype f32");
    let (report, holds) = selfcheck(&narrow, &["--against", wide.to_str().unwrap()]);
    assert!(holds, "{report:#}");
    let rows: Vec<u64> =
        report["buckets"].as_array().unwrap().iter().map(|l| l["rows"].as_u64().unwrap()).collect();
    assert_eq!(rows, [1, 3]);
    // Another model answers something else.
    let other = compiled(&dir, "qwen2", "--dtype f32 --context-tiers 16");
    let (report, holds) = selfcheck(&narrow, &["--against", other.to_str().unwrap()]);
    assert!(!holds && report["buckets"][0]["holds"] == false, "{report:#}");
}
