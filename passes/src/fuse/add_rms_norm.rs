//! Residual sum and the norm of it.

use crate::{
    is,
    pattern::{Fusion, any, fusion, op},
};
use ir::Op;

/// `s = add(a, b); n = rms_norm(s, w)` becomes `s, n = add_rms_norm(a, b, w)`.
///
/// The sum may have other readers, as a residual has: the fused op returns it.
pub(crate) fn fuse_add_rms_norm() -> Fusion {
    let sum = op(is!(Op::Add {}), [any("a"), any("b")]).named("sum");
    let norm = op(is!(Op::RmsNorm { .. }), [sum, any("weight")]).named("norm");
    fusion("fuse-add-rms-norm", norm)
        .source(include_str!("add_rms_norm.rs"))
        .kernel("add_rms_norm")
        .replace(["sum", "norm"], ["a", "b", "weight"], |m| match *m.op("norm") {
            Op::RmsNorm { eps, out } => Some(Op::AddRmsNorm { eps, out }),
            _ => None,
        })
}
