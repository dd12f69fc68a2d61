//! The pass: which ops become one, and when they must not.

use precast_ir::{DType, Op};
use precast_passes::{
    is,
    pattern::{Fusion, any, fusion, op},
};

/// `mul(x, sigmoid(gate))`, and the `cast` of it if there is one, becomes a composite of kind
/// `gated_output`.
pub fn fuse_gated_output() -> Fusion {
    let opened = op(is!(Op::Sigmoid {}), [any("gate")]).named("opened");
    let gated = op(is!(Op::Mul {}), [any("x"), opened]);
    fusion("fuse-gated-output", gated)
        .source(include_str!("fusion.rs"))
        .followed_by(is!(Op::Cast { .. }), "output")
        .only_reader("opened", "the opened gate is read elsewhere, so it must exist")
        .guard("same-value", "x gates itself, which is silu", |m, _| m["x"] != m["gate"])
        .typed("gate", "not-f32", "the kernel reads f32", |ty| ty.dtype == DType::F32)
        .typed("output", "other-type", "the kernel writes f32 or bf16", |ty| {
            matches!(ty.dtype, DType::F32 | DType::BF16)
        })
        .outline("gated_output")
}
