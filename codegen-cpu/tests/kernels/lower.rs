//! What the compile side writes into plans is what kernels bind: an op is lowered, and its call is
//! bound to buffers of exactly its types' sizes and run.

use crate::support::*;
use artifact::BufferRef;
use codegen_cpu::{InstructionSet, target::CpuTarget};
use compiler::{Arg, Operand, Target};
use hal::{Device, MemoryRequest};
use ir::{Dim, Op, TensorType};
use tensor::{
    DType::{BF16, F32, I32},
    Layout,
};

fn tensor<const N: usize>(dtype: tensor::DType, dims: [u64; N]) -> TensorType {
    TensorType::new(dtype, dims.map(Dim::Const))
}

fn state<const N: usize>(dtype: tensor::DType, dims: [u64; N]) -> TensorType {
    TensorType::state(dtype, dims.map(Dim::Const))
}

/// Lowers `op` on dense operands, binds and runs its only call; returns the kernel's name.
fn kernel(op: Op, operands: &[TensorType]) -> String {
    let results = op.infer(&operands.iter().collect::<Vec<_>>()).unwrap();
    let dense =
        |types: &[TensorType]| types.iter().cloned().map(Operand::dense).collect::<Vec<_>>();
    let (operands, results) = (dense(operands), dense(&results));
    let lowered = CpuTarget.lower(&op, &operands, &results).unwrap();
    let [call] = &lowered.calls[..] else { panic!("{} calls", lowered.calls.len()) };

    let bytes = |o: &Operand| o.ty.bytes().unwrap() as usize;
    let lengths = call.args.iter().map(|arg| match *arg {
        Arg::Operand(i) => bytes(&operands[i]),
        Arg::Result(i) => bytes(&results[i]),
        Arg::Scratch(i) => lowered.scratch_bytes[i] as usize,
    });
    let (refs, arena_bytes): (Vec<BufferRef>, u64) = place(lengths);
    let mut device = device(InstructionSet::best(), 1);
    device.load(MemoryRequest { weights: no_weights(), arena_bytes, state_bytes: 0 }).unwrap();
    device.begin_capture().unwrap();
    device.launch(&call.kernel, &refs, &call.scalars).unwrap();
    let graph = device.end_capture().unwrap();
    device.replay(&graph).unwrap();
    call.kernel.clone()
}

#[test]
fn norms_products_and_writes() {
    let norm = Op::LayerNorm { eps: 1e-6, out: BF16 };
    let weight = tensor(F32, [8]);
    let name = kernel(norm, &[tensor(F32, [3, 2, 8]), weight.clone(), weight]);
    assert_eq!(name, "layer_norm_f32_bf16");

    let weight = tensor(BF16, [2, 5, 8]).with_layout(Layout::Panels);
    let name = kernel(Op::HeadMatmul { out: F32 }, &[tensor(BF16, [3, 2, 8]), weight]);
    assert_eq!(name, "head_matmul_bf16_f32");

    let memory = state(BF16, [4, 16, 8]);
    let name = kernel(Op::PagedWrite {}, &[memory, tensor(F32, [3, 8]), tensor(I32, [3])]);
    assert_eq!(name, "paged_write_bf16");
}

#[test]
fn sinks() {
    let cache = state(BF16, [4, 2, 1, 16, 8]);
    let op = Op::SinkAttention { scale: 0.5, window: 20, out: F32 };
    let q = tensor(F32, [3, 2, 8]);
    let name = kernel(op, &[q, cache, tensor(I32, [1, 2]), tensor(I32, [3]), tensor(F32, [2])]);
    assert_eq!(name, "sink_attention_bf16_f32");
}

#[test]
fn latent_attention() {
    let (q_latent, q_rope) = (tensor(F32, [3, 2, 8]), tensor(F32, [3, 2, 4]));
    let (latent, rope) = (state(BF16, [4, 16, 8]), state(BF16, [4, 16, 4]));
    let mut operands = vec![q_latent, q_rope, latent, rope, tensor(I32, [1, 2]), tensor(I32, [3])];
    let name = kernel(Op::LatentAttention { scale: 0.5, out: F32 }, &operands);
    assert_eq!(name, "latent_attention_bf16_f32");
    operands.push(tensor(I32, [3, 5]));
    let name = kernel(Op::SparseLatentAttention { scale: 0.5, out: BF16 }, &operands);
    assert_eq!(name, "sparse_latent_attention_bf16_bf16");
}
