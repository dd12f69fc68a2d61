//! The README's commands work as they stand there.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use precast_tests::{http::Server, precast, root};
use serde_json::Value;
use std::{fs, process::Command};
use tempfile::TempDir;

const PRECAST: &str = env!("CARGO_BIN_EXE_precast-under-test");

/// The contents of every `sh` block.
fn blocks() -> Vec<String> {
    let readme = fs::read_to_string(root("README.md")).unwrap();
    let blocks = readme.split("```sh\n").skip(1);
    blocks.map(|b| b.split("```").next().unwrap().trim().to_owned()).collect()
}

/// The first command, with the program under test in place of `cargo run`, serves a model that
/// answers the second.
#[test]
fn the_first_commands_serve_the_demo() {
    let blocks = blocks();
    let run = blocks[0].strip_prefix("cargo run --release --bin precast -- ").unwrap();
    let cache = TempDir::new().unwrap();
    let mut command = Command::new(PRECAST);
    command.args(run.split(' ')).args(["--port", "0"]);
    command.current_dir(root("")).env("PRECAST_CACHE", cache.path());
    let server = Server::spawn(&mut command);

    let (_, body) = blocks[1].split_once("-d '").unwrap();
    let body: Value = serde_json::from_str(body.strip_suffix('\'').unwrap()).unwrap();
    assert!(blocks[1].contains("localhost:8000/v1/chat/completions"));
    let answer = server.ask("/v1/chat/completions", &body);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("A bucket is a batch size"), "{text}");

    // The second start finds the artifact in the cache.
    drop(server);
    let artifacts = || fs::read_dir(cache.path()).unwrap().count();
    assert_eq!(artifacts(), 1);
    drop(Server::spawn(&mut command));
    assert_eq!(artifacts(), 1);

    // So does one that asks for what this machine would choose, and none that asks for something else.
    let here = codegen_cpu::target::compact_rows(codegen_cpu::InstructionSet::best());
    drop(Server::spawn(command.arg("--compact-rows").arg(here.to_string())));
    assert_eq!(artifacts(), 1);
    drop(Server::spawn(command.arg("--compact-rows").arg("7")));
    assert_eq!(artifacts(), 2);
}

#[test]
fn ci_runs_the_test_command() {
    let blocks = blocks();
    assert!(blocks[2].starts_with("cargo test --workspace"));
    let ci = fs::read_to_string(root(".ci/run")).unwrap();
    assert!(ci.contains("grep -m1 '^cargo test' README.md"));
    let readme = fs::read_to_string(root("README.md")).unwrap();
    assert_eq!(readme.lines().find(|l| l.starts_with("cargo test")), Some(blocks[2].as_str()));
}

/// What the README suggests asking is answered.
#[test]
fn the_suggested_questions_are_answered() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("demo");
    precast_tests::compile(PRECAST, &root("demo"), &out, "--graph-bs 1");
    for (question, answer) in [
        ("What is TTFT?", "TTFT"),
        ("What is 538 + 276?", "so 814"),
        ("Reverse the word planet.", "tenalp"),
        ("Sort the letters d, a, c.", "a c d"),
    ] {
        assert!(fs::read_to_string(root("README.md")).unwrap().contains(question));
        let output = precast(PRECAST, ["generate", out.to_str().unwrap(), "--prompt", question]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(answer), "{question} {text}");
    }
}

/// Every other command line of the README parses: `--help` in place of running it.
#[test]
fn every_command_line_parses() {
    let mut checked = 0;
    for line in blocks()[3].lines() {
        let command = line.split(" #").next().unwrap().trim();
        let words = command.strip_prefix("precast ").unwrap().replace('\'', "");
        let args = words.split_whitespace().map(Into::into);
        let parsed = cli::parse(std::iter::once("precast".into()).chain(args));
        // A quoted prompt is one word for a shell; here its rest would be unexpected arguments.
        if !words.contains("--prompt") {
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
        }
        checked += 1;
    }
    assert_eq!(checked, 10);
}
