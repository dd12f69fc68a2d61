//! What `--explain-passes` and `--require-match` say of a model with many layers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

/// Runs a command line, with a configuration of a released model planned by `compile`.
fn compile(config: &str, flags: &[&str]) -> Output {
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/configs");
    let mut command = Command::new(env!("CARGO_BIN_EXE_precast"));
    command.args(["compile", "--dry-run", "--config-only", "--graph-bs", "1", "--model", config]);
    command.args(["--prefill-chunks", "16", "--max-context", "2048"]).args(flags);
    command.current_dir(configs).output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn sixty_layers_are_explained_in_a_few_lines() {
    let output =
        compile("qwen3-32b.json", &["--explain-passes", "--disable-pass", "fuse-silu-mul"]);
    let said = text(output.stdout);
    let table = said.split("qwen3-32b (").next().unwrap();
    let line = |pass: &str| {
        let line = table.lines().find(|l| l.get(3..).is_some_and(|l| l.starts_with(pass)));
        line.unwrap_or_else(|| panic!("{pass}: {table}"))
    };
    assert!(line("fuse-silu-mul ").ends_with("  disabled"), "{table}");
    let fired = line("fuse-qkv ");
    assert!(
        fired.contains("@decode 128, @prefill 127, @head 1") && fired.ends_with(" us"),
        "{fired}"
    );

    let flags = ["--explain-passes", "--quantize", "w8a8"];
    let said = text(compile("qwen3-30b-a3b.json", &flags).stdout);
    let table = said.split("qwen3-30b-a3b (").next().unwrap();
    for declined in [
        "@decode declined 48 x decision: the product decides what is computed
       matmul %layers.0.route_logits
         and 47 more: matmul %layers.{1-47}.route_logits\n",
        "@prefill declined 47 x decision: the product decides what is computed
       matmul %layers.0.route_logits
         and 46 more: matmul %layers.{1-46}.route_logits\n",
        "@head declined 1 x decision: the product decides what is computed
       matmul %layers.47.route_logits\n",
    ] {
        assert!(table.contains(declined), "{table}");
    }
    assert!(table.lines().count() < 60, "{table}");
}

#[test]
fn a_fusion_that_fires_too_little_fails_the_compile() {
    let floor = |floor: &str| compile("qwen3-8b.json", &["--require-match", floor]);
    let two = ["--require-match", "fuse-qkv=72", "--require-match", "fuse-silu-mul=72"];
    assert!(compile("qwen3-8b.json", &two).status.success());

    let output = floor("fuse-qkv=1000");
    let error = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("--require-match fuse-qkv=1000: pass `fuse-qkv` fired "), "{error}");
    assert!(error.contains(" times, at least 1000 are required"), "{error}");

    let error = text(floor("fuse-qvk=1").stderr);
    assert!(error.contains("no pass is called so; the passes are absorb-latent, "), "{error}");

    let disabled = ["--disable-pass", "fuse-qkv", "--require-match", "fuse-qkv=1"];
    let error = text(compile("qwen3-8b.json", &disabled).stderr);
    assert!(error.contains("fired 0 times") && error.contains("it was disabled"), "{error}");
}

/// No target computes latent attention as models define it.
#[test]
fn a_pass_that_targets_need_cannot_be_left_out() {
    let disabled = compile("deepseek-v3.json", &["--disable-pass", "absorb-latent"]);
    let error = text(disabled.stderr);
    assert_eq!(disabled.status.code(), Some(1), "{error}");
    assert!(
        error.contains("`absorb-latent` cannot be disabled: no target has a kernel"),
        "{error}"
    );
    assert!(error.contains("`expanded_latent_attention`"), "{error}");
}

#[test]
fn opt_holds_a_pass_to_its_matches() {
    let program = "func @f(%g: f32[T,4], %u: f32[T,4]) {
  %a = silu %g : f32[T,4]
  %p = mul %a, %u : f32[T,4]
  return %a, %p
}
";
    let mut command = Command::new(env!("CARGO_BIN_EXE_precast"));
    command.args(["opt", "-", "--require-match", "fuse-silu-mul=1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let why = "@f declined 1 x other-reader: the activation has another reader\n       mul %p";
    assert!(error.contains("fired 0 times") && error.contains(why), "{error}");
}
