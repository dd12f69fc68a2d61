//! Latent attention at the sizes of DeepSeek-V3, one token for each sequence, as shares of what the
//! machine can do: `cargo bench -p precast-benches --bench latent [-- INSTRUCTION_SET] [-- THREADS]`.
//!
//! `GB/s` counts the latent memory of every sequence once, which is what each thread reads of it
//! for all its heads.

use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use half::bf16;
use precast_benches::device::{best_peak, from_args, random_weights};
use precast_benches::probe::{Peak, median};
use std::time::Instant;

const HEADS: u64 = 128;
/// Elements of a latent and of a rotated key.
const C: u64 = 512;
const R: u64 = 64;
const BLOCK_TOKENS: u64 = 16;
const LONGEST: u64 = 4096;
const MOST_ROWS: u64 = 8;
/// Memories that calls take turns with: more than caches hold together.
const COPIES: u64 = 8;
const REPEATS: usize = 5;

fn main() -> anyhow::Result<()> {
    let (mut device, bandwidth) = from_args()?;
    let peak = best_peak(Peak::ALL, device.threads());

    let state_bytes = COPIES * MOST_ROWS * LONGEST * (C + R) * 2;
    let request = MemoryRequest { weights: random_weights(1)?, arena_bytes: 16 << 20, state_bytes };
    device.load(request)?;
    let values: Vec<u8> = (0..1 << 19)
        .flat_map(|i: u32| bf16::from_f32((i % 251) as f32 / 128.0 - 1.0).to_le_bytes())
        .collect();
    for offset in (0..state_bytes).step_by(values.len()) {
        let bytes = (values.len() as u64).min(state_bytes - offset);
        let part = BufferRef { space: Space::State, offset, bytes };
        device.write(part, &values[..bytes as usize]);
    }

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
    Ok(())
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
    let words = |values: &mut dyn Iterator<Item = u64>| -> Vec<u8> {
        values.flat_map(|v| (v as i32).to_le_bytes()).collect()
    };
    let noise = |n: u64| -> Vec<u8> {
        (0..n).flat_map(|i| ((i * 7 % 61) as f32 / 30.0 - 1.0).to_le_bytes()).collect()
    };
    device.write(q_latent, &noise(sequences * HEADS * C));
    device.write(q_rope, &noise(sequences * HEADS * R));
    device.write(table, &words(&mut (0..sequences * blocks)));
    device.write(positions, &words(&mut (0..sequences).map(|_| context - 1)));

    let ints = |values: &[u64]| values.iter().map(|&v| Scalar::Int(v)).collect::<Vec<_>>();
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
        device.launch("latent_attention_bf16_f32", &args, &scalars)?;
    }
    let graph = device.end_capture()?;
    device.replay(&graph)?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        let began = Instant::now();
        device.replay(&graph)?;
        times.push(began.elapsed().as_secs_f64());
    }
    Ok(median(times) / COPIES as f64)
}
