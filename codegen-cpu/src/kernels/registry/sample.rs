//! A call of every kernel that runs row by row.

use artifact::Scalar;
use half::bf16;
use tensor::{DType, layout::Panels};

/// Buffers and scalars of a call over `rows` rows.
pub(super) struct Sample {
    pub(super) buffers: Vec<Vec<u8>>,
    pub(super) scalars: Vec<Scalar>,
}

/// Lengths that leave a part of a vector, and strides beyond them.
const N: usize = 70;
const STRIDE: usize = 75;

fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 22) as f32 - 2.0
    };
    (0..len).map(next).collect()
}

fn floats(ty: &str, seed: u64, len: usize) -> Vec<u8> {
    let values = noise(seed, len);
    match ty {
        "f32" => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        "bf16" => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        "i8" => values.iter().map(|&v| (64.0 * v) as i8 as u8).collect(),
        other => panic!("no type {other}"),
    }
}

/// `len` indices below `limit`, in no order.
fn indices(len: usize, limit: usize) -> Vec<u8> {
    (0..len).flat_map(|i| ((i * 7 + 3) % limit).to_le_bytes()[..4].to_vec()).collect()
}

/// A call of `kernel` whose outputs hold something before.
pub(super) fn sample(kernel: &str, rows: usize) -> Sample {
    let int = |n: usize| Scalar::Int(n as u64);
    let ints = |all: &[usize]| all.iter().map(|&n| int(n)).collect::<Vec<_>>();
    let float = Scalar::Float;
    let f = |seed, len| floats("f32", seed, len);
    let (x, wide) = (rows * STRIDE, rows * 2 * STRIDE);
    let words: Vec<&str> = kernel.split('_').collect();
    let out = words[words.len() - 1];
    let from = words[words.len().saturating_sub(2)];
    let call = |buffers: Vec<Vec<u8>>, sizes: &[usize], factors: &[f32]| {
        let scalars = ints(sizes).into_iter().chain(factors.iter().map(|&v| float(v))).collect();
        Sample { buffers, scalars }
    };
    // What comes before the element types.
    let base = kernel.trim_end_matches("_f32").trim_end_matches("_bf16");
    let base = base.trim_end_matches("_f32").trim_end_matches("_bf16").trim_end_matches("_i8");
    match base {
        "add" | "mul" | "silu_mul" => {
            call(vec![f(1, x), f(2, x), floats(out, 3, x)], &[rows, N, STRIDE, STRIDE, STRIDE], &[])
        }
        "swiglu_clamped" => call(
            vec![f(1, x), f(2, x), floats(out, 3, x)],
            &[rows, N, STRIDE, STRIDE, STRIDE],
            &[1.7, 1.0],
        ),
        "silu_mul_pairs" => {
            call(vec![f(1, wide), floats(out, 2, x)], &[rows, 64, 2 * STRIDE, STRIDE], &[])
        }
        "swiglu_clamped_pairs" => {
            let sizes = [rows, 64, 2 * STRIDE, STRIDE];
            call(vec![f(1, wide), floats(out, 2, x)], &sizes, &[1.7, 1.0])
        }
        "cast" => {
            call(vec![floats(from, 1, x), floats(out, 2, x)], &[rows, N, STRIDE, STRIDE], &[])
        }
        "copy" => call(vec![floats(out, 1, x), floats(out, 2, x)], &[rows, N, STRIDE, STRIDE], &[]),
        "silu" | "sigmoid" => call(vec![f(1, x), f(2, x)], &[rows, N, STRIDE, STRIDE], &[]),
        "add_scalar" => call(vec![f(1, x), f(2, x)], &[rows, N, STRIDE, STRIDE], &[0.3]),
        "scale_rows" => {
            call(vec![f(1, x), f(2, rows * 2), f(3, x)], &[rows, N, STRIDE, 2, STRIDE], &[])
        }
        "add_bias" => call(vec![f(1, x), f(2, N), f(3, x)], &[rows, N, STRIDE, STRIDE], &[]),
        "concat" => call(
            vec![floats(out, 1, x), floats(out, 2, x), floats(out, 3, wide)],
            &[rows, 2, 2 * STRIDE, 2, 30, STRIDE, 7, STRIDE],
            &[],
        ),
        "slice" => call(
            vec![floats(out, 1, x), floats(out, 2, x)],
            &[rows, 2, 35, 4, 20, STRIDE, STRIDE],
            &[],
        ),
        "rms_norm" => call(
            vec![floats(from, 1, x), f(2, N / 2), floats(out, 3, x)],
            &[rows, 2, N / 2, STRIDE, STRIDE],
            &[1e-6],
        ),
        "layer_norm" => call(
            vec![floats(from, 1, x), f(2, N / 2), f(3, N / 2), floats(out, 4, x)],
            &[rows, 2, N / 2, STRIDE, STRIDE],
            &[1e-6],
        ),
        "add_rms_norm" => call(
            vec![f(1, x), f(2, x), f(3, N), f(4, x), floats(out, 5, x)],
            &[rows, N, STRIDE, STRIDE, STRIDE, STRIDE],
            &[1e-6],
        ),
        "l2_norm" => call(vec![f(1, x), f(2, x)], &[rows, 2, N / 2, STRIDE, STRIDE], &[1e-6, 0.5]),
        "argmax" => call(vec![f(1, x), indices(rows, 3)], &[rows, N, STRIDE], &[]),
        "top_k" => {
            call(vec![f(1, x), f(2, rows * 5), indices(rows * 5, 3)], &[rows, N, 5, STRIDE], &[])
        }
        "rope_table" => call(
            vec![indices(rows, 900), f(1, rows * 8)],
            &[rows, 4],
            &[1.1, 1.0, 0.1, 0.01, 0.001],
        ),
        "rotary" => {
            call(vec![f(1, x), f(2, rows * 6), f(3, x)], &[rows, 7, 10, 6, 1, STRIDE, STRIDE], &[])
        }
        "kv_write" => {
            let state = floats(out, 4, 3 * 2 * 2 * 16 * if out == "i8" { 36 } else { 32 });
            let slots = shared_slots(rows);
            call(vec![f(1, x), f(2, x), slots, state], &[rows, 2, 32, 16, STRIDE, STRIDE], &[])
        }
        "paged_write" => {
            let state = floats(out, 4, 3 * 16 * N);
            call(vec![f(1, x), shared_slots(rows), state], &[rows, N, 16, STRIDE], &[])
        }
        "route" | "route_bias" => {
            let mut buffers = vec![f(1, x)];
            buffers.extend((base == "route_bias").then(|| f(2, 64)));
            buffers.extend([indices(rows * 6, 9), f(3, rows * 6)]);
            call(buffers, &[rows, 64, 6, 1, 1, 8, 4, STRIDE], &[2.5])
        }
        "expert_bias" => call(
            vec![f(1, x), indices(rows * 3, 4), f(2, 4 * 20), f(3, x)],
            &[rows, 2, 20, 4, STRIDE, 3, STRIDE],
            &[],
        ),
        "combine_experts" => call(
            vec![f(1, x), f(2, rows * 5), floats(out, 3, x)],
            &[rows, 3, 21, STRIDE, 5, STRIDE],
            &[],
        ),
        "delta_gate" => {
            call(vec![f(1, x), f(2, N), f(3, N), f(4, x)], &[rows, N, STRIDE, STRIDE], &[])
        }
        "embed_nd" => call(
            vec![indices(rows, 9), floats(from, 1, 9 * N), floats(out, 2, x)],
            &[rows, 9, N, STRIDE],
            &[],
        ),
        "embed_compact" => {
            let len = tensor::Compact::new(9, N as u64).most_bytes() as usize / 2;
            let buffers = vec![indices(rows, 9), floats(from, 1, len), floats(out, 2, x)];
            call(buffers, &[rows, 9, N, STRIDE], &[])
        }
        "embed_panels" => {
            let dtype = if from == "f32" { DType::F32 } else { DType::BF16 };
            let len = Panels::new(9, N as u64, dtype).padded_len() as usize;
            let buffers = vec![indices(rows, 9), floats(from, 1, len), floats(out, 2, x)];
            call(buffers, &[rows, 9, N, STRIDE], &[])
        }
        "gather_rows" => call(
            vec![floats(out, 1, 9 * STRIDE), indices(rows, 9), floats(out, 2, x)],
            &[rows, 9, N, STRIDE, STRIDE],
            &[],
        ),
        "store_rows" => {
            call(vec![floats(out, 1, x), floats(out, 2, rows * N)], &[rows, N, STRIDE], &[])
        }
        "quantize_rows" => call(
            vec![floats(out, 1, x), vec![9; rows * N], f(2, rows * 2)],
            &[rows, 2, N / 2, STRIDE],
            &[],
        ),
        "quantize_static" => call(
            vec![floats(out, 1, x), f(2, 1), f(3, 1), vec![9; rows * N]],
            &[rows, N, STRIDE],
            &[],
        ),
        "quantize_fp8" => call(
            vec![floats(out, 1, x), vec![9; rows * N], f(2, rows * 2 * 3)],
            &[rows, 2, N / 2, 16, 1, STRIDE],
            &[],
        ),
        other => panic!("no sample of {kernel} ({other})"),
    }
}

/// Slots of which some are the same and one does not exist.
fn shared_slots(rows: usize) -> Vec<u8> {
    let slots = [3i32, 40, 3, -1, 17].iter().cycle().take(rows);
    slots.flat_map(|s| s.to_le_bytes()).collect()
}
