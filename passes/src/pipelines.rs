//! Every pass by name, and the order in which they run.

use crate::{
    BrokenPass, Phase,
    canonicalise::Canonicalise,
    dead::RemoveDead,
    duplicates::MergeDuplicates,
    fold_cast::FoldCast,
    fuse::{
        FuseAddRmsNorm, FuseDequantize, FuseGateUp, FuseMatmulArgmax, FuseMatmulBias,
        FuseMlaPreprocess, FuseQkv, FuseSiluMul,
    },
    layouts::AssignLayouts,
    quantize::QuantizeMatmuls,
    rewrite::Rewrite,
};

/// A pass at its place in a pipeline.
#[derive(Clone, Copy)]
pub struct Step {
    /// Pass.
    pub pass: &'static dyn Rewrite,
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

/// Every pass.
const PASSES: &[&dyn Rewrite] = &[
    &Canonicalise,
    &MergeDuplicates,
    &RemoveDead,
    &QuantizeMatmuls,
    &FuseDequantize,
    &FuseSiluMul,
    &FoldCast,
    &FuseGateUp,
    &FuseMatmulBias,
    &FuseQkv,
    &FuseAddRmsNorm,
    &FuseMatmulArgmax,
    &AssignLayouts,
    &FuseMlaPreprocess,
];

/// Names of every pass.
pub fn names() -> Vec<&'static str> {
    PASSES.iter().map(|p| p.name()).collect()
}

/// The pass called `name`.
pub fn pass_by_name(name: &str) -> Option<&'static dyn Rewrite> {
    PASSES.iter().copied().find(|p| p.name() == name)
}

/// One stage of the named passes, for tests and for `precast opt`.
///
/// # Errors
/// [`BrokenPass::Unknown`] for a name that no pass has.
pub fn pipeline_of(names: &[&str]) -> Result<Vec<Stage>, BrokenPass> {
    let step = |name: &&str| match pass_by_name(name) {
        Some(pass) => Ok(Step { pass, why: "asked for by name" }),
        None => Err(BrokenPass::Unknown { name: (*name).to_owned() }),
    };
    let steps = names.iter().map(step).collect::<Result<_, _>>()?;
    Ok(vec![Stage { phase: None, steps }])
}

/// From a model definition to [`Phase::LaidOut`].
pub fn default_pipeline() -> Vec<Stage> {
    let step = |pass, why| Step { pass, why };
    let imported = vec![
        step(&Canonicalise, "patterns are written for the canonical form only"),
        step(&MergeDuplicates, "guards on reader counts need each value computed once"),
        step(&RemoveDead, "a dead reader would make a guard decline"),
        step(&QuantizeMatmuls, "before fusions, which then see quantised products only"),
        step(&MergeDuplicates, "siblings read one quantised input"),
    ];
    let fused = vec![
        step(&FuseDequantize, "before fuse-gate-up and fuse-qkv, which would join the values"),
        step(&FuseSiluMul, "before fold-cast, which rounds in its result"),
        step(&FoldCast, "before the other fusions, which then see the final `out`"),
        step(&FuseGateUp, "before fuse-qkv, which would take gate and up for plain siblings"),
        step(&FuseMatmulBias, "before fuse-qkv, which joins the biases too"),
        step(&FuseQkv, "after every pass that wants projections one by one"),
        step(&FuseAddRmsNorm, "after fold-cast, so that it takes over the rounded result"),
        step(&FuseMatmulArgmax, "after fuse-qkv: an output projection has no siblings"),
        step(&Canonicalise, "fusions leave slices of slices and nested joins"),
        step(&MergeDuplicates, "and may make the same constant twice"),
    ];
    let laid_out = vec![
        step(&AssignLayouts, "every earlier pass joins and compares nd weights"),
        step(&FuseMlaPreprocess, "composites last: passes look for plain ops"),
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
    use std::collections::HashSet;

    #[test]
    fn every_pass_has_its_own_name_and_runs_by_default() {
        let unique: HashSet<&str> = names().into_iter().collect();
        assert_eq!(unique.len(), PASSES.len());
        let run: HashSet<&str> =
            default_pipeline().iter().flat_map(|s| &s.steps).map(|s| s.pass.name()).collect();
        assert_eq!(run, unique);
    }

    #[test]
    fn an_unknown_pass_is_an_error_that_lists_the_known_ones() {
        let error = pipeline_of(&["fuse-qvk"]).err().unwrap().to_string();
        assert!(error.contains("`fuse-qvk`") && error.contains("fuse-qkv"), "{error}");
    }
}
