//! Bias in the matrix product.

use crate::{
    is,
    pattern::{Fusion, any, fusion, op},
};
use ir::Op;

/// `add_bias(matmul(x, w), b)` becomes `matmul_bias(x, w, b)`.
///
/// The product must have no other reader: it would be computed twice.
pub(crate) fn fuse_matmul_bias() -> Fusion {
    let product = op(is!(Op::Matmul { .. }), [any("x"), any("weight")]).named("product");
    let biased = op(is!(Op::AddBias {}), [product, any("bias")]).named("biased");
    fusion("fuse-matmul-bias", biased)
        .source(include_str!("matmul_bias.rs"))
        .kernel("matmul_bias")
        .only_reader("product", "the product has another reader")
        .replace(["biased"], ["x", "weight", "bias"], |m| match *m.op("product") {
            Op::Matmul { out } => Some(Op::MatmulBias { out }),
            _ => None,
        })
}
