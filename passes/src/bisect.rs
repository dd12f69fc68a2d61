//! Which rewrite is to blame for a program that went wrong.

use crate::{
    PassReport, Report, TargetInfo,
    manager::{BrokenPass, Options, run},
    pipelines::Stage,
};
use ir::Module;
use std::fmt;

/// The first rewrite after which a program is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Which rewrite, counted from 1 over the whole pipeline; `--rewrite-limit` with one less leaves
    /// it out. 0 for a pass that the target needs, which no limit stops.
    pub rewrite: usize,
    /// Pass.
    pub pass: &'static str,
    /// Where: the op that the rewrite began at, and its first result.
    pub root: String,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Culprit { rewrite, pass, root } = self;
        match rewrite {
            0 => write!(f, "{pass}, which the target needs, is to blame, at {root} or before"),
            n => write!(
                f,
                "rewrite {n}, by {pass} at {root}, is to blame: --rewrite-limit {} is right",
                n - 1
            ),
        }
    }
}

/// Finds the first rewrite of `stages` after which `is_right` no longer holds, by bisection over the
/// rewrite limit. `options` makes the options of a run from its limit. `None` when the end of the
/// pipeline is right. Passes that the target needs run whatever the limit is.
///
/// # Errors
/// As [`run`].
pub fn first_wrong_rewrite<'a>(
    before: &Module,
    stages: &[Stage],
    options: &dyn Fn(usize) -> Options<'a>,
    target: &TargetInfo,
    is_right: &dyn Fn(&Module) -> bool,
) -> Result<Option<Culprit>, BrokenPass> {
    let rewritten = |limit: usize| {
        let mut module = before.clone();
        let report = run(&mut module, stages, &mut options(limit), target)?;
        Ok::<_, BrokenPass>((is_right(&module), report))
    };
    let (right, all) = rewritten(usize::MAX)?;
    if right {
        return Ok(None);
    }
    let steps = || stages.iter().flat_map(|s| &s.steps);
    let is_required =
        |p: &PassReport| steps().any(|s| s.pass.name() == p.pass && s.pass.required().is_some());
    let last = |report: &Report, required: bool| {
        let fired = |p: &&PassReport| p.fired > 0 && is_required(p) == required;
        let pass = report.passes.iter().rfind(fired)?;
        Some((pass.pass, pass.last_root.clone()?))
    };
    let limited = all.passes.iter().filter(|p| !is_required(p)).map(|p| p.fired).sum::<usize>();
    let (right, first) = rewritten(0)?;
    if !right || limited == 0 {
        return Ok(last(&first, true).map(|(pass, root)| Culprit { rewrite: 0, pass, root }));
    }
    // Invariant: after `good` rewrites the program is right, after `bad` it is not.
    let (mut good, mut bad, mut culprit) = (0, limited, last(&all, false));
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        let (right, report) = rewritten(middle)?;
        if right {
            good = middle;
        } else {
            (bad, culprit) = (middle, last(&report, false));
        }
    }
    Ok(culprit.map(|(pass, root)| Culprit { rewrite: bad, pass, root }))
}
