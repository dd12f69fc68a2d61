//! Proves that a plan's buffers do not overwrite each other. Slow and obvious on purpose; run when
//! a plan is made and again when it is loaded, and shares no code with the placement.

use crate::{Plan, Space};

/// A plan that must not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A buffer leaves the arena.
    #[error("buffer {0} leaves the arena")]
    OutOfArena(usize),
    /// A buffer's address is not a multiple of the alignment.
    #[error("buffer {0} is not aligned to {ALIGN} bytes")]
    Misaligned(usize),
    /// Two buffers hold values at the same time in the same place.
    #[error("buffers {0} and {1} overlap while both are needed")]
    Overlap(usize, usize),
    /// A step touches arena memory that holds nothing then.
    #[error("step {step}, argument {arg} lies in no live buffer")]
    Stray {
        /// The step.
        step: usize,
        /// Index of the argument.
        arg: usize,
    },
    /// A step calls a kernel that the plan does not list.
    #[error("step {0} calls a kernel that is not listed")]
    UnlistedKernel(usize),
    /// An input or output that holds nothing when it is written or read.
    #[error("port `{0}` lies in no live buffer")]
    StrayPort(String),
}

/// Alignment of every arena buffer.
const ALIGN: u64 = 64;

/// Checks every buffer against every other, and every use against the buffers.
///
/// # Errors
/// The first rule that is broken.
pub fn check_plan(plan: &Plan) -> Result<(), PlanError> {
    for (i, a) in plan.placements.iter().enumerate() {
        if a.offset.checked_add(a.bytes).is_none_or(|end| end > plan.arena_bytes) {
            return Err(PlanError::OutOfArena(i));
        }
        if !a.offset.is_multiple_of(ALIGN) {
            return Err(PlanError::Misaligned(i));
        }
        for (j, b) in plan.placements.iter().enumerate().take(i) {
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            let together = a.first <= b.last && b.first <= a.last;
            if together && !apart {
                return Err(PlanError::Overlap(j, i));
            }
        }
    }
    let covered = |offset: u64, bytes: u64, step: usize| {
        plan.placements.iter().any(|p| {
            p.offset <= offset
                && offset.checked_add(bytes).is_some_and(|end| end <= p.offset + p.bytes)
                && p.first as usize <= step
                && step <= p.last as usize
        })
    };
    for (step, call) in plan.steps.iter().enumerate() {
        if call.kernel as usize >= plan.kernels.len() {
            return Err(PlanError::UnlistedKernel(step));
        }
        for (arg, at) in call.args.iter().enumerate() {
            if at.space == Space::Arena && !covered(at.offset, at.bytes, step) {
                return Err(PlanError::Stray { step, arg });
            }
        }
    }
    let ports = plan.inputs.iter().map(|p| (p, 0));
    for (port, step) in ports.chain(plan.outputs.iter().map(|p| (p, plan.steps.len()))) {
        if port.at.space != Space::Arena || !covered(port.at.offset, port.at.bytes, step) {
            return Err(PlanError::StrayPort(port.name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferRef, Phase, Placement, Step};

    fn plan(placements: Vec<Placement>, args: Vec<(u64, u64)>) -> Plan {
        let arena = |(offset, bytes)| BufferRef { space: Space::Arena, offset, bytes };
        Plan {
            name: "p".into(),
            phase: Phase::Decode,
            rows: 1,
            context_tokens: 0,
            arena_bytes: 256,
            inputs: vec![],
            outputs: vec![],
            placements,
            kernels: vec!["k".into()],
            steps: vec![Step {
                kernel: 0,
                args: args.into_iter().map(arena).collect(),
                scalars: vec![],
            }],
        }
    }

    fn at(offset: u64, bytes: u64, first: u32, last: u32) -> Placement {
        Placement { offset, bytes, first, last }
    }

    #[test]
    fn every_rule_is_enforced() {
        assert_eq!(
            check_plan(&plan(vec![at(0, 64, 0, 1), at(64, 64, 0, 0)], vec![(0, 64)])),
            Ok(())
        );
        let cases = [
            (vec![at(192, 128, 0, 1)], vec![], PlanError::OutOfArena(0)),
            (vec![at(32, 32, 0, 1)], vec![], PlanError::Misaligned(0)),
            (vec![at(0, 65, 0, 1), at(64, 64, 1, 2)], vec![], PlanError::Overlap(0, 1)),
            (vec![at(0, 64, 1, 1)], vec![(0, 64)], PlanError::Stray { step: 0, arg: 0 }),
            (vec![at(0, 64, 0, 1)], vec![(32, 64)], PlanError::Stray { step: 0, arg: 0 }),
        ];
        for (placements, args, error) in cases {
            assert_eq!(check_plan(&plan(placements, args)), Err(error));
        }
    }

    #[test]
    fn ranges_past_the_last_address_are_refused() {
        let mut huge = plan(vec![at(0, u64::MAX, 0, 1)], vec![(64, u64::MAX)]);
        huge.arena_bytes = u64::MAX;
        assert_eq!(check_plan(&huge), Err(PlanError::Stray { step: 0, arg: 0 }));
        let beyond = plan(vec![at(u64::MAX - 63, 64, 0, 1)], vec![]);
        assert_eq!(check_plan(&beyond), Err(PlanError::OutOfArena(0)));
    }

    #[test]
    fn kernels_are_listed() {
        let mut unlisted = plan(vec![], vec![]);
        unlisted.steps[0].kernel = 1;
        assert_eq!(check_plan(&unlisted), Err(PlanError::UnlistedKernel(0)));
    }

    #[test]
    fn buffers_of_different_times_may_share_memory() {
        assert_eq!(check_plan(&plan(vec![at(0, 64, 0, 0), at(0, 64, 1, 2)], vec![])), Ok(()));
    }
}
