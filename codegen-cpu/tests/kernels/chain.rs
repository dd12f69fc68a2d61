//! Chains: calls that run row by row on one thread each.

use crate::support::*;
use artifact::{BufferRef, Scalar, Space};
use codegen_cpu::{CpuDevice, InstructionSet};
use hal::{Device, DeviceError, MemoryRequest};
use proptest::prelude::*;
use tensor::DType;

const F: DType = DType::F32;

fn private(offset: u64, bytes: usize) -> BufferRef {
    BufferRef { space: Space::Private, offset, bytes: bytes as u64 }
}

fn with(sizes: &[usize], factors: &[f32]) -> Vec<Scalar> {
    let sizes = sizes.iter().map(|&n| Scalar::Int(n as u64));
    sizes.chain(factors.iter().map(|&f| Scalar::Float(f))).collect()
}

/// Rows of `heads` heads of `d` elements.
struct Shape {
    rows: usize,
    heads: usize,
    d: usize,
}

/// A decode step in small: norm of each head, rotation, write into the KV memory, and the norm of
/// a sum, quantised. What is between is private in a chain and in the arena otherwise.
fn record(device: &mut CpuDevice, at: &[BufferRef], s: &Shape, threads_meet: bool) {
    let Shape { rows, heads, d } = *s;
    let n = heads * d;
    let row = 4 * n;
    let [x, weight, table, slots, state, other, codes, scales, q, k, sum, normed] = at[..] else {
        panic!("twelve buffers")
    };
    device.begin_capture().unwrap();
    if !threads_meet {
        device.begin_chain(rows as u32, 4 * row as u64 + 256).unwrap();
    }
    let end = (row as u64).next_multiple_of(64);
    let [q, k, sum, normed] = match threads_meet {
        true => [q, k, sum, normed],
        false => [0, 1, 2, 3].map(|i| private(i * end, row)),
    };
    let mut launch = |kernel: &str, args: &[BufferRef], scalars: Vec<Scalar>| {
        device.launch(&hal::Launch::new(kernel, args, &scalars)).unwrap();
    };
    launch("rms_norm_f32_f32", &[x, weight, q], with(&[rows, heads, d, n, n], &[1e-6]));
    launch("rotary_f32", &[q, table, k], with(&[rows, heads, d, d, 0, n, n], &[]));
    launch("kv_write_bf16", &[k, q, slots, state], with(&[rows, heads, d, 16, n, n], &[]));
    launch("add_f32", &[k, other, sum], with(&[rows, n, n, n, n], &[]));
    launch("mul_f32", &[sum, q, normed], with(&[rows, n, n, n, n], &[]));
    launch("quantize_rows_f32", &[normed, codes, scales], with(&[rows, 1, n, n], &[]));
    if !threads_meet {
        device.end_chain().unwrap();
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_chain_gives_the_bits_of_its_calls(
        (rows, heads, half) in (1..9usize, 1..4usize, 1..24usize),
        threads in 1..=4usize,
        slots in prop::collection::vec(-1..40i32, 9),
        seed in any::<u64>(),
    ) {
        let s = Shape { rows, heads, d: 2 * half };
        let n = heads * s.d;
        let f = |seed, len| encode(F, &noise(seed, len));
        let buffers = || vec![
            f(seed, rows * n),
            f(seed ^ 1, s.d),
            f(seed ^ 2, rows * s.d),
            bytes_of_i32(&slots[..rows]),
            encode(DType::BF16, &noise(seed ^ 3, 2 * 2 * n * 16)),
            f(seed ^ 4, rows * n),
            vec![0; rows * n],
            unwritten(F, rows),
            unwritten(F, rows * n),
            unwritten(F, rows * n),
            unwritten(F, rows * n),
            unwritten(F, rows * n),
        ];
        for set in InstructionSet::available() {
            let done = [1, threads].map(|threads| {
                let mut buffers = buffers();
                let mut device = device(set, threads);
                let (at, arena_bytes) = place(buffers.iter().map(Vec::len));
                let request = MemoryRequest { root: Default::default(), weights: no_weights(), arena_bytes, state_bytes: 0 };
                device.load(request).unwrap();
                record(&mut device, &at, &s, false);
                let mut chained = buffers.clone();
                replay_on(&mut device, &at, &mut chained);
                record(&mut device, &at, &s, true);
                replay_on(&mut device, &at, &mut buffers);
                prop_assert!(chained[..8] == buffers[..8], "{set}, {threads} threads");
                Ok(chained)
            });
            let [one, several] = done;
            prop_assert!(one? == several?, "{set}: {threads} threads");
        }
    }
}

fn loaded(threads: usize) -> CpuDevice {
    let mut device = device(InstructionSet::best(), threads);
    let request = MemoryRequest {
        root: Default::default(),
        weights: no_weights(),
        arena_bytes: 1 << 16,
        state_bytes: 4096,
    };
    device.load(request).unwrap();
    device
}

fn arena(offset: u64, bytes: u64) -> BufferRef {
    BufferRef { space: Space::Arena, offset, bytes }
}

/// What the device says about these calls as a chain of `rows` rows.
fn why(rows: u32, calls: &[(&str, Vec<BufferRef>, Vec<Scalar>)]) -> String {
    let mut device = loaded(2);
    device.begin_capture().unwrap();
    let mut record = || {
        device.begin_chain(rows, 256)?;
        for (kernel, args, scalars) in calls {
            device.launch(&hal::Launch::new(kernel, args, scalars))?;
        }
        device.end_chain()
    };
    let said = record().err().map_or_else(|| "nothing".to_owned(), |e| e.to_string());
    device.abort_capture();
    device.begin_capture().unwrap();
    assert!(device.end_capture().is_ok(), "the device is usable again");
    said
}

#[test]
fn what_does_not_run_row_by_row_is_refused() {
    let sizes = |rows: usize| with(&[rows, 16, 16, 16, 16], &[]);
    let (a, b, c) = (arena(0, 512), arena(512, 512), arena(1024, 512));
    let add = |args: [BufferRef; 3], rows| ("add_f32", args.to_vec(), sizes(rows));
    assert_eq!(why(8, &[add([a, a, b], 8), add([b, a, c], 8)]), "nothing");

    let said = why(8, &[("matmul_f32_f32", vec![a, b, c], ints([8, 8, 8, 8, 8]))]);
    assert!(said.contains("`matmul_f32_f32`: it does not run row by row"), "{said}");
    let said = why(8, &[("sqrt_f32", vec![a, b], sizes(8))]);
    assert!(said.contains("`sqrt_f32`: it does not run row by row"), "{said}");
    let said = why(0, &[add([a, b, c], 8)]);
    assert!(said.contains("it has no rows"), "{said}");
    let said = why(3, &[add([a, b, c], 8)]);
    assert!(said.contains("call 0 has 8 rows in a chain of 3"), "{said}");
    let next_row = arena(512 + 64, 448);
    let said = why(7, &[add([a, a, b], 7), add([next_row, a, c], 7)]);
    assert!(said.contains("calls 0 and 1 of a chain share memory"), "{said}");
    let norm = ("rms_norm_f32_f32", vec![a, b, c], with(&[8, 1, 16, 16, 16], &[1e-6]));
    let said = why(8, &[add([a, a, b], 8), norm.clone()]);
    assert!(said.contains("calls 0 and 1 of a chain share memory"), "a weight: {said}");
    assert_eq!(why(8, &[norm]), "nothing");
}

#[test]
fn private_memory_is_for_rows_of_chains() {
    let row = private(0, 64);
    let sizes = with(&[8, 16, 16, 16, 16], &[]);
    let (a, b) = (arena(0, 512), arena(512, 512));
    let call = |args: [BufferRef; 3]| ("add_f32", args.to_vec(), sizes.clone());
    assert_eq!(why(8, &[call([a, a, row]), call([row, a, b])]), "nothing");
    assert_eq!(why(8, &[call([a, a, row]), call([row, row, row])]), "nothing", "in place");

    let said = why(8, &[call([a, a, private(224, 64)])]);
    assert!(said.contains("buffer 2 ends at byte 288 of Private, which has 256"), "{said}");
    let said = why(8, &[call([a, a, private(0, 60)])]);
    assert!(said.contains("`out` has 60 bytes, too few for 1 rows of 16"), "{said}");
    let said = why(8, &[call([row, a, private(32, 64)])]);
    assert!(said.contains("overlap and one is written"), "{said}");
    let table = ("rope_table", vec![private(0, 32), b], with(&[8, 1], &[1.0, 1.0]));
    let said = why(8, &[table]);
    assert!(said.contains("`positions` is private memory, which holds rows alone"), "{said}");

    let mut device = loaded(1);
    device.begin_capture().unwrap();
    let error =
        device.launch(&hal::Launch::new("add_f32", &[a, a, row], &sizes)).unwrap_err().to_string();
    assert!(error.contains("private memory outside a chain"), "{error}");
    assert!(device.begin_chain(8, u64::MAX).is_err());
}

#[test]
fn chains_open_and_close_inside_a_capture() {
    let mut device = loaded(1);
    assert!(matches!(device.begin_chain(1, 0), Err(DeviceError::Misuse(_))));
    assert!(matches!(device.end_chain(), Err(DeviceError::Misuse(_))));
    device.begin_capture().unwrap();
    assert!(matches!(device.end_chain(), Err(DeviceError::Misuse(_))));
    device.begin_chain(1, 0).unwrap();
    assert!(matches!(device.begin_chain(1, 0), Err(DeviceError::Misuse(_))));
    assert!(matches!(device.end_capture(), Err(DeviceError::Misuse(_))));
    device.end_chain().unwrap();
    assert_eq!(device.end_capture().unwrap().len(), 1);
}
