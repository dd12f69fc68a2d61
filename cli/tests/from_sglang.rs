//! `from-sglang` as a command: where it reads from, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

fn from_sglang(args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_precast"));
    command.arg("from-sglang").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Where it reads a file or the command line, the pipe may be closed by now.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_line_a_script_and_standard_input_say_the_same() {
    let words = "ENABLE_MOE_NZ=1 python -m sglang.launch_server --model-path /m/demo --tp 1 --tp 2 --port 9000";
    let line: Vec<&str> = ["--"].into_iter().chain(words.split(' ')).collect();
    let shown = text(&from_sglang(&line, ""));
    let expected = [
        "precast compile --model /m/demo --out artifacts/demo",
        "precast serve artifacts/demo --port 9000",
        "#   ENABLE_MOE_NZ=1: no version of SGLang",
        "#   --tp 1: given again later",
        "#   --tp 2: one device serves a model",
    ];
    for part in expected {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let script =
        format!("# start\nexport ENABLE_MOE_NZ=1\n{}", words.replace(" --tp 1", " \\\n  --tp 1"));
    let script = script.replace("ENABLE_MOE_NZ=1 python", "python");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &script).unwrap();
    assert_eq!(text(&from_sglang(&["--file", file.path().to_str().unwrap()], "")), shown);
    assert_eq!(text(&from_sglang(&["--file", "-"], &script)), shown);
    assert_eq!(text(&from_sglang(&[], &script)), shown);

    let json: serde_json::Value =
        serde_json::from_str(&text(&from_sglang(&["--json"], &script))).unwrap();
    assert_eq!(json["launches"][0]["commands"][1]["argv"][1], "serve");
}

#[test]
fn no_launch_line_is_status_2() {
    for script in
        ["", "echo hi", "python -m vllm.entrypoints.openai.api_server --model m", "\u{0}'"]
    {
        let output = from_sglang(&["--file", "-"], script);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{script}: {error}");
        assert!(error.contains("standard input: no launch line of SGLang"), "{error}");
    }
    assert_eq!(from_sglang(&["--file", "/no/such/file"], "").status.code(), Some(1));
    let odd = from_sglang(&["--", "sglang", "serve", "--no-such-flag", "x"], "");
    assert!(text(&odd).contains("--no-such-flag x: no flag of SGLang's"));
}
