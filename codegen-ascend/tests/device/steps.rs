//! What plans compute, and what a step costs.

use crate::support::{
    Call, N, Sim, add, allocations, arena, buffer, capture, copy, load, loaded, mul, options, read,
    weight, weights, write,
};
use artifact::Space;
use hal::{Device, DeviceError, MemoryRequest};
use precast_codegen_ascend::device::{AscendDevice, AscendOptions, Record};
use std::path::PathBuf;

/// `slot 3 = (x + w) * y + (x * y)`, the last product on a second stream.
fn forked() -> Vec<Call> {
    let w = buffer(Space::Weights, 0);
    vec![
        add(arena(0), w, arena(4)),
        mul(arena(0), arena(1), arena(5)).on(1, &[]),
        mul(arena(4), arena(1), arena(6)),
        add(arena(6), arena(5), arena(3)).on(0, &[1]),
    ]
}

fn expected(x: f32, y: f32) -> [f32; N] {
    std::array::from_fn(|i| (x + weight(i)) * y + x * y)
}

fn step(
    device: &mut AscendDevice,
    graph: &precast_codegen_ascend::device::AscendGraph,
    x: f32,
    y: f32,
) {
    write(device, arena(0), x);
    write(device, arena(1), y);
    device.replay(graph).unwrap();
    assert_eq!(read(device, arena(3)).unwrap(), expected(x, y), "{x} {y}");
}

#[test]
fn a_plan_computes_the_same_however_it_is_recorded() {
    let sim = Sim::new();
    for record in [Record::Capture, Record::Build] {
        for warm_up in [false, true] {
            let mut device = loaded(AscendOptions { record, warm_up, ..options() });
            let graph = capture(&mut device, &forked()).unwrap();
            for i in 0..5 {
                step(&mut device, &graph, i as f32, 3.0 - i as f32);
            }
            drop((device, graph));
            assert_eq!(sim.live(), "", "{record:?}");
        }
    }
    assert!(
        sim.counter("calls/aclmdlRIBuildEnd") > 0 && sim.counter("calls/aclmdlRICaptureEnd") > 0
    );
}

/// In any order that events allow, that is.
#[test]
fn streams_are_ordered_by_events_alone() {
    let sim = Sim::new();
    for seed in 0..8 {
        sim.configure("ASCEND_SIM_SHUFFLE", &seed.to_string());
        let mut device = loaded(options());
        // The side stream is left open; the graph's end must wait for it all the same.
        let calls = [
            mul(arena(0), arena(1), arena(5)),
            add(arena(5), arena(0), arena(3)).on(2, &[0]),
            mul(arena(5), arena(5), arena(6)).on(1, &[0]),
            add(arena(6), arena(0), arena(7)).on(1, &[]),
        ];
        let graph = capture(&mut device, &calls).unwrap();
        write(&mut device, arena(0), 2.0);
        write(&mut device, arena(1), 3.0);
        device.replay(&graph).unwrap();
        assert_eq!(read(&mut device, arena(3)).unwrap(), [8.0; N]);
        assert_eq!(read(&mut device, arena(7)).unwrap(), [38.0; N]);
    }
}

#[test]
fn releases_without_newer_functions_do_as_well() {
    let sim = Sim::new();
    for version in ["8.1", "8.3", "8.5", "9.0"] {
        sim.configure("ASCEND_SIM_VERSION", version);
        let mut device = loaded(AscendOptions { record: Record::Build, ..options() });
        let graph = capture(&mut device, &forked()).unwrap();
        step(&mut device, &graph, 1.0, 2.0);
        assert_eq!(device.session().release().name(), version);
    }
}

#[test]
fn a_step_is_one_copy_one_replay_and_one_copy_back() {
    let sim = Sim::new();
    let mut device = loaded(options());
    let graph = capture(&mut device, &forked()).unwrap();
    step(&mut device, &graph, 1.0, 2.0);
    let counters = [
        "copies/h2d",
        "copies/d2h",
        "calls/aclmdlRIExecuteAsync",
        "calls/aclrtMemcpyAsync",
        "calls/aclrtSynchronizeStreamWithTimeout",
        "calls/aclrtMalloc",
    ];
    let before = counters.map(|c| sim.counter(c));
    let (x, y) = ([7u8; 4 * N], [9u8; 4 * N]);
    let mut out = [0u8; 4 * N];
    let allocated = allocations();
    for _ in 0..10 {
        device.write(arena(0), &x);
        device.write(arena(1), &y);
        device.replay(&graph).unwrap();
        device.read(arena(3), &mut out).unwrap();
    }
    assert_eq!(allocations(), allocated, "a step allocates nothing");
    let after = counters.map(|c| sim.counter(c));
    let spent: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    assert_eq!(spent, [10, 10, 10, 20, 10, 0], "{counters:?}");
}

/// Steps that nobody reads in between each get their own inputs, also those written only once.
#[test]
fn inputs_of_the_next_step_may_be_written_at_once() {
    let _sim = Sim::new();
    let mut device = loaded(options());
    let sum = buffer(Space::State, 1);
    let calls =
        [mul(arena(0), arena(1), arena(4)), add(sum, arena(4), arena(5)), copy(sum, arena(5))];
    let graph = capture(&mut device, &calls).unwrap();
    write(&mut device, arena(1), 10.0);
    let mut wanted = 0.0;
    for i in 1..20 {
        write(&mut device, arena(0), i as f32);
        if i % 7 == 0 {
            write(&mut device, arena(1), i as f32);
        }
        let factor = if i < 7 { 10.0 } else { (i / 7 * 7) as f32 };
        wanted += factor * i as f32;
        device.replay(&graph).unwrap();
    }
    assert_eq!(read(&mut device, sum).unwrap(), [wanted; N]);
}

#[test]
fn what_was_written_is_read_before_any_replay() {
    let _sim = Sim::new();
    let mut device = loaded(options());
    let state = buffer(Space::State, 2);
    write(&mut device, arena(2), 4.0);
    write(&mut device, state, 5.0);
    assert_eq!(read(&mut device, arena(2)).unwrap(), [4.0; N]);
    assert_eq!(read(&mut device, state).unwrap(), [5.0; N]);
    assert_eq!(read(&mut device, arena(3)).unwrap(), [0.0; N]);
}

/// Warming up runs the steps, and leaves nothing of it.
#[test]
fn states_are_zero_at_the_first_step() {
    let sim = Sim::new();
    let mut device = loaded(options());
    let state = buffer(Space::State, 0);
    let calls = [add(state, buffer(Space::Weights, 0), arena(4)), copy(state, arena(4))];
    let graph = capture(&mut device, &calls).unwrap();
    assert!(sim.counter("calls/aclmdlRIExecuteAsync") == 0);
    device.replay(&graph).unwrap();
    device.replay(&graph).unwrap();
    assert_eq!(read(&mut device, state).unwrap(), std::array::from_fn(|i| 2.0 * weight(i)));
}

#[test]
fn a_state_that_is_written_before_the_first_step_stays() {
    let _sim = Sim::new();
    let mut device = loaded(options());
    let state = buffer(Space::State, 0);
    let graph = capture(&mut device, &[copy(arena(4), state)]).unwrap();
    write(&mut device, state, 3.0);
    device.replay(&graph).unwrap();
    assert_eq!(read(&mut device, arena(4)).unwrap(), [3.0; N]);
    // Plans that are recorded later are not warmed up on it.
    capture(&mut device, &[copy(state, buffer(Space::Weights, 0))]).unwrap();
    assert_eq!(read(&mut device, state).unwrap(), [3.0; N]);
}

#[test]
fn weights_longer_than_a_chunk_arrive_whole() {
    let _sim = Sim::new();
    let mut device = AscendDevice::open(options()).unwrap();
    let count = (35 << 20) / 4 + N;
    let request = MemoryRequest {
        root: PathBuf::new(),
        weights: weights(count),
        arena_bytes: 4096,
        state_bytes: 0,
    };
    device.load(request).unwrap();
    for first in [0, (16 << 20) / 4 - N / 2, count - N] {
        let at = artifact::BufferRef {
            space: Space::Weights,
            offset: 4 * first as u64,
            bytes: 4 * N as u64,
        };
        assert_eq!(read(&mut device, at).unwrap(), std::array::from_fn(|i| weight(first + i)));
    }
}

#[test]
fn a_graph_may_outlive_its_device_and_change_threads() {
    let sim = Sim::new();
    let mut device = AscendDevice::open(options()).unwrap();
    let (device, graph) = std::thread::spawn(move || {
        load(&mut device).unwrap();
        let graph = capture(&mut device, &forked()).unwrap();
        (device, graph)
    })
    .join()
    .unwrap();
    let mut device = device;
    step(&mut device, &graph, 2.0, 2.0);
    drop(device);
    assert_ne!(sim.live(), "", "the graph holds what it needs");
    std::thread::spawn(move || drop(graph)).join().unwrap();
    assert_eq!(sim.live(), "");
}

#[test]
fn calls_out_of_order_and_plans_that_make_no_sense_are_refused() {
    let _sim = Sim::new();
    let mut device = AscendDevice::open(options()).unwrap();
    assert!(matches!(device.begin_capture(), Err(DeviceError::Misuse(_))));
    load(&mut device).unwrap();
    assert!(matches!(device.end_capture(), Err(DeviceError::Misuse(_))));
    assert!(matches!(forked()[0].launch(&mut device), Err(DeviceError::Misuse(_))));
    let refused =
        |device: &mut AscendDevice, calls: &[Call]| capture(device, calls).unwrap_err().to_string();
    let outside = artifact::BufferRef { offset: 4090, ..arena(0) };
    let why = refused(&mut device, &[add(outside, arena(0), arena(1))]);
    assert!(why.contains("leaves the arena of 4096 bytes"), "{why}");
    let mut unknown = add(arena(0), arena(1), arena(2));
    unknown.operator.as_mut().unwrap().name = "NoSuchThing".into();
    assert!(refused(&mut device, &[unknown]).contains("does not know the operator"));
    let mut few = add(arena(0), arena(1), arena(2));
    few.operator.as_mut().unwrap().params.pop();
    assert!(refused(&mut device, &[few]).contains("it takes 4 parameters, not 3"));
    let mut swapped = add(arena(0), arena(1), arena(2));
    swapped.operator.as_mut().unwrap().params.swap(1, 2);
    assert!(refused(&mut device, &[swapped]).contains("parameter `other`"));
    let late = add(arena(0), arena(1), arena(2)).on(1, &[3]);
    assert!(refused(&mut device, &[late]).contains("waits for step 3"));
    // None of it stays in the way.
    let graph = capture(&mut device, &forked()).unwrap();
    step(&mut device, &graph, 1.0, 1.0);
}

/// A plan that needs a larger workspace or more streams than those before leaves theirs as they are.
#[test]
fn later_plans_do_not_disturb_earlier_ones() {
    let sim = Sim::new();
    let mut device = loaded(options());
    let small = capture(&mut device, &[mul(arena(0), arena(1), arena(3))]).unwrap();
    let large = capture(&mut device, &forked()).unwrap();
    for x in [1.0, 4.0] {
        write(&mut device, arena(0), x);
        write(&mut device, arena(1), 2.0);
        device.replay(&small).unwrap();
        assert_eq!(read(&mut device, arena(3)).unwrap(), [2.0 * x; N]);
        step(&mut device, &large, x, 2.0);
    }
    drop(small);
    step(&mut device, &large, 5.0, 6.0);
    drop((device, large));
    assert_eq!(sim.live(), "");
}
