//! The Ascend target on the software device: the same tokens as are recorded of every model, through
//! `compile`, `serve` and HTTP.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{
    checks::{self, Company, Host},
    compile, fixture,
    fixtures::{self, Fixture},
    http::Server,
    precast,
};
use serde_json::json;
use tempfile::TempDir;

/// As on the CPU, prompts are cut into several chunks with a padded last.
const OPTIONS: &str =
    "--target ascend910_93 --graph-bs 1 4 --prefill-chunks 8 64 --max-context 320";

fn npu(company: Company) -> Host<'static> {
    Host {
        program: env!("CARGO_BIN_EXE_precast-under-test"),
        compile: OPTIONS,
        block: 128,
        blocks: 6,
        company,
        // The chip has none.
        fp8_inputs: false,
        devices: vec![("ascend-sim".to_owned(), "--device ascend-sim".to_owned())],
    }
}

/// Short answers: what is asked together fits the blocks.
fn short() -> Company {
    Company { prompts: vec![3, 30, 17, 41, 9], tokens: 8, preempts: false }
}

mod float32 {
    fn check(fixture: &super::Fixture) {
        super::checks::float32(&super::npu(super::short()), fixture);
    }
    precast_tests::each_fixture!(check);
}

mod bfloat16 {
    fn check(fixture: &super::Fixture) {
        super::checks::bfloat16(&super::npu(super::short()), fixture);
    }
    precast_tests::each_fixture!(check);
}

/// A sequence grows by two blocks of 128 tokens, and one is kept for it when it starts.
#[test]
fn sequences_that_give_their_memory_back_answer_the_same() {
    for name in ["qwen2", "qwen3_next"] {
        let company = Company { prompts: vec![126, 120, 125, 123], tokens: 140, preempts: true };
        checks::bfloat16(&npu(company), fixtures::find(name));
    }
}

/// Of two sequences that decode together; a CPU has no time for it.
#[test]
fn inputs_of_the_next_step_are_made_while_the_device_runs() {
    let dir = TempDir::new().unwrap();
    let program = env!("CARGO_BIN_EXE_precast-under-test");
    let prepared = |options: &str, device: &str| {
        let artifact = dir.path().join(device.replace(' ', ""));
        let options = format!("{options} --graph-bs 1 4 --max-context 256 --kv-blocks 64");
        compile(program, &fixture("qwen3"), &artifact, &options);
        let server = Server::start(program, &artifact, device);
        let body = json!({"prompt": ["abc", "defgh"], "max_tokens": 24, "ignore_eos": true});
        server.ask("/v1/completions", &body);
        server.metric("precast:prepared_steps_total")
    };
    // The first decode step feeds what no one expected.
    assert!(prepared("--target ascend910_93", "--device ascend-sim") >= 20.0);
    assert!(prepared("", "--device cpu") < 1.0);
}

/// Experts stay in 4 bits, other weights are widened; one scale for each output is all that the operators
/// take, so it is the default.
#[test]
fn a_float_model_is_quantised_to_what_the_operators_take() {
    let dir = TempDir::new().unwrap();
    let program = env!("CARGO_BIN_EXE_precast-under-test");
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let made = path("made");
    let options = format!("{OPTIONS} --dtype bf16 --kv-blocks 6 --quantize w4a8");
    compile(program, &fixture("qwen3_moe"), made.as_ref(), &options);
    let (_, weights) = run(&["inspect", &made, "--weights"]);
    assert!(weights.contains("i4") && weights.contains("i8"), "{weights}");
    let (holds, report) = run(&["selfcheck", &made, "--device", "ascend-sim"]);
    assert!(holds && report.contains("0 differ, 0 failed, 0 were skipped"), "{report}");

    let model = fixture("qwen3");
    let words = ["compile", "--model", model.to_str().unwrap(), "--out", &path("refused")];
    let options = format!("{options} --quantize-group 32");
    let output = precast(program, words.into_iter().chain(options.split_whitespace()));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--quantize-group channel"), "{said}");
}

/// The program as it is run by hand, and what it prints.
fn run(args: &[&str]) -> (bool, String) {
    let output = precast(env!("CARGO_BIN_EXE_precast-under-test"), args);
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_op_of_an_artifact_agrees_with_the_interpreter() {
    let dir = TempDir::new().unwrap();
    for name in ["qwen3_moe_w8a8_dynamic", "qwen3_moe_w4a8_dynamic", "qwen3_next"] {
        let artifact = dir.path().join(name);
        let options = "--dtype bf16 --kv-blocks 6";
        let program = env!("CARGO_BIN_EXE_precast-under-test");
        compile(program, &fixture(name), &artifact, &format!("{OPTIONS} {options}"));
        let path = artifact.to_str().unwrap();
        let (holds, report) = run(&["selfcheck", path, "--device", "ascend-sim"]);
        assert!(holds && report.contains("0 differ, 0 failed, 0 were skipped"), "{report}");
        assert!(report.contains("device: ascend Ascend910_9391"), "{report}");
        let (_, why) = run(&["inspect", path, "--why"]);
        assert!(why.contains("attention of the library takes lengths on the host"), "{why}");
        // A CPU cannot run it, and says so.
        let (runs, _) = run(&["selfcheck", path, "--device", "cpu"]);
        assert!(!runs);
    }
}

#[test]
fn the_doctor_finds_the_software_device_complete() {
    let (holds, report) = run(&["doctor", "--device", "ascend-sim", "--json"]);
    assert!(holds, "{report}");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report.to_string().contains("Ascend910_9391"), "{report:#}");
    // There is no runtime of the vendor here, or there is one; both are told.
    let (_, vendor) = run(&["doctor", "--json"]);
    assert!(vendor.contains("libascendcl.so"), "{vendor}");
}

/// With streams for the smallest branches, in whatever order the device runs what is not ordered.
#[test]
fn branches_on_streams_of_their_own_compute_the_same() {
    let dir = TempDir::new().unwrap();
    let program = env!("CARGO_BIN_EXE_precast-under-test");
    let answer = |options: &str, shuffle: &str| {
        let artifact = dir.path().join(options.replace(' ', ""));
        if !artifact.exists() {
            let options = format!("{OPTIONS} --dtype f32 --kv-blocks 6 {options}");
            compile(program, &fixture("deepseek_v3"), &artifact, &options);
        }
        let path = artifact.to_str().unwrap();
        let (_, plan) = run(&["inspect", path, "--plan", "decode-bs4-ctx384"]);
        let words = "generate --device ascend-sim --raw --prompt abcdefgh --max-tokens 12 \
                     --temperature 0";
        let output = precast_tests::command(program)
            .args(words.split_whitespace())
            .arg(path)
            .env("ASCEND_SIM_SHUFFLE", shuffle)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (plan.contains("stream 1"), output.stdout)
    };
    let (forked, expected) = answer("--graph-bs 4", "");
    assert!(!forked && !expected.is_empty());
    for seed in ["", "1", "2", "3"] {
        let (forked, found) = answer("--fork-bytes 1", seed);
        assert!(forked);
        assert_eq!(found, expected, "seed {seed:?}");
    }
}
