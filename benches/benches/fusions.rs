//! What each fusion is worth: layers of four shapes, decode steps of 1, 8 and 24 rows and a prefill
//! of 512, with every fusion and without one of them (or without any chain), replay by replay in turn in one process. Two
//! ratios, of the medians and of the fastest tenth, which other work on the machine disturbs less; one
//! above 1 is time saved. Arguments: a number of threads, and words that names of shapes or passes
//! contain.

use anyhow::{Context, Result};
use artifact::{Artifact, Model, Phase, Plan, Port};
use codegen_cpu::{
    CpuDevice, CpuOptions,
    target::{CpuTarget, KV_BLOCK_TOKENS},
};
use compiler::{Checkpoint, KvBudget, Options, prepare};
use hal::{Device, MemoryRequest, capture};
use half::bf16;
use models::{BuildOptions, Precision};
use precast_benches::{config, probe::median};
use serde_json::Value;
use std::{fs, path::Path, sync::Arc, time::Instant};
use tensor::{DType, TensorInfo, WeightError, WeightSource};

const DECODE: [u32; 3] = [1, 8, 24];
const PREFILL: u32 = 512;
const CONTEXT: u32 = 1024;
/// Where the rows of a decode step stand.
const POSITION: u32 = 200;
/// Replays of each variant of a plan: as many as take so long, within bounds.
const SECONDS: f64 = 2.0;
const REPLAYS: (usize, usize) = (21, 401);

/// Layers with small vocabularies, so that little else is measured.
fn shapes() -> Vec<(&'static str, u32, Value)> {
    vec![
        ("qwen3", 2, config::qwen3_0_6b_layers(2)),
        ("qwen3_moe", 2, config::qwen3_moe_layers(2)),
        ("deepseek_v3", 2, config::deepseek_v3_layers(2)),
        ("qwen3_next", 4, config::qwen3_next_layers(4)),
    ]
}

/// Weights that are finite and differ.
struct Random;

impl WeightSource for Random {
    fn info(&self, _: &str) -> Option<&TensorInfo> {
        None
    }
    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let mut state = (name.len() as u64 ^ start).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for pair in out.chunks_exact_mut(2) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            pair.copy_from_slice(&bf16::from_f32(value / 16.0).to_le_bytes());
        }
        Ok(())
    }
}

type Graph = <CpuDevice as Device>::Graph;

/// A shape compiled in one way, with its plans captured.
struct Variant {
    /// The passes that are left out.
    without: Vec<&'static str>,
    device: CpuDevice,
    graphs: Vec<(Plan, Graph)>,
}

impl Variant {
    /// `None` when leaving out the pass changes nothing.
    fn new(
        root: &Path,
        config: &Value,
        without: &[&'static str],
        base: &[(Plan, Graph)],
        threads: Option<usize>,
    ) -> Result<Option<Self>> {
        let (plans, artifact) = compile(root, config, without)?;
        let same = |(a, b): (&(Plan, Graph), &Plan)| a.0.steps == b.steps && a.0.chains == b.chains;
        if !without.is_empty() && base.iter().zip(&plans).all(same) {
            return Ok(None);
        }
        let memory = &artifact.manifest().memory;
        let mut device = CpuDevice::new(CpuOptions { threads, ..CpuOptions::default() })?;
        device.load(MemoryRequest {
            root: Default::default(),
            weights: Arc::new(artifact.map_weights()?),
            arena_bytes: memory.arena_bytes,
            state_bytes: memory.state_bytes,
        })?;
        let mut graphs = Vec::new();
        for plan in plans {
            let graph = capture(&mut device, &plan)?;
            graphs.push((plan, graph));
        }
        Ok(Some(Self { without: without.to_vec(), device, graphs }))
    }

    /// Writes the inputs of plan `i`, which each variant has in places of its own.
    fn prepare(&mut self, i: usize) {
        let plan = &self.graphs[i].0;
        for port in &plan.inputs {
            let values = input(plan, port);
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.device.write(port.at, &bytes);
        }
    }

    /// Seconds of a replay of plan `i`. Its inputs may share memory with what it computes.
    fn time(&mut self, i: usize) -> Result<f64> {
        self.prepare(i);
        let start = Instant::now();
        self.device.replay(&self.graphs[i].1)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Rows of different sequences in a decode step, of one sequence in a prefill.
fn input(plan: &Plan, port: &Port) -> Vec<i32> {
    let decode = plan.phase == Phase::Decode;
    let blocks = (CONTEXT / KV_BLOCK_TOKENS) as i32;
    let position = |row: i32| if decode { POSITION as i32 } else { row };
    let sequence = |row: i32| if decode { row } else { 0 };
    let each = port.dims.get(1).copied().unwrap_or(1) as i32;
    let element = |i: i32| match port.name.as_str() {
        "positions" => position(i),
        "slots" => sequence(i) * CONTEXT as i32 + position(i),
        "block_table" => i / each * blocks + i % each,
        "sequences" => sequence(i),
        _ => i,
    };
    (0..port.dims.iter().product::<u64>() as i32).map(element).collect()
}

/// The plans that are measured, and the artifact they are in.
fn compile(root: &Path, config: &Value, without: &[&str]) -> Result<(Vec<Plan>, Artifact)> {
    let dir = root.join("fusions-config");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("config.json"), config.to_string())?;
    let checkpoint = models::Checkpoint::config_only(&dir)?;
    let build = BuildOptions {
        precision: Precision { weights: DType::BF16, activations: DType::F32 },
        kv_dtype: DType::BF16,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations: false,
    };
    let model = Model {
        name: "fusions".into(),
        model_type: checkpoint.config().model_type.to_string(),
        architecture: String::new(),
        vocab_size: 512,
        max_context: CONTEXT,
        eos_token_ids: vec![0],
        dtype: DType::BF16,
        parameters: 0,
        sliding_window: None,
    };
    let options = Options {
        graph_bs: DECODE.to_vec(),
        prefill_chunks: vec![PREFILL],
        kv: KvBudget::Blocks(DECODE[2] * CONTEXT / KV_BLOCK_TOKENS),
        disabled_passes: without.iter().map(|&pass| pass.to_owned()).collect(),
        max_running_requests: None,
        context_tiers: Vec::new(),
        max_context: None,
        memory_limit: None,
        quantize: None,
        catalog: passes::Catalog::builtin(),
        extensions: Default::default(),
        rewrite_limit: usize::MAX,
        dump_ir: false,
        config: Default::default(),
    };
    let module = models::build(&checkpoint, &build);
    let prepared = prepare(module, &model, &CpuTarget, &options)?;
    let out = root.join("fusions-artifact");
    let source = Checkpoint {
        model,
        config_json: Vec::new(),
        tensors: Vec::new(),
        weights: &Random,
        files: Vec::new(),
    };
    prepared.write(&source, &out, &mut |_| {}, None)?;
    let artifact = Artifact::open(&out)?;
    let mut plans = artifact.plans()?;
    plans.retain(|p| p.phase != Phase::Head);
    Ok((plans, artifact))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let chosen = |name: &str, among: &[&str]| {
        let of_kind: Vec<&String> =
            words.iter().filter(|w| among.iter().any(|n| n.contains(w.as_str()))).collect();
        of_kind.is_empty() || of_kind.iter().any(|w| name.contains(w.as_str()))
    };
    let threads = words.iter().find_map(|w| w.parse().ok());
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let shapes = shapes();
    let shape_names: Vec<&str> = shapes.iter().map(|s| s.0).collect();
    let fusions: Vec<&'static str> =
        passes::names().into_iter().filter(|n| n.starts_with("fuse-")).collect();
    for (name, layers, config) in &shapes {
        if !chosen(name, &shape_names) {
            continue;
        }
        let all = Variant::new(root, config, &[], &[], threads)?.context("every fusion")?;
        println!("{name}, {layers} layers, {}", all.device.name());
        let mut variants = vec![all];
        let each = fusions.iter().filter(|p| chosen(p, &fusions)).map(|p| vec![*p]);
        // What one of them leaves the other takes.
        let chains = ["fuse-qk-rope-write", "fuse-rows"];
        let all = chosen(chains[1], &fusions).then(|| chains.to_vec());
        for without in each.chain(all) {
            let base = &variants[0].graphs;
            match Variant::new(root, config, &without, base, threads) {
                Ok(found) => variants.extend(found),
                Err(e) => println!("  {} cannot be left out: {e}", without.join(", ")),
            }
        }
        for i in 0..variants[0].graphs.len() {
            measure(&mut variants, i)?;
        }
    }
    Ok(())
}

/// Prints the times of plan `i` of each variant.
fn measure(variants: &mut [Variant], i: usize) -> Result<()> {
    variants[0].time(i)?;
    let once = variants[0].time(i)?;
    let count = ((SECONDS / once) as usize).clamp(REPLAYS.0, REPLAYS.1);
    let mut times = vec![Vec::with_capacity(count); variants.len()];
    for _ in 0..count {
        for (variant, times) in variants.iter_mut().zip(&mut times) {
            times.push(variant.time(i)?);
        }
    }
    let found: Vec<[f64; 2]> =
        times.into_iter().map(|times| [fastest_tenth(times.clone()), median(times)]).collect();
    let name = &variants[0].graphs[i].0.name;
    for (variant, [fast, middle]) in variants.iter().zip(&found) {
        let what = match &variant.without[..] {
            [] => name.clone(),
            passes => format!("  without {}", passes.join(", ")),
        };
        let launches = variant.graphs[i].1.len();
        let [all_fast, all_middle] = found[0];
        println!(
            "  {what:<40} {:9.1} us {launches:4} launches  {:.3} {:.3}",
            middle * 1e6,
            middle / all_middle,
            fast / all_fast
        );
    }
    Ok(())
}

/// The time that a tenth of `times` are below.
fn fastest_tenth(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}
