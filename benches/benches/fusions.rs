//! What each fusion is worth: layers of nine shapes, decode steps of 1, 8 and 24 rows and a prefill
//! of 512, with every fusion and without one of them (or without any chain), replay by replay in turn
//! in one process. Two ratios, of the medians and of the fastest tenth, which other work on the machine
//! disturbs less; one above 1 is time saved. At the end a table of the second. Arguments: a number of
//! threads, and words that names of shapes or passes contain.

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
use passes::Quantize;
use precast_benches::{config, probe::median};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Instant};
use tensor::{DType, TensorInfo, WeightError, WeightSource};

const DECODE: [u32; 3] = [1, 8, 24];
const PREFILL: u32 = 512;
const CONTEXT: u32 = 1024;
/// Where the rows of a decode step stand.
const POSITION: u32 = 200;
/// Replays of each variant of a plan: as many as take so long, within bounds.
const SECONDS: f64 = 1.0;
const REPLAYS: (usize, usize) = (21, 401);

/// Layers to measure.
struct Shape {
    name: &'static str,
    layers: u32,
    config: Value,
    /// Products of floats in so many bits, with inputs in 8.
    quantize: Option<Quantize>,
    /// Whether inputs of FP8 projections are quantised too.
    fp8_inputs: bool,
}

/// Layers with small vocabularies, so that little else is measured.
fn shapes() -> Vec<Shape> {
    let shape =
        |name, layers, config| Shape { name, layers, config, quantize: None, fp8_inputs: false };
    let bits = |bits, group| Some(Quantize { bits, group, head: false });
    let fp8 = config::in_fp8(config::deepseek_v3_layers(2));
    vec![
        shape("qwen3", 2, config::qwen3_0_6b_layers(2)),
        shape("qwen3_moe", 2, config::qwen3_moe_layers(2)),
        shape("deepseek_v3", 2, config::deepseek_v3_layers(2)),
        shape("qwen3_next", 4, config::qwen3_next_layers(4)),
        Shape { quantize: bits(8, None), ..shape("qwen3_w8a8", 2, config::qwen3_0_6b_layers(2)) },
        Shape {
            quantize: bits(4, Some(64)),
            ..shape("qwen3_moe_w4a8", 2, config::qwen3_moe_layers(2))
        },
        Shape {
            quantize: bits(8, None),
            ..shape("deepseek_v3_w8a8", 2, config::deepseek_v3_layers(2))
        },
        shape("deepseek_v3_fp8", 2, fp8.clone()),
        Shape { fp8_inputs: true, ..shape("deepseek_v3_fp8_inputs", 2, fp8) },
    ]
}

/// Weights that are finite and differ; no NaN among codes, so that experts are chosen as of a model.
struct Random(BTreeMap<String, DType>);

impl Random {
    fn of(checkpoint: &models::Checkpoint) -> Self {
        Self(checkpoint.source().tensors().map(|t| (t.name.clone(), t.dtype)).collect())
    }
}

impl WeightSource for Random {
    fn info(&self, _: &str) -> Option<&TensorInfo> {
        None
    }
    fn read(&self, name: &str, start: u64, out: &mut [u8]) -> Result<(), WeightError> {
        let mut state = (name.len() as u64 ^ start).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u32
        };
        let unit = |drawn: u32| drawn as f32 / (1u32 << 24) as f32;
        match self.0.get(name).copied().unwrap_or(DType::BF16) {
            DType::F32 => out
                .chunks_exact_mut(4)
                .for_each(|four| four.copy_from_slice(&(unit(next()) / 16.0).to_le_bytes())),
            // Without the highest bit of the exponent, so below 2.
            DType::F8E4M3 => out.iter_mut().for_each(|byte| *byte = next() as u8 & 0xbf),
            // Exponents from 2^-7 to 1.
            DType::U8 => out.iter_mut().for_each(|byte| *byte = 120 + (next() % 8) as u8),
            DType::BF16 => out.chunks_exact_mut(2).for_each(|pair| {
                let value = bf16::from_f32((unit(next()) - 0.5) / 16.0);
                pair.copy_from_slice(&value.to_le_bytes());
            }),
            _ => out.iter_mut().for_each(|byte| *byte = next() as u8),
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
        shape: &Shape,
        without: &[&'static str],
        base: &[(Plan, Graph)],
        threads: Option<usize>,
    ) -> Result<Option<Self>> {
        let (plans, artifact) = compile(root, shape, without)?;
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
fn compile(root: &Path, shape: &Shape, without: &[&str]) -> Result<(Vec<Plan>, Artifact)> {
    let dir = root.join("fusions-config");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("config.json"), shape.config.to_string())?;
    let checkpoint = models::Checkpoint::config_only(&dir)?;
    let build = BuildOptions {
        precision: Precision { weights: DType::BF16, activations: DType::F32 },
        kv_dtype: DType::BF16,
        kv_block_tokens: u64::from(KV_BLOCK_TOKENS),
        quantize_activations: shape.fp8_inputs,
        head_top_k: 64,
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
        compact_rows: None,
        quantize: shape.quantize,
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
        weights: &Random::of(&checkpoint),
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
    let shape_names: Vec<&str> = shapes.iter().map(|s| s.name).collect();
    let fusions: Vec<&'static str> =
        passes::names().into_iter().filter(|n| n.starts_with("fuse-")).collect();
    let mut table = Vec::new();
    for shape in &shapes {
        if !chosen(shape.name, &shape_names) {
            continue;
        }
        let all = Variant::new(root, shape, &[], &[], threads)?.context("every fusion")?;
        println!("{}, {} layers, {}", shape.name, shape.layers, all.device.name());
        let mut variants = vec![all];
        let each = fusions.iter().filter(|p| chosen(p, &fusions)).map(|p| vec![*p]);
        // What one of them leaves the other takes.
        let chains = ["fuse-qk-rope-write", "fuse-rows"];
        let all = chosen(chains[1], &fusions).then(|| chains.to_vec());
        for without in each.chain(all) {
            let base = &variants[0].graphs;
            match Variant::new(root, shape, &without, base, threads) {
                Ok(found) => variants.extend(found),
                Err(e) => println!("  {} cannot be left out: {e}", without.join(", ")),
            }
        }
        let mut ratios = vec![Vec::new(); variants.len()];
        for i in 0..variants[0].graphs.len() {
            for (all, one) in ratios.iter_mut().zip(measure(&mut variants, i)?) {
                all.push(format!("{one:.3}"));
            }
        }
        let rows = variants.iter().zip(ratios).skip(1);
        table.extend(rows.map(|(v, ratios)| (v.without.join(", "), shape.name, ratios)));
    }
    table.sort();
    println!(
        "\n| without | shape | decode {DECODE:?} and prefill {PREFILL}, times as long |\n|---|---|---|"
    );
    for (without, shape, ratios) in table {
        println!("| {without} | {shape} | {} |", ratios.join(" "));
    }
    Ok(())
}

/// Prints the times of plan `i` of each variant; returns the ratios of the fastest tenth.
fn measure(variants: &mut [Variant], i: usize) -> Result<Vec<f64>> {
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
    let [all_fast, all_middle] = found[0];
    for (variant, [fast, middle]) in variants.iter().zip(&found) {
        let what = match &variant.without[..] {
            [] => name.clone(),
            passes => format!("  without {}", passes.join(", ")),
        };
        let launches = variant.graphs[i].1.len();
        println!(
            "  {what:<40} {:9.1} us {launches:4} launches  {:.3} {:.3}",
            middle * 1e6,
            middle / all_middle,
            fast / all_fast
        );
    }
    Ok(found.into_iter().map(|[fast, _]| fast / all_fast).collect())
}

/// The time that a tenth of `times` are below.
fn fastest_tenth(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}
