//! Latent attention at the sizes of DeepSeek-V3 as shares of what the machine can do:
//! `cargo bench -p precast-benches --bench latent [-- INSTRUCTION_SET] [-- THREADS]`.
//!
//! First one token for each sequence. `GB/s` counts the latent memory of every sequence once, which
//! is what each thread reads of it for all its heads.
//!
//! Then prompts in the absorbed form, products with the absorbed weights included, beside the least
//! that keys and values expanded for each head could take: their multiply-adds at the probed peak.
//! That bounds what expanding could save, of attention and of a whole layer whose other products
//! run at the peak.

use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use half::bf16;
use precast_benches::device::{best_peak, from_args, median_replay, random_weights};
use precast_benches::forms::Latent;
use precast_benches::probe::Peak;

const SIZES: Latent = Latent { heads: HEADS, latent: C, rope: R, nope: HEAD, value: HEAD };
const HEADS: u64 = 128;
/// Elements of a head's key without position, and of its value.
const HEAD: u64 = 128;
/// Elements of a latent and of a rotated key.
const C: u64 = 512;
const R: u64 = 64;
const BLOCK_TOKENS: u64 = 16;
const LONGEST: u64 = 4096;
const MOST_ROWS: u64 = 8;
/// Memories that calls take turns with: more than caches hold together.
const COPIES: u64 = 8;
const REPEATS: usize = 5;
/// Rows of a prompt that go through attention at once.
const CHUNK: u64 = 512;
const PROMPTS: [u64; 2] = [512, 2048];
const ARENA_BYTES: u64 = 256 << 20;
/// Multiply-adds of a layer for a token beside those between latents and queries: compression and
/// expansion of queries, latent vectors, output, router, eight experts and the shared one.
const OTHERS: u64 = HIDDEN * QUERY_RANK
    + QUERY_RANK * HEADS * (HEAD + R)
    + HIDDEN * (C + R)
    + HEADS * HEAD * HIDDEN
    + HIDDEN * EXPERTS
    + 9 * 3 * HIDDEN * EXPERT_WIDTH;
const HIDDEN: u64 = 7168;
const QUERY_RANK: u64 = 1536;
const EXPERTS: u64 = 256;
const EXPERT_WIDTH: u64 = 2048;

fn main() -> anyhow::Result<()> {
    let (mut device, bandwidth) = from_args()?;
    let peak = best_peak(Peak::FLOATS, device.threads());

    let state_bytes = COPIES * MOST_ROWS * LONGEST * (C + R) * 2;
    let maps_mib = (SIZES.maps() * 2).div_ceil(1 << 20) as usize;
    let weights = random_weights(maps_mib)?;
    device.load(MemoryRequest {
        root: Default::default(),
        weights,
        arena_bytes: ARENA_BYTES,
        state_bytes,
    })?;
    fill(&mut device, BufferRef { space: Space::State, offset: 0, bytes: state_bytes });

    println!(
        "\n{:<10}{:>9}{:>11}{:>12}{:>9}{:>9}{:>12}{:>9}",
        "sequences", "context", "memory MB", "us", "GB/s", "share", "GFLOP/s", "share"
    );
    for sequences in [1, MOST_ROWS] {
        for context in [512, LONGEST] {
            let seconds = decode(&mut device, sequences, context)?;
            let bytes = (sequences * context * (C + R) * 2) as f64;
            let flops = (sequences * context * HEADS * 2 * (2 * C + R)) as f64;
            let (read, done) = (bytes / seconds / 1e9, flops / seconds / 1e9);
            println!(
                "{sequences:<10}{context:>9}{:>11.1}{:>12.1}{read:>9.2}{:>8.1}%{done:>12.1}{:>8.0}%",
                bytes / 1e6,
                seconds * 1e6,
                100.0 * read / bandwidth,
                100.0 * done / peak,
            );
        }
    }

    println!(
        "\n{:<8}{:>13}{:>9}{:>14}{:>13}{:>14}{:>16}{:>14}",
        "prompt",
        "absorbed ms",
        "share",
        "attention ms",
        "expanded ms",
        "saves at most",
        "at equal share",
        "of a layer"
    );
    for rows in PROMPTS {
        let [whole, attention] = [true, false].map(|maps| prefill(&mut device, rows, maps));
        let (whole, attention) = (whole?, attention?);
        let at_peak = |multiply_adds: u64| multiply_adds as f64 * 2.0 / (peak * 1e9);
        let absorbed = at_peak(SIZES.prompt(rows, SIZES.absorbed_pair()));
        let expanded = at_peak(SIZES.prompt(rows, SIZES.expanded_pair()));
        println!(
            "{rows:<8}{:>13.1}{:>8.0}%{:>14.1}{:>13.1}{:>13.0}%{:>15.0}%{:>13.1}%",
            whole * 1e3,
            100.0 * absorbed / whole,
            attention * 1e3,
            expanded * 1e3,
            100.0 * (1.0 - expanded / whole),
            100.0 * (1.0 - expanded / absorbed),
            100.0 * (whole - expanded) / (whole + at_peak(rows * OTHERS)),
        );
    }
    Ok(())
}

/// Small numbers, as bf16 and as f32 alike.
fn fill(device: &mut CpuDevice, buffer: BufferRef) {
    let values: Vec<u8> = (0..1 << 19)
        .flat_map(|i: u32| bf16::from_f32((i % 251) as f32 / 128.0 - 1.0).to_le_bytes())
        .collect();
    for start in (0..buffer.bytes).step_by(values.len()) {
        let bytes = (values.len() as u64).min(buffer.bytes - start);
        let part = BufferRef { offset: buffer.offset + start, bytes, ..buffer };
        device.write(part, &values[..bytes as usize]);
    }
}

fn words(values: impl Iterator<Item = u64>) -> Vec<u8> {
    values.flat_map(|v| (v as i32).to_le_bytes()).collect()
}

fn ints(values: &[u64]) -> Vec<Scalar> {
    values.iter().map(|&v| Scalar::Int(v)).collect()
}

/// Median seconds of a replay.
fn measure(device: &mut CpuDevice) -> anyhow::Result<f64> {
    median_replay(device, REPEATS)
}

/// Median seconds of a prompt of one sequence; with `maps`, products with the absorbed weights
/// before and after attention are part of it.
fn prefill(device: &mut CpuDevice, rows: u64, maps: bool) -> anyhow::Result<f64> {
    let blocks = rows / BLOCK_TOKENS;
    let mut end = 0;
    let mut arena = |bytes: u64| {
        let at = BufferRef { space: Space::Arena, offset: end, bytes };
        end = (end + bytes).next_multiple_of(64);
        at
    };
    let [nope, out] = [0; 2].map(|_| arena(CHUNK * HEADS * HEAD * 2));
    let q_latent = arena(CHUNK * HEADS * C * 4);
    let q_rope = arena(CHUNK * HEADS * R * 4);
    let mixed = arena(CHUNK * HEADS * C * 2);
    let table = arena(blocks * 4);
    let positions: Vec<_> = (0..rows).step_by(CHUNK as usize).map(|_| arena(CHUNK * 4)).collect();
    [nope, q_latent, q_rope].into_iter().for_each(|part| fill(device, part));
    device.write(table, &words(0..blocks));
    for (chunk, &part) in positions.iter().enumerate() {
        let first = chunk as u64 * CHUNK;
        device.write(part, &words(first..first + CHUNK));
    }
    let state = |offset, bytes| BufferRef { space: Space::State, offset, bytes };
    let (latent, rope) = (state(0, rows * C * 2), state(rows * C * 2, rows * R * 2));
    let bytes = HEADS * HEAD * C * 2;
    let weight = |offset| BufferRef { space: Space::Weights, offset, bytes };

    device.begin_capture()?;
    for (chunk, positions) in positions.into_iter().enumerate() {
        let width = (chunk as u64 + 1) * CHUNK / BLOCK_TOKENS;
        if maps {
            let scalars = ints(&[CHUNK, HEADS, C, HEAD, HEADS * HEAD, HEADS * C]);
            device.launch(&hal::Launch::new(
                "head_matmul_bf16_f32",
                &[nope, weight(0), q_latent],
                &scalars,
            ))?;
        }
        let mut scalars = ints(&[CHUNK, 1, width, HEADS, C, R, BLOCK_TOKENS]);
        scalars.push(Scalar::Float(0.07));
        scalars.extend(ints(&[HEADS * C, HEADS * R, HEADS * C]));
        let table = BufferRef { bytes: width * 4, ..table };
        let args = [q_latent, q_rope, latent, rope, table, positions, mixed];
        device.launch(&hal::Launch::new("latent_attention_bf16_bf16", &args, &scalars))?;
        if maps {
            let scalars = ints(&[CHUNK, HEADS, HEAD, C, HEADS * C, HEADS * HEAD]);
            device.launch(&hal::Launch::new(
                "head_matmul_bf16_bf16",
                &[mixed, weight(bytes), out],
                &scalars,
            ))?;
        }
    }
    measure(device)
}

/// Median seconds of a call with one row for each sequence.
fn decode(device: &mut CpuDevice, sequences: u64, context: u64) -> anyhow::Result<f64> {
    let blocks = context / BLOCK_TOKENS;
    let arena = |offset, bytes| BufferRef { space: Space::Arena, offset, bytes };
    let q_latent = arena(0, sequences * HEADS * C * 4);
    let q_rope = arena(4 << 20, sequences * HEADS * R * 4);
    let table = arena(6 << 20, sequences * blocks * 4);
    let positions = arena(7 << 20, sequences * 4);
    let out = arena(8 << 20, sequences * HEADS * C * 4);
    let noise = |n: u64| -> Vec<u8> {
        (0..n).flat_map(|i| ((i * 7 % 61) as f32 / 30.0 - 1.0).to_le_bytes()).collect()
    };
    device.write(q_latent, &noise(sequences * HEADS * C));
    device.write(q_rope, &noise(sequences * HEADS * R));
    device.write(table, &words(0..sequences * blocks));
    device.write(positions, &words((0..sequences).map(|_| context - 1)));

    let mut scalars = ints(&[sequences, sequences, blocks, HEADS, C, R, BLOCK_TOKENS]);
    scalars.push(Scalar::Float(0.07));
    scalars.extend(ints(&[HEADS * C, HEADS * R, HEADS * C]));
    device.begin_capture()?;
    for copy in 0..COPIES {
        let (latent, rope) = (sequences * context * C * 2, sequences * context * R * 2);
        let offset = copy * (latent + rope);
        let latent = BufferRef { space: Space::State, offset, bytes: latent };
        let rope = BufferRef { space: Space::State, offset: offset + latent.bytes, bytes: rope };
        let args = [q_latent, q_rope, latent, rope, table, positions, out];
        device.launch(&hal::Launch::new("latent_attention_bf16_f32", &args, &scalars))?;
    }
    Ok(measure(device)? / COPIES as f64)
}
