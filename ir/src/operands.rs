//! What an op does with its operands beyond computing: states it overwrites, weights it reads in a
//! layout of the target's choice; and whether it stands for others.

use crate::op::Op;

impl Op {
    /// The operands that this op overwrites, which are states, each with the result that is its
    /// next version.
    pub fn writes(&self) -> &[(usize, usize)] {
        match self {
            Op::KvWrite {}
            | Op::StoreRows {}
            | Op::PagedWrite {}
            | Op::CausalConv {}
            | Op::GatedDelta {} => &[(0, 0)],
            Op::Fused { body } => body.writes(),
            _ => &[],
        }
    }

    /// What a target must have a kernel for: the mnemonic, or the kind of a composite.
    pub fn kind(&self) -> &str {
        match self {
            Op::Fused { body } => body.kind(),
            _ => self.mnemonic(),
        }
    }

    /// The operand that is read as a matrix in a layout of the target's choice, if there is one:
    /// the weight of a matrix product, the table of [`Op::Embed`].
    pub fn matrix_operand(&self) -> Option<usize> {
        match self {
            Op::Embed { .. } => Some(1),
            _ => self.matmul_weight(),
        }
    }

    /// The operand that is the weight of a matrix product, if this is one, fused or not.
    pub fn matmul_weight(&self) -> Option<usize> {
        match self {
            Op::Matmul { .. }
            | Op::HeadMatmul { .. }
            | Op::StaticMatmul { .. }
            | Op::DequantMatmul { .. } => Some(1),
            Op::QuantMatmul { .. } => Some(2),
            Op::GroupedMatmul { .. } | Op::GroupedDequantMatmul { .. } => Some(3),
            Op::GroupedQuantMatmul { .. } | Op::GroupedMixedMatmul { .. } => Some(4),
            _ => None,
        }
    }

    /// The operand with the scales of [`Op::matmul_weight`], which is read in the same layout.
    pub fn weight_scale(&self) -> Option<usize> {
        match self {
            Op::QuantMatmul { .. }
            | Op::GroupedQuantMatmul { .. }
            | Op::DequantMatmul { .. }
            | Op::GroupedDequantMatmul { .. } => self.matmul_weight().map(|i| i + 1),
            _ => None,
        }
    }

    /// Whether it reads operand `i` in a layout of the target's choice.
    pub fn reads_layout(&self, i: usize) -> bool {
        let in_body = matches!(self, Op::Fused { .. });
        in_body || self.matrix_operand() == Some(i) || self.weight_scale() == Some(i)
    }

    /// Whether it stands for several primitive ops.
    pub fn is_fused(&self) -> bool {
        matches!(
            self,
            Op::AddRmsNorm { .. }
                | Op::SiluMul { .. }
                | Op::SiluMulPairs { .. }
                | Op::SwigluClampedPairs { .. }
                | Op::DequantMatmul { .. }
                | Op::GroupedDequantMatmul { .. }
                | Op::Fused { .. }
        )
    }
}
