use super::row_wise;
use super::sample::{Sample, sample};
use crate::device::InstructionSet;
use crate::kernels::uses::{Split, Use};
use crate::kernels::{Barrier, Binder, Buffer, Run, Worker, bind};
use std::ops::Range;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read as bytes")] [u8; 64]);

/// Buffers one after another in memory that is aligned as the arena is.
struct Arena {
    lines: Vec<Line>,
    places: Vec<Range<usize>>,
}

impl Arena {
    fn new(buffers: &[Vec<u8>]) -> Self {
        let mut end = 0;
        let places: Vec<_> = buffers
            .iter()
            .map(|b| {
                let start = end;
                end = (start + b.len()).next_multiple_of(64);
                start..start + b.len()
            })
            .collect();
        let mut arena = Self { lines: vec![Line([0; 64]); end / 64 + 1], places };
        for (place, bytes) in arena.places.clone().into_iter().zip(buffers) {
            arena.bytes()[place].copy_from_slice(bytes);
        }
        arena
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.lines.len() * 64;
        // SAFETY: lines are bytes without gaps.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    /// A call on these buffers and what it does with them; offsets in the uses count from the
    /// start of the arena.
    fn bind(&mut self, set: InstructionSet, name: &str, of: &Sample) -> (Box<dyn Run>, Vec<Use>) {
        let start = self.bytes().as_mut_ptr();
        let buffer = |at: &Range<usize>| Buffer {
            ptr: start.wrapping_add(at.start),
            bytes: at.len(),
            writable: true,
            private: false,
        };
        let buffers: Vec<Buffer> = self.places.iter().map(buffer).collect();
        let mut binder = Binder::new(&buffers, &of.scalars);
        let call = bind(set, name, &mut binder).unwrap();
        let call = call.unwrap_or_else(|why| panic!("{name}: {why}"));
        let mut uses = binder.into_uses();
        for used in &mut uses {
            used.start -= start.addr();
            used.end -= start.addr();
        }
        (call, uses)
    }
}

/// Runs one worker's share of a call; a shared scratch or a barrier would fault or hang.
fn run(call: &dyn Run, index: usize, count: usize) {
    let barrier = Barrier::new(1);
    let mut scratch = vec![Line([0xA5; 64]); call.scratch().private / 64 + 2];
    let private = scratch.as_mut_ptr().cast();
    assert_eq!(call.scratch().shared, 0);
    let shared = std::ptr::null_mut();
    let upcoming = std::ptr::null();
    let worker = Worker { index, count, barrier: &barrier, private, shared, upcoming };
    // SAFETY: the buffers are alive and this thread alone uses them.
    unsafe { call.run(&worker) };
}

/// The bytes of row `r` of a chain of `count` rows.
fn row(used: &Use, r: usize, count: usize) -> Option<Range<usize>> {
    let Split::Rows { rows, len, stride } = used.split else { return None };
    let each = rows / count;
    let start = used.start + r * each * stride;
    Some(start..start + (each - 1) * stride + len)
}

/// Row `r` is written from row `r` alone: what other rows hold is spoilt before, and nothing but row
/// `r` changes. All rows together are what one worker does.
#[test]
fn a_row_is_its_own() {
    const COUNT: usize = 5;
    for set in InstructionSet::available() {
        for (name, rows) in row_wise().flat_map(|n| [(n, COUNT), (n, 2 * COUNT)]) {
            let sample = sample(name, rows);
            let mut whole = Arena::new(&sample.buffers);
            let (call, _) = whole.bind(set, name, &sample);
            run(&*call, 0, 1);
            let expected = whole.bytes().to_vec();
            let mut joined = Arena::new(&sample.buffers);
            let (call, uses) = joined.bind(set, name, &sample);
            assert!(uses.iter().any(|u| u.written), "{name} writes nothing");
            for r in 0..COUNT {
                run(&*call, r, COUNT);
            }
            assert!(joined.bytes() == expected, "{set} {name}: rows do not make the whole");

            for r in 0..COUNT {
                let mut one = Arena::new(&sample.buffers);
                let (call, uses) = one.bind(set, name, &sample);
                let mut before = one.bytes().to_vec();
                for used in uses.iter().filter(|u| !u.written) {
                    for other in (0..COUNT).filter(|&o| o != r) {
                        if let Some(range) = row(used, other, COUNT) {
                            before[range].fill(0xFF);
                        }
                    }
                }
                one.bytes().copy_from_slice(&before);
                run(&*call, r, COUNT);
                let after = one.bytes().to_vec();
                let written: Vec<_> = uses.iter().filter(|u| u.written).collect();
                let own = |i: usize| {
                    written.iter().any(|u| match row(u, r, COUNT) {
                        Some(range) => range.contains(&i),
                        None => (u.start..u.end).contains(&i),
                    })
                };
                for i in 0..after.len() {
                    if !own(i) {
                        assert_eq!(after[i], before[i], "{set} {name}: row {r} wrote byte {i}");
                    }
                }
                for range in written.iter().filter_map(|u| row(u, r, COUNT)) {
                    assert!(after[range.clone()] == expected[range], "{set} {name}: row {r}");
                }
            }
        }
    }
}

/// Which row writes a slot that several rows name does not depend on their order.
#[test]
fn rows_that_share_a_slot_do_not_race() {
    for set in InstructionSet::available() {
        for name in
            ["kv_write_f32", "kv_write_bf16", "kv_write_i8", "paged_write_f32", "paged_write_bf16"]
        {
            let sample = sample(name, 10);
            let done = |order: &mut dyn Iterator<Item = usize>| {
                let mut arena = Arena::new(&sample.buffers);
                let (call, _) = arena.bind(set, name, &sample);
                order.for_each(|r| run(&*call, r, 10));
                arena.bytes().to_vec()
            };
            assert!(done(&mut (0..10)) == done(&mut (0..10).rev()), "{set} {name}");
        }
    }
}
