//! Gated activation.

use crate::{
    is,
    pattern::{Fusion, any, fusion, op},
};
use ir::Op;

/// `mul(silu(g), u)` or `mul(u, silu(g))` becomes `silu_mul(g, u)`.
///
/// The activation must have no other reader: it would be computed twice.
pub(crate) fn fuse_silu_mul() -> Fusion {
    let activated = op(is!(Op::Silu {}), [any("gate")]).named("activated");
    let product = op(is!(Op::Mul {}), [activated, any("up")]).named("product");
    fusion("fuse-silu-mul", product)
        .source(include_str!("silu_mul.rs"))
        .kernel("silu_mul")
        .only_reader("activated", "the activation has another reader")
        .replace(["product"], ["gate", "up"], |m| {
            Some(Op::SiluMul { out: m.func().values[m["product"]].ty.dtype })
        })
}
