//! The served models compute what is recorded of Hugging Face transformers, and of the published
//! arithmetic of quantised checkpoints: seen through HTTP alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use codegen_cpu::InstructionSet;
use precast_tests::{
    checks::{self, Company, Host},
    fixtures::{FIXTURES, Fixture},
    root,
};
use serde_json::Value;

/// Chunks of 16 and 8 tokens cut the prompts of 23 to 150 tokens into several pieces with a padded
/// last. The 12 blocks hold the longest context and fewer than the four sequences that run at once.
const OPTIONS: &str = "--graph-bs 1 4 --prefill-chunks 8 16 --max-context 192";

/// The CPU with every instruction set of this machine.
fn cpu() -> Host<'static> {
    let device = |set: &InstructionSet| (set.to_string(), format!("--instruction-set {set}"));
    Host {
        program: env!("CARGO_BIN_EXE_precast-under-test"),
        compile: OPTIONS,
        block: 16,
        blocks: 12,
        // Four of the eight want 7 blocks each when they end.
        company: Company {
            prompts: (1..9).map(|n| n * 5 - 2).collect(),
            tokens: 100,
            preempts: true,
        },
        fp8_inputs: true,
        devices: InstructionSet::available().iter().map(device).collect(),
    }
}

mod float32 {
    fn check(fixture: &super::Fixture) {
        super::checks::float32(&super::cpu(), fixture);
    }
    precast_tests::each_fixture!(check);
}

mod bfloat16 {
    fn check(fixture: &super::Fixture) {
        super::checks::bfloat16(&super::cpu(), fixture);
    }
    precast_tests::each_fixture!(check);
}

#[test]
fn every_recorded_model_is_listed() {
    for entry in std::fs::read_dir(root("tests/fixtures")).unwrap() {
        let dir = entry.unwrap().path();
        let Ok(text) = std::fs::read_to_string(dir.join("oracle.json")) else { continue };
        let recorded: Value = serde_json::from_str(&text).unwrap();
        let name = dir.file_name().unwrap().to_str().unwrap();
        // A draft head has no outputs without the model that it belongs to.
        let is_draft = recorded.get("target").is_some();
        assert_eq!(FIXTURES.iter().any(|f| f.name == name), !is_draft, "{name}");
    }
}
