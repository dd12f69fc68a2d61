//! What passes may know of a target.

use tensor::Layout;

/// Facts about a target that decide whether a rewrite pays.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetInfo {
    /// Name for reports.
    pub name: String,
    /// Layout its matrix kernels read weights in.
    pub matmul_weight_layout: Layout,
    /// Rows of gate and up weights that alternate in a fused gate/up matrix product; `None` when
    /// there is no such kernel.
    pub gate_up_block: Option<u64>,
    /// Fused ops it has kernels for, by mnemonic.
    pub fused_ops: Vec<String>,
}

impl TargetInfo {
    /// A target with a kernel for every fused op and small blocks, to try passes on small graphs.
    pub fn everything() -> Self {
        let fused = [
            "add_rms_norm",
            "silu_mul",
            "matmul_bias",
            "matmul_silu_mul",
            "matmul_argmax",
            "dequant_matmul",
            "grouped_dequant_matmul",
            "mla_preprocess",
        ];
        Self {
            name: "everything".to_owned(),
            matmul_weight_layout: Layout::Panels,
            gate_up_block: Some(2),
            fused_ops: fused.map(str::to_owned).to_vec(),
        }
    }

    /// Whether it has a kernel for the fused op `mnemonic`.
    pub fn has(&self, mnemonic: &str) -> bool {
        self.fused_ops.iter().any(|op| op == mnemonic)
    }
}
