//! Greedy choice in the output projection.

use crate::{
    is,
    pattern::{Fusion, any, fusion, op},
};
use ir::{DType, Op};

/// `l = matmul(x, w) {out = f32}; i = argmax(l)` becomes `l, i = matmul_argmax(x, w)`.
///
/// The product may have other readers: the fused op returns it. It must be f32, or the choice would
/// be made before rounding instead of after it.
pub(crate) fn fuse_matmul_argmax() -> Fusion {
    let logits = op(is!(Op::Matmul { .. }), [any("x"), any("weight")]).named("logits");
    let best = op(is!(Op::Argmax {}), [logits]).named("best");
    fusion("fuse-matmul-argmax", best)
        .source(include_str!("matmul_argmax.rs"))
        .kernel("matmul_argmax")
        .typed("logits", "not-f32", "the product is rounded before the choice", |ty| {
            ty.dtype == DType::F32
        })
        .replace(["logits", "best"], ["x", "weight"], |_| Some(Op::MatmulArgmax {}))
}
