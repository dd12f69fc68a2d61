//! Decode steps of the Qwen2.5-0.5B shape while other processes want the same processors: alone, beside
//! one busy loop, beside two, beside two and a reader of memory. Fails when one busy loop makes the
//! median step more than 2.5 times as long.
//!
//! `cargo bench --bench shared_cores -- [WEIGHTS] [COMPETITORS...]`, with weights in bf16, w8a8 or w4a8,
//! and competitors out of `one`, `two` and `reader`. Everything runs on two processors, however many
//! there are.

use anyhow::{Context, bail};
use artifact::Artifact;
use cli::{EngineArgs, HostDevice, load_engine, parse};
use precast_benches::{
    checkpoint::{Shape, write_random},
    probe::median,
    timing::Ignore,
};
use runtime::{Engine, EngineOptions, Request, StepOutcome};
use std::{
    hint::black_box,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    time::{Duration, Instant},
};

const THREADS: usize = 2;
const PROMPT: usize = 128;
/// Decode steps of a run, and runs of which each competitor has one after the other.
const STEPS: usize = 48;
const RUNS: usize = 3;
const BATCHES: [usize; 2] = [1, 8];
/// The most that one busy loop may lengthen the median step.
const LIMIT: f64 = 2.5;
/// How long competitors run before a measurement.
const SETTLE: Duration = Duration::from_millis(100);
/// Memory that a reader goes through: more than caches hold.
const READ_BYTES: usize = 256 << 20;

/// What else wants the processors.
#[derive(Clone, Copy, PartialEq)]
struct Company {
    name: &'static str,
    busy: usize,
    readers: usize,
}

const COMPANIES: [Company; 4] = [
    Company { name: "alone", busy: 0, readers: 0 },
    Company { name: "one", busy: 1, readers: 0 },
    Company { name: "two", busy: 2, readers: 0 },
    Company { name: "reader", busy: 2, readers: 1 },
];

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.first().map(String::as_str) {
        Some("busy") => be_busy(),
        Some("read") => read_memory(),
        _ => {}
    }
    let weights = args.first().map_or("bf16", String::as_str);
    let chosen: Vec<Company> = COMPANIES
        .into_iter()
        .filter(|c| c.name == "alone" || args.len() < 2 || args[1..].iter().any(|a| a == c.name))
        .collect();
    stay_on(THREADS)?;
    let artifact = artifact(weights)?;
    let options = EngineOptions { prefix_cache: false, ..EngineOptions::default() };
    let engine_args = EngineArgs { threads: Some(THREADS as u32), ..EngineArgs::default() };
    let mut engine = load_engine(&artifact, &engine_args, options, false)?;
    println!("qwen2.5-0.5b, {weights}, {}", engine.device_name());

    let mut worst = 0f64;
    for batch in BATCHES {
        println!("decode, batch {batch}, context about {PROMPT}");
        start_decoding(&mut engine, batch, RUNS * chosen.len() * STEPS)?;
        let mut times = vec![Vec::new(); chosen.len()];
        for _ in 0..RUNS {
            for (company, times) in chosen.iter().zip(&mut times) {
                let _company = company.start()?;
                decode(&mut engine, batch, times)?;
            }
        }
        let alone = median(times[0].clone());
        for (company, times) in chosen.iter().zip(times) {
            let longest = times.iter().copied().fold(0.0, f64::max);
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            let ratio = median(times.clone()) / alone;
            println!(
                "  {:<8} median {:>7.2} ms  {ratio:>6.2} x   mean {:>7.2} ms  {:>6.2} x   longest {:>7.2} ms  {:>6.2} x",
                company.name,
                alone * ratio * 1e3,
                mean * 1e3,
                mean / alone,
                longest * 1e3,
                longest / alone,
            );
            if company.name == "one" {
                worst = worst.max(ratio);
            }
        }
        while engine.step()? != StepOutcome::Idle {}
    }
    println!("beside one busy loop at most {worst:.2} x   limit {LIMIT} x");
    Ok(if worst > LIMIT { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Processes that end with this value.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Company {
    /// Starts the processes, each in a session of its own, as those of other people are.
    fn start(self) -> anyhow::Result<Running> {
        let program = std::env::current_exe().context("where this program lies")?;
        let mut running = Running(Vec::new());
        for (count, what) in [(self.busy, "busy"), (self.readers, "read")] {
            for _ in 0..count {
                let mut child = Command::new(&program);
                child.arg(what);
                in_a_session_of_its_own(&mut child);
                running.0.push(child.spawn()?);
            }
        }
        std::thread::sleep(SETTLE);
        Ok(running)
    }
}

fn be_busy() -> ! {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn read_memory() -> ! {
    let memory = vec![1u64; READ_BYTES / size_of::<u64>()];
    loop {
        black_box(memory.iter().fold(0u64, |sum, v| sum.wrapping_add(*v)));
    }
}

/// Schedulers that share processors among sessions count it as one more then.
#[cfg(unix)]
fn in_a_session_of_its_own(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let begin = || {
        // SAFETY: no memory is involved.
        unsafe { libc::setsid() };
        Ok(())
    };
    // SAFETY: between the fork and the program the process makes one system call.
    unsafe { command.pre_exec(begin) };
}

#[cfg(not(unix))]
fn in_a_session_of_its_own(_: &mut Command) {}

/// Keeps this process, and those that it starts, on the first `count` processors that it may use.
#[cfg(target_os = "linux")]
fn stay_on(count: usize) -> anyhow::Result<()> {
    // SAFETY: `cpu_set_t` is plain data for which zeros are the empty set; the calls are given its
    // size and live pointers, and every processor asked about is within it.
    let refused = unsafe {
        let (mut usable, mut some): (libc::cpu_set_t, libc::cpu_set_t) = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        let refused = libc::sched_getaffinity(0, size, &mut usable) != 0;
        let here = |&c: &usize| libc::CPU_ISSET(c, &usable);
        for processor in (0..libc::CPU_SETSIZE as usize).filter(here).take(count) {
            libc::CPU_SET(processor, &mut some);
        }
        refused || libc::sched_setaffinity(0, size, &some) != 0
    };
    if refused {
        bail!("cannot stay on {count} processors: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_: usize) -> anyhow::Result<()> {
    bail!("this benchmark chooses its processors with a call that only Linux has")
}

/// The compiled shape; the checkpoint is made once and kept below the target directory.
fn artifact(weights: &str) -> anyhow::Result<Artifact> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (model, out) = (root.join("qwen2.5-0.5b"), root.join("shared-cores-artifact"));
    if !model.join("config.json").exists() {
        std::fs::create_dir_all(&model)?;
        write_random(&model, &Shape::qwen2_5_0_5b(), 1)?;
    }
    let words = "--graph-bs 1 8 --max-context 2048 --prefill-chunks 64 512 --kv-blocks 1024";
    match weights {
        "bf16" => compile(&model, &out, words)?,
        quantized => compile(&model, &out, &format!("{words} --quantize {quantized}"))?,
    }
    Ok(Artifact::open(&out)?)
}

fn compile(model: &Path, out: &PathBuf, words: &str) -> anyhow::Result<()> {
    let mut line = vec!["precast".into(), "compile".into(), "--model".into(), model.into()];
    line.extend(["--out".into(), out.into(), "--no-record".into()]);
    line.extend(words.split(' ').map(Into::into));
    let cli::Command::Compile(args) = parse(line)?.command else { bail!("not a compile") };
    cli::compile(&args)?.context("compiled").map(|_| ())
}

/// Feeds the prompts of `batch` sequences, which then decode together for `steps`.
fn start_decoding(
    engine: &mut Engine<HostDevice>,
    batch: usize,
    steps: usize,
) -> anyhow::Result<()> {
    for id in 0..batch as u64 {
        let prompt = (0..PROMPT as u64).map(|i| ((i * 31 + id * 17) % 256) as u32).collect();
        // Some decode between the prompts of the others.
        let request = Request::greedy(id, prompt, steps + 2 * batch + 2, Box::new(Ignore));
        engine.add(Request { ignore_eos: true, ..request })?;
    }
    while engine.step()? != (StepOutcome::Decode { rows: batch as u32 }) {}
    Ok(())
}

/// Adds the seconds of [`STEPS`] decode steps over `batch` sequences.
fn decode(
    engine: &mut Engine<HostDevice>,
    batch: usize,
    times: &mut Vec<f64>,
) -> anyhow::Result<()> {
    for _ in 0..STEPS {
        let start = Instant::now();
        let outcome = engine.step()?;
        times.push(start.elapsed().as_secs_f64());
        anyhow::ensure!(outcome == StepOutcome::Decode { rows: batch as u32 }, "{outcome:?}");
    }
    Ok(())
}
