//! The compile side: which kernel computes an op, and with which scalars. Names and argument orders
//! are those of `KERNELS.md`.

mod external;
mod lower;
mod sources;

pub use external::ExtendedTarget;

use crate::device::InstructionSet;
use artifact::BuildTarget;
use compiler::{LowerError, Lowered, Operand, Target};
use ir::{DType, Layout, Op};
use passes::{LayoutRule, ROW_WISE_OPS, TargetInfo};

/// Tokens in a KV block: as many as fill a 64-byte vector with one key component each.
pub const KV_BLOCK_TOKENS: u32 = 16;

/// The most elements of a row that `top_k` finds.
pub const MOST_FOUND: u64 = crate::kernels::MOST_OF_A_ROW as u64;
/// Gate and up rows that alternate, half a panel of each.
const GATE_UP_BLOCK: u64 = 32;

/// The CPU as a compile target. Packed weights suit every instruction set, so one artifact runs on
/// any CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTarget;

/// Decoding more rows than this costs more for unpacking compact weights than they save in reading: measured with each set but
/// NEON, whose vectors are the narrowest.
pub fn compact_rows(set: InstructionSet) -> u32 {
    match set {
        // As many as two tiles have.
        InstructionSet::Avx512Amx => 32,
        InstructionSet::Avx512Bf16 | InstructionSet::Avx512 => 16,
        // A row of Qwen3-0.6B takes 36 ms instead of 40, four 51 instead of 47, eight 85 instead of 78.
        InstructionSet::Avx2 | InstructionSet::AvxVnni => 8,
        // One row takes 118 ms instead of 47.
        _ => 0,
    }
}

/// Which weights of bf16 are compact: those of experts, each of which meets few rows of a decode step, always.
fn compact() -> Vec<LayoutRule> {
    let rule = |op: &str, most_rows| LayoutRule {
        op: op.to_owned(),
        dtype: Some(DType::BF16),
        layout: Layout::Compact,
        most_rows,
    };
    let few = Some(compact_rows(InstructionSet::Avx512));
    vec![rule("grouped_matmul", None), rule("matmul", few), rule("embed", few)]
}

impl Target for CpuTarget {
    /// Not `mla_preprocess` nor `moe`, which would run op by op: rows and epilogues that cross their
    /// borders would be two launches where they are one (`tests/tests/chains.rs` compiles both ways).
    fn info(&self) -> TargetInfo {
        let fused = [
            "add_rms_norm",
            "silu_mul",
            "silu_mul_pairs",
            "swiglu_clamped_pairs",
            "dequant_matmul",
            "grouped_dequant_matmul",
            "linear",
            "qk_rope_write",
            "rows",
        ];
        TargetInfo {
            name: "cpu".into(),
            matmul_weight_layout: Layout::Panels,
            layout_rules: compact(),
            weight_types: Vec::new(),
            gate_up_block: Some(GATE_UP_BLOCK),
            scales_parts: true,
            fused_ops: fused.map(str::to_owned).to_vec(),
            row_wise_ops: ROW_WISE_OPS.map(str::to_owned).to_vec(),
        }
    }

    fn build_target(&self) -> BuildTarget {
        BuildTarget {
            device: "cpu".into(),
            instruction_set: "portable".into(),
            tensor_parallel: 1,
            kv_block_tokens: KV_BLOCK_TOKENS,
        }
    }

    fn arena_align(&self) -> u64 {
        64
    }

    /// A page, so that pages of one weight can be released without touching its neighbours.
    fn weight_align(&self) -> u64 {
        4096
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
        lower::lower(op, operands, results).ok_or_else(|| {
            let types: Vec<String> = operands.iter().map(|o| o.ty.to_string()).collect();
            LowerError {
                target: "cpu".into(),
                op: op.mnemonic(),
                operands: types.join(", "),
                remedy: LowerError::advice(op).into(),
            }
        })
    }
}
