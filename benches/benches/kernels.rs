//! Matrix products at the shapes of Qwen2.5-0.5B and attention at these and Qwen3-0.6B's, as shares of what the machine can
//! do: `cargo bench -p precast-benches --bench kernels [-- WEIGHTS] [-- INSTRUCTION_SET] [-- THREADS]`
//! with weights in bf16, or in i8 or i4 (groups of 128) with inputs in i8; `attention` alone with that word.

use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use precast_benches::device::{best_peak, from_args, random_weights};
use precast_benches::probe::{Peak, median};
use std::time::Instant;
use tensor::{DType, layout::Panels};

/// Weights that a pass reads: more than caches hold, so that none are warm.
const WEIGHT_BYTES: u64 = 1 << 30;
/// Operations of a pass that is bound by arithmetic.
const PASS_FLOPS: f64 = 2e10;
const REPEATS: usize = 5;
const MOST_ROWS: u64 = 512;

/// A matrix product.
struct Shape {
    what: &'static str,
    k: u64,
    /// Rows of the weight.
    n: u64,
    /// What its end does: bias and gate.
    end: Option<[u64; 2]>,
}

impl Shape {
    /// Outputs.
    fn out(&self) -> u64 {
        if self.end == Some(GATE) { self.n / 2 } else { self.n }
    }
}

const BIAS: [u64; 2] = [1, 0];
const GATE: [u64; 2] = [0, 1];
const SHAPES: [Shape; 5] = [
    Shape { what: "qkv", k: 896, n: 1152, end: Some(BIAS) },
    Shape { what: "o", k: 896, n: 896, end: None },
    Shape { what: "gate, up", k: 896, n: 9728, end: Some(GATE) },
    Shape { what: "down", k: 4864, n: 896, end: None },
    Shape { what: "head", k: 896, n: 151_936, end: None },
];
/// Elements that share a scale of 4-bit weights.
const GROUP: u64 = 128;

fn main() -> anyhow::Result<()> {
    let (mut device, bandwidth) = from_args()?;
    let weights = match std::env::args().find_map(|word| word.parse::<DType>().ok()) {
        Some(dtype @ (DType::BF16 | DType::I8 | DType::I4)) => dtype,
        None => DType::BF16,
        Some(other) => anyhow::bail!("weights in {other}; use bf16, i8 or i4"),
    };
    let peak = best_peak(Peak::FLOATS, device.threads());

    let arena_bytes = 4 * MOST_ROWS * 151_936 + (32 << 20);
    let request = MemoryRequest {
        root: Default::default(),
        weights: random_weights(WEIGHT_BYTES as usize >> 20)?,
        arena_bytes,
        state_bytes: ATTENTION_STATE_BYTES,
    };
    device.load(request)?;

    if !std::env::args().any(|word| word == "attention") {
        println!(
            "\n{:<10}{:>6}{:>12}{:>9}{:>9}{:>12}{:>9}",
            "matmul", "T", "us", "GB/s", "share", "GFLOP/s", "share"
        );
        for shape in &SHAPES {
            for t in [1, 8, 16, 24, 128, 512] {
                let (seconds, bytes, flops) = matmul(&mut device, shape, weights, t)?;
                let (read, done) = (bytes / seconds / 1e9, flops / seconds / 1e9);
                println!(
                    "{:<10}{t:>6}{:>12.1}{read:>9.1}{:>8.0}%{done:>12.1}{:>8.0}%",
                    shape.what,
                    seconds * 1e6,
                    100.0 * read / bandwidth,
                    100.0 * done / peak,
                );
            }
        }
    }

    println!(
        "\n{:<26}{:>12}{:>9}{:>9}{:>12}{:>9}",
        "attention", "us", "GB/s", "share", "GFLOP/s", "share"
    );
    for (heads, (what, kv, sequences, rows)) in [QWEN2_5, QWEN3].into_iter().flat_map(|heads| {
        [
            ("decode 1", DType::BF16, 1, 1),
            ("decode 24", DType::BF16, 24, 1),
            ("prefill 512", DType::BF16, 1, 512),
            ("prefill 2,048", DType::BF16, 1, 2048),
            ("decode 24, i8", DType::I8, 24, 1),
            ("prefill 512, i8", DType::I8, 1, 512),
        ]
        .map(|work| (heads, work))
    }) {
        let (seconds, bytes, flops) = attention(&mut device, &heads, kv, sequences, rows)?;
        let (read, done) = (bytes / seconds / 1e9, flops / seconds / 1e9);
        let what = format!("{what}, {} heads", heads.q);
        println!(
            "{what:<26}{:>12.1}{read:>9.1}{:>8.0}%{done:>12.1}{:>8.0}%",
            seconds * 1e6,
            100.0 * read / bandwidth,
            100.0 * done / peak,
        );
    }
    Ok(())
}

fn arena(offset: u64, bytes: u64) -> BufferRef {
    BufferRef { space: Space::Arena, offset, bytes }
}

fn ints(values: &[u64]) -> Vec<Scalar> {
    values.iter().map(|&v| Scalar::Int(v)).collect()
}

/// Median seconds of a replay, after one to warm up.
fn time(device: &mut CpuDevice, graph: &<CpuDevice as Device>::Graph) -> anyhow::Result<f64> {
    device.replay(graph)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        let began = Instant::now();
        device.replay(graph)?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

/// Seconds, bytes of weights and operations of one product.
fn matmul(
    device: &mut CpuDevice,
    shape: &Shape,
    weights: DType,
    t: u64,
) -> anyhow::Result<(f64, f64, f64)> {
    let bytes = weights.bytes_for(Panels::new(shape.n, shape.k, weights).padded_len());
    let coded = weights != DType::BF16;
    let group = if weights == DType::I4 { GROUP } else { shape.k };
    let scale_bytes = 4 * Panels::new(shape.n, shape.k / group, DType::F32).padded_len();
    let flops = 2.0 * (t * shape.n * shape.k) as f64;
    let calls = (WEIGHT_BYTES / bytes).min((PASS_FLOPS / flops).ceil() as u64).max(1);
    let x = arena(0, if coded { t * shape.k } else { 2 * t * shape.k });
    let x_scale = arena(8 << 20, 4 * t);
    // What the scales are does not change the time; random bytes may be NaN, which does not either.
    let scales = BufferRef { space: Space::Weights, offset: 0, bytes: scale_bytes };
    let bias = arena(16 << 20, 4 * shape.n);
    let out = arena(32 << 20, 4 * t * shape.out());
    device.begin_capture()?;
    for call in 0..calls {
        let weight = BufferRef { space: Space::Weights, offset: call * bytes, bytes };
        let mut args = if coded { vec![x, x_scale, weight, scales] } else { vec![x, weight] };
        if shape.end == Some(BIAS) {
            args.push(bias);
        }
        args.push(out);
        let mut scalars = ints(&[t, shape.n, shape.k]);
        if coded {
            scalars.extend(ints(&[group, 1]));
        }
        scalars.extend(ints(&[shape.k, shape.out()]));
        if let Some([bias, gate]) = shape.end {
            scalars.extend(ints(&[bias, gate, 0, 0, 0, 0]));
            scalars.extend([0.0, 0.0].map(Scalar::Float));
        }
        let linear = if shape.end.is_some() { "linear_" } else { "" };
        let product = if coded { "quant_matmul" } else { "matmul" };
        let kernel = format!("{linear}{product}_{weights}_f32");
        device.launch(&hal::Launch::new(&kernel, &args, &scalars))?;
    }
    let graph = device.end_capture()?;
    let seconds = time(device, &graph)? / calls as f64;
    Ok((seconds, (bytes + if coded { scale_bytes } else { 0 }) as f64, flops))
}

/// Heads of attention.
#[derive(Clone, Copy)]
struct Heads {
    q: u64,
    kv: u64,
    /// Elements of each.
    d: u64,
}

const QWEN2_5: Heads = Heads { q: 14, kv: 2, d: 64 };
const QWEN3: Heads = Heads { q: 16, kv: 8, d: 128 };
/// Tokens of a context that is not longer itself.
const CONTEXT: u64 = 512;
const BLOCK_TOKENS: u64 = 16;
/// More than caches hold.
const ATTENTION_STATE_BYTES: u64 = 1 << 30;

/// Seconds, bytes of keys and values and operations of one call: the last `rows` tokens of
/// `sequences` contexts, with keys and values in bf16 or in codes of 8 bits.
fn attention(
    device: &mut CpuDevice,
    heads: &Heads,
    kv: DType,
    sequences: u64,
    rows: u64,
) -> anyhow::Result<(f64, f64, f64)> {
    let (t, n) = (sequences * rows, heads.q * heads.d);
    let context = CONTEXT.max(rows);
    let blocks = context / BLOCK_TOKENS;
    let table: Vec<u8> = (0..sequences * blocks).flat_map(|b| (b as i32).to_le_bytes()).collect();
    let contexts = || (0..t).map(|r| context - rows + r % rows + 1);
    let positions: Vec<u8> = contexts().flat_map(|c| (c as i32 - 1).to_le_bytes()).collect();
    let q = arena(0, 4 * t * n);
    let (table_at, positions_at) =
        (arena(24 << 20, table.len() as u64), arena(25 << 20, positions.len() as u64));
    let out = arena(32 << 20, 2 * t * n);
    device.write(table_at, &table);
    device.write(positions_at, &positions);
    let mut scalars = ints(&[t, sequences, blocks, heads.q, heads.kv, heads.d, BLOCK_TOKENS]);
    scalars.push(Scalar::Float(1.0 / (heads.d as f32).sqrt()));
    scalars.extend(ints(&[n, n]));

    let head_bytes = if kv == DType::I8 { heads.d + ir::SCALE_BYTES } else { 2 * heads.d };
    let bytes = sequences * 2 * context * heads.kv * head_bytes;
    let flops = (4 * n * contexts().sum::<u64>()) as f64;
    let calls = (ATTENTION_STATE_BYTES / bytes).min((PASS_FLOPS / flops).ceil() as u64).max(1);
    device.begin_capture()?;
    for call in 0..calls {
        let state = BufferRef { space: Space::State, offset: call * bytes, bytes };
        let args = [q, state, table_at, positions_at, out];
        device.launch(&hal::Launch::new(&format!("attention_{kv}_bf16"), &args, &scalars))?;
    }
    let graph = device.end_capture()?;
    // Queries and keys from -1 to 1, so that the largest score changes. Of codes all bytes are alike, which are
    // scales of 0.0115 too.
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let queries: Vec<u8> = (0..t * n).flat_map(|_| next().to_le_bytes()).collect();
    device.write(q, &queries);
    let block: Vec<u8> = match kv {
        DType::I8 => vec![0x3c; 1 << 20],
        _ => (0..1 << 19).flat_map(|_| half::bf16::from_f32(next()).to_le_bytes()).collect(),
    };
    for at in (0..calls * bytes).step_by(1 << 20) {
        let part = BufferRef { space: Space::State, offset: at, bytes: 1 << 20 };
        device.write(part, &block[..(1 << 20).min((calls * bytes - at) as usize)]);
    }
    let seconds = time(device, &graph)? / calls as f64;
    Ok((seconds, bytes as f64, flops))
}
