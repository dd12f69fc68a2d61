//! Products by expert at the shape of a layer of Qwen3-30B-A3B, for every kind of weight: how fast
//! weights are read, and whether a step touches the weights of its experts and no others:
//! `cargo bench -p precast-benches --bench experts [-- INSTRUCTION_SET] [-- THREADS]`.
//!
//! Pages that are touched tell nothing of how often. So there are experts too of which each is larger
//! than any cache: what reads one twice waits for memory twice. `reads` is how many times the weights
//! of a step's experts could have been read while it ran, `at least` what it must be: once, or as long
//! as its multiply-adds take at the peak. `apart` are the same tokens in calls of their own, which do
//! read an expert again for every token.

use anyhow::{Context, ensure};
use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use precast_benches::device::{best_peak, from_args, median_replay, random_weights};
use precast_benches::probe::Peak;
use std::sync::Arc;
use tensor::{DType, MappedFile, layout::Panels};

/// Sizes of a layer.
struct Shape {
    experts: u64,
    /// Experts of a token.
    chosen: u64,
    n: u64,
    k: u64,
}

const SMALL: Shape = Shape { experts: 128, chosen: 8, n: 768, k: K };
const K: u64 = 2048;
/// 64 MiB of bf16 each.
const LARGE: Shape = Shape { experts: 8, chosen: 2, n: 4096, k: 8192 };
/// More than caches hold; all weights of one kind fit.
const WEIGHT_BYTES: u64 = 512 << 20;
const REPEATS: usize = 3;
const MOST_ROWS: u64 = 256;
/// Bytes of weights that a pass reads at least, and the most calls for it.
const PASS_BYTES: u64 = 384 << 20;
const MOST_CALLS: u64 = 32;

/// A kind of weight.
struct Kind {
    kernel: &'static str,
    weight: DType,
    /// Type of the scales and elements of a group.
    scale: Option<(DType, u64)>,
    x: DType,
    /// Scales that a row of inputs has.
    x_scales: u64,
}

const KINDS: [Kind; 8] = [
    kind("grouped_matmul_bf16_f32", DType::BF16, None, DType::BF16, 0),
    kind("grouped_quant_matmul_i8_f32", DType::I8, Some((DType::F32, K)), DType::I8, 1),
    kind("grouped_quant_matmul_i4_f32", DType::I4, Some((DType::F32, 128)), DType::I8, 1),
    kind("grouped_quant_matmul_fp8_f32", DType::F8E4M3, Some((DType::F32, 128)), DType::F8E4M3, 16),
    kind(
        "grouped_dequant_matmul_fp8_bf16_f32",
        DType::F8E4M3,
        Some((DType::F32, 128)),
        DType::BF16,
        0,
    ),
    kind(
        "grouped_dequant_matmul_mxfp4_bf16_f32",
        DType::MxFp4,
        Some((DType::U8, 32)),
        DType::BF16,
        0,
    ),
    kind("grouped_dequant_matmul_i4_bf16_f32", DType::I4, Some((DType::F32, 128)), DType::BF16, 0),
    kind("grouped_dequant_matmul_i8_bf16_f32", DType::I8, Some((DType::F32, 128)), DType::BF16, 0),
];

const fn kind(
    kernel: &'static str,
    weight: DType,
    scale: Option<(DType, u64)>,
    x: DType,
    x_scales: u64,
) -> Kind {
    Kind { kernel, weight, scale, x, x_scales }
}

impl Kind {
    /// Bytes of one expert's weights, and of its scales.
    fn bytes(&self, shape: &Shape) -> (u64, u64) {
        let bytes = |dtype: DType, k| dtype.bytes_for(Panels::new(shape.n, k, dtype).padded_len());
        let scales = self.scale.map_or(0, |(dtype, group)| bytes(dtype, shape.k.div_ceil(group)));
        (bytes(self.weight, shape.k), scales)
    }
}

fn main() -> anyhow::Result<()> {
    let (mut device, bandwidth) = from_args()?;

    let weights = random_weights(WEIGHT_BYTES as usize >> 20)?;
    let request = MemoryRequest {
        root: Default::default(),
        weights: Arc::clone(&weights),
        arena_bytes: ARENA_BYTES,
        state_bytes: 0,
    };
    device.load(request)?;

    println!(
        "\n{:<40}{:>6}{:>9}{:>14}{:>14}{:>8}",
        "pages of weights", "T", "experts", "touched MB", "least MB", "ratio"
    );
    for kind in [&KINDS[0], &KINDS[2]] {
        for t in [1, 8, 24] {
            let (experts, touched, least) = touched(&mut device, &weights, kind, t)?;
            let ratio = touched as f64 / least as f64;
            println!(
                "{:<40}{t:>6}{experts:>9}{:>14.2}{:>14.2}{ratio:>8.3}",
                kind.kernel,
                touched as f64 / 1e6,
                least as f64 / 1e6
            );
        }
    }

    println!("\n{:<40}{:>6}{:>12}{:>9}{:>9}{:>10}", "product", "T", "us", "GB/s", "share", "GOP/s");
    for kind in &KINDS {
        for t in [1, 8, 24, MOST_ROWS] {
            let (seconds, bytes) = time(&mut device, kind, &SMALL, t)?;
            let read = bytes / seconds / 1e9;
            let operations = SMALL.operations(t);
            println!(
                "{:<40}{t:>6}{:>12.1}{read:>9.1}{:>8.0}%{:>10.1}",
                kind.kernel,
                seconds * 1e6,
                100.0 * read / bandwidth,
                operations / seconds / 1e9,
            );
        }
    }
    rereads(&mut device, bandwidth)
}

/// Prints how often experts larger than the caches can have been read.
fn rereads(device: &mut CpuDevice, bandwidth: f64) -> anyhow::Result<()> {
    println!();
    let peak = best_peak(Peak::FLOATS, device.threads());
    println!(
        "\n{:<40}{:>6}{:>9}{:>9}{:>12}{:>9}{:>10}{:>9}",
        "experts larger than caches", "T", "experts", "MB", "us", "reads", "at least", "apart"
    );
    let kind = &KINDS[0];
    for t in [1, 8, 24, MOST_ROWS] {
        let (seconds, bytes) = time(device, kind, &LARGE, t)?;
        let reads = |seconds: f64| seconds * bandwidth * 1e9 / bytes;
        let least = reads(LARGE.operations(t) / (peak * 1e9)).max(1.0);
        let (weight, _) = kind.bytes(&LARGE);
        let apart = match t {
            MOST_ROWS => "-".to_owned(),
            _ => format!("{:.2}", reads(one_by_one(device, kind, t)?)),
        };
        println!(
            "{:<40}{t:>6}{:>9}{:>9.0}{:>12.0}{:>9.2}{least:>10.2}{apart:>9}",
            kind.kernel,
            bytes as u64 / weight,
            bytes / 1e6,
            seconds * 1e6,
            reads(seconds),
        );
    }
    Ok(())
}

/// Median seconds of the tokens of [`time`] with a call for each.
fn one_by_one(device: &mut CpuDevice, kind: &Kind, t: u64) -> anyhow::Result<f64> {
    device.begin_capture()?;
    for token in 0..t {
        let all = tokens(&LARGE, t, 77 * t);
        launch(device, kind, &LARGE, &all[token as usize..=token as usize], token)?;
    }
    median_replay(device, REPEATS)
}

impl Shape {
    /// Of the products of `t` tokens.
    fn operations(&self, t: u64) -> f64 {
        (2 * t * self.chosen * self.n * self.k) as f64
    }
}

/// Where things lie in the arena: inputs, their scales, routes of all calls, results.
const X: u64 = 0;
const X_SCALES: u64 = 4 << 20;
const ROUTES: u64 = 5 << 20;
const ROUTE_BYTES: u64 = 64 << 10;
const OUT: u64 = ROUTES + MOST_CALLS * ROUTE_BYTES;
const ARENA_BYTES: u64 = OUT + MOST_ROWS * LARGE.chosen * LARGE.n * 4;

fn arena(offset: u64, bytes: u64) -> BufferRef {
    BufferRef { space: Space::Arena, offset, bytes }
}

/// Experts of each of `t` tokens, different for each seed.
fn tokens(shape: &Shape, t: u64, seed: u64) -> Vec<Vec<usize>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut choose = |_| {
        let mut chosen = Vec::new();
        while (chosen.len() as u64) < shape.chosen {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let expert = (state >> 33) as usize % shape.experts as usize;
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen
    };
    (0..t).map(&mut choose).collect()
}

/// `order` and `starts` of tokens with these experts.
fn route(shape: &Shape, tokens: &[Vec<usize>]) -> (Vec<i32>, Vec<i32>) {
    let mut groups = vec![Vec::new(); shape.experts as usize];
    for (pair, &expert) in tokens.iter().flatten().enumerate() {
        groups[expert].push(pair as i32);
    }
    let mut starts = vec![0];
    for group in &groups {
        starts.push(starts[starts.len() - 1] + group.len() as i32);
    }
    (groups.concat(), starts)
}

/// A call for `tokens`, the one of this number in a pass. Returns how many experts it has.
fn launch(
    device: &mut CpuDevice,
    kind: &Kind,
    shape: &Shape,
    tokens: &[Vec<usize>],
    call: u64,
) -> anyhow::Result<u64> {
    let Shape { experts, chosen, n, k } = *shape;
    let t = tokens.len() as u64;
    let (order, starts) = route(shape, tokens);
    let bytes = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let at = ROUTES + call * ROUTE_BYTES;
    let order_at = arena(at + 4096, 4 * order.len() as u64);
    let starts_at = arena(at, 4 * starts.len() as u64);
    device.write(order_at, &bytes(&order));
    device.write(starts_at, &bytes(&starts));

    let (weight, scale) = kind.bytes(shape);
    let of_all = experts * (weight + scale);
    let first = call % (WEIGHT_BYTES / of_all) * of_all;
    let weights = |offset, bytes| BufferRef { space: Space::Weights, offset, bytes };
    let mut args = vec![arena(X, kind.x.bytes_for(t * k))];
    let mut scalars = vec![t, chosen, 0, experts, n, k];
    if kind.x_scales > 0 {
        args.push(arena(X_SCALES, 4 * t * kind.x_scales));
    }
    args.extend([order_at, starts_at, weights(first, experts * weight)]);
    if let Some((_, group)) = kind.scale {
        args.push(weights(first + experts * weight, experts * scale));
        scalars.push(group);
    }
    if kind.x_scales > 0 {
        scalars.push(kind.x_scales);
    }
    args.push(arena(OUT, 4 * t * chosen * n));
    scalars.extend([k, n]);
    let scalars: Vec<Scalar> = scalars.into_iter().map(Scalar::Int).collect();
    device.launch(&hal::Launch::new(kind.kernel, &args, &scalars))?;
    Ok(starts.windows(2).filter(|w| w[0] < w[1]).count() as u64)
}

/// Median seconds of a call and the bytes of its experts' weights.
fn time(device: &mut CpuDevice, kind: &Kind, shape: &Shape, t: u64) -> anyhow::Result<(f64, f64)> {
    let (weight, scale) = kind.bytes(shape);
    let least = (shape.chosen * t).min(shape.experts) * (weight + scale);
    let calls = (PASS_BYTES / least).clamp(1, MOST_CALLS);
    device.begin_capture()?;
    let mut experts = 0;
    for call in 0..calls {
        experts += launch(device, kind, shape, &tokens(shape, t, 77 * t + call), call)?;
    }
    let seconds = median_replay(device, REPEATS)?;
    let bytes = experts * (weight + scale) / calls;
    Ok((seconds / calls as f64, bytes as f64))
}

/// Experts of a step for `t` tokens, bytes of the pages of weights that it touches, and bytes of its
/// experts' weights.
fn touched(
    device: &mut CpuDevice,
    file: &MappedFile,
    kind: &Kind,
    t: u64,
) -> anyhow::Result<(u64, u64, u64)> {
    device.begin_capture()?;
    let experts = launch(device, kind, &SMALL, &tokens(&SMALL, t, 77 * t), 0)?;
    let graph = device.end_capture()?;
    // Every page is there, so that a fault brings none that was not touched.
    let pages = file.iter().step_by(4096).fold(0u64, |sum, &b| sum + u64::from(b));
    ensure!(pages > 0, "the file is random");
    std::fs::write("/proc/self/clear_refs", "1").context("clearing the marks of pages")?;
    // A mark is made when a translation is looked up: all of them, once others took their place.
    let others = vec![1u8; 256 << 20];
    ensure!(others.iter().step_by(4096).all(|&b| b == 1), "memory holds what was written");
    device.replay(&graph)?;
    let (weight, scale) = kind.bytes(&SMALL);
    Ok((experts, referenced(file)?, experts * (weight + scale)))
}

/// Bytes of the pages of a mapping that were read since the marks were cleared.
fn referenced(file: &MappedFile) -> anyhow::Result<u64> {
    let (first, end) = (file.as_ptr().addr(), file.as_ptr().addr() + file.len());
    let text = std::fs::read_to_string("/proc/self/smaps").context("reading the marks of pages")?;
    let (mut inside, mut kilobytes) = (false, 0);
    for line in text.lines() {
        let word = line.split(' ').next().unwrap_or_default();
        if let Some((from, to)) = word.split_once('-') {
            let at = |s| usize::from_str_radix(s, 16);
            if let (Ok(from), Ok(to)) = (at(from), at(to)) {
                inside = from < end && first < to;
            }
        } else if inside && word == "Referenced:" {
            let number = line.split_whitespace().nth(1).unwrap_or_default();
            kilobytes += number.parse::<u64>().context("an amount of memory")?;
        }
    }
    Ok(kilobytes << 10)
}
