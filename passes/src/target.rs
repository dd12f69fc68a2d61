//! What passes may know of a target.

use ir::{Op, TensorType};
use tensor::{DType, Layout};

/// Facts about a target that decide whether a rewrite pays.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetInfo {
    /// Name for reports.
    pub name: String,
    /// Layout its matrix kernels read weights and their scales in, and [`ir::Op::Embed`] a table that
    /// is such a weight too.
    pub matmul_weight_layout: Layout,
    /// Exceptions from that; the first that applies counts.
    pub layout_rules: Vec<LayoutRule>,
    /// Element types that weights are converted to when they are stored; the first that applies
    /// counts.
    pub weight_types: Vec<WeightType>,
    /// Rows of gate and up weights that alternate in a fused gate/up matrix product, or [`WHOLE`];
    /// `None` when there is no such kernel.
    pub gate_up_block: Option<u64>,
    /// Whether its integer products take a scale for each part of a row, or for whole rows only.
    pub scales_parts: bool,
    /// Fused ops it has kernels for, by mnemonic.
    pub fused_ops: Vec<String>,
    /// Ops that it runs row by row, several of them on one row after another: see
    /// [`ir::Op::row_wise`]. By mnemonic.
    pub row_wise_ops: Vec<String>,
}

/// As [`TargetInfo::gate_up_block`]: all rows of the gate come before all rows of the up projection.
/// The join then pays by itself, whatever type the product has.
pub const WHOLE: u64 = u64::MAX;

/// An element type for some weights.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightType {
    /// Mnemonic of the product that reads the weight.
    pub op: String,
    /// Element type of the rows that it multiplies; `None` for all.
    pub rows: Option<DType>,
    /// Element type of the weight.
    pub from: DType,
    /// What it is converted to.
    pub to: DType,
}

/// A layout for some weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutRule {
    /// Mnemonic of the op that reads the weight.
    pub op: String,
    /// Element type of the weight, or of its scales; `None` for all.
    pub dtype: Option<DType>,
    /// What the op reads it in.
    pub layout: Layout,
    /// Only in programs none of whose decode steps has more rows; `None` for all.
    pub most_rows: Option<u32>,
}

/// Every op that can be computed row by row.
pub const ROW_WISE_OPS: [&str; 35] = [
    "embed",
    "gather_rows",
    "store_rows",
    "cast",
    "reshape",
    "slice",
    "concat",
    "add",
    "mul",
    "silu",
    "add_scalar",
    "sigmoid",
    "scale_rows",
    "swiglu_clamped",
    "add_bias",
    "rms_norm",
    "layer_norm",
    "l2_norm",
    "argmax",
    "top_k",
    "quantize_rows",
    "quantize_static",
    "quantize_fp8",
    "route",
    "expert_bias",
    "combine_experts",
    "rope_table",
    "rotary",
    "kv_write",
    "paged_write",
    "delta_gate",
    "add_rms_norm",
    "silu_mul",
    "silu_mul_pairs",
    "swiglu_clamped_pairs",
];

impl TargetInfo {
    /// A target with a kernel for every fused op and small blocks, to try passes on small graphs.
    pub fn everything() -> Self {
        let fused = [
            "add_rms_norm",
            "silu_mul",
            "silu_mul_pairs",
            "swiglu_clamped_pairs",
            "dequant_matmul",
            "grouped_dequant_matmul",
            "grouped_mixed_matmul",
            "mla_prolog",
            "mla_preprocess",
            "moe",
            "linear",
            "rows",
            "qk_rope_write",
        ];
        Self {
            name: "everything".to_owned(),
            matmul_weight_layout: Layout::Panels,
            layout_rules: Vec::new(),
            weight_types: Vec::new(),
            gate_up_block: Some(2),
            scales_parts: true,
            fused_ops: fused.map(str::to_owned).to_vec(),
            row_wise_ops: ROW_WISE_OPS.map(str::to_owned).to_vec(),
        }
    }

    /// What is true of it in a program whose decode steps have at most `rows` rows.
    pub fn with_rows(mut self, rows: u32) -> Self {
        self.layout_rules.retain(|rule| rule.most_rows.is_none_or(|most| rows <= most));
        self
    }

    /// With weights in [`Layout::Compact`] up to `most` rows, where they are for few rows only.
    pub fn with_compact_rows(mut self, most: u32) -> Self {
        for rule in self.layout_rules.iter_mut().filter(|rule| rule.layout == Layout::Compact) {
            rule.most_rows = rule.most_rows.map(|_| most);
        }
        self
    }

    /// What `op` reads a weight, or the scales of one, of this type in. A matrix of one row or one
    /// column has no fractals.
    pub fn layout_of(&self, op: &Op, ty: &TensorType) -> Layout {
        let applies =
            |r: &&LayoutRule| r.op == op.mnemonic() && r.dtype.is_none_or(|t| t == ty.dtype);
        let rule = self.layout_rules.iter().find(applies);
        let layout = rule.map_or(self.matmul_weight_layout, |r| r.layout);
        let is_vector = ty.dims.iter().rev().take(2).any(|d| d.as_const() == Some(1));
        if layout == Layout::Nz && is_vector { Layout::Nd } else { layout }
    }

    /// The element type that `op`, which multiplies rows of type `rows`, reads a weight of type `dtype`
    /// in.
    pub fn weight_type_of(&self, op: &Op, rows: DType, dtype: DType) -> DType {
        let applies = |r: &&WeightType| {
            r.op == op.mnemonic() && r.rows.is_none_or(|t| t == rows) && r.from == dtype
        };
        self.weight_types.iter().find(applies).map_or(dtype, |r| r.to)
    }

    /// Whether it runs `op` row by row together with others.
    pub fn runs_rows_of(&self, op: &Op) -> bool {
        op.row_wise().is_some() && self.row_wise_ops.iter().any(|known| known == op.mnemonic())
    }

    /// Whether it has a kernel for the fused op `mnemonic`.
    pub fn has(&self, mnemonic: &str) -> bool {
        self.fused_ops.iter().any(|op| op == mnemonic)
    }
}
