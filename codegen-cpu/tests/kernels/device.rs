//! The device: capture, replay, errors.

use crate::support::*;
use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::{CpuDevice, CpuOptions, InstructionSet, kernels};
use hal::{Device, DeviceError, MemoryRequest};
use proptest::prelude::*;
use std::time::Duration;
use tensor::DType;

const F: DType = DType::F32;

fn loaded(threads: usize, arena_bytes: u64) -> CpuDevice {
    let mut device = device(InstructionSet::best(), threads);
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes,
            state_bytes: 4096,
        })
        .unwrap();
    device
}

#[test]
fn a_list_of_calls_is_the_calls_one_after_another() {
    let (t, n, k) = (5, 130, 77);
    let (x, w, bias) = (noise(1, t * k), noise(2, n * k), noise(3, n));
    let packed = panels(F, &w, n, k);
    for set in InstructionSet::available() {
        let mut product = vec![encode(F, &x), packed.clone(), unwritten(F, t * n)];
        run(set, 1, "matmul_f32_f32", &mut product, &ints([t, n, k, k, n]));
        let mut biased = vec![product[2].clone(), encode(F, &bias), unwritten(F, t * n)];
        run(set, 1, "add_bias_f32", &mut biased, &ints([t, n, n, n]));
        let mut largest = vec![biased[2].clone(), bytes_of_i32(&vec![-1; t])];
        run(set, 1, "argmax_f32", &mut largest, &ints([t, n, n]));

        for threads in [1, 2, 4] {
            let mut device = device(set, threads);
            let lengths = [x.len(), packed.len() / 4, n, t * n, t * n, t].map(|n| 4 * n);
            let (at, arena_bytes) = place(lengths);
            let request = MemoryRequest {
                root: Default::default(),
                weights: no_weights(),
                arena_bytes,
                state_bytes: 0,
            };
            device.load(request).unwrap();
            device.begin_capture().unwrap();
            let matmul = [at[0], at[1], at[3]];
            device
                .launch(&hal::Launch::new("matmul_f32_f32", &matmul, &ints([t, n, k, k, n])))
                .unwrap();
            device
                .launch(&hal::Launch::new(
                    "add_bias_f32",
                    &[at[3], at[2], at[4]],
                    &ints([t, n, n, n]),
                ))
                .unwrap();
            device
                .launch(&hal::Launch::new("argmax_f32", &[at[4], at[5]], &ints([t, n, n])))
                .unwrap();
            let graph = device.end_capture().unwrap();
            assert_eq!(graph.len(), 3);
            device.write(at[1], &packed);
            device.write(at[2], &encode(F, &bias));
            for _ in 0..100 {
                device.write(at[0], &encode(F, &x));
                device.replay(&graph).unwrap();
                let mut got = vec![0; biased[2].len()];
                device.read(at[4], &mut got).unwrap();
                assert_eq!(got, biased[2], "{set}, {threads} threads");
                let mut ids = vec![0; largest[1].len()];
                device.read(at[5], &mut ids).unwrap();
                assert_eq!(ids, largest[1], "{set}, {threads} threads");
            }
        }
    }
}

#[test]
fn workers_wake_up_after_a_pause() {
    let mut device = loaded(2, 4096);
    let at = BufferRef { space: Space::Arena, offset: 0, bytes: 512 };
    device.begin_capture().unwrap();
    device.launch(&hal::Launch::new("add_f32", &[at, at, at], &ints([2, 64, 64, 64, 64]))).unwrap();
    let graph = device.end_capture().unwrap();
    device.write(at, &encode(F, &[1.0; 128]));
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        device.replay(&graph).unwrap();
    }
    let mut out = vec![0; 512];
    device.read(at, &mut out).unwrap();
    assert_eq!(decode(F, &out), [2f32.powi(20); 128]);
}

/// Times are in the order in which things happen, and the results those of any replay.
#[test]
fn a_timed_replay_computes_the_same_and_notes_every_launch() {
    for threads in [1, 2, 3] {
        let mut device = loaded(threads, 4096);
        let at = BufferRef { space: Space::Arena, offset: 0, bytes: 512 };
        device.begin_capture().unwrap();
        let (args, sizes) = ([at; 3], ints([2, 64, 64, 64, 64]));
        let add = hal::Launch::new("add_f32", &args, &sizes);
        for _ in 0..5 {
            device.launch(&add).unwrap();
        }
        let graph = device.end_capture().unwrap();
        device.write(at, &encode(F, &[1.0; 128]));
        for replay in 1..=3 {
            let timeline = device.replay_timed(&graph).unwrap();
            assert_eq!((timeline.launches(), timeline.threads()), (5, threads));
            let mut before = vec![Duration::ZERO; threads];
            for launch in 0..5 {
                let spans: Vec<_> = timeline.launch(launch).collect();
                assert_eq!(spans.len(), threads);
                let done = spans.iter().map(|s| s.ended).max().unwrap();
                for (span, before) in spans.iter().zip(&mut before) {
                    assert!(*before <= span.began && span.began <= span.ended, "{timeline:?}");
                    assert!(done <= span.passed && Duration::ZERO < span.passed, "{timeline:?}");
                    *before = span.passed;
                }
            }
            let mut out = vec![0; 512];
            device.read(at, &mut out).unwrap();
            assert_eq!(decode(F, &out), [2f32.powi(5 * replay); 128]);
        }
    }
}

#[test]
fn a_timeline_of_nothing_is_empty() {
    let mut device = loaded(2, 4096);
    device.begin_capture().unwrap();
    let graph = device.end_capture().unwrap();
    let timeline = device.replay_timed(&graph).unwrap();
    assert_eq!((timeline.launches(), timeline.threads()), (0, 2));
}

fn why(device: &mut CpuDevice, kernel: &str, args: &[BufferRef], scalars: &[Scalar]) -> String {
    device.begin_capture().unwrap();
    let error = device.launch(&hal::Launch::new(kernel, args, scalars)).unwrap_err();
    device.abort_capture();
    error.to_string()
}

#[test]
fn bad_calls_are_refused_with_the_reason() {
    let mut device = loaded(1, 4096);
    let at = |offset, bytes| BufferRef { space: Space::Arena, offset, bytes };
    let (a, b, c) = (at(0, 256), at(256, 256), at(512, 256));
    let sizes = ints([1, 64, 64, 64, 64]);

    let error = why(&mut device, "add_f64", &[a, b, c], &sizes);
    assert!(error.contains("has no kernel `add_f64`"), "{error}");
    let error = why(&mut device, "add_f32", &[a, b], &sizes);
    assert!(error.contains("`add_f32`: 2 buffers, `out` is missing"), "{error}");
    let error = why(&mut device, "add_f32", &[a, b, c, c], &sizes);
    assert!(error.contains("4 buffers and 5 scalars, expected 3 and 5"), "{error}");
    let error = why(&mut device, "add_f32", &[a, b, c], &sizes[..4]);
    assert!(error.contains("4 scalars, `out stride` is missing"), "{error}");
    let error = why(&mut device, "add_f32", &[a, b, at(4000, 256)], &sizes);
    assert!(error.contains("buffer 2 ends at byte 4256 of Arena, which has 4096"), "{error}");
    let error = why(&mut device, "add_f32", &[a, at(0, u64::MAX), c], &sizes);
    assert!(error.contains("buffer 1 ends at"), "{error}");
    let error = why(&mut device, "add_f32", &[a, at(8, 252), c], &sizes);
    assert!(error.contains("`second` has 252 bytes, too few for 1 rows of 64"), "{error}");
    let error = why(&mut device, "add_f32", &[a, at(2, 256), c], &sizes);
    assert!(error.contains("not aligned to 4 bytes"), "{error}");
    let weights = BufferRef { space: Space::Weights, offset: 0, bytes: 256 };
    let error = why(&mut device, "add_f32", &[a, b, weights], &sizes);
    assert!(error.contains("`out` is written and lies in the weights"), "{error}");
    let error = why(&mut device, "add_f32", &[a, b, c], &ints([2, 32, 16, 32, 32]));
    assert!(error.contains("have 32 elements and are 16 apart"), "{error}");
    let huge = ints([usize::MAX / 2, 64, usize::MAX / 2, 64, 64]);
    let error = why(&mut device, "add_f32", &[a, b, c], &huge);
    assert!(error.contains("too few for"), "{error}");
    let mut factor = sizes.clone();
    factor[1] = Scalar::Float(64.0);
    let error = why(&mut device, "add_f32", &[a, b, c], &factor);
    assert!(error.contains("`n` is the factor 64, expected a count"), "{error}");
    let mut attention = ints([1, 1, 1, 1, 1, 2, 16]);
    attention.push(Scalar::Float(-0.5));
    attention.extend(ints([2, 2]));
    let error = why(&mut device, "attention_f32_f32", &[a, b, c, c, a], &attention);
    assert!(error.contains("a scale of -0.5, expected one that is not negative"), "{error}");
}

#[test]
fn outputs_overlap_nothing_that_another_thread_may_read() {
    let mut device = loaded(1, 4096);
    let at = |offset, bytes| BufferRef { space: Space::Arena, offset, bytes };
    let (a, b) = (at(0, 256), at(256, 256));
    let overlap = "overlap and one is written";

    let sizes = ints([2, 32, 32, 32, 32]);
    for (args, why_not) in
        [([a, b, at(128, 256)], "0 and 2"), ([a, at(512, 256), at(448, 256)], "1 and 2")]
    {
        let error = why(&mut device, "add_f32", &args, &sizes);
        assert!(error.contains(&format!("buffers {why_not} {overlap}")), "{error}");
    }
    let error = why(&mut device, "cast_f32_bf16", &[a, a], &ints([2, 32, 32, 32]));
    assert!(error.contains(overlap), "{error}");
    let error = why(&mut device, "add_f32", &[a, b, a], &ints([2, 16, 32, 16, 16]));
    assert!(error.contains(overlap), "another stride: {error}");
    let error = why(&mut device, "matmul_f32_f32", &[a, at(256, 256), a], &ints([64, 1, 1, 1, 1]));
    assert!(error.contains(overlap), "{error}");

    device.begin_capture().unwrap();
    device.launch(&hal::Launch::new("add_f32", &[a, b, a], &sizes)).unwrap();
    device.launch(&hal::Launch::new("add_f32", &[a, a, at(256, 256)], &sizes)).unwrap();
}

/// Nothing runs between two replays of an empty graph, so nothing says that workers saw the first.
#[test]
fn empty_graphs_do_not_disturb_others() {
    let mut device = loaded(4, 4096);
    let at = BufferRef { space: Space::Arena, offset: 0, bytes: 512 };
    device.begin_capture().unwrap();
    let empty = device.end_capture().unwrap();
    device.begin_capture().unwrap();
    device.launch(&hal::Launch::new("add_f32", &[at, at, at], &ints([8, 16, 16, 16, 16]))).unwrap();
    let doubling = device.end_capture().unwrap();
    device.write(at, &encode(F, &[1.0; 128]));
    for _ in 0..100 {
        device.replay(&empty).unwrap();
        device.replay(&doubling).unwrap();
        device.replay(&empty).unwrap();
    }
    let mut out = vec![0; 512];
    device.read(at, &mut out).unwrap();
    assert_eq!(decode(F, &out), [2f32.powi(100); 128]);
}

/// No kernel may panic or read outside, whatever sizes a damaged artifact has.
#[test]
fn wild_sizes_are_refused_by_every_kernel() {
    let mut device = loaded(2, 4096);
    let at = BufferRef { space: Space::Arena, offset: 0, bytes: 64 };
    device.begin_capture().unwrap();
    for name in kernels::names() {
        for size in [3usize, 1 << 20, 1 << 33, 1 << 62, usize::MAX] {
            for (args, count) in [(2, 3), (2, 5), (3, 5), (4, 5), (5, 10), (4, 6), (3, 7)] {
                let mut scalars = vec![Scalar::Int(size as u64); count];
                for form in 0..2 {
                    if form == 1 {
                        *scalars.last_mut().unwrap() = Scalar::Float(1.0);
                    }
                    let got = device.launch(&hal::Launch::new(name, &vec![at; args], &scalars));
                    if size > 64 {
                        assert!(got.is_err(), "{name} {args} {scalars:?}");
                    }
                }
            }
        }
    }
}

/// What follows the counts of a kernel.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Nothing,
    Factor,
    End(End),
}

const PLAIN: End =
    End { bias: 0, gate: 0, alpha: 0.0, limit: 0.0, residual: None, argmax: false, top_k: 0 };

/// Kernel, buffers, counts and what follows. Attention has too many sizes to be met by chance.
const SHAPES: &[(&str, usize, usize, Tail)] = &[
    ("embed_nd_bf16_f32", 3, 4, Tail::Nothing),
    ("embed_panels_bf16_f32", 3, 4, Tail::Nothing),
    ("embed_compact_bf16_f32", 3, 4, Tail::Nothing),
    ("gather_rows_f32", 3, 5, Tail::Nothing),
    ("store_rows_bf16", 2, 3, Tail::Nothing),
    ("cast_f32_bf16", 2, 4, Tail::Nothing),
    ("add_f32", 3, 5, Tail::Nothing),
    ("add_bias_f32", 3, 4, Tail::Nothing),
    ("silu_mul_bf16", 3, 5, Tail::Nothing),
    ("rms_norm_f32_bf16", 3, 5, Tail::Factor),
    ("add_rms_norm_bf16", 5, 6, Tail::Factor),
    ("matmul_bf16_f32", 3, 5, Tail::Nothing),
    ("matmul_compact_f32", 3, 5, Tail::Nothing),
    ("linear_matmul_f32_bf16", 5, 5, Tail::End(End { bias: 1, residual: Some(16), ..PLAIN })),
    ("linear_matmul_bf16_bf16", 3, 5, Tail::End(End { gate: 1, ..PLAIN })),
    ("linear_matmul_compact_bf16", 3, 5, Tail::End(End { gate: 1, ..PLAIN })),
    ("linear_matmul_bf16_f32", 5, 5, Tail::End(End { argmax: true, ..PLAIN })),
    ("linear_dequant_matmul_i8_f32_f32", 5, 6, Tail::End(End { bias: 1, gate: 2, ..PLAIN })),
    ("linear_matmul_bf16_f32", 6, 5, Tail::End(End { top_k: 4, ..PLAIN })),
    ("linear_matmul_f32_f32", 7, 5, Tail::End(End { argmax: true, top_k: 2, ..PLAIN })),
    ("quant_matmul_i8_f32_bf16", 4, 6, Tail::Nothing),
    ("quant_matmul_fp8_bf16_f32", 4, 8, Tail::Nothing),
    ("static_matmul_i8_bf16_f32", 7, 5, Tail::Nothing),
    ("argmax_f32", 2, 3, Tail::Nothing),
    ("top_k_f32", 3, 4, Tail::Nothing),
    ("rotary_f32", 3, 7, Tail::Nothing),
    ("kv_write_bf16", 4, 6, Tail::Nothing),
];

proptest! {
    #![proptest_config(cases(4000))]

    /// A call that was bound writes into its own buffers alone, whatever sizes and data it has.
    #[test]
    fn bound_calls_stay_inside_their_buffers(
        shape in prop::sample::select(SHAPES),
        lengths in prop::collection::vec(0usize..700, 7),
        sizes in prop::collection::vec(prop::sample::select(vec![0u64, 1, 2, 4, 5, 16, 32, 64]), 9),
        data in any::<u8>(),
    ) {
        const GUARD: u64 = 128;
        let (kernel, buffers, counts, tail) = shape;
        let mut scalars: Vec<Scalar> = sizes.into_iter().map(Scalar::Int).collect();
        scalars.truncate(counts);
        match tail {
            Tail::Nothing => {}
            Tail::Factor => scalars.push(Scalar::Float(0.5)),
            Tail::End(end) => scalars.extend(end.scalars()),
        }
        let mut end = GUARD;
        let mut args: Vec<BufferRef> = Vec::new();
        for &length in &lengths[..buffers] {
            let bytes = 4 * length as u64;
            args.push(BufferRef { space: Space::Arena, offset: end, bytes });
            end = (end + bytes + GUARD).next_multiple_of(64);
        }
        for set in InstructionSet::available() {
            let mut device = device(set, 2);
            let request = MemoryRequest { root: Default::default(), weights: no_weights(), arena_bytes: end, state_bytes: 0 };
            device.load(request).unwrap();
            device.begin_capture().unwrap();
            if device.launch(&hal::Launch::new(kernel, &args, &scalars)).is_err() {
                return Ok(());
            }
            let graph = device.end_capture().unwrap();
            let whole = BufferRef { space: Space::Arena, offset: 0, bytes: end };
            device.write(whole, &vec![data; end as usize]);
            device.replay(&graph).unwrap();
            let mut after = vec![0; end as usize];
            device.read(whole, &mut after).unwrap();
            for at in &args {
                after[at.offset as usize..(at.offset + at.bytes) as usize].fill(data);
            }
            prop_assert!(after.iter().all(|&byte| byte == data), "{} {:?}", kernel, scalars);
        }
    }
}

#[test]
fn calls_out_of_order_are_misuse() {
    let misuse = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Misuse(_))), "{result:?}");
    };
    let mut device = device(InstructionSet::best(), 2);
    misuse(device.begin_capture());
    misuse(device.launch(&hal::Launch::new("copy_f32", &[], &[])));
    misuse(device.end_capture().map(drop));
    let request = || MemoryRequest {
        root: Default::default(),
        weights: no_weights(),
        arena_bytes: 64,
        state_bytes: 0,
    };
    device.load(request()).unwrap();
    device.begin_capture().unwrap();
    misuse(device.begin_capture());
    misuse(device.load(request()));
    let graph = device.end_capture().unwrap();
    assert!(graph.is_empty());
    device.replay(&graph).unwrap();
    device.load(request()).unwrap();
    misuse(device.replay(&graph));
}

#[test]
fn devices_can_be_dropped_at_any_time() {
    drop(device(InstructionSet::Portable, 4));
    drop(loaded(3, 64));
    let mut capturing = loaded(2, 64);
    capturing.begin_capture().unwrap();
}

#[test]
fn options_are_checked() {
    for threads in [0, 5000] {
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let error = CpuDevice::new(options).err().unwrap().to_string();
        assert!(error.contains("use 1 to 1024"), "{error}");
    }
    let missing =
        InstructionSet::ALL.into_iter().find(|s| !InstructionSet::available().contains(s));
    if missing.is_some() {
        let options = CpuOptions { instruction_set: missing, ..CpuOptions::default() };
        let error = CpuDevice::new(options).err().unwrap().to_string();
        assert!(error.contains("it has") && error.contains("portable"), "{error}");
    }
}

#[test]
fn the_name_says_what_runs() {
    assert_eq!(device(InstructionSet::Portable, 1).name(), "cpu portable, 1 thread");
    assert_eq!(device(InstructionSet::Portable, 2).name(), "cpu portable, 2 threads");
}

#[test]
fn pinning_ends_with_the_device() {
    let before = std::thread::available_parallelism().unwrap();
    let options = CpuOptions { pin: true, ..CpuOptions::default() };
    let mut device = CpuDevice::new(options).unwrap();
    device
        .load(MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes: 64,
            state_bytes: 0,
        })
        .unwrap();
    drop(device);
    assert_eq!(std::thread::available_parallelism().unwrap(), before);
}

/// The first device pins the thread that loads it; that must not confine the workers of a second.
#[cfg(target_os = "linux")]
#[test]
fn a_second_device_of_a_thread_has_its_own_processors() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let new = |threads| {
        let options = CpuOptions { threads: Some(threads), pin: true, ..CpuOptions::default() };
        let mut device = CpuDevice::new(options).unwrap();
        let request = MemoryRequest {
            root: Default::default(),
            weights: no_weights(),
            arena_bytes: 64,
            state_bytes: 0,
        };
        device.load(request).unwrap();
        device
    };
    let _devices = [new(1), new(2)];
    let processors = |status: &str| {
        let status = std::fs::read_to_string(status).ok()?;
        let field = |name| status.lines().find_map(|l| l.strip_prefix(name).map(str::trim));
        Some((field("Name:")?.to_owned(), field("Cpus_allowed_list:")?.to_owned()))
    };
    let (_, own) = processors("/proc/thread-self/status").unwrap();
    assert!(own.parse::<u32>().is_ok(), "pinned to one processor, not {own}");
    let pinned_workers = || -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let status = |task: std::fs::DirEntry| format!("{}/status", task.path().display());
        let all = tasks.filter_map(|t| processors(&status(t.ok()?)));
        let pinned =
            |(name, list): &(String, String)| name == "cpu-worker-1" && list.parse::<u32>().is_ok();
        all.filter(pinned).map(|(_, list)| list).collect()
    };
    // A worker pins itself when it starts; until then it is where the thread is that started it.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let apart = |workers: &[String]| !workers.is_empty() && !workers.contains(&own);
    while !apart(&pinned_workers()) && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    let workers = pinned_workers();
    assert!(apart(&workers), "{workers:?} beside {own}");
}
