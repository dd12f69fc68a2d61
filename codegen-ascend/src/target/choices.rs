//! Which computations there are for each op, best first, and why they stand in that order.

use super::{activation, collective, dense, grouped, mla, moe, quant, sparse};
use crate::{
    chip::Chip,
    kernels::{Declined, experts, paged, recurrent, rows, sampling},
};
use acl::Release;
use compiler::{LowerError, Lowered, Operand};
use ir::Op;
use passes::ROW_WISE_OPS;

type Lower = fn(&Op, &[Operand], &[Operand], &Chip) -> Result<Lowered, Declined>;

/// A way to compute an op.
struct Choice {
    /// What does it.
    name: &'static str,
    lower: Lower,
    /// Why it stands where it does among the choices for the op.
    reason: &'static str,
}

const fn choice(name: &'static str, lower: Lower, reason: &'static str) -> Choice {
    Choice { name, lower, reason }
}

const MATMUL: &[Choice] = &[
    choice(
        "MatmulWeightNz",
        dense::matmul_nz,
        "reads weights in fractals, the order in which the matrix unit takes them",
    ),
    choice("Mm", dense::matmul_nd, "takes row-major weights of any type, transposed by strides"),
];
const HEAD_MATMUL: &[Choice] = &[choice(
    "BatchMatMul",
    dense::head_matmul,
    "one product for each head, on views with heads first",
)];
const QUANT_MATMUL: &[Choice] = &[
    choice(
        "QuantMatmulWeightNz",
        quant::quant_matmul,
        "multiplies, scales rows and outputs and rounds in one call",
    ),
    choice(
        "QuantMatmulWeightNz to i32",
        quant::quant_matmul_sums,
        "gives exact sums, which a kernel of ours scales in f32",
    ),
];
const STATIC_MATMUL: &[Choice] = &[
    choice(
        "QuantMatmulWeightNz",
        quant::static_matmul,
        "multiplies, adds the bias, scales and rounds in one call",
    ),
    choice(
        "QuantMatmulWeightNz to i32",
        quant::static_matmul_sums,
        "gives exact sums, which a kernel of ours scales in f32",
    ),
];
const MOE: &[Choice] = &[choice(
    "routing operators",
    moe::moe,
    "rows are put in the order of experts once for all products, and summed from there",
)];
const GROUPED: &[Choice] = &[choice(
    "grouped product",
    grouped::by_pairs,
    "one product for all experts, which reads how many rows each has in device memory",
)];
const EXPERT_GROUPS: &[Choice] =
    &[choice("kernel", experts::lower, "no library operator gives the order of pairs alone")];
const ATTENTION: &[Choice] = &[choice(
    "kernel",
    paged::lower,
    "attention of the library takes lengths on the host, which a recorded step cannot change",
)];
const SPARSE_ATTENTION: &[Choice] = &[
    choice(
        "SparseFlashAttention",
        sparse::sparse_attention,
        "reads selected places of a paged memory with lengths in device memory",
    ),
    choice("kernel", paged::lower, "takes any sizes and chunks of prompts"),
];
const SELECT_KEYS: &[Choice] = &[
    choice(
        "LightningIndexer",
        sparse::select_keys,
        "scores and selects keys of a paged memory with lengths in device memory",
    ),
    choice("kernel", paged::lower, "takes any sizes and chunks of prompts"),
];
const RECURRENT: &[Choice] = &[choice(
    "kernel",
    recurrent::lower,
    "operators of the library keep the memory in bf16, or are for later chips",
)];
const TOP_K: &[Choice] =
    &[choice("kernel", sampling::top_k, "operators of the library leave the order of equals open")];
const ROWS: &[Choice] =
    &[choice("kernel", rows::lower, "one launch for all ops, whose values stay in local memory")];
const MLA_PROLOG: &[Choice] =
    &[choice("MlaPrologV2WeightNz", mla::prolog, "projects, rotates and writes in one call")];
const MLA_PREPROCESS: &[Choice] = &[
    choice("MlaPrologV2WeightNz", mla::no_prolog, "projects, rotates and writes in one call"),
    choice("MlaPreprocess", mla::no_preprocess, "the same with quantisation by measured scales"),
];
const COLLECTIVE: &[Choice] =
    &[choice("memcpy", collective::of_one_rank, "plans are for one device")];

const PAIRS: &[Choice] = &[
    choice("kernel", rows::lower, "values stay in local memory and are rounded as the op says"),
    choice("SwiGlu", activation::pairs, "takes rows of any width"),
];

/// The choices for an op.
fn choices(op: &Op) -> &'static [Choice] {
    match op.kind() {
        "matmul" => MATMUL,
        "head_matmul" => HEAD_MATMUL,
        "quant_matmul" => QUANT_MATMUL,
        "static_matmul" => STATIC_MATMUL,
        "grouped_matmul" | "grouped_quant_matmul" | "grouped_mixed_matmul" => GROUPED,
        "expert_groups" => EXPERT_GROUPS,
        mla::PROLOG => MLA_PROLOG,
        "mla_preprocess" => MLA_PREPROCESS,
        "moe" => MOE,
        "attention" | "sink_attention" | "latent_attention" => ATTENTION,
        "sparse_latent_attention" => SPARSE_ATTENTION,
        "select_keys" => SELECT_KEYS,
        "causal_conv" | "gated_delta" => RECURRENT,
        "silu_mul_pairs" | "swiglu_clamped_pairs" => PAIRS,
        "top_k" => TOP_K,
        "rows" | "qk_rope_write" => ROWS,
        mnemonic if ROW_WISE_OPS.contains(&mnemonic) => ROWS,
        "all_reduce" | "all_gather" => COLLECTIVE,
        _ => &[],
    }
}

/// The first choice that takes these types.
pub(super) fn lower(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
) -> Result<Lowered, LowerError> {
    lower_for(op, operands, results, chip, Release::V9)
}

/// The first choice that takes these types with operators that `release` has.
pub(super) fn lower_for(
    op: &Op,
    operands: &[Operand],
    results: &[Operand],
    chip: &Chip,
    release: Release,
) -> Result<Lowered, LowerError> {
    let mut refused = Vec::new();
    let choices = choices(op);
    for Choice { name, lower, reason } in choices {
        match lower(op, operands, results, chip) {
            Ok(lowered) if let Some(newer) = newer(&lowered, release) => {
                refused.push(format!("{name}: {newer} is not in the release compiled for"));
            }
            Ok(mut lowered) => {
                if choices.len() > 1 || !lowered.why.is_empty() {
                    lowered.why = why(reason, &lowered.why, &refused);
                }
                return Ok(lowered);
            }
            Err(Declined(because)) => refused.push(format!("{name}: {because}")),
        }
    }
    let types: Vec<String> = operands.iter().map(|o| o.ty.to_string()).collect();
    Err(LowerError {
        target: chip.target.to_owned(),
        op: op.mnemonic(),
        operands: types.join(", "),
        remedy: remedy(op, &refused),
    })
}

/// An operator among the calls that `release` does not have.
fn newer(lowered: &Lowered, release: Release) -> Option<&'static str> {
    let operators = lowered.calls.iter().filter_map(|call| call.operator.as_ref());
    let signatures = operators.filter_map(|operator| acl::operator(&operator.name));
    signatures.into_iter().find(|s| s.since > release).map(|s| s.name)
}

fn why(reason: &str, detail: &str, refused: &[String]) -> String {
    let mut text = reason.to_owned();
    for part in [detail].into_iter().filter(|p| !p.is_empty()) {
        text = format!("{text}; {part}");
    }
    match refused {
        [] => text,
        _ => format!("{text}; not {}", refused.join("; not ")),
    }
}

fn remedy(op: &Op, refused: &[String]) -> String {
    let advice = match op {
        Op::AllReduce { .. } | Op::AllGather { .. } => "compile with tensor parallelism 1",
        Op::QuantMatmul { .. } | Op::GroupedQuantMatmul { .. } => {
            "compile with --quantize-group channel, or from a checkpoint with a scale for each output"
        }
        Op::Fused { .. } => "its ops are computed one by one",
        op => LowerError::advice(op),
    };
    match refused {
        [] => advice.to_owned(),
        _ => format!("{advice} ({})", refused.join("; ")),
    }
}
