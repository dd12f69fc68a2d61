//! Proves that work on several streams is ordered where it must be: by the streams and the waits
//! alone, without knowing how either was chosen.

use super::PlanError;
use crate::{Placement, Plan, Space, Step};

/// Most streams of a plan.
pub(super) const MAX_STREAMS: u32 = 3;

/// For each step, the last step of every stream that is complete before it ends; itself on its own.
type Clocks = Vec<[Option<u32>; MAX_STREAMS as usize]>;

/// Checks the streams, waits and operators of every step, that streams begin and end with stream 0,
/// and that two steps that may run at the same time share no memory that either writes.
pub(super) fn check(plan: &Plan) -> Result<(), PlanError> {
    for (i, step) in plan.steps.iter().enumerate() {
        let issue = &step.issue;
        let known = issue.operator.is_none_or(|o| (o as usize) < plan.operators.len());
        let args = issue.operator.and_then(|o| plan.operators.get(o as usize));
        let has = |arg: u32| (arg as usize) < step.args.len();
        if !known || args.is_some_and(|o| o.tensors().any(|t| !has(t.arg))) {
            return Err(PlanError::BadOperator(i));
        }
        let earlier =
            |w: &u32| (*w as usize) < i && plan.steps[*w as usize].issue.stream != issue.stream;
        if issue.stream >= MAX_STREAMS || !issue.waits.iter().all(earlier) {
            return Err(PlanError::BadWait(i));
        }
    }
    if plan.steps.iter().all(|s| s.issue.stream == 0) {
        return Ok(());
    }
    if !plan.chains.is_empty() {
        return Err(PlanError::BadChain(0));
    }
    let clocks = clocks(&plan.steps);
    check_ends(plan, &clocks)?;
    check_memory(plan, &clocks)?;
    check_states(plan, &clocks)
}

fn clocks(steps: &[Step]) -> Clocks {
    let mut clocks: Clocks = Vec::with_capacity(steps.len());
    let mut last: [Option<u32>; MAX_STREAMS as usize] = Default::default();
    for (i, step) in steps.iter().enumerate() {
        let stream = step.issue.stream as usize;
        let mut clock: [Option<u32>; MAX_STREAMS as usize] = Default::default();
        for before in last[stream].iter().chain(&step.issue.waits) {
            for (mine, theirs) in clock.iter_mut().zip(clocks[*before as usize]) {
                *mine = (*mine).max(theirs);
            }
        }
        clock[stream] = Some(i as u32);
        last[stream] = Some(i as u32);
        clocks.push(clock);
    }
    clocks
}

/// Whether step `a` is complete before step `b` starts.
fn before(steps: &[Step], clocks: &Clocks, a: usize, b: usize) -> bool {
    a != b && clocks[b][steps[a].issue.stream as usize].is_some_and(|last| a <= last as usize)
}

/// A stream starts after a step of stream 0 and is waited for by the last one: a capture of stream 0
/// then has all of the work, and nothing of it is left when a replay ends.
fn check_ends(plan: &Plan, clocks: &Clocks) -> Result<(), PlanError> {
    let end = plan.steps.len() - 1;
    for stream in 1..MAX_STREAMS {
        let mut steps = plan.steps.iter().enumerate().filter(|(_, s)| s.issue.stream == stream);
        let Some((first, _)) = steps.next() else { continue };
        let last = steps.next_back().map_or(first, |(last, _)| last);
        let begins = clocks[first][0].is_some();
        let ends = plan.steps[end].issue.stream == 0 && before(&plan.steps, clocks, last, end);
        if !begins || !ends {
            return Err(PlanError::Unjoined(stream));
        }
    }
    Ok(())
}

/// The value of a buffer is complete before others read it, and buffers that share memory are used
/// one after the other.
fn check_memory(plan: &Plan, clocks: &Clocks) -> Result<(), PlanError> {
    let users: Vec<Vec<usize>> = plan.placements.iter().map(|p| users(plan, p)).collect();
    for (i, (a, of_a)) in plan.placements.iter().zip(&users).enumerate() {
        if let Some((&writer, readers)) = of_a.split_first() {
            // Inputs are there before the first step.
            let is_written = a.first as usize == writer && !is_input(plan, a);
            let late = readers.iter().find(|&&r| !before(&plan.steps, clocks, writer, r));
            if let Some(&step) = late.filter(|_| is_written) {
                return Err(PlanError::Unordered(writer, step));
            }
        }
        for (b, of_b) in plan.placements[..i].iter().zip(&users) {
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            if apart {
                continue;
            }
            let (early, late) = if a.last < b.first { (of_a, of_b) } else { (of_b, of_a) };
            for &x in early {
                if let Some(&y) = late.iter().find(|&&y| !before(&plan.steps, clocks, x, y)) {
                    return Err(PlanError::Unordered(x, y));
                }
            }
        }
    }
    Ok(())
}

fn is_input(plan: &Plan, p: &Placement) -> bool {
    plan.inputs.iter().any(|port| p.first == 0 && port.at.offset == p.offset)
}

/// Steps that touch the buffer, in order.
fn users(plan: &Plan, p: &Placement) -> Vec<usize> {
    let lived = p.first as usize..=(p.last as usize).min(plan.steps.len() - 1);
    lived
        .filter(|&i| {
            plan.steps[i].args.iter().any(|at| {
                at.space == Space::Arena
                    && at.offset < p.offset + p.bytes
                    && p.offset < at.offset + at.bytes
            })
        })
        .collect()
}

/// Steps that touch the same bytes of persistent memory are ordered: nothing here says which of them
/// write.
fn check_states(plan: &Plan, clocks: &Clocks) -> Result<(), PlanError> {
    let of = |step: &Step| {
        let states = step.args.iter().filter(|at| at.space == Space::State);
        states.map(|at| (at.offset, at.offset + at.bytes)).collect::<Vec<_>>()
    };
    let touched: Vec<Vec<(u64, u64)>> = plan.steps.iter().map(of).collect();
    let side = (0..plan.steps.len()).filter(|&i| plan.steps[i].issue.stream > 0);
    for i in side.filter(|&i| !touched[i].is_empty()) {
        for (j, others) in touched.iter().enumerate() {
            let meets = others
                .iter()
                .any(|&(from, to)| touched[i].iter().any(|&(start, end)| start < to && from < end));
            let ordered =
                || before(&plan.steps, clocks, i, j) || before(&plan.steps, clocks, j, i) || i == j;
            if meets && !ordered() {
                return Err(PlanError::Unordered(i.min(j), i.max(j)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferRef, Issue, Operator, Param, Phase, TensorParam, check_plan};

    fn at(space: Space, offset: u64) -> BufferRef {
        BufferRef { space, offset, bytes: 64 }
    }

    fn step(args: &[u64], stream: u32, waits: &[u32]) -> Step {
        Step {
            args: args.iter().map(|&o| at(Space::Arena, o)).collect(),
            issue: Issue { stream, waits: waits.to_vec(), ..Issue::default() },
            ..Step::default()
        }
    }

    /// A norm at 0, one branch over 64, one over 128, their sum at 192.
    fn forked() -> Plan {
        let buffer = |offset, first, last| Placement { offset, bytes: 64, first, last };
        Plan {
            name: "p".into(),
            phase: Phase::Decode,
            rows: 1,
            context_tokens: 0,
            arena_bytes: 256,
            inputs: vec![],
            outputs: vec![],
            placements: vec![
                buffer(0, 0, 2),
                buffer(64, 1, 3),
                buffer(128, 2, 3),
                buffer(192, 3, 4),
            ],
            kernels: vec!["k".into()],
            operators: vec![Operator {
                name: "Cast".into(),
                params: vec![Param::Tensor(TensorParam::dense(1, tensor::DType::F32, &[16]))],
            }],
            steps: vec![
                step(&[0], 0, &[]),
                step(&[0, 64], 0, &[]),
                step(&[0, 128], 1, &[0]),
                step(&[64, 128, 192], 0, &[2]),
            ],
            chains: vec![],
        }
    }

    #[test]
    fn ordered_branches_pass() {
        assert_eq!(check_plan(&forked()), Ok(()));
    }

    #[test]
    fn every_rule_of_streams_is_enforced() {
        type Change = fn(&mut Plan);
        let cases: &[(Change, PlanError)] = &[
            (|p| p.steps[2].issue.stream = 3, PlanError::BadWait(2)),
            (|p| p.steps[3].issue.waits = vec![3], PlanError::BadWait(3)),
            (|p| p.steps[3].issue.waits = vec![1], PlanError::BadWait(3)),
            (|p| p.steps[3].issue.waits = vec![9], PlanError::BadWait(3)),
            // The side stream starts by itself, or nobody waits for it.
            (|p| p.steps[2].issue.waits.clear(), PlanError::Unjoined(1)),
            (|p| p.steps[3].issue.waits.clear(), PlanError::Unjoined(1)),
            // The sum is on the side stream.
            (
                |p| p.steps[3].issue = Issue { stream: 1, waits: vec![1], ..Issue::default() },
                PlanError::Unjoined(1),
            ),
            // The side branch reads what the other branch writes.
            (|p| p.steps[2].args.push(at(Space::Arena, 64)), PlanError::Unordered(1, 2)),
            // Both branches work in one place, one after the other by the order of steps only.
            (
                |p| {
                    p.placements.push(Placement { offset: 192, bytes: 64, first: 1, last: 1 });
                    p.placements.push(Placement { offset: 192, bytes: 64, first: 2, last: 2 });
                    p.steps[1].args.push(at(Space::Arena, 192));
                    p.steps[2].args.push(at(Space::Arena, 192));
                },
                PlanError::Unordered(1, 2),
            ),
            // Both touch one state.
            (
                |p| {
                    p.steps[1].args.push(at(Space::State, 32));
                    p.steps[2].args.push(at(Space::State, 0));
                },
                PlanError::Unordered(1, 2),
            ),
            (|p| p.steps[1].issue.operator = Some(1), PlanError::BadOperator(1)),
            (|p| p.steps[0].issue.operator = Some(0), PlanError::BadOperator(0)),
        ];
        for (i, (change, error)) in cases.iter().enumerate() {
            let mut plan = forked();
            change(&mut plan);
            assert_eq!(check_plan(&plan).as_ref(), Err(error), "case {i}");
        }
        let mut plan = forked();
        plan.steps[1].issue.operator = Some(0);
        assert_eq!(check_plan(&plan), Ok(()), "it has an argument 1");
    }

    #[test]
    fn what_comes_after_the_join_may_use_the_memory_again() {
        let mut plan = forked();
        plan.steps.push(step(&[192, 128], 0, &[]));
        plan.placements[3].last = 4;
        plan.placements.push(Placement { offset: 128, bytes: 64, first: 4, last: 5 });
        assert_eq!(check_plan(&plan), Ok(()));
    }
}
