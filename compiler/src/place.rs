//! Places buffers in the arena so that buffers of different times share memory.

/// A buffer that must be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Step that writes it.
    pub(crate) first: u32,
    /// Last step that reads it.
    pub(crate) last: u32,
    /// Length.
    pub(crate) bytes: u64,
}

/// Offsets of the requests and the memory they need together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) offsets: Vec<u64>,
    pub(crate) arena_bytes: u64,
}

/// The first `inputs` one after the other at the start, so that one copy writes them all; each is
/// then needed as long as any of them. Then largest first, each in the lowest gap that no simultaneous
/// buffer occupies. (Greedy by size: within a few percent of the lower bound on the graphs we place,
/// and quick.)
pub(crate) fn place(requests: &mut [Request], inputs: usize, align: u64) -> Placed {
    let mut offsets = vec![0; requests.len()];
    let mut arena_bytes = 0u64;
    let last_read = requests[..inputs].iter().map(|r| r.last).max().unwrap_or(0);
    for (request, offset) in requests[..inputs].iter_mut().zip(&mut offsets) {
        request.last = last_read;
        *offset = arena_bytes.next_multiple_of(align);
        arena_bytes = *offset + request.bytes;
    }
    let mut placed: Vec<usize> = (0..inputs).collect();
    let mut by_size: Vec<usize> = (inputs..requests.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), i));
    for i in by_size {
        let r = requests[i];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&j| r.first <= requests[j].last && requests[j].first <= r.last)
            .map(|&j| (offsets[j], offsets[j] + requests[j].bytes))
            .collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (begin, end) in taken {
            if at + r.bytes <= begin {
                break;
            }
            at = at.max(end.next_multiple_of(align));
        }
        offsets[i] = at;
        arena_bytes = arena_bytes.max(at + r.bytes);
        placed.push(i);
    }
    Placed { offsets, arena_bytes: arena_bytes.next_multiple_of(align) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::{Phase, Placement, Plan, check_plan};
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        (0..40u32, 0..12u32, 1..5000u64).prop_map(|(first, len, bytes)| Request {
            first,
            last: first + len,
            bytes,
        })
    }

    proptest! {
        #[test]
        fn every_placement_passes_the_checker(
            mut requests in prop::collection::vec(request(), 0..60),
            inputs in 0..6usize,
        ) {
            let inputs = inputs.min(requests.len());
            requests[..inputs].iter_mut().for_each(|r| r.first = 0);
            let placed = place(&mut requests, inputs, 64);
            let mut end = 0u64;
            for (request, &offset) in requests[..inputs].iter().zip(&placed.offsets) {
                prop_assert_eq!(offset, end.next_multiple_of(64));
                end = offset + request.bytes;
            }
            let plan = Plan {
                name: "p".into(),
                phase: Phase::Decode,
                rows: 1,
                context_tokens: 0,
                arena_bytes: placed.arena_bytes,
                inputs: vec![],
                outputs: vec![],
                placements: requests.iter().zip(&placed.offsets).map(|(r, &offset)| Placement {
                    offset,
                    bytes: r.bytes,
                    first: r.first,
                    last: r.last,
                }).collect(),
                kernels: vec![],
                operators: vec![],
                steps: vec![],
                chains: vec![],
            };
            prop_assert_eq!(check_plan(&plan), Ok(()));
            let largest = requests.iter().map(|r| r.bytes).max().unwrap_or(0);
            let total: u64 = requests.iter().map(|r| r.bytes.next_multiple_of(64)).sum();
            prop_assert!((largest..=total.max(largest)).contains(&placed.arena_bytes));
        }
    }
}
