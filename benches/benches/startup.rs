//! From starting `precast serve` to the first token of a request that is already waiting, for the
//! Qwen2.5-0.5B shape in bf16 with its files cached; and how long binding a plan takes.

use anyhow::{Context, bail};
use precast_benches::{
    checkpoint::{Shape, write_random},
    probe::median,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_precast-under-bench");
const RUNS: usize = 7;
const LIMIT_S: f64 = 0.5;
const BIND_LIMIT_MS: f64 = 20.0;

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (model, out) = (root.join("qwen2.5-0.5b"), root.join("qwen2.5-0.5b-startup"));
    if !model.join("config.json").exists() {
        std::fs::create_dir_all(&model)?;
        write_random(&model, &Shape::qwen2_5_0_5b(), 1)?;
    }
    let status = Command::new(PROGRAM)
        .args(["compile", "--no-record", "--max-context", "4096", "--graph-bs", "1", "8", "16"])
        .arg("--model")
        .arg(&model)
        .arg("--out")
        .arg(&out)
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("compiling failed");
    }
    let (mut firsts, mut binds) = (Vec::new(), Vec::new());
    for _ in 0..=RUNS {
        let (first, bind) = start(&out)?;
        firsts.push(first);
        binds.push(bind);
    }
    // The first run reads files that the system may not hold yet.
    let (first, bind) = (median(firsts.split_off(1)), median(binds.split_off(1)));
    println!(
        "start to first token  {first:.3} s    limit {LIMIT_S} s    ratio {:.2}",
        first / LIMIT_S
    );
    println!(
        "slowest plan to bind  {bind:.2} ms   limit {BIND_LIMIT_MS} ms   ratio {:.2}",
        bind / BIND_LIMIT_MS
    );
    Ok(())
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds to the first token, and milliseconds of the slowest plan to bind.
fn start(artifact: &PathBuf) -> anyhow::Result<(f64, f64)> {
    // A port that is free now; the server takes it in a moment.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let begin = Instant::now();
    let mut server = Running(
        Command::new(PROGRAM)
            .arg("serve")
            .arg(artifact)
            .args(["--port", &port.to_string()])
            .stderr(Stdio::piped())
            .spawn()?,
    );
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) if begin.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e).context("the server did not come up"),
        }
    };
    let body = r#"{"input_ids":[1,2,3,4,5,6,7,8],"stream":true,"sampling_params":{"temperature":0,"max_new_tokens":2,"ignore_eos":true}}"#;
    write!(
        stream,
        "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut line = String::new();
    let mut answer = BufReader::new(stream);
    while !line.starts_with("data: ") {
        line.clear();
        if answer.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
    }
    let first = begin.elapsed().as_secs_f64();
    answer.read_to_string(&mut line)?;

    let _ = server.0.kill();
    let mut log = String::new();
    server.0.stderr.take().context("stderr is piped")?.read_to_string(&mut log)?;
    let bind = log
        .split_once("slowest ")
        .and_then(|(_, rest)| rest.split_once(" ms"))
        .and_then(|(ms, _)| ms.parse().ok())
        .with_context(|| format!("no bind time in the log: {log}"))?;
    Ok((first, bind))
}
