//! What decides how ops are computed: artifacts made with other texts are other artifacts.

/// The texts.
pub(super) const TEXTS: &[&str] = &[
    include_str!("../../acl/src/table.rs"),
    include_str!("../chip.rs"),
    include_str!("activation.rs"),
    include_str!("build.sh"),
    include_str!("choices.rs"),
    include_str!("collective.rs"),
    include_str!("dense.rs"),
    include_str!("dequantize/dequantize.cpp"),
    include_str!("dequantize/mod.rs"),
    include_str!("grouped.rs"),
    include_str!("library.rs"),
    include_str!("mod.rs"),
    include_str!("moe.rs"),
    include_str!("quant.rs"),
    include_str!("sparse/lengths.cpp"),
    include_str!("sparse/mod.rs"),
];
