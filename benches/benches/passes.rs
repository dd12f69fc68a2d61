//! What compiling costs before a weight is read: the DeepSeek-R1 configuration (61 layers, 256
//! experts) for nine decode batch sizes, four chunk lengths and two context tiers; or another
//! configuration: `cargo bench -p precast-benches --bench passes [-- FILE]`.

use codegen_cpu::target::{CpuTarget, KV_BLOCK_TOKENS};
use compiler::Target;
use ir::DType;
use models::{BuildOptions, Checkpoint, Precision};
use precast_benches::{
    probe::median,
    released::{model, options, peak_bytes},
};
use std::{path::PathBuf, time::Instant};

const RUNS: usize = 5;
const SIZES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const LIMIT_S: f64 = 5.0;
const LIMIT_BYTES: f64 = (1u64 << 30) as f64;

fn main() -> anyhow::Result<()> {
    // Cargo passes `--bench`.
    let file = std::env::args().skip(1).find(|a| !a.starts_with('-')).map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/configs/deepseek-v3.json")),
        PathBuf::from,
    );
    let mut totals = Vec::new();
    for run in 1..=RUNS {
        let checkpoint = Checkpoint::config_only(&file)?;
        totals.push(all(&checkpoint, run == RUNS)?);
    }
    let (seconds, bytes) = (median(totals), peak_bytes()? as f64);
    println!(
        "\nall, median of {RUNS}  {seconds:.2} s   limit {LIMIT_S} s   ratio {:.2}",
        seconds / LIMIT_S
    );
    println!(
        "peak memory         {:.0} MB  limit {:.0} MB  ratio {:.2}",
        bytes / 1e6,
        LIMIT_BYTES / 1e6,
        bytes / LIMIT_BYTES
    );
    Ok(())
}

/// Seconds from the configuration to the plans; with `show` those of the parts too.
fn all(checkpoint: &Checkpoint, show: bool) -> anyhow::Result<f64> {
    let build = BuildOptions {
        precision: Precision { weights: DType::BF16, activations: DType::F32 },
        kv_dtype: DType::BF16,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations: false,
        head_top_k: 64,
    };
    let begin = Instant::now();
    let module = models::build(checkpoint, &build);
    let built = begin.elapsed().as_secs_f64();
    let nodes: usize = module.funcs.iter().map(|f| f.order.len()).sum();
    let prepared = compiler::prepare(module, &model(checkpoint)?, &CpuTarget, &options(&SIZES))?;
    let seconds = begin.elapsed().as_secs_f64();
    if show {
        let passes: f64 = prepared.report.passes.iter().map(|p| p.took.as_secs_f64()).sum();
        let plans = prepared.plans.len();
        println!("{}", checkpoint.info().name);
        println!("{:<20}{built:>6.2} s   {nodes} nodes", "build");
        println!("{:<20}{passes:>6.2} s   target {}", "passes", CpuTarget.info().name);
        println!("{:<20}{:>6.2} s   {plans} plans, twice", "plans", seconds - built - passes);
        println!("\n{}", prepared.report);
    }
    Ok(seconds)
}
