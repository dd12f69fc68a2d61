//! Proves that a plan's buffers do not overwrite each other. Slow and obvious on purpose; run when
//! a plan is made and again when it is loaded, and shares no code with the placement.

mod streams;

use crate::{Chain, Placement, Plan, Space};

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
    /// A step touches arena memory, or private memory, that holds nothing then.
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
    /// A chain without rows or steps, or with steps that the plan does not have or that an earlier
    /// chain has.
    #[error("chain {0} has no rows, no steps, or steps that are not its own")]
    BadChain(usize),
    /// A step whose operator the plan does not list, or that has fewer arguments than its operator.
    #[error("step {0} is an operator that is not listed or has other arguments")]
    BadOperator(usize),
    /// A step on a stream that there cannot be, or that waits for a step of its own stream or a later one.
    #[error("step {0} has a stream or a wait that cannot be")]
    BadWait(usize),
    /// A stream that does not start from stream 0, or that stream 0 does not wait for at the end.
    #[error("stream {0} does not begin and end with stream 0")]
    Unjoined(u32),
    /// Two steps that may run at the same time and use the same memory.
    #[error("steps {0} and {1} use the same memory and neither waits for the other")]
    Unordered(usize, usize),
    /// A buffer in the private memory of a chain.
    #[error("private memory of chain {chain}: {source}")]
    Private {
        /// The chain.
        chain: usize,
        /// What is wrong with the buffer.
        source: Box<PlanError>,
    },
}

/// Alignment of every buffer.
const ALIGN: u64 = 64;

/// Checks every buffer against every other, and every use against the buffers.
///
/// # Errors
/// The first rule that is broken.
pub fn check_plan(plan: &Plan) -> Result<(), PlanError> {
    check_placements(&plan.placements, plan.arena_bytes)?;
    check_chains(plan)?;
    streams::check(plan)?;
    for (step, call) in plan.steps.iter().enumerate() {
        if call.kernel as usize >= plan.kernels.len() {
            return Err(PlanError::UnlistedKernel(step));
        }
        let chain = plan.chains.iter().find(|c| c.first as usize <= step && step <= last(c));
        for (arg, at) in call.args.iter().enumerate() {
            let held = match (at.space, chain) {
                (Space::Weights | Space::State, _) => true,
                (Space::Arena, None) => covered(&plan.placements, at.offset, at.bytes, step, step),
                // Another thread may be at any other step of the chain.
                (Space::Arena, Some(c)) => {
                    covered(&plan.placements, at.offset, at.bytes, c.first as usize, last(c))
                }
                (Space::Private, None) => false,
                (Space::Private, Some(c)) => {
                    covered(&c.placements, at.offset, at.bytes, step, step)
                }
            };
            if !held {
                return Err(PlanError::Stray { step, arg });
            }
        }
    }
    let ports = plan.inputs.iter().map(|p| (p, 0));
    for (port, step) in ports.chain(plan.outputs.iter().map(|p| (p, plan.steps.len()))) {
        let at = port.at;
        if at.space != Space::Arena || !covered(&plan.placements, at.offset, at.bytes, step, step) {
            return Err(PlanError::StrayPort(port.name.clone()));
        }
    }
    Ok(())
}

fn last(chain: &Chain) -> usize {
    chain.last() as usize
}

/// Every chain has rows and steps of its own, and its buffers do not overwrite each other.
fn check_chains(plan: &Plan) -> Result<(), PlanError> {
    let mut free = 0;
    for (i, chain) in plan.chains.iter().enumerate() {
        let outside = (chain.first as usize) < free || last(chain) >= plan.steps.len();
        let too_long = chain.first.checked_add(chain.steps).is_none();
        if chain.rows == 0 || chain.steps == 0 || outside || too_long {
            return Err(PlanError::BadChain(i));
        }
        free = last(chain) + 1;
        check_placements(&chain.placements, chain.private_bytes)
            .map_err(|source| PlanError::Private { chain: i, source: Box::new(source) })?;
    }
    Ok(())
}

fn check_placements(placements: &[Placement], memory_bytes: u64) -> Result<(), PlanError> {
    for (i, a) in placements.iter().enumerate() {
        if a.offset.checked_add(a.bytes).is_none_or(|end| end > memory_bytes) {
            return Err(PlanError::OutOfArena(i));
        }
        if !a.offset.is_multiple_of(ALIGN) {
            return Err(PlanError::Misaligned(i));
        }
        for (j, b) in placements.iter().enumerate().take(i) {
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            let together = a.first <= b.last && b.first <= a.last;
            if together && !apart {
                return Err(PlanError::Overlap(j, i));
            }
        }
    }
    Ok(())
}

/// Whether one buffer holds these bytes from step `first` to step `last`.
fn covered(placements: &[Placement], offset: u64, bytes: u64, first: usize, last: usize) -> bool {
    placements.iter().any(|p| {
        p.offset <= offset
            && offset.checked_add(bytes).is_some_and(|end| end <= p.offset + p.bytes)
            && p.first as usize <= first
            && last <= p.last as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferRef, Phase, Step};

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
            operators: vec![],
            steps: vec![Step {
                kernel: 0,
                args: args.into_iter().map(arena).collect(),
                ..Step::default()
            }],
            chains: vec![],
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

    /// Steps 0 to 3, of which 1 and 2 are a chain; step 2 reads what step 1 writes to private memory.
    fn chained() -> Plan {
        let mut plan = plan(vec![at(0, 64, 0, 2), at(64, 64, 1, 4)], vec![(0, 64)]);
        let arg = |space, offset| BufferRef { space, offset, bytes: 64 };
        let step = |args| Step { args, ..Step::default() };
        plan.steps.push(step(vec![arg(Space::Arena, 0), arg(Space::Private, 64)]));
        plan.steps.push(step(vec![arg(Space::Private, 64), arg(Space::Arena, 64)]));
        plan.steps.push(step(vec![arg(Space::Arena, 64)]));
        plan.chains.push(Chain {
            first: 1,
            steps: 2,
            rows: 3,
            private_bytes: 128,
            placements: vec![at(64, 64, 1, 2)],
        });
        plan
    }

    #[test]
    fn every_rule_of_chains_is_enforced() {
        assert_eq!(check_plan(&chained()), Ok(()));
        let private = |source| PlanError::Private { chain: 0, source: Box::new(source) };
        type Change = fn(&mut Plan);
        let cases: &[(Change, PlanError)] = &[
            (|p| p.chains[0].rows = 0, PlanError::BadChain(0)),
            (|p| p.chains[0].steps = 0, PlanError::BadChain(0)),
            (|p| p.chains[0].steps = 4, PlanError::BadChain(0)),
            (|p| p.chains[0].steps = u32::MAX, PlanError::BadChain(0)),
            (|p| p.chains.push(p.chains[0].clone()), PlanError::BadChain(1)),
            (|p| p.chains[0].private_bytes = 64, private(PlanError::OutOfArena(0))),
            (|p| p.chains[0].placements[0].offset = 32, private(PlanError::Misaligned(0))),
            (|p| p.chains[0].placements.push(at(0, 128, 2, 2)), private(PlanError::Overlap(0, 1))),
            (|p| p.chains[0].placements[0].last = 1, PlanError::Stray { step: 2, arg: 0 }),
            (|p| p.chains[0].steps = 1, PlanError::Stray { step: 2, arg: 0 }),
            (|p| p.chains.clear(), PlanError::Stray { step: 1, arg: 1 }),
            // Row 0 may be at step 2 while row 1 is at step 1.
            (|p| p.placements[0].last = 1, PlanError::Stray { step: 1, arg: 0 }),
            (|p| p.placements[1].first = 2, PlanError::Stray { step: 2, arg: 1 }),
        ];
        for (i, (change, error)) in cases.iter().enumerate() {
            let mut plan = chained();
            change(&mut plan);
            assert_eq!(check_plan(&plan).as_ref(), Err(error), "case {i}");
        }
    }

    #[test]
    fn a_chain_is_one_launch() {
        assert_eq!(chained().launches(), 3);
    }
}
