//! What an Ascend target costs on the host, on the software device: compiling the DeepSeek-R1
//! configuration (61 layers, 256 experts) for nine batch sizes, loading and recording its plans
//! without weights, and replaying a step: `cargo bench -p precast-benches --bench ascend [-- FILE]`.
//!
//! The software device runs nothing here (`ASCEND_SIM_EXECUTE=0`): what is timed is what the host does.
//! A step is timed by the processor time of its thread, since the threads of the software device, which
//! are hardware elsewhere, run on the same processors; the time on the clock is printed beside it.

use anyhow::Context;
use artifact::{BufferRef, Phase, Plan};
use codegen_ascend::{
    chip::chip,
    device::{AscendDevice, AscendOptions},
    target::{AscendTarget, KV_BLOCK_TOKENS},
};
use compiler::{KvBudget, Options, Prepared};
use hal::{Device, MemoryRequest};
use ir::DType;
use models::{BuildOptions, Checkpoint, Precision};
use precast_benches::{
    probe::median,
    released::{model, options, peak_bytes},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};
use tensor::MappedFile;

const SIZES: [u32; 9] = [1, 2, 4, 8, 12, 16, 20, 24, 26];
const RUNS: usize = 5;
const STEPS: usize = 2000;

fn main() -> anyhow::Result<()> {
    // Cargo passes `--bench`.
    let file = std::env::args().skip(1).find(|a| !a.starts_with('-')).map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/configs/deepseek-v3.json")),
        PathBuf::from,
    );
    let checkpoint = Checkpoint::config_only(&file)?;
    let start = Instant::now();
    let prepared = prepare(&checkpoint)?;
    let limit = |what: &str, value: f64, limit: f64, unit: &str| {
        println!(
            "{what:<34}{value:>9.2} {unit}   limit {limit} {unit}   ratio {:.2}",
            value / limit
        );
    };
    limit("compile, without weights", start.elapsed().as_secs_f64(), 60.0, "s");
    limit("peak memory of compiling", peak_bytes()? as f64 / 1e9, 2.147, "GB");

    let root = std::env::temp_dir().join(format!("precast-bench-ascend-{}", std::process::id()));
    let measured = device(&prepared, &root);
    std::fs::remove_dir_all(&root)?;
    let Times { load, record, step, clock } = measured?;
    let decode = prepared.emitted().filter(|p| p.phase == Phase::Decode);
    let steps: usize = decode.map(|p| p.steps.len()).sum();
    println!("{:<34}{steps:>9} in {} plans", "operators and kernels", SIZES.len());
    println!("{:<34}{:>9.2} s", "load, kernels built before", load);
    limit("load and record nine plans", load + record, 1.5, "s");
    limit("host time of a replayed step", step * 1e6, 30.0, "us");
    println!("{:<34}{:>9.2} us", "on the clock, shared processors", clock * 1e6);
    Ok(())
}

fn prepare(checkpoint: &Checkpoint) -> anyhow::Result<Prepared> {
    let build = BuildOptions {
        precision: Precision { weights: DType::BF16, activations: DType::BF16 },
        kv_dtype: DType::BF16,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations: false,
        head_top_k: 0,
    };
    let target = AscendTarget::new(chip("ascend910_93").context("a known chip")?);
    let module = models::build(checkpoint, &build);
    // Little KV memory, which would be made zero.
    let options = Options { kv: KvBudget::Blocks(64), ..options(&SIZES) };
    Ok(compiler::prepare(module, &model(checkpoint)?, &target, &options)?)
}

/// The software device does nothing but take work, and has room for the weights of the whole model.
fn set_up_simulator() {
    let settings = [("ASCEND_SIM_EXECUTE", "0"), ("ASCEND_SIM_MEMORY_BYTES", "4000000000000")];
    for (name, value) in settings {
        // SAFETY: no other thread of this process reads or writes the environment yet.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Medians in seconds.
struct Times {
    load: f64,
    /// Of every decode plan.
    record: f64,
    /// Processor time of the host in a step.
    step: f64,
    /// The same on the clock.
    clock: f64,
}

fn device(prepared: &Prepared, root: &Path) -> anyhow::Result<Times> {
    for file in prepared.kernel_files() {
        let path = root.join(&file.path);
        std::fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        std::fs::write(path, &file.text)?;
    }
    // A file with a hole in place of the weights takes no room.
    let weights = root.join("weights.bin");
    std::fs::File::create(&weights)?.set_len(prepared.memory.weights_bytes)?;
    let library = std::env::current_exe()?.with_file_name("libascend_sim.so");
    set_up_simulator();
    let plans: Vec<&Plan> = prepared.emitted().filter(|p| p.phase == Phase::Decode).collect();
    let (mut loads, mut records) = (Vec::new(), Vec::new());
    let (mut steps, mut clocks) = (Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let begin = Instant::now();
        let options = AscendOptions {
            library: Some(library.clone()),
            copy_weights: false,
            warm_up: false,
            ..AscendOptions::default()
        };
        let mut device = AscendDevice::open(options)?;
        device.load(MemoryRequest {
            root: root.to_owned(),
            weights: Arc::new(MappedFile::open(&weights)?),
            arena_bytes: prepared.memory.arena_bytes,
            state_bytes: prepared.memory.state_bytes,
        })?;
        let load = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let graphs = plans
            .iter()
            .map(|plan| hal::capture(&mut device, plan))
            .collect::<Result<Vec<_>, _>>()?;
        let record = begin.elapsed().as_secs_f64();
        // The first run builds the kernels.
        if run > 0 {
            loads.push(load);
            records.push(record);
            let (plan, graph) = (plans[plans.len() - 1], &graphs[graphs.len() - 1]);
            let (step, clock) = step(&mut device, plan, graph)?;
            steps.push(step);
            clocks.push(clock);
        }
    }
    Ok(Times {
        load: median(loads),
        record: median(records),
        step: median(steps),
        clock: median(clocks),
    })
}

/// Median seconds of the host in one step, inputs written and the replay started: of its processor, and
/// on the clock.
fn step(
    device: &mut AscendDevice,
    plan: &Plan,
    graph: &<AscendDevice as Device>::Graph,
) -> anyhow::Result<(f64, f64)> {
    let argmax = plan.output("argmax").context("a decode plan chooses tokens")?.at;
    let mut tokens = vec![0u8; argmax.bytes as usize];
    let inputs: Vec<(BufferRef, Vec<u8>)> =
        plan.inputs.iter().map(|p| (p.at, vec![0u8; p.at.bytes as usize])).collect();
    let (mut took, mut clocks) = (Vec::with_capacity(STEPS), Vec::with_capacity(STEPS));
    for _ in 0..STEPS {
        let (begin, before) = (Instant::now(), thread_seconds());
        for (at, bytes) in &inputs {
            device.write(*at, bytes);
        }
        device.replay(graph)?;
        took.push(thread_seconds() - before);
        clocks.push(begin.elapsed().as_secs_f64());
        device.read(argmax, &mut tokens)?;
    }
    Ok((median(took), median(clocks)))
}

/// Processor time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0, "the system has a clock for threads");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
