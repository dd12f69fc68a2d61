//! The order in which the built-in passes run, and why.

use crate::{
    BrokenPass, Catalog, Phase,
    absorb_latent::AbsorbLatent,
    canonicalise::Canonicalise,
    dead::RemoveDead,
    duplicates::MergeDuplicates,
    fold_cast::FoldCast,
    fuse::{
        FuseDequantize, FuseEpilogues, FuseGateUp, FuseMlaPreprocess, FuseMlaProlog, FuseMoe,
        FuseQkRopeWrite, FuseQkv, FuseQuantize, FuseRows, fuse_add_rms_norm, fuse_silu_mul,
    },
    layouts::AssignLayouts,
    quantize::QuantizeMatmuls,
    rewrite::Rewrite,
    w4a8_experts::W4A8Experts,
};
use std::sync::Arc;

/// A pass at its place in a pipeline.
#[derive(Clone)]
pub struct Step {
    /// Pass.
    pub pass: Arc<dyn Rewrite>,
    /// Why it stands here.
    pub why: &'static str,
}

/// Passes that together establish a phase.
#[derive(Clone)]
pub struct Stage {
    /// What holds afterwards; `None` promises nothing.
    pub phase: Option<Phase>,
    /// In order.
    pub steps: Vec<Step>,
}

/// Names of every built-in pass.
pub fn names() -> Vec<&'static str> {
    Catalog::builtin().names()
}

/// One stage of the named built-in passes.
///
/// # Errors
/// [`BrokenPass::Unknown`] for a name that no pass has.
pub fn pipeline_of(names: &[&str]) -> Result<Vec<Stage>, BrokenPass> {
    Catalog::builtin().pipeline_of(names)
}

fn step(pass: impl Rewrite + 'static, why: &'static str) -> Step {
    Step { pass: Arc::new(pass), why }
}

/// The pipeline of the built-in passes, from a model definition to [`Phase::LaidOut`].
pub fn default_pipeline() -> Vec<Stage> {
    let imported = vec![
        step(AbsorbLatent, "first, so that all others see the one form that is computed"),
        step(Canonicalise, "patterns are written for the canonical form only"),
        step(MergeDuplicates, "guards on reader counts need each value computed once"),
        step(RemoveDead, "a dead reader would make a guard decline"),
        step(QuantizeMatmuls, "before fusions, which then see quantised products only"),
        step(MergeDuplicates, "siblings read one quantised input"),
    ];
    let fused = vec![
        step(FuseDequantize, "before fuse-gate-up and fuse-qkv, which would join the values"),
        step(fuse_silu_mul(), "before fold-cast, which rounds in its result"),
        step(FoldCast, "before the other fusions, which then see the final `out`"),
        step(FuseGateUp, "before fuse-qkv, which would take gate and up for plain siblings"),
        step(FuseQkv, "after every pass that wants projections one by one"),
        step(fuse_add_rms_norm(), "after fold-cast, so that it takes over the rounded result"),
        step(Canonicalise, "fusions leave slices of slices and nested joins"),
        step(MergeDuplicates, "and may make the same constant twice"),
    ];
    let laid_out = vec![
        step(
            W4A8Experts,
            "before assign-layouts, which arranges what it makes, and after all joins",
        ),
        step(AssignLayouts, "every earlier pass joins and compares nd weights"),
        step(FuseMlaProlog, "composites last, and the one with an operator before the general one"),
        step(MergeDuplicates, "layers share angles and places, which fuse-mla-prolog converts"),
        step(FuseMlaPreprocess, "passes before look for plain ops"),
        step(FuseMoe, "before fuse-epilogues, which goes on inside"),
        step(FuseEpilogues, "after the larger composites, which are made of plain ops"),
        step(FuseQkRopeWrite, "before fuse-rows, which would take its ops"),
        step(FuseRows, "after every pass that wants one of these ops for itself"),
        step(FuseQuantize, "after fuse-rows, which quantises where rows are made if it can"),
    ];
    vec![
        Stage { phase: Some(Phase::Imported), steps: imported },
        Stage { phase: Some(Phase::Fused), steps: fused },
        Stage { phase: Some(Phase::LaidOut), steps: laid_out },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_pass_is_an_error_that_lists_the_known_ones() {
        let error = pipeline_of(&["fuse-qvk"]).err().unwrap().to_string();
        assert!(error.contains("`fuse-qvk`") && error.contains("fuse-qkv"), "{error}");
    }

    /// Two passes of one name could not be told apart by those who disable one.
    #[test]
    fn a_pass_that_runs_again_is_the_same_pass() {
        let mut first: Vec<&Step> = Vec::new();
        let stages = default_pipeline();
        for step in stages.iter().flat_map(|s| &s.steps) {
            match first.iter().find(|s| s.pass.name() == step.pass.name()) {
                Some(known) => {
                    assert_eq!(known.pass.source(), step.pass.source(), "{}", step.pass.name());
                }
                None => first.push(step),
            }
        }
        assert_eq!(first.len(), names().len());
    }
}
