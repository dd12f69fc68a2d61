//! The compile side: which library operators and which kernels of ours compute an op.

mod activation;
mod choices;
mod collective;
mod dense;
mod dequantize;
mod grouped;
mod library;
mod mla;
mod moe;
mod quant;
mod sources;
mod sparse;

pub use library::conforms;

use crate::chip::Chip;
use acl::Release;
use artifact::BuildTarget;
use compiler::{KernelFile, LowerError, Lowered, Operand, QueueBudget, Streams, Target};
use ir::{DType, Layout, Op};
use passes::{LayoutRule, ROW_WISE_OPS, TargetInfo, WHOLE, WeightType};

/// Tokens in a KV block: the size that the attention operators of the library are tuned for.
pub const KV_BLOCK_TOKENS: u32 = 128;

/// A chip as a compile target. One artifact serves all members of its family.
#[derive(Clone, Copy, Debug)]
pub struct AscendTarget {
    chip: &'static Chip,
    release: Release,
    fork_bytes: u64,
}

impl AscendTarget {
    /// The target for `chip`.
    pub const fn new(chip: &'static Chip) -> Self {
        // 5 us of memory bandwidth: an event is one or two.
        let fork_bytes = chip.memory_bytes_per_second / 200_000;
        Self { chip, release: Release::V9, fork_bytes }
    }

    /// The same with streams of their own for branches of a step that move `fork_bytes` or more.
    pub const fn forking_at(self, fork_bytes: u64) -> Self {
        Self { fork_bytes, ..self }
    }

    /// The same for hosts whose toolkit is `release`: what newer operators would do is done otherwise.
    /// Weights in fractals and the routing of experts need 8.5.
    pub const fn for_release(self, release: Release) -> Self {
        Self { release, ..self }
    }

    /// The chip.
    pub const fn chip(&self) -> &'static Chip {
        self.chip
    }
}

/// Fused ops and kinds of composites that there are kernels or operators for.
const FUSED: [&str; 10] = [
    "add_rms_norm",
    grouped::MIXED,
    "silu_mul",
    "silu_mul_pairs",
    "swiglu_clamped_pairs",
    mla::PROLOG,
    "mla_preprocess",
    "moe",
    "rows",
    "qk_rope_write",
];

/// The layouts that differ from fractals, and why.
fn layout_rules() -> Vec<LayoutRule> {
    let nd =
        |op: &str, dtype| LayoutRule { op: op.into(), dtype, layout: Layout::Nd, most_rows: None };
    // Products by head read a strided view of the weight, and views of fractals are not allowed.
    let mut rules = vec![nd("head_matmul", None)];
    // Matrices in f32 are for `Mm`, which reads no fractals; scales are vectors to the operators.
    let readers = [
        "matmul",
        "embed",
        "quant_matmul",
        "grouped_matmul",
        "grouped_quant_matmul",
        "dequant_matmul",
        "grouped_dequant_matmul",
    ];
    for dtype in [DType::F32, DType::U8] {
        rules.extend(readers.map(|op| nd(op, Some(dtype))));
    }
    rules
}

/// Weights that no product takes as they are. Beside rows in bf16 a matrix is bf16: there are no
/// products of other floats, and values of codes in f32 would take twice the memory. Codes of 4 bits
/// are widened, which is exact, but for those that the pass `w4a8-experts` has taken.
fn weight_types() -> Vec<WeightType> {
    let rule = |op: &str, rows, from, to| WeightType { op: op.into(), rows: Some(rows), from, to };
    let floats = ["matmul", "head_matmul", "grouped_matmul"]
        .map(|op| rule(op, DType::BF16, DType::F32, DType::BF16));
    let codes = ["quant_matmul", "grouped_quant_matmul"]
        .map(|op| rule(op, DType::I8, DType::I4, DType::I8));
    let widened = ["matmul", "head_matmul", "grouped_matmul"]
        .map(|op| rule(op, DType::F32, DType::BF16, DType::F32));
    floats.into_iter().chain(codes).chain(widened).collect()
}

/// Ops that kernels for rows compute: a row that is put in order is not one of them.
fn row_wise_ops() -> Vec<String> {
    let ops = ROW_WISE_OPS.iter().filter(|&&op| op != "top_k");
    ops.map(|&op| op.to_owned()).collect()
}

impl Target for AscendTarget {
    fn info(&self) -> TargetInfo {
        // What is made of weights that are arranged for one operator is for releases that have it.
        let lacks = |name| acl::operator(name).is_none_or(|s| s.since > self.release);
        let fused = FUSED.into_iter().filter(|&kind| match kind {
            mla::PROLOG => !lacks("MlaPrologV2WeightNz"),
            grouped::MIXED => !lacks(grouped::WEIGHT_NZ),
            _ => true,
        });
        TargetInfo {
            name: self.chip.target.to_owned(),
            matmul_weight_layout: Layout::Nz,
            layout_rules: layout_rules(),
            weight_types: weight_types(),
            // The order in which the activations of the library take gate and up.
            gate_up_block: Some(WHOLE),
            scales_parts: false,
            fused_ops: fused.map(str::to_owned).collect(),
            row_wise_ops: row_wise_ops(),
        }
    }

    fn build_target(&self) -> BuildTarget {
        BuildTarget {
            device: self.chip.target.to_owned(),
            instruction_set: self.chip.npu_arch.to_owned(),
            tensor_parallel: 1,
            kv_block_tokens: KV_BLOCK_TOKENS,
        }
    }

    /// Activations have the type of the weights: the matrix unit multiplies operands of one type.
    fn activations(&self, weights: DType) -> DType {
        weights
    }

    fn arena_align(&self) -> u64 {
        self.chip.align.buffer
    }

    fn weight_align(&self) -> u64 {
        self.chip.align.burst
    }

    fn slot_bytes(&self, bytes: u64) -> u64 {
        self.chip.slot_bytes(bytes)
    }

    fn runs_chains(&self) -> bool {
        false
    }

    /// A second stream for what does not fit beside attention or routed experts, such as a shared
    /// expert, and a third for what is left. An event costs microseconds: a branch must move what
    /// memory delivers in about five.
    fn streams(&self) -> Streams {
        // Before drivers that lend streams to running graphs only, a graph keeps its own. Some are the
        // library's and other processes'. An operator is two tasks or three of the 2,013 that a stream
        // takes.
        let budget = QueueBudget {
            streams: u64::from(self.chip.streams) / 10 * 9,
            events: u64::from(self.chip.events) / 10 * 9,
            steps_per_stream: 670,
        };
        Streams { count: 3, fork_bytes: self.fork_bytes, budget: Some(budget) }
    }

    fn files(&self, kernels: &[KernelFile]) -> Vec<KernelFile> {
        if kernels.is_empty() {
            return Vec::new();
        }
        let text = include_str!("build.sh")
            .replace("@NPU_ARCH@", self.chip.npu_arch)
            .replace("@LEGACY_ARCH@", self.chip.legacy_arch);
        vec![KernelFile { path: "kernels/build.sh".to_owned(), text }]
    }

    fn sources(&self) -> &'static [&'static str] {
        sources::TEXTS
    }

    fn lower(
        &self,
        op: &Op,
        operands: &[Operand],
        results: &[Operand],
    ) -> Result<Lowered, LowerError> {
        choices::lower_for(op, operands, results, self.chip, self.release)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod kernel_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests;
