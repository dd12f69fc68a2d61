//! Which stream each call is issued on: branches of a step that do not need each other run side by
//! side, such as a shared expert beside the routed ones.
//!
//! A call is a *cut* when it needs every call before it and every call after it needs it. What lies
//! between two cuts falls into branches that share nothing but the cuts; where two of them are large
//! enough, the first cut forks and the second joins.

use crate::target::Streams;
use artifact::Plan;
use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    ops::Range,
};

/// What a call touches. `P` names a piece of memory.
pub(crate) struct Uses<P> {
    pub(crate) reads: Vec<P>,
    pub(crate) writes: Vec<P>,
    /// Bytes it moves, as a measure of its time.
    pub(crate) bytes: u64,
}

/// A call's stream, and the earlier calls of other streams it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) stream: u32,
    pub(crate) waits: Vec<u32>,
}

/// The streams of all calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) queues: Vec<Queue>,
    /// Calls that run side by side: what any of them touches is needed during all of them.
    pub(crate) regions: Vec<Range<usize>>,
}

/// Assigns a stream to every call, in the order of the calls.
pub(crate) fn assign<P: Copy + Eq + Hash>(calls: &[Uses<P>], streams: Streams) -> Assigned {
    let mut queues = vec![Queue::default(); calls.len()];
    let mut regions = Vec::new();
    if streams.count > 1 {
        let needs = needs(calls);
        let cuts = cuts(&needs);
        for pair in cuts.windows(2) {
            let (fork, join) = (pair[0], pair[1]);
            let branches = branches(&needs, fork + 1..join, |i| calls[i].bytes);
            if fork_out(&branches, fork, join, streams, &mut queues) {
                regions.push(fork + 1..join);
            }
        }
    }
    Assigned { queues, regions }
}

/// For each call, the earlier calls it needs directly.
fn needs<P: Copy + Eq + Hash>(calls: &[Uses<P>]) -> Vec<Vec<usize>> {
    let mut written: HashMap<P, usize> = HashMap::new();
    let mut read: HashMap<P, Vec<usize>> = HashMap::new();
    let mut all = Vec::with_capacity(calls.len());
    for (i, call) in calls.iter().enumerate() {
        let mut needs: Vec<usize> = Vec::new();
        for place in call.reads.iter().chain(&call.writes) {
            needs.extend(written.get(place));
        }
        for place in &call.writes {
            needs.extend(read.remove(place).unwrap_or_default());
            written.insert(*place, i);
        }
        for place in &call.reads {
            read.entry(*place).or_default().push(i);
        }
        needs.sort_unstable();
        needs.dedup();
        needs.retain(|&n| n != i);
        all.push(needs);
    }
    all
}

/// Calls that everything before and after is ordered with.
fn cuts(needs: &[Vec<usize>]) -> Vec<usize> {
    let n = needs.len();
    let words = n.div_ceil(64);
    let mut before: Vec<Vec<u64>> = Vec::with_capacity(n);
    let mut after = vec![0usize; n];
    for direct in needs {
        let mut bits = vec![0u64; words];
        for &d in direct {
            bits[d / 64] |= 1 << (d % 64);
            for (word, more) in bits.iter_mut().zip(&before[d]) {
                *word |= more;
            }
        }
        for (w, &word) in bits.iter().enumerate() {
            let mut rest = word;
            while rest != 0 {
                after[w * 64 + rest.trailing_zeros() as usize] += 1;
                rest &= rest - 1;
            }
        }
        before.push(bits);
    }
    let count = |bits: &[u64]| bits.iter().map(|w| w.count_ones() as usize).sum::<usize>();
    (0..n).filter(|&i| count(&before[i]) == i && after[i] == n - 1 - i).collect()
}

/// Calls that are connected without the cuts, and the bytes they move.
struct Branch {
    calls: Vec<usize>,
    bytes: u64,
}

/// The branches of `region`, largest first.
fn branches(
    needs: &[Vec<usize>],
    region: Range<usize>,
    bytes: impl Fn(usize) -> u64,
) -> Vec<Branch> {
    let mut root: Vec<usize> = region.clone().collect();
    let find = |root: &[usize], mut i: usize| {
        while root[i - region.start] != i {
            i = root[i - region.start];
        }
        i
    };
    for i in region.clone() {
        for &need in needs[i].iter().filter(|&&need| region.contains(&need)) {
            let (a, b) = (find(&root, i), find(&root, need));
            root[a.max(b) - region.start] = a.min(b);
        }
    }
    let mut found: Vec<Branch> = Vec::new();
    for i in region.clone() {
        let first = find(&root, i);
        match found.iter_mut().find(|b| b.calls[0] == first) {
            Some(branch) => {
                branch.calls.push(i);
                branch.bytes += bytes(i);
            }
            None => found.push(Branch { calls: vec![i], bytes: bytes(i) }),
        }
    }
    found.sort_by_key(|b| (std::cmp::Reverse(b.bytes), b.calls[0]));
    found
}

/// Puts branches on the streams that have least to do; whether any left stream 0.
fn fork_out(
    branches: &[Branch],
    fork: usize,
    join: usize,
    streams: Streams,
    queues: &mut [Queue],
) -> bool {
    let mut load = vec![0u64; streams.count as usize];
    let mut last = vec![None; streams.count as usize];
    for (i, branch) in branches.iter().enumerate() {
        // What is small is not worth the two events, nor is leaving stream 0 idle.
        let stream = match i {
            0 => 0,
            _ if branch.bytes < streams.fork_bytes => 0,
            _ => (0..load.len()).min_by_key(|&s| (load[s], s)).expect("there are streams"),
        };
        load[stream] += branch.bytes.max(1);
        for &call in &branch.calls {
            queues[call].stream = stream as u32;
        }
        if stream > 0 {
            last[stream] = last[stream].max(branch.calls.last().copied());
        }
    }
    for (stream, last) in last.iter().enumerate() {
        let Some(last) = *last else { continue };
        let first = (fork + 1..join).find(|&c| queues[c].stream as usize == stream);
        queues[first.expect("the stream has calls")].waits.push(fork as u32);
        queues[join].waits.push(last as u32);
    }
    last.iter().any(Option::is_some)
}

/// Streams and events that recorded plans hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueUse {
    /// Streams.
    pub streams: u64,
    /// Events: one for each step that a step of another stream waits for.
    pub events: u64,
}

/// What `plans` hold together on a device of which a stream holds `steps_per_stream` steps.
pub(crate) fn queue_use<'a>(
    plans: impl Iterator<Item = &'a Plan>,
    steps_per_stream: u64,
) -> QueueUse {
    let mut used = QueueUse { streams: 0, events: 0 };
    for plan in plans {
        let mut steps: BTreeMap<u32, u64> = BTreeMap::from([(0, 0)]);
        let mut waited: Vec<u32> = Vec::new();
        for step in &plan.steps {
            *steps.entry(step.issue.stream).or_default() += 1;
            waited.extend(&step.issue.waits);
        }
        waited.sort_unstable();
        waited.dedup();
        let streams = |steps: &u64| steps.div_ceil(steps_per_stream).max(1);
        used.streams += steps.values().map(streams).sum::<u64>();
        used.events += waited.len() as u64;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::{Issue, Phase, Step};

    #[test]
    fn recorded_plans_hold_streams_and_events() {
        let step = |stream, waits: &[u32]| Step {
            issue: Issue { stream, waits: waits.to_vec(), ..Issue::default() },
            ..Step::default()
        };
        let plan = |steps| Plan {
            name: "p".into(),
            phase: Phase::Decode,
            rows: 1,
            context_tokens: 0,
            arena_bytes: 0,
            inputs: vec![],
            outputs: vec![],
            placements: vec![],
            kernels: vec![],
            operators: vec![],
            steps,
            chains: vec![],
        };
        let forked = plan(vec![step(0, &[]), step(1, &[0]), step(2, &[0]), step(0, &[1, 2])]);
        let long = plan(vec![step(0, &[]); 7]);
        let used = queue_use([&forked, &long, &plan(vec![])].into_iter(), 3);
        assert_eq!(used, QueueUse { streams: 3 + 3 + 1, events: 3 });
    }

    fn call(reads: &[u32], writes: &[u32], bytes: u64) -> Uses<u32> {
        Uses { reads: reads.to_vec(), writes: writes.to_vec(), bytes }
    }

    fn streams(count: u32, fork_bytes: u64) -> Streams {
        Streams { count, fork_bytes, budget: None }
    }

    fn on(stream: u32, waits: &[u32]) -> Queue {
        Queue { stream, waits: waits.to_vec() }
    }

    /// The one region.
    fn only(assigned: &Assigned) -> Range<usize> {
        assert_eq!(assigned.regions.len(), 1);
        assigned.regions[0].clone()
    }

    /// Norm, routed experts in two calls, a shared expert in two between them, the sum.
    fn experts() -> Vec<Uses<u32>> {
        vec![
            call(&[0], &[1], 10),
            call(&[1], &[2], 100),
            call(&[1], &[3], 60),
            call(&[2], &[4], 100),
            call(&[3], &[5], 60),
            call(&[4, 5], &[6], 10),
        ]
    }

    #[test]
    fn the_smaller_branch_moves_to_a_stream_of_its_own() {
        let assigned = assign(&experts(), streams(3, 100));
        let expected = [on(0, &[]), on(0, &[]), on(1, &[0]), on(0, &[]), on(1, &[]), on(0, &[4])];
        assert_eq!((&assigned.queues[..], only(&assigned)), (&expected[..], 1..5));
    }

    #[test]
    fn a_branch_that_is_too_small_stays() {
        let assigned = assign(&experts(), streams(3, 121));
        assert!(
            assigned.queues.iter().all(|q| *q == Queue::default()) && assigned.regions.is_empty()
        );
        assert!(assign(&experts(), streams(1, 0)).regions.is_empty());
    }

    #[test]
    fn a_state_orders_its_writer_and_readers() {
        // The second branch writes place 9, which the first reads before: they are one.
        let mut calls = experts();
        calls[1].reads.push(9);
        calls[4].writes.push(9);
        assert!(assign(&calls, streams(2, 0)).regions.is_empty());
        let mut calls = experts();
        calls[1].writes.push(9);
        calls[4].reads.push(9);
        assert!(assign(&calls, streams(2, 0)).regions.is_empty());
        // Two readers are not ordered.
        let mut calls = experts();
        calls[1].reads.push(9);
        calls[4].reads.push(9);
        assert_eq!(only(&assign(&calls, streams(2, 0))), 1..5);
    }

    #[test]
    fn branches_without_a_cut_before_or_after_them_stay() {
        // Two inputs prepared side by side, then joined, then two results.
        let calls = vec![
            call(&[0], &[1], 9),
            call(&[0], &[2], 9),
            call(&[1, 2], &[3], 9),
            call(&[3], &[4], 9),
            call(&[3], &[5], 9),
        ];
        assert!(assign(&calls, streams(2, 0)).regions.is_empty());
    }

    #[test]
    fn branches_share_the_streams_there_are() {
        let mut calls = vec![call(&[0], &[1], 1)];
        calls.extend((0..4).map(|i| call(&[1], &[10 + i], 40 - u64::from(i))));
        calls.push(call(&[10, 11, 12, 13], &[2], 1));
        let queues = assign(&calls, streams(2, 0)).queues;
        let stream: Vec<u32> = queues.iter().map(|q| q.stream).collect();
        assert_eq!(stream, [0, 0, 1, 1, 0, 0]);
        assert_eq!((&queues[2].waits, &queues[3].waits), (&vec![0], &vec![]));
        assert_eq!(queues[5].waits, [3]);
    }
}
