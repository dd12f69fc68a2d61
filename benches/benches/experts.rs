//! Products by expert at the shape of a layer of Qwen3-30B-A3B, for every kind of weight: how fast
//! weights are read, and whether a step touches the weights of its experts and no others:
//! `cargo bench -p precast-benches --bench experts [-- INSTRUCTION_SET] [-- THREADS]`.

use anyhow::{Context, ensure};
use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use precast_benches::device::{from_args, median_replay, random_weights};
use std::sync::Arc;
use tensor::{DType, MappedFile, layout::Panels};

const EXPERTS: u64 = 128;
/// Experts of a token.
const CHOSEN: u64 = 8;
const N: u64 = 768;
const K: u64 = 2048;
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
    fn bytes(&self) -> (u64, u64) {
        let bytes = |dtype: DType, k| dtype.bytes_for(Panels::new(N, k, dtype).padded_len());
        let scales = self.scale.map_or(0, |(dtype, group)| bytes(dtype, K.div_ceil(group)));
        (bytes(self.weight, K), scales)
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
            let (seconds, bytes) = time(&mut device, kind, t)?;
            let read = bytes / seconds / 1e9;
            let operations = (2 * t * CHOSEN * N * K) as f64;
            println!(
                "{:<40}{t:>6}{:>12.1}{read:>9.1}{:>8.0}%{:>10.1}",
                kind.kernel,
                seconds * 1e6,
                100.0 * read / bandwidth,
                operations / seconds / 1e9,
            );
        }
    }
    Ok(())
}

/// Where things lie in the arena: inputs, their scales, routes of all calls, results.
const X: u64 = 0;
const X_SCALES: u64 = 4 << 20;
const ROUTES: u64 = 5 << 20;
const ROUTE_BYTES: u64 = 64 << 10;
const OUT: u64 = ROUTES + MOST_CALLS * ROUTE_BYTES;
const ARENA_BYTES: u64 = OUT + MOST_ROWS * CHOSEN * N * 4;

fn arena(offset: u64, bytes: u64) -> BufferRef {
    BufferRef { space: Space::Arena, offset, bytes }
}

/// Experts of `t` tokens, different for each seed: `order` and `starts`.
fn route(t: u64, seed: u64) -> (Vec<i32>, Vec<i32>) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut groups = vec![Vec::new(); EXPERTS as usize];
    for token in 0..t {
        let mut chosen = Vec::new();
        while (chosen.len() as u64) < CHOSEN {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let expert = (state >> 33) as usize % EXPERTS as usize;
            if !chosen.contains(&expert) {
                groups[expert].push((token * CHOSEN) as i32 + chosen.len() as i32);
                chosen.push(expert);
            }
        }
    }
    let mut starts = vec![0];
    for group in &groups {
        starts.push(starts[starts.len() - 1] + group.len() as i32);
    }
    (groups.concat(), starts)
}

/// A call for `t` tokens with routes of its own. Returns how many experts it has.
fn launch(device: &mut CpuDevice, kind: &Kind, t: u64, call: u64) -> anyhow::Result<u64> {
    let (order, starts) = route(t, 77 * t + call);
    let bytes = |v: &[i32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let at = ROUTES + call * ROUTE_BYTES;
    let order_at = arena(at + 4096, 4 * order.len() as u64);
    let starts_at = arena(at, 4 * starts.len() as u64);
    device.write(order_at, &bytes(&order));
    device.write(starts_at, &bytes(&starts));

    let (weight, scale) = kind.bytes();
    let of_all = EXPERTS * (weight + scale);
    let first = call % (WEIGHT_BYTES / of_all) * of_all;
    let weights = |offset, bytes| BufferRef { space: Space::Weights, offset, bytes };
    let mut args = vec![arena(X, kind.x.bytes_for(t * K))];
    let mut scalars = vec![t, CHOSEN, 0, EXPERTS, N, K];
    if kind.x_scales > 0 {
        args.push(arena(X_SCALES, 4 * t * kind.x_scales));
    }
    args.extend([order_at, starts_at, weights(first, EXPERTS * weight)]);
    if let Some((_, group)) = kind.scale {
        args.push(weights(first + EXPERTS * weight, EXPERTS * scale));
        scalars.push(group);
    }
    if kind.x_scales > 0 {
        scalars.push(kind.x_scales);
    }
    args.push(arena(OUT, 4 * t * CHOSEN * N));
    scalars.extend([K, N]);
    let scalars: Vec<Scalar> = scalars.into_iter().map(Scalar::Int).collect();
    device.launch(&hal::Launch::new(kind.kernel, &args, &scalars))?;
    Ok(starts.windows(2).filter(|w| w[0] < w[1]).count() as u64)
}

/// Median seconds of a call and the bytes of its experts' weights.
fn time(device: &mut CpuDevice, kind: &Kind, t: u64) -> anyhow::Result<(f64, f64)> {
    let (weight, scale) = kind.bytes();
    let least = (CHOSEN * t).min(EXPERTS) * (weight + scale);
    let calls = (PASS_BYTES / least).clamp(1, MOST_CALLS);
    device.begin_capture()?;
    let mut experts = 0;
    for call in 0..calls {
        experts += launch(device, kind, t, call)?;
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
    let experts = launch(device, kind, t, 0)?;
    let graph = device.end_capture()?;
    // Every page is there, so that a fault brings none that was not touched.
    let pages = file.iter().step_by(4096).fold(0u64, |sum, &b| sum + u64::from(b));
    ensure!(pages > 0, "the file is random");
    std::fs::write("/proc/self/clear_refs", "1").context("clearing the marks of pages")?;
    // A mark is made when a translation is looked up: all of them, once others took their place.
    let others = vec![1u8; 256 << 20];
    ensure!(others.iter().step_by(4096).all(|&b| b == 1), "memory holds what was written");
    device.replay(&graph)?;
    let (weight, scale) = kind.bytes();
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
