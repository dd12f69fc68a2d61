//! What `compile --dry-run` says of models whose weights are not here.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

fn compile(flags: &[&str]) -> Output {
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/configs");
    let mut command = Command::new(env!("CARGO_BIN_EXE_precast"));
    command.arg("compile").args(flags).current_dir(configs).output().unwrap()
}

/// Standard output of a run that succeeds.
fn plan(flags: &[&str]) -> String {
    let output = compile(flags);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_configuration_is_enough_for_the_memory_plan() {
    let flags = ["--dry-run", "--config-only", "--model", "qwen3-8b.json", "--graph-bs", "8"];
    let text = plan(&flags);
    assert!(text.starts_with("qwen3-8b (Qwen3ForCausalLM): 8190735360 parameters, bf16"), "{text}");
    assert!(text.contains("tokens, 147456 bytes a token"), "{text}");
    assert!(text.contains("bf16 panels") && text.contains("f32 nd"), "{text}");
    assert!(text.contains("decode-bs8-ctx40960") && text.contains("prefill-len512"), "{text}");
    let limited = [&flags[..], &["--memory", "4G"]].concat();
    let output = compile(&limited);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("the weights alone"), "{error}");
}

/// Parameters, and bytes that a token and a sequence take, of every released model.
#[test]
fn released_models_need_the_published_memory() {
    let models: [(&str, u64, &[&str]); 11] = [
        ("qwen2.5-0.5b", 494_032_768, &[" 12288 bytes a token"]),
        ("qwen3-8b", 8_190_735_360, &[" 147456 bytes a token"]),
        ("qwen3-32b", 32_762_123_264, &[" 262144 bytes a token"]),
        ("qwen3-30b-a3b", 30_532_122_624, &[" 98304 bytes a token"]),
        ("qwen3-235b-a22b", 235_093_634_560, &[" 192512 bytes a token"]),
        ("qwen3-coder-480b-a35b", 480_154_875_392, &[" 253952 bytes a token"]),
        // The states of the delta rule in f32 and the last columns of the convolution in bf16.
        (
            "qwen3-next-80b-a3b",
            79_674_391_296,
            &[" 24576 bytes a token", " 77266944 bytes a sequence"],
        ),
        ("deepseek-v3", 671_026_419_200, &[" 70272 bytes a token", "fp8 panels"]),
        // Latents and rotated keys, and the keys of the indexer.
        ("deepseek-v3.2", 671_877_944_064, &[" 85888 bytes a token", "fp8 panels"]),
        (
            "gpt-oss-20b",
            20_914_757_184,
            &[" 24576 bytes a token", " 3145728 bytes a sequence", "mxfp4 panels"],
        ),
        (
            "gpt-oss-120b",
            116_829_156_672,
            &[" 36864 bytes a token", " 4718592 bytes a sequence", "mxfp4 panels"],
        ),
    ];
    for (name, parameters, figures) in models {
        let file = format!("{name}.json");
        let small = ["--graph-bs", "8", "--prefill-chunks", "16", "--max-context", "2048"];
        let text = plan(&[&["--dry-run", "--config-only", "--model", &file][..], &small].concat());
        assert!(text.contains(&format!("{parameters} parameters")), "{name}: {text}");
        for figure in figures {
            assert!(text.contains(figure), "{name} should have `{figure}`: {text}");
        }
    }
}

#[test]
fn options_without_effect_are_refused() {
    let model = ["--dry-run", "--config-only", "--model", "qwen3-8b.json"];
    for (flags, said) in [
        (&["--quantize-activations"][..], "--quantize-activations is for checkpoints in FP8"),
        (&["--quantize", "w8a8", "--disable-pass", "quantize-matmuls"], "--disable-pass"),
    ] {
        let output = compile(&[&model[..], flags].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{error}");
    }
    let output = compile(&["--config-only", "--model", "qwen3-8b.json"]);
    assert_eq!(output.status.code(), Some(2), "--config-only needs --dry-run");
}
