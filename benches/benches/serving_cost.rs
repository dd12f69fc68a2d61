//! What serving costs beside the model: processor time of everything in the server but the engine's
//! device, under 100 requests a second of 32 tokens in and 32 out on the demonstration model. Prompts
//! are text, so that tokenising them counts. Exits with 1 when it is more than 25 % of a core.
//!
//! `cargo bench -p precast-benches --bench serving_cost`

use anyhow::{Context, bail, ensure};
use precast_benches::probe::median;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_precast-under-bench");
const REQUESTS_PER_SECOND: u32 = 100;
const TOKENS: usize = 32;
const WINDOW: Duration = Duration::from_secs(10);
const RUNS: usize = 3;
/// Share of a core.
const LIMIT: f64 = 0.25;
/// What prompts are cut from.
const TEXT: &str = "A bucket is a batch size that a graph was made for. The engine takes the \
    smallest one that holds the requests of a step and fills the other rows with padding, whose \
    results nobody reads. Which sizes there are is decided when the model is compiled, and a \
    larger batch is cut into several replays, each of which reads all weights once more. ";
/// Different prompts.
const PROMPTS: usize = 8;

fn main() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("benches have a parent")?;
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serving-cost");
    let status = Command::new(PROGRAM)
        .args(["compile", "--no-record", "--graph-bs", "1", "2", "4", "8", "16", "24"])
        .arg("--model")
        .arg(root.join("demo"))
        .arg("--out")
        .arg(&out)
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "compiling failed");
    let mut worst: f64 = 0.0;
    for (name, stream) in [("streamed", true), ("whole", false)] {
        let (mut http, mut engine) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let server = Server::start(&out)?;
            let prompts = server.prompts()?;
            server.load(&prompts, stream, Duration::from_secs(1))?;
            let before = server.cost()?;
            let begin = Instant::now();
            server.load(&prompts, stream, WINDOW)?;
            let seconds = begin.elapsed().as_secs_f64();
            let after = server.cost()?;
            http.push((after.http - before.http) / seconds);
            engine.push((after.engine - before.engine) / seconds);
        }
        let (http, engine) = (median(http), median(engine));
        let total = http + engine;
        println!(
            "{name:9} {REQUESTS_PER_SECOND} requests/s of {TOKENS} + {TOKENS} tokens: HTTP and text \
             {http:.3}, engine beside the device {engine:.3} of a core    limit {LIMIT}    ratio {:.2}",
            total / LIMIT
        );
        worst = worst.max(total);
    }
    if worst > LIMIT {
        eprintln!("serving costs {worst:.3} of a core beside the model, more than {LIMIT}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Seconds of processor time.
struct Cost {
    /// Threads that serve connections, tokenise and write text.
    http: f64,
    /// The engine's thread outside of replays.
    engine: f64,
}

struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start(artifact: &Path) -> anyhow::Result<Self> {
        // A port that is free now; the server takes it in a moment.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new(PROGRAM)
            .arg("serve")
            .arg(artifact)
            .args(["--port", &port.to_string(), "--threads", "1", "--disable-radix-cache"])
            .stderr(Stdio::null())
            .spawn()?;
        let server = Self { process, port };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(30), "the server did not come up");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Texts of exactly [`TOKENS`] tokens.
    fn prompts(&self) -> anyhow::Result<Arc<[String]>> {
        let prompt = |number: usize| {
            let from = TEXT.char_indices().filter(|(_, c)| *c == ' ').nth(number * 3);
            let text = &TEXT[from.context("the text has enough words")?.0 + 1..];
            let cuts: Vec<&str> = text.char_indices().skip(1).map(|(at, _)| &text[..at]).collect();
            let asked = serde_json::json!({ "prompt": cuts });
            let answer: Value = self.post("/tokenize", &asked)?;
            let counts = answer["count"].as_array().context("a count for each text")?;
            let at = counts.iter().position(|count| count == TOKENS);
            Ok(cuts[at.context("no beginning of the text has so many tokens")?].to_owned())
        };
        (0..PROMPTS).map(prompt).collect()
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = post(self.port, path, body)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("a body")?;
        Ok(serde_json::from_str(body)?)
    }

    /// Sends requests at a steady rate, whether or not earlier ones are answered, and reads all
    /// answers to their end.
    fn load(&self, prompts: &Arc<[String]>, stream: bool, time: Duration) -> anyhow::Result<()> {
        let count = (time.as_secs_f64() * f64::from(REQUESTS_PER_SECOND)) as u32;
        let begin = Instant::now();
        let mut clients = Vec::new();
        for number in 0..count {
            let due = Duration::from_secs(1) * number / REQUESTS_PER_SECOND;
            thread::sleep(due.saturating_sub(begin.elapsed()));
            let (port, prompts) = (self.port, Arc::clone(prompts));
            clients.push(thread::spawn(move || {
                ask(port, &prompts[number as usize % prompts.len()], stream)
            }));
        }
        for client in clients {
            client.join().ok().context("a client panicked")??;
        }
        Ok(())
    }

    fn cost(&self) -> anyhow::Result<Cost> {
        let mut threads: BTreeMap<String, f64> = BTreeMap::new();
        // SAFETY: asks for a number.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            let (name, rest) = stat
                .split_once('(')
                .and_then(|(_, rest)| rest.rsplit_once(')'))
                .context("a name in brackets")?;
            // User and system time are the 14th and 15th field; the name was the second.
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let time: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
            *threads.entry(name.to_owned()).or_default() += time / ticks;
        }
        let metrics = get(self.port, "/metrics")?;
        let engine = metrics
            .lines()
            .filter(|line| line.starts_with("precast:engine_overhead_seconds_total"))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum();
        let http = threads.iter().filter(|(name, _)| !is_model(name)).map(|(_, time)| time).sum();
        Ok(Cost { http, engine })
    }
}

/// Whether a thread belongs to the engine or the device.
fn is_model(thread: &str) -> bool {
    thread.starts_with("precast-engine") || thread.starts_with("cpu-worker")
}

fn ask(port: u16, prompt: &str, stream: bool) -> anyhow::Result<()> {
    let mut body = serde_json::json!({
        "model": "demo", "prompt": prompt, "stream": stream, "temperature": 0,
        "max_tokens": TOKENS, "ignore_eos": true,
    });
    if stream {
        body["stream_options"] = serde_json::json!({ "include_usage": true });
    }
    let answer = post(port, "/v1/completions", &body)?;
    for (what, field) in [("in", "prompt_tokens"), ("out", "completion_tokens")] {
        let counted = format!("\"{field}\":{TOKENS},");
        ensure!(answer.contains(&counted), "not {TOKENS} tokens {what}: {answer}");
    }
    Ok(())
}

fn post(port: u16, path: &str, body: &Value) -> anyhow::Result<String> {
    let body = body.to_string();
    let answer = exchange(
        port,
        &format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ),
    )?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{path} answered {answer}");
    Ok(answer)
}

fn get(port: u16, path: &str) -> anyhow::Result<String> {
    let answer = exchange(
        port,
        &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
    )?;
    if !answer.starts_with("HTTP/1.1 200") {
        bail!("{path} answered {answer}");
    }
    Ok(answer)
}

fn exchange(port: u16, request: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
