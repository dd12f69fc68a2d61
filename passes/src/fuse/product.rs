//! Kinds of matrix products and the constants that have a row for each of their outputs.

use ir::{DType, Func, NodeId, Op, ValueId};

/// A kind of product.
#[derive(Clone, Copy)]
pub(super) struct Product {
    /// Operands that siblings have in common; the others are constants with a row for each output.
    pub(super) shared: usize,
    /// The constants, the weight first.
    pub(super) parts: &'static [Part],
    /// Element type of the result.
    pub(super) out: DType,
    /// Whether each row meets the weights of its experts.
    pub(super) grouped: bool,
}

/// A constant of a product.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// What it is called.
    pub(super) name: &'static str,
    /// Whether outputs are its last axis, as in a bias, rather than the one before.
    pub(super) vector: bool,
}

const fn matrix(name: &'static str) -> Part {
    Part { name, vector: false }
}

const fn vector(name: &'static str) -> Part {
    Part { name, vector: true }
}

const PLAIN: &[Part] = &[matrix("weight")];
const SCALED: &[Part] = &[matrix("weight"), matrix("weight_scale")];
const STATIC: &[Part] = &[matrix("weight"), vector("bias"), vector("scale")];

impl Product {
    /// The kind of `op`; `None` if it is no product of rows with a weight.
    pub(super) fn of(op: &Op) -> Option<Self> {
        let (shared, parts, out) = match *op {
            Op::Matmul { out } => (1, PLAIN, out),
            Op::DequantMatmul { out, .. } => (1, SCALED, out),
            Op::QuantMatmul { out, .. } => (2, SCALED, out),
            Op::StaticMatmul { out } => (1, STATIC, out),
            Op::GroupedMatmul { out } => (3, PLAIN, out),
            Op::GroupedQuantMatmul { out, .. } => (4, SCALED, out),
            Op::GroupedDequantMatmul { out, .. } => (3, SCALED, out),
            _ => return None,
        };
        Some(Self { shared, parts, out, grouped: shared > 2 })
    }

    /// Operands of `node` that siblings have in common.
    pub(super) fn inputs(self, func: &Func, node: NodeId) -> &[ValueId] {
        &func.nodes[node].args[..self.shared]
    }

    /// Its constants, in the order of [`Product::parts`].
    pub(super) fn constants(self, func: &Func, node: NodeId) -> &[ValueId] {
        &func.nodes[node].args[self.shared..]
    }
}
