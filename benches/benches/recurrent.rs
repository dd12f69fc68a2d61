//! The gated delta rule at the shape of a layer of Qwen3-Next-80B-A3B, as shares of what the
//! machine can do: `cargo bench -p precast-benches --bench recurrent [-- INSTRUCTION_SET] [-- THREADS]`.
//!
//! A second table bounds what prefill in chunks could save: its multiply-adds at the probed peak,
//! against the measured time of one token after another, alone and as a share of a layer whose products
//! run at the peak.

use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::CpuDevice;
use hal::{Device, MemoryRequest};
use precast_benches::device::{best_peak, from_args, median_replay, random_weights};
use precast_benches::forms::Delta;
use precast_benches::probe::Peak;

const KEY_HEADS: u64 = 16;
const HEADS: u64 = 32;
const HEAD: u64 = 128;
/// The memory of one sequence.
const MEMORY_BYTES: u64 = HEADS * HEAD * HEAD * 4;
/// Memories that a pass over decode steps reads: more than caches hold.
const STATE_BYTES: u64 = 1 << 29;
const REPEATS: usize = 5;
/// Tokens of a prompt.
const PROMPT: u64 = 512;
/// Operations of an element of a memory for one token: the decay, two products and an update.
const FLOPS: u64 = 7;
/// Multiply-adds of such a layer for a token beside the rule: projections of queries, keys, values and
/// gates, output, router, ten experts and the shared one.
const OTHERS: u64 = HIDDEN * 2 * (KEY_HEADS + HEADS) * HEAD
    + HIDDEN * 2 * HEADS
    + HEADS * HEAD * HIDDEN
    + HIDDEN * EXPERTS
    + 11 * 3 * HIDDEN * EXPERT_WIDTH;
const HIDDEN: u64 = 2048;
const EXPERTS: u64 = 512;
const EXPERT_WIDTH: u64 = 512;

fn main() -> anyhow::Result<()> {
    let (mut device, bandwidth) = from_args()?;
    let peak = best_peak([Peak::F32MultiplyAdd], device.threads());

    let request = MemoryRequest {
        root: Default::default(),
        weights: random_weights(1)?,
        arena_bytes: 64 << 20,
        state_bytes: STATE_BYTES,
    };
    device.load(request)?;
    // Memory that was never written is one page of zeros that is always in the cache.
    for offset in (0..STATE_BYTES).step_by(1 << 20) {
        device.write(BufferRef { space: Space::State, offset, bytes: 1 << 20 }, &vec![0; 1 << 20]);
    }

    println!(
        "\n{:<14}{:>12}{:>9}{:>9}{:>12}{:>9}",
        "gated delta", "us", "GB/s", "share", "GFLOP/s", "share"
    );
    let mut prefill = 0.0;
    for (what, sequences, rows) in
        [("decode 1", 1, 1), ("decode 8", 8, 1), ("prefill 512", 1, PROMPT)]
    {
        let seconds = gated_delta(&mut device, sequences, rows)?;
        let moved = (2 * sequences * MEMORY_BYTES) as f64 / seconds / 1e9;
        let elements = sequences * rows * MEMORY_BYTES / 4;
        let done = (FLOPS * elements) as f64 / seconds / 1e9;
        println!(
            "{what:<14}{:>12.1}{moved:>9.1}{:>8.0}%{done:>12.1}{:>8.0}%",
            seconds * 1e6,
            100.0 * moved / bandwidth,
            100.0 * done / peak,
        );
        prefill = seconds;
    }
    let products = best_peak(Peak::FLOATS, device.threads());
    let others = (PROMPT * OTHERS) as f64 * 2.0 / (products * 1e9);
    bound_chunks(prefill, peak, prefill + others);
    Ok(())
}

/// Prints what a prompt in chunks would take if nothing but its multiply-adds took time, beside the
/// measured `seconds` of one token after another, of which `layer` seconds are a layer.
fn bound_chunks(seconds: f64, peak: f64, layer: f64) {
    let delta = Delta { key: HEAD, value: HEAD };
    println!(
        "\n{:<26}{:>16}{:>14}{:>14}{:>20}",
        "prefill 512", "per token, head", "us at peak", "of measured", "saves of a layer"
    );
    let print = |what: String, multiply_adds: f64| {
        let bound = multiply_adds * (PROMPT * HEADS) as f64 * 2.0 / (peak * 1e9);
        println!(
            "{what:<26}{multiply_adds:>16.0}{:>14.1}{:>13.0}%{:>19.1}%",
            bound * 1e6,
            100.0 * bound / seconds,
            100.0 * (seconds - bound) / layer
        );
    };
    println!(
        "{:<42}{:>14.1}{:>13.0}%",
        "a layer, the rule of it",
        layer * 1e6,
        100.0 * seconds / layer
    );
    print("token by token".into(), delta.by_token() as f64);
    for rows in [16, 32, 64] {
        print(format!("chunks of {rows}, least"), delta.chunk(rows) as f64 / rows as f64);
        let published = delta.published_chunk(rows) as f64 / rows as f64;
        print(format!("chunks of {rows}, published"), published);
    }
}

/// Median seconds of a call with `rows` tokens of each of `sequences`.
fn gated_delta(device: &mut CpuDevice, sequences: u64, rows: u64) -> anyhow::Result<f64> {
    let t = sequences * rows;
    let (keys, values) = (KEY_HEADS * HEAD, HEADS * HEAD);
    let mut end = 0;
    let mut buffer = |elements: u64| {
        let at = BufferRef { space: Space::Arena, offset: end, bytes: 4 * elements };
        end = (end + at.bytes).next_multiple_of(64);
        at
    };
    let inputs = [keys, keys, values, HEADS, HEADS].map(|width| buffer(t * width));
    let [slots, positions] = [0, 0].map(|_| buffer(t));
    let out = buffer(t * values);
    let bytes_of = |f: &dyn Fn(u64) -> u64| -> Vec<u8> {
        (0..t).flat_map(|t| (f(t) as i32).to_le_bytes()).collect()
    };
    device.write(slots, &bytes_of(&|t| t / rows));
    // Every sequence goes on from what it remembers.
    device.write(positions, &bytes_of(&|t| 1 + t % rows));

    let counts = [t, sequences, KEY_HEADS, HEADS, HEAD, HEAD];
    let strides = [keys, keys, values, HEADS, HEADS, values];
    let scalars: Vec<Scalar> = counts.into_iter().chain(strides).map(Scalar::Int).collect();
    let bytes = sequences * MEMORY_BYTES;
    let calls = (STATE_BYTES / bytes / rows).max(1);
    device.begin_capture()?;
    for call in 0..calls {
        let state = BufferRef { space: Space::State, offset: call * bytes, bytes };
        let args: Vec<_> = inputs.into_iter().chain([slots, positions, state, out]).collect();
        device.launch(&hal::Launch::new("gated_delta", &args, &scalars))?;
    }
    Ok(median_replay(device, REPEATS)? / calls as f64)
}
