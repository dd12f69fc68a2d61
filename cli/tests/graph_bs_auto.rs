//! `--graph-bs auto` from the command line to `inspect`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Output},
};

fn precast(flags: &[&str]) -> Output {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    Command::new(env!("CARGO_BIN_EXE_precast")).args(flags).current_dir(root).output().unwrap()
}

fn dry_run(flags: &[&str]) -> Output {
    let model = "tests/configs/qwen2.5-0.5b.json";
    let all = ["compile", "--dry-run", "--config-only", "--model", model, "--graph-bs", "auto"];
    precast(&[&all[..], flags].concat())
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The sizes of a dry run.
fn chosen(flags: &[&str]) -> Vec<u32> {
    let text = text(&dry_run(flags));
    let line = text.lines().find_map(|l| l.trim().strip_prefix("chosen ")).unwrap();
    let sizes: Vec<u32> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let plans = text.matches("decode-bs").count();
    assert_eq!(plans % sizes.len(), 0, "a plan for each size and tier: {text}");
    assert!(sizes.iter().all(|n| text.contains(&format!("decode-bs{n}-"))), "{text}");
    sizes
}

#[test]
fn the_list_ends_at_the_ceiling_and_keeps_the_limits() {
    let flags = ["--max-running-requests", "26", "--graph-bs-limit", "5"];
    let sizes = chosen(&flags);
    assert!(sizes.len() == 5 && sizes.last() == Some(&26), "{sizes:?}");
    let sizes = chosen(&[&flags[..], &["--graph-bs-multiple-of", "4"]].concat());
    assert!(sizes[..4].iter().all(|n| n % 4 == 0) && sizes[4] == 26, "{sizes:?}");
    // A plan takes more than 50 kB, so that a megabyte holds some but not twenty.
    let many = ["--max-running-requests", "26", "--graph-bs-limit", "20"];
    let few = chosen(&[&many[..], &["--graph-bs-memory", "1M"]].concat());
    assert!(few.len() > 1 && few.len() < 20, "{few:?}");
    assert_eq!(chosen(&[&flags[..], &["--target", "ascend910b"]].concat()).len(), 5);
}

#[test]
fn a_histogram_and_times_from_a_server_decide() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let body = "precast:decode_batch_size_total{size=\"3\"} 500\n\
                precast:decode_batch_size_total{size=\"19\"} 700\n";
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let read = stream.read(&mut request).unwrap();
        assert!(request[..read].starts_with(b"GET /metrics "));
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let flags = ["--max-running-requests", "32", "--graph-bs-limit", "3"];
    assert_eq!(chosen(&[&flags[..], &["--graph-bs-histogram", &url]].concat()), [3, 19, 32]);
    server.join().unwrap();

    // A device on which 16 rows take no longer than one, and more take far longer.
    let times = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(times.path(), r#"{"1": 0.01, "16": 0.01, "17": 0.1, "32": 0.1}"#).unwrap();
    let times = ["--graph-bs-times", times.path().to_str().unwrap()];
    assert_eq!(chosen(&[&flags[..], &times].concat()), [16, 32]);
}

#[test]
fn what_cannot_be_chosen_names_the_remedy() {
    for (flags, remedy) in [
        (&[][..], "--max-running-requests; give that too"),
        (&["--graph-bs", "auto", "8", "--max-running-requests", "8"], "leave the numbers out"),
        (&["--graph-bs", "8", "--graph-bs-times", "x.json"], "--graph-bs-times is for"),
        (&["--max-running-requests", "8", "--graph-bs-histogram", "no/file"], "no/file"),
        (&["--max-running-requests", "8", "--graph-bs-histogram", "README.md"], "no counts"),
    ] {
        let output = dry_run(flags);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(remedy), "{flags:?}: {error}");
    }
}

#[test]
fn inspect_explains_the_choice() {
    let dir = tempfile::TempDir::new().unwrap();
    let out = dir.path().join("demo");
    let out = out.to_str().unwrap();
    let flags = ["--max-running-requests", "12", "--graph-bs-limit", "3", "--no-record"];
    let all = ["compile", "--model", "demo", "--out", out, "--graph-bs", "auto"];
    text(&precast(&[&all[..], &flags].concat()));
    let shown = text(&precast(&["inspect", out]));
    for part in
        ["requests at once  each of 1 to 12 as often", "one fewer ", "one more ", "at most 3"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(Path::new(out).join("manifest.json")).unwrap())
            .unwrap();
    let config = &manifest["config"];
    assert_eq!(config["graph_bs"], config["graph_bs_auto"]["sizes"]);
    assert_eq!(config["graph_bs_auto"]["ceiling"], 12);
}
