//! Every pass by name, and the order in which they run.

use crate::{
    BrokenPass, Phase,
    rewrite::Rewrite,
    {canonicalise::Canonicalise, dead::RemoveDead, duplicates::MergeDuplicates},
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
const PASSES: &[&dyn Rewrite] = &[&Canonicalise, &MergeDuplicates, &RemoveDead];

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
        Some(pass) => Ok(Step {
            pass,
            why: "asked for by name",
        }),
        None => Err(BrokenPass::Unknown {
            name: (*name).to_owned(),
        }),
    };
    let steps = names.iter().map(step).collect::<Result<_, _>>()?;
    Ok(vec![Stage { phase: None, steps }])
}

/// From a model definition to [`Phase::LaidOut`].
pub fn default_pipeline() -> Vec<Stage> {
    let step = |pass, why| Step { pass, why };
    vec![Stage {
        phase: Some(Phase::Imported),
        steps: vec![
            step(
                &Canonicalise,
                "patterns are written for the canonical form only",
            ),
            step(
                &MergeDuplicates,
                "guards on reader counts need each value computed once",
            ),
            step(&RemoveDead, "a dead reader would make a guard decline"),
        ],
    }]
}
